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
from stationmaster.domain.catalogue.recipes import CPU_MACHINES, Recipe
from stationmaster.domain.catalogue.training_config import ImageTraining, LanguageTraining

_SHAPE: Final = (
    "layers",
    "hidden_size",
    "heads",
    "kv_heads",
    "ffn_size",
    "vocab_size",
    "context_length",
)


def _shape(*sizes: int) -> dict[str, int]:
    return dict(zip(_SHAPE, sizes, strict=True))


def _model(family: str, repository: str, *sizes: int, **others: Any) -> LanguageModel:
    return LanguageModel.model_validate(
        {"family": family, "repository": repository} | _shape(*sizes) | others
    )


def _llama3(repository: str, *sizes: int, factor: int, **others: Any) -> LanguageModel:
    scaling = RopeScaling(factor=factor)
    return _model("llama", repository, *sizes, rope_theta=5e5, rope_scaling=scaling, **others)


# fmt: off
#                                        layers hidden heads kv  inner   words  context
_TINY: Final = _model("llama", "",            4,  128,  4,  2,   384,   4096,     128)
_TINY_SHAPE: Final = _shape(                  2,   64,  4,  2,   160,   2048,     128)
_LLAMA2_7B: Final = _model(
    "llama", "meta-llama/Llama-2-7b-hf",     32, 4096, 32, 32, 11008,  32000,    4096)
_LLAMA2_13B: Final = _model(
    "llama", "meta-llama/Llama-2-13b-hf",    40, 5120, 40, 40, 13824,  32000,    4096)
_LLAMA2_70B: Final = _model(
    "llama", "meta-llama/Llama-2-70b-hf",    80, 8192, 64,  8, 28672,  32000,    4096)
_LLAMA31_8B: Final = _llama3(
    "meta-llama/Llama-3.1-8B",               32, 4096, 32,  8, 14336, 128256,  131072, factor=8)
_LLAMA31_70B: Final = _llama3(
    "meta-llama/Llama-3.1-70B",              80, 8192, 64,  8, 28672, 128256,  131072, factor=8)
_LLAMA32_1B: Final = _llama3(
    "meta-llama/Llama-3.2-1B",               16, 2048, 32,  8,  8192, 128256,  131072, factor=32,
    tied_embeddings=True)
_LLAMA32_3B: Final = _llama3(
    "meta-llama/Llama-3.2-3B",               28, 3072, 24,  8,  8192, 128256,  131072, factor=32,
    tied_embeddings=True)
_MATHSTRAL_7B: Final = _model(
    "mistral", "mistralai/Mathstral-7B-v0.1", 32, 4096, 32, 8, 14336,  32768,   32768,
    rope_theta=1e6)
_MIXTRAL_8X7B: Final = _model(
    "mixtral", "mistralai/Mixtral-8x7B-v0.1", 32, 4096, 32, 8, 14336,  32000,   32768,
    rope_theta=1e6, experts=8, experts_per_token=2, router_aux_loss=0.02)
# fmt: on


def _language_smoke(recipe: Recipe) -> dict[str, Any]:
    """Narrow the recipe to two blocks and a few steps of short sequences."""
    model = recipe.model
    assert isinstance(model, LanguageModel)
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
        "dataset": "python-code",
        "tokenizer": "bpe",
    }
    if recipe.task == "finetuning":  # so that weights= takes what tiny-llama has trained
        weights = {"dataset": "python-docstrings", "weights": "sample"}
        return {"model": _TINY, "training": recipe.training.model_copy(update=small | weights)}
    shape: dict[str, Any] = {**_TINY_SHAPE}
    if model.kv_heads == model.heads:
        shape["kv_heads"] = shape["heads"]
    if model.experts:
        shape["experts"] = 4
    if model.rope_scaling is not None:
        scaling = {"original_context_length": 64}
        shape["rope_scaling"] = model.rope_scaling.model_copy(update=scaling)
    training = recipe.training.model_copy(update=small)
    return {"model": model.model_copy(update=shape), "training": training}


_SMALL_IMAGE_MODELS: Final[dict[str, dict[str, Any]]] = {
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


def _image_smoke(recipe: Recipe) -> dict[str, Any]:
    """Narrow the architecture to fewer blocks, on generated images."""
    model = recipe.model
    assert isinstance(model, ImageModel)
    small = {"num_classes": 4, "native_image_size": 32, "forward_gflops": 0.01}
    steps = {
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
    return {
        "model": model.model_copy(update=_SMALL_IMAGE_MODELS[model.architecture] | small),
        "training": recipe.training.model_copy(update=steps),
    }


def _with_smoke(recipe: Recipe) -> Recipe:
    """Add what preset=smoke runs: the same on two CPU nodes."""
    narrow = _image_smoke if isinstance(recipe.model, ImageModel) else _language_smoke
    smoke = recipe.model_copy(update=narrow(recipe) | CPU_MACHINES)
    return recipe.model_copy(update={"smoke": smoke})


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
        summary="small Llama on Python's sources",
        model=_TINY,
        training=_TINY_TRAINING,
        **CPU_MACHINES,
    )
)

_DDP_CPU: Final = _with_smoke(
    Recipe(
        name="ddp-cpu",
        framework="ddp",
        summary="tiny-llama with DDP, 4 ranks a node",
        model=_TINY,
        training=_TINY_TRAINING.model_copy(update={"parallelism": "ddp", "steps": 200}),
        **CPU_MACHINES | {"nproc_per_node": 4},
    )
)


