"""Rules for the frames of `py-spy dump --pid PID`: where a process stands that does not continue.

One dump shows one moment; the same frame in several dumps means that the process stands there.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from stationmaster.diagnosis.rules import STACK, Rank, Rule, Severity

# A frame of py-spy: four spaces, a function, a path with a line number in parentheses.
_FRAME: Final = r"^\s+\S.{0,120} \((?:\S*/)?"

_standing = partial(
    Rule,
    where=STACK,
    rank=Rank.STUCK,
    severity=Severity.WARNING,
    source="py-spy, dump; Megatron workshop, chapter on troubleshooting",
)

RULES: Final = (
    _standing(
        id="stack-compiler",
        pattern=_FRAME + r"triton/(?:compiler|runtime|backends)/\S{1,80}:\d+\)",
        diagnosis="a process compiles kernels, or waits for the lock of a compiler cache that "
        "is on the shared file system",
        remedy="set TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR to a path in the container, e.g. "
        "/tmp/triton; `stationmaster lint FILE` checks a manifest for it",
    ),
    _standing(
        id="stack-collector",
        pattern=r"^\s+(?:\S*gc[._]collect\w*|gc_callback\w*) \(",
        diagnosis="a process stands in Python's garbage collector",
        remedy="disable the trainer's gc callback, and set FI_EFA_USE_HUGE_PAGE=0 where "
        "data loaders fork",
    ),
    _standing(
        id="stack-experts",
        pattern=_FRAME + r"\S*token_dispatcher\.py:\d+\)",
        diagnosis="a process waits where tokens are sent to experts: some ranks have more of them",
        remedy="check the balancing loss of the experts; `/train logs {run}`",
    ),
    _standing(
        id="stack-gather",
        pattern=r"^\s+_?all_?gather\w* \(\S{0,160}:\d+\)",
        diagnosis="a process waits in an all-gather for other ranks",
        remedy="dump the other ranks too: one that stands elsewhere is the one they wait for; "
        "`/train logs {run}`",
    ),
    _standing(
        id="stack-synchronize",
        pattern=_FRAME.replace(r"\S.{0,120}", "synchronize") + r"torch/cuda/\S{1,60}:\d+\)",
        diagnosis="a process waits for its GPU, which most often waits for other ranks",
        remedy="dump the other ranks too; `/train logs {run}` shows the newest step of each",
    ),
    _standing(
        id="stack-data",
        pattern=_FRAME + r"torch/utils/data/dataloader\.py:\d+\)",
        diagnosis="a process waits for its data",
        remedy="more data_workers, or data that is prepared on the file system "
        "(dataset=packed:...)",
    ),
    _standing(
        id="stack-save",
        pattern=_FRAME + r"torch/(?:serialization\.py|distributed/checkpoint/\S{1,60}):\d+\)",
        diagnosis="a process is writing or reading a checkpoint",
        remedy="a file system with more throughput (file_system_type=persistent-500), or larger "
        "checkpoint_every",
    ),
)
