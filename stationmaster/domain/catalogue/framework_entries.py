"""The recipes that other frameworks train; shapes are those of the product's own trainer."""

from __future__ import annotations

from typing import Any, Final

from stationmaster.domain.catalogue.framework_training import (
    MOCK,
    BridgeTraining,
    MegatronTraining,
    TitanTraining,
)
from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe

_MACHINES: Final[dict[str, Any]] = {
    "default_instance": "p5.48xlarge",
    "default_nodes": 2,
    "max_nodes": 64,
    "needs_gpu": True,
    "nproc_per_node": 0,
    "file_system_gib": 2400,
    "file_system_mbps_per_tib": 250,
}
# Of meta-llama/Llama-3.1-8B: the newest, of October 2024.
_TOKENIZER_COMMIT: Final = "d04e592bb4f6aa9cfee91e2e20afa771667e1d4b"


def framework_recipes(llama31_8b: LanguageModel | ImageModel) -> tuple[Recipe, ...]:
    assert isinstance(llama31_8b, LanguageModel)
    return (_megatron_llama3(llama31_8b), _bridge_llama31(llama31_8b), _titan_llama31(llama31_8b))


def _megatron_llama3(model: LanguageModel) -> Recipe:
    """Make Llama 3.1 8B with the schedule of the public continual pre-training workshop for
    Megatron-LM.

    The workshop trains with tensor parallel 2, a rate of 1e-5 and no warm-up. This one has a
    warm-up, the published shape, and a batch of 128 sequences of 8,192 tokens, about 1 M tokens.
    """
    return Recipe(
        name="megatron-llama3-8b",
        framework="megatron-lm",
        task="pretraining",
        summary="Megatron-LM: tensor, pipeline and data parallel, 8,192 tokens",
        model=model,
        training=MegatronTraining(
            steps=100,
            global_batch_size=128,
            micro_batch_size=1,
            sequence_length=8192,
            learning_rate=1e-5,
            min_learning_rate=1e-6,
            warmup_steps=10,
            tensor_parallel=2,
            checkpoint_every=50,
            eval_every=50,
            eval_steps=10,
            dataset=MOCK,
            tokenizer=model.repository,
        ),
        **_MACHINES,
    )


def _bridge_llama31(model: LanguageModel) -> Recipe:
    """Make Llama 3.1 8B: continual pre-training as the public workshop's variant for NeMo has it.

    That has a rate of 1e-5 falling to 1e-6 after 100 steps of warm-up, tensor and sequence parallel
    2, and an evaluation and a checkpoint every 500 steps; the batch is Megatron-LM's here.
    """
    return Recipe(
        name="megatron-bridge-llama3.1-8b",
        framework="megatron-bridge",
        task="pretraining",
        summary="Megatron-Bridge of NVIDIA NeMo: the same core, 8,192 tokens",
        model=model,
        training=BridgeTraining(
            steps=1000,
            global_batch_size=128,
            micro_batch_size=1,
            sequence_length=8192,
            learning_rate=1e-5,
            min_learning_rate=1e-6,
            warmup_steps=100,
            tensor_parallel=2,
            checkpoint_every=500,
            log_every=10,
            eval_every=500,
            eval_steps=20,
            dataset=MOCK,
            tokenizer=model.repository,
        ),
        **_MACHINES,
    )


def _titan_llama31(model: LanguageModel) -> Recipe:
    """Make Llama 3.1 8B as torchtitan's own configuration llama3_8b trains it.

    Rate, warm-up, schedule, checkpointing and intervals are its own. Its batch is one sequence a
    GPU, and here that of the other recipes. It evaluates 1,200 batches, and here 20.
    """
    return Recipe(
        name="torchtitan-llama3.1-8b",
        framework="torchtitan",
        task="pretraining",
        summary="torchtitan of PyTorch: FSDP2 and tensor parallel, 8,192 tokens",
        model=model,
        training=TitanTraining(
            steps=1000,
            global_batch_size=128,
            micro_batch_size=1,
            sequence_length=8192,
            learning_rate=3e-4,
            warmup_steps=200,
            checkpoint_every=500,
            log_every=10,
            eval_every=500,
            eval_steps=20,
            tokenizer=f"{model.repository}@{_TOKENIZER_COMMIT}",
        ),
        **_MACHINES,
    )
