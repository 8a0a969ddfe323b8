"""The recipes that Stationmaster ships.

Shapes are the published configurations; a test builds every model without memory and compares its
parameter count with the published number. Batches, contexts and schedules follow the public FSDP,
fine-tuning and torch elastic samples for Amazon EKS, with an integer warm-up where a sample's
fraction rounds to none, and checkpoints where a sample's interval never fires.
"""

from __future__ import annotations

from typing import Any, Final

from stationmaster.domain.catalogue.framework_entries import framework_recipes
from stationmaster.domain.catalogue.models import ImageModel, LanguageModel, RopeScaling
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import ImageTraining, LanguageTraining

_SMOKE_MACHINES: Final[dict[str, Any]] = {
    "default_instance": "m5.2xlarge",
    "default_nodes": 2,
    "max_nodes": 8,
    "needs_gpu": False,
    "nproc_per_node": 1,
    "file_system_gib": 1200,
    "file_system_mbps_per_tib": 125,
}

_TINY_SHAPE: Final[dict[str, Any]] = {
    "layers": 2,
    "hidden_size": 64,
    "heads": 4,
    "kv_heads": 2,
    "ffn_size": 160,
    "vocab_size": 2048,
    "context_length": 128,
}


def _language_smoke(recipe: Recipe) -> Recipe:
    """Narrow the recipe to two blocks, a few steps of short sequences, and two CPU nodes."""
    assert isinstance(recipe.model, LanguageModel)
    assert isinstance(recipe.training, LanguageTraining)
    grouped = recipe.model.kv_heads < recipe.model.heads
    model = recipe.model.model_copy(
        update=_TINY_SHAPE
        | {
            "kv_heads": _TINY_SHAPE["kv_heads"] if grouped else _TINY_SHAPE["heads"],
            "experts": 4 if recipe.model.experts else 0,
            "rope_scaling": recipe.model.rope_scaling
            and recipe.model.rope_scaling.model_copy(update={"original_context_length": 64}),
        }
    )
    small: dict[str, Any] = {
        "steps": 6,
        "global_batch_size": 4,
        "micro_batch_size": 2,
        "sequence_length": 64,
        "learning_rate": 3e-3,
        "min_learning_rate": 3e-4,
        "warmup_steps": 2,
        "context_parallel": 1,  # a lone process runs it as well
        "compile": False,  # the compiler would take longer than all of the run
        "checkpoint_every": 3,
        "eval_every": 3,
        "eval_samples": 4,
    }
    if recipe.task == "pretraining":
        small |= {"dataset": "python-code", "tokenizer": "bpe"}
    else:
        model = _TINY_LLAMA_MODEL  # so that weights= takes what tiny-llama has trained
        small |= {"dataset": "python-docstrings", "tokenizer": "bpe", "weights": "sample"}
    return recipe.model_copy(
        update={
            "model": model,
            "training": recipe.training.model_copy(update=small),
            **_SMOKE_MACHINES,
        }
    )


def _with_smoke(recipe: Recipe) -> Recipe:
    smoke = _image_smoke if isinstance(recipe.model, ImageModel) else _language_smoke
    return recipe.model_copy(update={"smoke": smoke(recipe)})


def _pretraining(
    name: str,
    summary: str,
    model: LanguageModel,
    *,
    instance: str,
    nodes: int,
    sequence_length: int,
    file_system_gib: int = 2400,
    file_system_mbps_per_tib: int = 250,
    **keys: Any,
) -> Recipe:
    """Make an FSDP pre-training recipe on C4, the family of the public FSDP sample."""
    return _with_smoke(
        Recipe(
            name=name,
            framework="fsdp",
            task="pretraining",
            summary=summary,
            model=model,
            training=LanguageTraining(
                **{
                    "steps": 100,
                    "global_batch_size": 64,
                    "sequence_length": sequence_length,
                    "learning_rate": 1e-4,
                    "min_learning_rate": 1e-5,
                    "warmup_steps": 10,
                    "weight_decay": 0.2,
                    "activation_checkpointing": "full",
                    "compile": True,
                    "checkpoint_every": 50,
                    "eval_every": 50,
                    "eval_samples": 64,
                    "dataset": "c4",
                    "tokenizer": model.repository,
                }
                | keys
            ),
            default_instance=instance,
            default_nodes=nodes,
            max_nodes=64,
            needs_gpu=True,
            nproc_per_node=0,
            file_system_gib=file_system_gib,
            file_system_mbps_per_tib=file_system_mbps_per_tib,
        )
    )


