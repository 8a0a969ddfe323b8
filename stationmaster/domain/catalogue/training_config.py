"""Every key=value that decides how a recipe trains: the slash command's keys and the trainer's.

`TrainingConfig` has what language models and image classifiers share. A field's description is what
`--help` and the chat say about the key.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, Field

from stationmaster.domain.frozen import Frozen

Schedule = Literal["cosine", "linear", "step", "constant"]
Optimizer = Literal["adamw", "sgd"]
Parallelism = Literal["full", "hybrid", "ddp"]
ActivationCheckpointing = Literal["off", "full", "selective"]
Precision = Literal["auto", "bf16", "fp32", "float8"]
SaveBest = Literal["off", "loss"]
Rendezvous = Literal["c10d", "etcd", "static"]

# Values of `tokenizer` and `weights` that stand for no repository and no path.
MADE_ON_THE_SPOT: Final = frozenset({"bpe", "random", "sample"})


class TrainingConfig(Frozen, extra="forbid", allow_inf_nan=False):
    """The keys of every recipe."""

    steps: int = Field(ge=1, le=10_000_000, description="optimizer steps to run")
    epochs: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="passes over the training data, in place of steps: as many steps as see each "
        "sample so often; 0: steps counts",
    )
    global_batch_size: int = Field(
        ge=1, le=1_000_000, description="samples a step, over all ranks together"
    )
    micro_batch_size: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="most samples in one forward pass of a rank; more are accumulated",
    )
    optimizer: Optimizer = Field(default="adamw", description="adamw or sgd (with momentum)")
    learning_rate: float = Field(gt=0, le=10, description="peak learning rate")
    min_learning_rate: float = Field(
        default=0.0, ge=0, le=10, description="learning rate at the last step (cosine, linear)"
    )
    schedule: Schedule = Field(
        default="cosine",
        description="after warm-up: cosine, linear, step (x decay_factor every decay_every steps) "
        "or constant",
    )
    warmup_steps: int = Field(default=0, ge=0, description="steps of linear warm-up")
    decay_every: int = Field(default=1000, ge=1, description="steps between decays (step)")
    decay_factor: float = Field(default=0.1, gt=0, le=1, description="size of a decay (step)")
    weight_decay: float = Field(default=0.1, ge=0, le=1, description="weight decay, matrices only")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW first moment decay")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW second moment decay")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="SGD momentum")
    grad_clip: float = Field(default=1.0, ge=0, description="largest gradient norm; 0 for no limit")
    parallelism: Parallelism = Field(
        default="full",
        description="full (FSDP over all ranks), hybrid (FSDP in a node, copies over nodes) or ddp",
    )
    precision: Precision = Field(
        default="auto",
        description="bf16 (gradients summed in fp32), fp32 (TF32 products), auto: bf16 on a GPU, "
        "or float8: bf16 with the products of linear layers in float8 (Hopper, Ada, Blackwell)",
    )
    activation_checkpointing: ActivationCheckpointing = Field(
        default="off",
        description="off, full (each block again in backward) or selective (keep matrix products)",
    )
    compile: bool = Field(default=False, description="torch.compile each block")
    cpu_offload: bool = Field(
        default=False, description="keep weights and optimizer state in host memory (not ddp)"
    )
    rendezvous: Rendezvous = Field(
        default="c10d",
        description="where the pods' agents meet: at the first worker (c10d), in an etcd of the "
        "run's own, which outlives workers (etcd), or at a master that the job names (static, for "
        "trainers that read MASTER_ADDR and RANK); a torchrun started by hand has its own flags",
    )
    seed: int = Field(
        default=1234, ge=0, le=2**31 - 1, description="seed of weights and data order"
    )
    checkpoint_every: int = Field(ge=1, description="steps between checkpoints")
    log_every: int = Field(default=1, ge=1, description="steps between progress lines")
    profile: int = Field(
        default=0,
        ge=0,
        description="step whose trace and use of memory are saved with the result; 0 for none",
    )
    eval_every: int = Field(default=0, ge=0, description="steps between evaluations; 0 for none")
    eval_samples: int = Field(
        default=0, ge=0, le=1_000_000, description="samples held out for evaluation; 0 for none"
    )
    save_best: SaveBest = Field(
        default="off",
        description="loss: keep the checkpoint with the lowest loss on the samples of eval_every "
        "beside the newest ones, and make the model of it; off: the model is of the last step",
    )
    dataset: str = Field(
        min_length=1,
        max_length=500,
        description="what to train on: python-code, c4, hub:ORG/NAME[/CONFIG], "
        "packed:hub:..., s3://BUCKET/PREFIX, a directory that all nodes see, or stream:DIR; see "
        "docs/training.md",
    )


def steps_over(training: TrainingConfig, samples: int) -> int:
    """Return the steps of a run whose data has so many samples; `steps` where no epochs count."""
    passes = training.epochs * samples
    return -(-passes // training.global_batch_size) if training.epochs else training.steps


class LanguageTraining(TrainingConfig):
    """The keys of language models."""

    tensor_parallel: int = Field(
        default=1,
        ge=1,
        le=64,
        description="neighbouring GPUs of a node that compute each sample together, every matrix "
        "product split among them; FSDP shards over the rest (Llama and Mistral)",
    )
    context_parallel: int = Field(
        default=1,
        ge=1,
        le=256,
        description="GPUs that share the tokens of each sequence, for long ones; they exchange "
        "keys and values, and may be of several nodes (Llama, Mistral and Mixtral)",
    )
    expert_parallel: int = Field(
        default=1,
        ge=1,
        le=64,
        description="neighbouring GPUs that share the experts of each block; tokens travel to "
        "their experts and back (Mixtral)",
    )
    sequence_length: int = Field(ge=8, le=1_048_576, description="tokens a sequence")
    document_mask: bool = Field(
        default=False,
        description="keep attention and positions inside of a document (or an example) where "
        "several share a sequence; costs memory, see docs/training.md",
    )
    tokenizer: str = Field(
        default="bpe",
        min_length=1,
        max_length=500,
        description="ORG/MODEL on the Hugging Face hub, a path, or bpe: trained on the data itself",
    )
    weights: str = Field(
        default="random",
        min_length=1,
        max_length=500,
        description="first weights: random, ORG/MODEL on the Hugging Face hub, or a path; in the "
        "channel also a run, for its trained model",
    )


def tensor_parallel_of(training: BaseModel) -> int:
    """Return how many processes compute a sample together; 1 where each computes its own."""
    return int(getattr(training, "tensor_parallel", 1))


def context_parallel_of(training: BaseModel) -> int:
    """Return how many processes share the tokens of a sequence; 1 where each has whole ones."""
    return int(getattr(training, "context_parallel", 1))


def expert_parallel_of(training: BaseModel) -> int:
    """Return how many processes share the experts of a block; 1 where each has all of them."""
    return int(getattr(training, "expert_parallel", 1))


class ImageTraining(TrainingConfig):
    """The keys of image classifiers."""

    image_size: int = Field(ge=16, le=2048, description="pixels a side of a training crop")
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="part of the target spread over all classes"
    )
    norm_batch_size: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="images of each forward pass, which batch normalisation sees together, on any "
        "number of nodes; 0: what a rank has of a step, in passes of up to micro_batch_size",
    )
    data_workers: int = Field(
        default=4, ge=0, le=64, description="threads of a rank that decode images; 0: none"
    )


def norm_batch_of(training: BaseModel) -> int:
    """Return the images of a forward pass on any number of nodes; 0 where the ranks decide."""
    return int(getattr(training, "norm_batch_size", 0))