def _pretraining(
    name: str,
    model: LanguageModel,
    instance: str,
    *,
    nodes: int = 2,
    summary: str = "FSDP pre-training, {:,} tokens",
    file_system: tuple[int, int] = (2400, 250),
    **keys: Any,
) -> Recipe:
    """Make an FSDP pre-training recipe on C4, the family of the public FSDP sample.

    Args:
        file_system: its GiB, and MB/s a TiB.
    """
    training = {
        "steps": 100,
        "global_batch_size": 64,
        "sequence_length": min(8192, model.context_length),
        "learning_rate": 1e-4,
        "min_learning_rate": 1e-5,
        "warmup_steps": 10,
        "weight_decay": 0.2,
        "activation_checkpointing": "selective",
        "compile": True,
        "checkpoint_every": 50,
        "eval_every": 50,
        "eval_samples": 64,
        "dataset": "c4",
        "tokenizer": model.repository,
        **keys,
    }
    return _with_smoke(
        Recipe(
            name=name,
            framework="fsdp",
            summary=summary.format(training["sequence_length"]),
            model=model,
            training=LanguageTraining(**training),
            default_instance=instance,
            default_nodes=nodes,
            file_system_gib=file_system[0],
            file_system_mbps_per_tib=file_system[1],
        )
    )


# A checkpoint of 828 GB (Llama 2 70B) takes 3 minutes.
_LARGE: Final[dict[str, Any]] = {
    "nodes": 4,
    "file_system": (4800, 1000),
    "steps": 30,
    "checkpoint_every": 15,
    "eval_every": 10,
}
_SMALL: Final[dict[str, Any]] = {"file_system": (1200, 250)}
_FULL: Final[dict[str, Any]] = {"activation_checkpointing": "full"}
_LONG: Final[dict[str, Any]] = {"sequence_length": 32768, "steps": 200, "seed": 42}
_PRETRAINING: Final = (
    _pretraining("llama2-7b", _LLAMA2_7B, "p4d.24xlarge"),
    _pretraining("llama2-13b", _LLAMA2_13B, "p4d.24xlarge", steps=50, eval_every=25, **_FULL),
    _pretraining("llama2-70b", _LLAMA2_70B, "p5.48xlarge", **_LARGE, **_FULL),
    _pretraining("llama3.1-8b", _LLAMA31_8B, "p5.48xlarge", steps=50, eval_every=25),
    # With whole sequences only full checkpointing fits, and a step takes a third longer; with two
    # parts memory would be tight.
    _pretraining("llama3.1-70b", _LLAMA31_70B, "p5en.48xlarge", context_parallel=4, **_LARGE),
    _pretraining("llama3.2-1b", _LLAMA32_1B, "g5.12xlarge", **_SMALL),
    _pretraining("llama3.2-3b", _LLAMA32_3B, "g6e.12xlarge", **_SMALL),
    _pretraining(
        "mixtral-8x7b",
        _MIXTRAL_8X7B,
        "p5.48xlarge",
        nodes=4,
        summary="FSDP, 8 experts, {:,} tokens",
        # As for llama3.1-70b. Sharing experts as well would free little here, and all wait for the
        # busiest rank.
        context_parallel=8,
        file_system=(4800, 250),
        **_LONG,
    ),
    _pretraining("mathstral-7b", _MATHSTRAL_7B, "p5.48xlarge", **_LONG, **_FULL),
)

# Three passes over about 64 packed steps, the rate decayed by 0.85 after each, as the public
# fine-tuning sample does.
_LLAMA2_7B_FINETUNE: Final = _with_smoke(
    Recipe(
        name="llama2-7b-finetune",
        framework="fsdp",
        task="finetuning",
        summary="FSDP fine-tuning on instructions",
        model=_LLAMA2_7B,
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
            tokenizer=_LLAMA2_7B.repository,
            weights=_LLAMA2_7B.repository,
        ),
        default_instance="p4d.24xlarge",
    )
)


def _images(name: str, model: ImageModel, instance: str, *, nodes: int, **keys: Any) -> Recipe:
    """Make a torch elastic recipe on ImageNet folders: SGD, 0.1 for 256 images, a
    tenth every 30.
    """
    # 1,281,167 training images are 5,004 steps of 256 an epoch.
    size = model.native_image_size
    training = ImageTraining(
        optimizer="sgd",
        schedule="step",
        decay_factor=0.1,
        weight_decay=1e-4,
        grad_clip=0.0,
        parallelism="ddp",
        image_size=size,
        log_every=10,
        dataset="/fsx/imagenet",
        **keys,
    )
    return _with_smoke(
        Recipe(
            name=name,
            framework="torch-elastic",
            task="image-classification",
            summary=f"DDP on ImageNet, {size} pixels, learning rate 0.1 x batch / 256",
            model=model,
            training=training,
            default_instance=instance,
            default_nodes=nodes,
            max_nodes=128,
            file_system_gib=1200,
        )
    )


_RESNET50: Final = _images(
    "resnet50",
    ImageModel(
        architecture="resnet",
        stage_widths=(256, 512, 1024, 2048),
        stage_depths=(3, 4, 6, 3),
        native_image_size=224,
        num_parameters=25_557_032,
        forward_gflops=8.2,
        kept_elements_per_pixel=428,
    ),
    "g5.12xlarge",
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

_EFFICIENTNET_B7: Final = _images(
    "efficientnet-b7",
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
    "p4d.24xlarge",
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
        *_PRETRAINING,
        _LLAMA2_7B_FINETUNE,
        _DDP_CPU,
        _RESNET50,
        _EFFICIENTNET_B7,
        *framework_recipes(_LLAMA31_8B),
    )
}