_TINY_LLAMA_MODEL: Final = LanguageModel(
    family="llama",
    layers=4,
    hidden_size=128,
    heads=4,
    kv_heads=2,
    ffn_size=384,
    vocab_size=4096,
    context_length=128,
)

_TINY_TRAINING: Final = LanguageTraining(
    steps=60,
    global_batch_size=16,
    micro_batch_size=64,
    sequence_length=128,
    learning_rate=3e-3,
    min_learning_rate=3e-4,
    warmup_steps=5,
    checkpoint_every=20,
    dataset="python-code",
)

TINY_LLAMA: Final = _with_smoke(
    Recipe(
        name="tiny-llama",
        framework="fsdp",
        task="pretraining",
        summary="small Llama on Python's sources",
        model=_TINY_LLAMA_MODEL,
        training=_TINY_TRAINING,
        default_instance="m5.2xlarge",
        default_nodes=2,
        max_nodes=8,
        needs_gpu=False,
        nproc_per_node=1,
        file_system_gib=1200,
        file_system_mbps_per_tib=125,
    )
)

LLAMA2_7B_MODEL: Final = LanguageModel(
    family="llama",
    repository="meta-llama/Llama-2-7b-hf",
    layers=32,
    hidden_size=4096,
    heads=32,
    kv_heads=32,
    ffn_size=11008,
    vocab_size=32000,
    context_length=4096,
)

LLAMA2_7B: Final = _pretraining(
    "llama2-7b",
    "FSDP pre-training, 4,096 tokens",
    LLAMA2_7B_MODEL,
    instance="p4d.24xlarge",
    nodes=2,
    activation_checkpointing="selective",
    sequence_length=4096,
)

LLAMA2_13B: Final = _pretraining(
    "llama2-13b",
    "FSDP pre-training, 4,096 tokens",
    LanguageModel(
        family="llama",
        repository="meta-llama/Llama-2-13b-hf",
        layers=40,
        hidden_size=5120,
        heads=40,
        kv_heads=40,
        ffn_size=13824,
        vocab_size=32000,
        context_length=4096,
    ),
    instance="p4d.24xlarge",
    nodes=2,
    sequence_length=4096,
    steps=50,
    eval_every=25,
)

LLAMA2_70B: Final = _pretraining(
    "llama2-70b",
    "FSDP pre-training, 4,096 tokens",
    LanguageModel(
        family="llama",
        repository="meta-llama/Llama-2-70b-hf",
        layers=80,
        hidden_size=8192,
        heads=64,
        kv_heads=8,
        ffn_size=28672,
        vocab_size=32000,
        context_length=4096,
    ),
    instance="p5.48xlarge",
    nodes=4,
    sequence_length=4096,
    file_system_gib=4800,
    file_system_mbps_per_tib=1000,  # a checkpoint of 828 GB in 3 minutes
    steps=30,
    checkpoint_every=15,
    eval_every=10,
)

LLAMA31_8B: Final = _pretraining(
    "llama3.1-8b",
    "FSDP pre-training, 8,192 tokens",
    LanguageModel(
        family="llama",
        repository="meta-llama/Llama-3.1-8B",
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        ffn_size=14336,
        vocab_size=128256,
        context_length=131072,
        rope_theta=5e5,
        rope_scaling=RopeScaling(factor=8),
    ),
    instance="p5.48xlarge",
    nodes=2,
    activation_checkpointing="selective",
    sequence_length=8192,
    steps=50,
    eval_every=25,
)

LLAMA31_70B: Final = _pretraining(
    "llama3.1-70b",
    "FSDP pre-training, 8,192 tokens",
    LanguageModel(
        family="llama",
        repository="meta-llama/Llama-3.1-70B",
        layers=80,
        hidden_size=8192,
        heads=64,
        kv_heads=8,
        ffn_size=28672,
        vocab_size=128256,
        context_length=131072,
        rope_theta=5e5,
        rope_scaling=RopeScaling(factor=8),
    ),
    instance="p5en.48xlarge",
    nodes=4,
    # With whole sequences only full checkpointing fits, and a step takes a third longer; with two
    # parts memory would be tight.
    activation_checkpointing="selective",
    context_parallel=4,
    sequence_length=8192,
    file_system_gib=4800,
    file_system_mbps_per_tib=1000,
    steps=30,
    checkpoint_every=15,
    eval_every=10,
)

