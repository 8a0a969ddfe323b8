"""The recipes that other frameworks train; shapes are those of the product's own trainer."""

from __future__ import annotations

from typing import Any, Final

from stationmaster.domain.catalogue.framework_training import (
    MOCK,
    BridgeTraining,
    MegatronTraining,
    NemoTraining,
    TitanTraining,
)
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe

# Of meta-llama/Llama-3.1-8B: the newest, of October 2024.
_TOKENIZER_COMMIT: Final = "d04e592bb4f6aa9cfee91e2e20afa771667e1d4b"


def framework_recipes(llama31_8b: LanguageModel) -> tuple[Recipe, ...]:
    """Make the recipes of Llama 3.1 8B, each by a public sample of its framework.

    All have the published shape, and a batch of 128 sequences of 8,192 tokens, about 1 M tokens.
    """
    model = llama31_8b
    batch: dict[str, Any] = {"global_batch_size": 128, "sequence_length": 8192}
    # The public continual pre-training workshop, for Megatron-LM and in its variant for NeMo: a
    # rate of 1e-5, tensor parallel 2, and in the variant a fall to 1e-6 after a warm-up.
    workshop: dict[str, Any] = {
        **batch,
        "learning_rate": 1e-5,
        "min_learning_rate": 1e-6,
        "tensor_parallel": 2,
        "dataset": MOCK,
        "tokenizer": model.repository,
    }
    seldom: dict[str, Any] = {
        "steps": 1000,
        "checkpoint_every": 500,
        "log_every": 10,
        "eval_every": 500,
        "eval_steps": 20,
    }
    return (
        Recipe(
            name="megatron-llama3-8b",
            framework="megatron-lm",
            summary="Megatron-LM: tensor, pipeline and data parallel, 8,192 tokens",
            model=model,
            training=MegatronTraining(
                **workshop,
                steps=100,
                warmup_steps=10,
                checkpoint_every=50,
                eval_every=50,
                eval_steps=10,
            ),
            default_instance="p5.48xlarge",
        ),
        Recipe(
            name="megatron-bridge-llama3.1-8b",
            framework="megatron-bridge",
            summary="Megatron-Bridge of NVIDIA NeMo: the same core, 8,192 tokens",
            model=model,
            training=BridgeTraining(**workshop, **seldom, warmup_steps=100),
            default_instance="p5.48xlarge",
        ),
        Recipe(
            name="nemo-llama3-8b",
            framework="nemo",
            summary="NVIDIA NeMo 2 in Python: the same core, 8,192 tokens",
            model=model,
            training=NemoTraining(**workshop, **seldom, warmup_steps=100),
            default_instance="p5.48xlarge",
        ),
        # As torchtitan's own configuration llama3_8b; that has a batch of one sequence a GPU, and
        # evaluates 1,200 batches.
        Recipe(
            name="torchtitan-llama3.1-8b",
            framework="torchtitan",
            summary="torchtitan of PyTorch: FSDP2 and tensor parallel, 8,192 tokens",
            model=model,
            training=TitanTraining(
                **batch,
                **seldom,
                learning_rate=3e-4,
                warmup_steps=200,
                tokenizer=f"{model.repository}@{_TOKENIZER_COMMIT}",
            ),
            default_instance="p5.48xlarge",
        ),
    )
