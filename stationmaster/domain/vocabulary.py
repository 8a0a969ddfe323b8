"""Words that people type and this version does not have, and the word of the same meaning.

The grammar asks here before it suggests anything. A word that is planned is named as such, so that
it is never taken for a mistyped word of another meaning; spelling alone decides only between words
of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from stationmaster.domain.spelling import mistakes, nearest, num_edits

SUBCOMMANDS: Final = ("help", "recipes", "plan", "status", "logs", "stop", "list")
# Where a word is equally near to two, the first of these is meant.
_HARMLESS_FIRST: Final = ("help", "status", "list", "logs", "recipes", "plan")

# Planned subcommands: each is refused with what this version does instead, if it does anything.
NOT_YET: Final[Mapping[str, str]] = {
    "resume": "a run resumes from its own checkpoints while it runs, and not after it has ended",
    "scale": "the number of nodes is fixed when a run starts",
    "validate": "every run checks its cluster before it trains",
    "cluster": "every run has a cluster of its own",
    "keep": "a run's cluster is deleted when the run ends",
    "teardown": "teardown starts when a run ends, and /train stop RUN ends one",
    "cost": "/train plan RECIPE estimates what a run would cost, /train status what it has cost",
    "compare": "/train list shows the runs of the channel",
    "rerun": "a run is started again by typing its command",
    "diff": "/train list shows the runs of the channel",
    "preflight": "/train plan RECIPE says what a run would create",
    "study": "one command starts one run",
    "audit": "/train list shows the newest runs of the channel",
}
# What a subcommand that this version has does with the words after the planned one.
INSTEAD: Final[Mapping[str, str]] = {
    "teardown": "stop",
    "cost": "plan",
    "validate": "plan",
    "preflight": "plan",
}

START: Final = "start"
_SUBCOMMAND_MEANINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "help": ("?", "-h", "--help", "usage", "man", "commands"),
    "status": ("stats", "state", "info", "show", "describe", "progress", "watch", "metrics"),
    "list": ("ls", "ps", "runs", "jobs", "history", "queue"),
    "logs": ("log", "tail", "output", "print"),
    "recipes": ("recipe", "models", "model", "catalogue", "catalog"),
    "plan": ("estimate", "dry-run", "dryrun", "simulate", "check"),
    "cost": ("price", "pricing", "costs", "bill", "billing"),
    "teardown": ("delete", "destroy", "remove", "rm", "clean", "cleanup", "terminate", "down"),
    "rerun": ("restart", "retry", "repeat"),
    "resume": ("continue", "unpause"),
    "scale": ("resize", "grow", "shrink"),
    "stop": ("cancel", "kill", "abort", "halt", "end", "quit"),
    START: ("run", "launch", "train", "submit", "begin"),
}

# Planned keys, with what this version does instead.
NOT_YET_KEYS: Final[Mapping[str, str]] = {
    "on": "every run has a cluster of its own",
    "keep": "a run's cluster is deleted when the run ends",
    "cluster": "every run has a cluster of its own",
    "file_system": "every run has a new file system of its own",
    "capacity": "nodes are on-demand instances",
    "queue": "a run starts at once",
    "resume_from": "a run resumes from its own checkpoints only",
    "image": "every run uses the image of the deployment",
    "command": "a run starts the trainer of its recipe",
    "push_to": "a run uploads nothing to a hub",
    "backup_every": "checkpoints are kept on the run's own file system, see checkpoint_every",
    "budget": "the plan estimates the cost, and steps limits it",
}
_KEY_MEANINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "nodes": ("num_nodes", "machines", "instances", "workers", "replicas"),
    "instance": ("instance_type", "machine", "machine_type"),
    "steps": ("max_steps", "num_steps", "iterations", "iters"),
    "learning_rate": ("lr",),
    "weight_decay": ("wd",),
    "sequence_length": ("seq_len", "seq_length", "context_length"),
    "grad_clip": ("max_grad_norm", "clip_grad_norm"),
    "schedule": ("scheduler", "lr_schedule"),
    "precision": ("dtype",),
    "cpu_offload": ("offload",),
    "checkpoint_every": ("save_every", "checkpoint_interval"),
    "resume_from": ("resume", "checkpoint", "restore", "from_checkpoint"),
    "capacity": ("spot", "capacity_type", "reservation"),
    "budget": ("max_cost", "cost_limit"),
    "image": ("container", "docker_image"),
    "command": ("cmd", "script", "entrypoint"),
    "file_system": ("fs", "fsx"),
}


def subcommand_meant(word: str) -> str | None:
    """The subcommand, planned ones and START included, that a word stands for or resembles."""
    ordered = (*_HARMLESS_FIRST, *NOT_YET, "stop", START)
    found: list[tuple[int, int, str]] = []
    for place, subcommand in enumerate(ordered):
        for known in (subcommand, *_SUBCOMMAND_MEANINGS.get(subcommand, ())):
            count = mistakes(word, known)
            if known != subcommand and len(known) <= 4 and known != word.lower():
                # One letter turns a short synonym into almost any other short word.
                count = None
            if count is None and len(word) >= 2 and subcommand.startswith(word.lower()):
                count = 1
            if count is not None:
                found.append((count, place, subcommand))
    return min(found)[2] if found else None


def key_meant(key: str, keys: Iterable[str]) -> str | None:
    """The key of `keys` that a word stands for or resembles; None where it is a planned one."""
    keys = tuple(keys)
    meant = _key_meant(key, keys)
    return meant if meant in keys else None


def planned_key_meant(key: str, keys: Iterable[str]) -> str | None:
    """The planned key that a word is, stands for or resembles more than any of `keys`."""
    keys = tuple(keys)
    meant = None if key in keys else _key_meant(key, keys)
    return meant if meant not in keys else None


def _key_meant(key: str, keys: tuple[str, ...]) -> str | None:
    known = (*keys, *NOT_YET_KEYS)
    if key in known:
        return key
    for meant, words in _KEY_MEANINGS.items():
        if key in words and meant in known:
            return meant
    return nearest(key, known)


def recipe_meant(name: str, recipes: Iterable[str]) -> tuple[str | None, bool]:
    """The recipe that a name resembles, and whether it is beyond doubt.

    Capitals, dots and dashes do not count. Otherwise one letter in seven may be wrong, and no
    digit: a name that differs by one costs ten times as much. The beginning of several is none.
    """
    recipes = tuple(recipes)
    letters = {recipe: _letters(recipe) for recipe in recipes}
    typed = _letters(name)[:80]
    sure = [recipe for recipe in recipes if letters[recipe] == typed]
    if not sure and sum(known.startswith(typed) for known in letters.values()) <= 1:
        sure = [recipe for recipe in recipes if _is_misspelt(typed, letters[recipe])]
    return (sure[0], True) if len(sure) == 1 else (nearest(name[:80], recipes), False)


def _is_misspelt(typed: str, known: str) -> bool:
    same_digits = re.findall("[0-9]", typed) == re.findall("[0-9]", known)
    return same_digits and num_edits(typed, known) <= len(known) // 7


def _letters(name: str) -> str:
    return re.sub(r"[^0-9a-z]+", "", name.lower())