LLAMA32_1B: Final = _pretraining(
    "llama3.2-1b",
    "FSDP pre-training, 8,192 tokens",
    LanguageModel(
        family="llama",
        repository="meta-llama/Llama-3.2-1B",
        layers=16,
        hidden_size=2048,
        heads=32,
        kv_heads=8,
        ffn_size=8192,
        vocab_size=128256,
        context_length=131072,
        rope_theta=5e5,
        rope_scaling=RopeScaling(factor=32),
        tied_embeddings=True,
    ),
    instance="g5.12xlarge",
    nodes=2,
    activation_checkpointing="selective",
    sequence_length=8192,
    file_system_gib=1200,
)

LLAMA32_3B: Final = _pretraining(
    "llama3.2-3b",
    "FSDP pre-training, 8,192 tokens",
    LanguageModel(
        family="llama",
        repository="meta-llama/Llama-3.2-3B",
        layers=28,
        hidden_size=3072,
        heads=24,
        kv_heads=8,
        ffn_size=8192,
        vocab_size=128256,
        context_length=131072,
        rope_theta=5e5,
        rope_scaling=RopeScaling(factor=32),
        tied_embeddings=True,
    ),
    instance="g6e.12xlarge",
    nodes=2,
    activation_checkpointing="selective",
    sequence_length=8192,
    file_system_gib=1200,
)

MIXTRAL_8X7B: Final = _pretraining(
    "mixtral-8x7b",
    "FSDP, 8 experts, 32,768 tokens",
    LanguageModel(
        family="mixtral",
        repository="mistralai/Mixtral-8x7B-v0.1",
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        ffn_size=14336,
        vocab_size=32000,
        context_length=32768,
        rope_theta=1e6,
        experts=8,
        experts_per_token=2,
        router_aux_loss=0.02,
    ),
    instance="p5.48xlarge",
    nodes=4,
    # With whole sequences only full checkpointing fits, and a step takes a third longer. Sharing
    # experts as well would free little here, and all wait for the busiest rank.
    activation_checkpointing="selective",
    context_parallel=8,
    sequence_length=32768,
    file_system_gib=4800,
    steps=200,
    seed=42,
)

MATHSTRAL_7B: Final = _pretraining(
    "mathstral-7b",
    "FSDP pre-training, 32,768 tokens",
    LanguageModel(
        family="mistral",
        repository="mistralai/Mathstral-7B-v0.1",
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        ffn_size=14336,
        vocab_size=32768,
        context_length=32768,
        rope_theta=1e6,
    ),
    instance="p5.48xlarge",
    nodes=2,
    sequence_length=32768,
    steps=200,
    seed=42,
)

# Three passes over about 64 packed steps, the rate decayed by 0.85 after each, as the public
# fine-tuning sample does.
LLAMA2_7B_FINETUNE: Final = _with_smoke(
    Recipe(
        name="llama2-7b-finetune",
        framework="fsdp",
        task="finetuning",
        summary="FSDP fine-tuning on instructions",
        model=LLAMA2_7B_MODEL,
        training=LanguageTraining(
            steps=192,
            global_batch_size=48,
            sequence_length=4096,
            learning_rate=1e-4,
            schedule="step",
            decay_every=64,
            decay_factor=0.85,
            weight_decay=0.0,
            activation_checkpointing="selective",
            checkpoint_every=64,
            eval_every=64,
            eval_samples=200,
            seed=42,
            dataset="hub:knkarthick/samsum",
            tokenizer=LLAMA2_7B_MODEL.repository,
            weights=LLAMA2_7B_MODEL.repository,
        ),
        default_instance="p4d.24xlarge",
        default_nodes=2,
        max_nodes=64,
        needs_gpu=True,
        nproc_per_node=0,
        file_system_gib=2400,
        file_system_mbps_per_tib=250,
    )
)

DDP_CPU: Final = _with_smoke(
    Recipe(
        name="ddp-cpu",
        framework="ddp",
        task="pretraining",
        summary="tiny-llama with DDP, 4 ranks a node",
        model=_TINY_LLAMA_MODEL,
        training=_TINY_TRAINING.model_copy(update={"parallelism": "ddp", "steps": 200}),
        default_instance="m5.2xlarge",
        default_nodes=2,
        max_nodes=8,
        needs_gpu=False,
        nproc_per_node=4,
        file_system_gib=1200,
        file_system_mbps_per_tib=125,
    )
)


