"""A recipe: what can be trained, with which model shape, which defaults and which machines.

It is immutable; `Recipe.with_overrides` checks every key=value and gives the copy that a run
trains.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from stationmaster.domain.catalogue.framework_training import (
    RANDOM,
    FrameworkTraining,
    MegatronTraining,
    TitanTraining,
)
from stationmaster.domain.catalogue.hub import is_repository
from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.sharing import check_float8, check_sharing
from stationmaster.domain.catalogue.training_config import ImageTraining, LanguageTraining
from stationmaster.domain.datasets import (
    FOR_MEGATRON,
    HUB_PREFIX,
    PACKED_PREFIX,
    STREAM_PREFIX,
    Dataset,
    read_dataset,
)
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.names import CLAIM_PREFIX

PRESET: Final = "preset"
SMOKE: Final = "smoke"

Framework = Literal[
    "fsdp", "ddp", "torch-elastic", "megatron-lm", "megatron-bridge", "nemo", "torchtitan"
]
"""The program that trains: the first three are ways of the product's own trainer."""
FRAMEWORK_NAMES: Final[dict[Framework, str]] = {
    "megatron-lm": "Megatron-LM",
    "megatron-bridge": "Megatron-Bridge",
    "nemo": "NeMo",
    "torchtitan": "torchtitan",
}
"""The other frameworks, as they write themselves."""
FRAMEWORK_IMAGES: Final[dict[Framework, str]] = {
    "megatron-lm": "megatron",
    "megatron-bridge": "nemo",
    "nemo": "nemo2",
    "torchtitan": "torchtitan",
}
"""The image below `container/` that each of them trains in."""
OwnTraining = LanguageTraining | ImageTraining
Training = OwnTraining | MegatronTraining | TitanTraining
Task = Literal["pretraining", "finetuning", "image-classification"]

CPU_MACHINES: Final[dict[str, Any]] = {
    "default_instance": "m5.2xlarge",
    "default_nodes": 2,
    "max_nodes": 8,
    "needs_gpu": False,
    "nproc_per_node": 1,
    "file_system_gib": 1200,
    "file_system_mbps_per_tib": 125,
}
"""The machines of a recipe that is small, on CPUs."""


