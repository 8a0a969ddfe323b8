"""Rules for the frames of `py-spy dump --pid PID`: where a process stands that does not continue.

One dump shows one moment; the same frame in several dumps means that the process stands there.
"""

from __future__ import annotations

from typing import Final

from stationmaster.diagnosis.rules import STACK, Rank, Rule, Severity

_SOURCE: Final = "py-spy, dump; Megatron workshop, chapter on troubleshooting"

# A frame of py-spy: four spaces, a function, a path with a line number in parentheses.
_FRAME: Final = r"^\s+\S.{0,120} \((?:\S*/)?"


def _standing(name: str, hint: str, path: str, diagnosis: str, remedy: str) -> Rule:
    return Rule(
        id=name,
        where=STACK,
        hint=hint,
        pattern=path,
        rank=Rank.STUCK,
        severity=Severity.WARNING,
        diagnosis=diagnosis,
        remedy=remedy,
        source=_SOURCE,
    )


RULES: Final = (
    _standing(
        "stack-compiler",
        "triton/",
        _FRAME + r"triton/(?:compiler|runtime|backends)/\S{1,80}:\d+\)",
        "a process compiles kernels, or waits for the lock of a compiler cache that is on the "
        "shared file system",
        "set TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR to a path in the container, e.g. "
        "/tmp/triton; `stationmaster lint FILE` checks a manifest for it",
    ),
    _standing(
        "stack-collector",
        "gc.collect|gc_collect|(gc.py|gc_callback",
        r"^\s+(?:\S*gc[._]collect\w*|gc_callback\w*) \(",
        "a process stands in Python's garbage collector",
        "disable the trainer's gc callback, and set FI_EFA_USE_HUGE_PAGE=0 where data loaders fork",
    ),
    _standing(
        "stack-experts",
        "token_dispatcher",
        _FRAME + r"\S*token_dispatcher\.py:\d+\)",
        "a process waits where tokens are sent to experts: some ranks have more of them",
        "check the balancing loss of the experts; `/train logs {run}`",
    ),
    _standing(
        "stack-gather",
        "all_gather|allgather",
        r"^\s+_?all_?gather\w* \(\S{0,160}:\d+\)",
        "a process waits in an all-gather for other ranks",
        "dump the other ranks too: one that stands elsewhere is the one they wait for; "
        "`/train logs {run}`",
    ),
    _standing(
        "stack-synchronize",
        "synchronize (",
        _FRAME.replace(r"\S.{0,120}", "synchronize") + r"torch/cuda/\S{1,60}:\d+\)",
        "a process waits for its GPU, which most often waits for other ranks",
        "dump the other ranks too; `/train logs {run}` shows the newest step of each",
    ),
    _standing(
        "stack-data",
        "dataloader.py",
        _FRAME + r"torch/utils/data/dataloader\.py:\d+\)",
        "a process waits for its data",
        "more data_workers, or data that is prepared on the file system (dataset=packed:...)",
    ),
    _standing(
        "stack-save",
        "serialization.py|checkpoint/",
        _FRAME + r"torch/(?:serialization\.py|distributed/checkpoint/\S{1,60}):\d+\)",
        "a process is writing or reading a checkpoint",
        "a file system with more throughput (file_system_type=persistent-500), or larger "
        "checkpoint_every",
    ),
)