def _image_smoke(recipe: Recipe) -> Recipe:
    """Narrow the architecture to fewer blocks, on generated images, on two CPU nodes."""
    assert isinstance(recipe.model, ImageModel)
    small_models: dict[str, dict[str, Any]] = {
        "resnet": {
            "stem_width": 16,
            "stage_widths": (32, 64),
            "stage_depths": (1, 1),
            "num_parameters": 10_484,
            "kept_elements_per_pixel": 28,
        },
        "efficientnet": {
            "width_coefficient": 0.25,
            "depth_coefficient": 0.25,
            "num_parameters": 124_896,
            "kept_elements_per_pixel": 113,
        },
    }
    return recipe.model_copy(
        update={
            "model": recipe.model.model_copy(
                update=small_models[recipe.model.architecture]
                | {"num_classes": 4, "native_image_size": 32, "forward_gflops": 0.01}
            ),
            "training": recipe.training.model_copy(
                update={
                    "steps": 8,
                    "global_batch_size": 16,
                    "micro_batch_size": 8,
                    "learning_rate": 0.02,
                    "warmup_steps": 2,
                    "decay_every": 100,
                    "log_every": 1,
                    "checkpoint_every": 3,
                    "eval_every": 4,
                    "eval_samples": 16,
                    "image_size": 32,
                    "data_workers": 0,
                    "dataset": "shapes",
                }
            ),
            **_SMOKE_MACHINES,
        }
    )


def _images(
    name: str, summary: str, model: ImageModel, *, instance: str, nodes: int, **keys: Any
) -> Recipe:
    """Make a torch elastic recipe on ImageNet folders: SGD, 0.1 for 256 images, a
    tenth every 30.
    """
    # 1,281,167 training images are 5,004 steps of 256 an epoch.
    return _with_smoke(
        Recipe(
            name=name,
            framework="torch-elastic",
            task="image-classification",
            summary=summary,
            model=model,
            training=ImageTraining(
                **{
                    "optimizer": "sgd",
                    "schedule": "step",
                    "decay_factor": 0.1,
                    "weight_decay": 1e-4,
                    "grad_clip": 0.0,
                    "parallelism": "ddp",
                    "image_size": model.native_image_size,
                    "log_every": 10,
                    "dataset": "/fsx/imagenet",
                }
                | keys
            ),
            default_instance=instance,
            default_nodes=nodes,
            max_nodes=128,
            needs_gpu=True,
            nproc_per_node=0,
            file_system_gib=1200,
            file_system_mbps_per_tib=250,
        )
    )


RESNET50: Final = _images(
    "resnet50",
    "DDP on ImageNet, 224 pixels, learning rate 0.1 x batch / 256",
    ImageModel(
        architecture="resnet",
        stage_widths=(256, 512, 1024, 2048),
        stage_depths=(3, 4, 6, 3),
        native_image_size=224,
        num_parameters=25_557_032,
        forward_gflops=8.2,
        kept_elements_per_pixel=428,
    ),
    instance="g5.12xlarge",
    nodes=2,
    steps=112_590,  # 90 epochs of 1,251 steps
    global_batch_size=1024,
    micro_batch_size=128,
    learning_rate=0.4,
    warmup_steps=6255,
    decay_every=37_530,
    checkpoint_every=1251,
    eval_every=1251,
)

EFFICIENTNET_B7: Final = _images(
    "efficientnet-b7",
    "DDP on ImageNet, 600 pixels, learning rate 0.1 x batch / 256",
    ImageModel(
        architecture="efficientnet",
        width_coefficient=2.0,
        depth_coefficient=3.1,
        dropout=0.5,
        native_image_size=600,
        num_parameters=66_347_960,
        forward_gflops=74.0,
        kept_elements_per_pixel=2679,
    ),
    instance="p4d.24xlarge",
    nodes=3,
    steps=3336,  # one epoch
    global_batch_size=384,
    micro_batch_size=16,
    learning_rate=0.15,
    warmup_steps=300,
    decay_every=100_080,
    checkpoint_every=834,
    eval_every=3336,
)

CATALOGUE: Final[dict[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        TINY_LLAMA,
        LLAMA2_7B,
        LLAMA2_13B,
        LLAMA2_70B,
        LLAMA31_8B,
        LLAMA31_70B,
        LLAMA32_1B,
        LLAMA32_3B,
        MIXTRAL_8X7B,
        MATHSTRAL_7B,
        LLAMA2_7B_FINETUNE,
        DDP_CPU,
        RESNET50,
        EFFICIENTNET_B7,
        *framework_recipes(LLAMA31_8B.model),
    )
}
