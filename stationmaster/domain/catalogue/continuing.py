"""Which keys of a recipe may change when a run continues from a checkpoint.

Used by the grammar, which refuses a resume before it costs anything, and by the trainer, which
compares what a checkpoint was made with.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.recipes import Recipe

# `dataset` and `tokenizer` are covered by the identity of the data itself.
NOT_DECISIVE: Final = frozenset(
    {
        "steps",
        "epochs",
        "checkpoint_every",
        "log_every",
        "profile",
        "eval_every",
        "save_best",
        "micro_batch_size",
        "norm_batch_size",
        "parallelism",
        "tensor_parallel",
        "context_parallel",
        "expert_parallel",
        "activation_checkpointing",
        "compile",
        "cpu_offload",
        "data_workers",
        "rendezvous",
        "dataset",
        "tokenizer",
    }
)
"""Keys that change how long, how loudly or how fast a run trains, not the weights after step n. A
run with other values of these finds its checkpoints."""

MAY_CHANGE: Final = frozenset(
    {
        "steps",
        "epochs",
        "schedule",
        "learning_rate",
        "min_learning_rate",
        "warmup_steps",
        "decay_every",
        "decay_factor",
        "grad_clip",
        "weights",
    }
)
"""Keys that decide the steps to come, and may change in a run that resumes from another one: the
checkpoint's state stands for what was before."""

_SAME_DATA: Final = ("dataset", "tokenizer")


def changed_keys(theirs: Recipe, ours: Recipe) -> dict[str, tuple[str, str]]:
    """Return the keys that keep `ours` from resuming a checkpoint of `theirs`, with both values.

    Both are resolved recipes. The key "model" stands for the shape of the model.
    """
    changed = {}
    if theirs.model != ours.model:
        changed["model"] = (theirs.name, ours.name)
    before, now = theirs.training.model_dump(mode="json"), ours.training.model_dump(mode="json")
    for key in sorted(before.keys() | now.keys()):
        if key in MAY_CHANGE or (key in NOT_DECISIVE and key not in _SAME_DATA):
            continue
        if before.get(key) != now.get(key):
            changed[key] = (str(before.get(key)), str(now.get(key)))
    return changed


def falls_to_its_end(recipe: Recipe) -> bool:
    """Say whether the learning rate depends on the total number of steps."""
    training = recipe.training
    falls = training.min_learning_rate != training.learning_rate
    return training.schedule in ("cosine", "linear") and falls