class Recipe(Frozen):
    """What to train and how, with the machines it was sized for."""

    name: str
    framework: Framework
    task: Task = "pretraining"
    summary: str
    model: LanguageModel | ImageModel
    training: Training
    default_instance: str
    default_nodes: int = 2
    max_nodes: int = 64
    needs_gpu: bool = True
    nproc_per_node: int = Field(
        default=0, description="0 means one process for each GPU of the instance"
    )
    file_system_gib: int = Field(
        default=2400, description="FSx for Lustre storage: 1200, 2400 or n x 2400"
    )
    file_system_mbps_per_tib: int = Field(
        default=250, description="of a new one 125, 200, 250, 500 or 1000"
    )
    file_system_id: str = Field(
        default="", description="a file system that exists, in place of a new one"
    )
    smoke: Recipe | None = Field(
        default=None, description="what preset=smoke runs: the same code path, small, on CPUs"
    )

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Every key that a person may set, in the order of help texts."""
        return (PRESET, *type(self.training).model_fields)

    @property
    def is_storage_known(self) -> bool:
        """Whether the size of its file system is known: that behind a claim is not."""
        return not self.file_system_id.startswith(CLAIM_PREFIX)

    @property
    def uses_own_trainer(self) -> bool:
        """Whether the product's own trainer, `python -m training`, runs it."""
        return not isinstance(self.training, FrameworkTraining)

    @property
    def data(self) -> Dataset:
        """The data that it trains on."""
        return read_dataset(self.training.dataset)

    @property
    def data_task(self) -> str:
        """What its data is prepared for: its task, or the form that its framework reads."""
        return FOR_MEGATRON if isinstance(self.training, MegatronTraining) else self.task

    @property
    def weights_to_convert(self) -> str:
        """The repository of the hub whose weights its framework cannot read as they are, or ""."""
        weights = getattr(self.training, "weights", "")
        is_converted = self.framework in ("megatron-lm", "megatron-bridge")
        return weights if is_converted and weights != RANDOM and is_repository(weights) else ""

    @property
    def own_training(self) -> OwnTraining:
        """The keys of the product's own trainer, for code that is about that one only."""
        assert not isinstance(self.training, FrameworkTraining), f"{self.name} has another trainer"
        return self.training

    @property
    def counts_epochs(self) -> bool:
        """Whether its steps follow from the length of its data."""
        return bool(getattr(self.training, "epochs", 0))

    @property
    def directory_name(self) -> str:
        """The name in a form that a path allows, which hf:ORG/MODEL is not."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name)

    def with_overrides(self, overrides: Mapping[str, str]) -> Recipe:
        """Check and apply key=value pairs as typed; preset=smoke is applied before all others.

        Raises:
            BadParameter: naming the key or value, and what is expected.
        """
        typed = dict(overrides)
        preset = typed.pop(PRESET, None)
        if preset is not None:
            return self._preset(preset).with_overrides(typed)
        if not typed:
            return self
        fields = type(self.training).model_fields
        for key in typed:
            if key not in fields:
                raise BadParameter(
                    f'recipe {self.name} has no key "{key}"; it takes {", ".join(self.keys)}'
                )
        try:
            training = type(self.training).model_validate(self.training.model_dump() | typed)
        except ValidationError as exc:
            problem = exc.errors()[0]
            key = str(problem["loc"][0])
            expected = _expectation(problem["type"], problem)
            raise BadParameter(f'{key}="{typed.get(key)}" is not accepted: {expected}') from exc
        if getattr(training, "epochs", 0):
            self._check_epochs(training, typed)
        training = _follow(training, self.training, typed=typed.keys())
        _check_together(training)
        if isinstance(self.model, LanguageModel):
            match training:
                case LanguageTraining():
                    check_sharing(training, self.model, name=self.name)
                case FrameworkTraining():
                    training.check(self.model)
        if not isinstance(training, FrameworkTraining):
            check_float8(training, self.model, name=self.name)
        return self.model_copy(update={"training": training})

    def _check_epochs(self, training: Training, typed: Collection[str]) -> None:
        if "steps" in typed:
            raise BadParameter(
                "epochs= and steps= both say how long a run trains; leave one of them out"
            )
        data = training.dataset
        is_stream = data == "c4" or data.startswith((STREAM_PREFIX, HUB_PREFIX))
        if self.task == "pretraining" and is_stream:
            raise BadParameter(
                f'epochs= needs data whose length is known, and dataset="{data[:80]}" is read as a '
                f"stream; use steps=, or {PACKED_PREFIX}NAME for a data set of the hub"
            )

    def _preset(self, name: str) -> Recipe:
        if name != SMOKE:
            raise BadParameter(f'{PRESET}="{name}" is not accepted: expected {SMOKE}')
        if not self.uses_own_trainer:
            raise BadParameter(
                f"recipe {self.name} has no preset {SMOKE}: {FRAMEWORK_NAMES[self.framework]} "
                "trains on GPUs only; /train tiny-llama tries a cluster on CPUs"
            )
        if self.smoke is None:
            raise BadParameter(f"recipe {self.name} has no preset {SMOKE}; leave it out")
        return self.smoke


def _expectation(kind: str, problem: Mapping[str, object]) -> str:
    context = problem.get("ctx")
    bounds = context if isinstance(context, dict) else {}
    match kind:
        case "int_parsing" | "int_from_float" | "int_type" | "int_parsing_size":
            return "expected a whole number, e.g. 100"
        case "float_parsing" | "float_type" | "finite_number":
            return "expected a number, e.g. 3e-4"
        case "bool_parsing" | "bool_type":
            return "expected true or false"
        case "literal_error":
            return f"expected {bounds.get('expected')}"
        case "greater_than_equal":
            return f"expected {bounds.get('ge')} or more"
        case "greater_than":
            return f"expected more than {bounds.get('gt')}"
        case "less_than_equal":
            return f"expected {bounds.get('le')} or less"
        case "less_than":
            return f"expected less than {bounds.get('lt')}"
        case _:
            return str(problem.get("msg", "not valid"))


def _follow(
    training: Training,
    default: Training,
    *,
    typed: Collection[str],
) -> Training:
    """Let defaults that nobody typed follow what was typed.

    A 3-step run has no 5-step warm-up. Blocks whose products are split are not compiled, and their
    sequences are not shared. An image classifier's SGD rate grows with its batch, as the published
    schedules do (0.1 for 256 images): its accuracy would depend on the batch otherwise.
    """
    follow: dict[str, int | float] = {}
    if isinstance(training, LanguageTraining) and training.tensor_parallel > 1:
        if "compile" not in typed:
            follow["compile"] = False
        if "context_parallel" not in typed:
            follow["context_parallel"] = 1
    if (
        isinstance(training, ImageTraining)
        and training.optimizer == "sgd"
        and "learning_rate" not in typed
    ):
        scale = training.global_batch_size / default.global_batch_size
        follow["learning_rate"] = min(10.0, training.learning_rate * scale)
    learning_rate = follow.get("learning_rate", training.learning_rate)
    if "warmup_steps" not in typed and not getattr(training, "epochs", 0):
        follow["warmup_steps"] = min(training.warmup_steps, training.steps)
    if "min_learning_rate" not in typed:
        follow["min_learning_rate"] = min(training.min_learning_rate, learning_rate / 10)
    return training.model_copy(update=follow)


def _check_together(training: Training) -> None:
    """Enforce the rules that involve two keys."""
    if training.min_learning_rate > training.learning_rate:
        raise BadParameter(
            f"min_learning_rate={training.min_learning_rate:g} is above "
            f"learning_rate={training.learning_rate:g}; lower it"
        )
    if training.warmup_steps > training.steps and not getattr(training, "epochs", 0):
        raise BadParameter(
            f"warmup_steps={training.warmup_steps} is more than steps={training.steps}; "
            f"use {training.steps} or less"
        )
    if not isinstance(training, FrameworkTraining):
        _check_own(training)
    read_dataset(training.dataset)
    for key in ("dataset", "tokenizer", "weights"):
        value = getattr(training, key, "")
        if value.startswith("/") and not re.fullmatch(r"[\w./@+-]+", value):
            raise BadParameter(
                f'{key}="{value}" is not accepted: expected a path of letters, digits and ._-/@+'
            )


def _check_own(training: OwnTraining) -> None:
    if training.profile > training.steps and not training.epochs:
        raise BadParameter(
            f"profile={training.profile} is after the last of steps={training.steps}; use "
            f"{training.steps} or less"
        )
    if training.eval_every and not training.eval_samples and isinstance(training, LanguageTraining):
        raise BadParameter(
            f"eval_every={training.eval_every} needs samples to evaluate on; add e.g. "
            "eval_samples=64, or eval_every=0 for no evaluations"
        )
    if training.save_best != "off" and not training.eval_every:
        raise BadParameter(
            f"save_best={training.save_best} chooses among evaluations, and eval_every=0 makes "
            "none; add e.g. eval_every=100, or leave save_best= out"
        )
    if isinstance(training, ImageTraining):
        size, batch = training.norm_batch_size, training.global_batch_size
        if size and batch % size:
            raise BadParameter(
                f"norm_batch_size={size} does not divide global_batch_size={batch}; use "
                f"{next(n for n in range(min(size, batch), 0, -1) if batch % n == 0)}"
            )
        for key, only in (("parallelism", "ddp"), ("activation_checkpointing", "off")):
            if getattr(training, key) != only:
                raise BadParameter(
                    f"{key}={getattr(training, key)} does not work with batch normalisation; "
                    f"image classifiers take {key}={only}"
                )
    if training.cpu_offload and training.parallelism == "ddp":
        raise BadParameter("cpu_offload=true needs sharded weights; use parallelism=full or hybrid")
