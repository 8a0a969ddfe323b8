"""Which of many bad ends of containers and processes was the first cause. Pure.

When one process of a gang is killed the others end too, and their news may arrive first. So every
bad end is kept until training continues, and the cause is chosen among all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from stationmaster.domain.event import shared
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.outside import clipped
from stationmaster.domain.run.events import PodChanged, ProcessFailed
from stationmaster.domain.run.failure_lines import MAX_LINE, says_bad_machine, says_passing

# Exit codes that say "another one is gone" or "I was asked to stop": training/elastic.py's
# EXIT_PEER_LOST, 128 + SIGABRT as gloo and NCCL's watchdog end a rank, and 128 + SIGTERM.
FOLLOWING_CODES: Final = frozenset({75, 134, 143})
# What ends a container from outside: SIGKILL, training/watchdog.py's EXIT_STALLED, and those above.
_PASSING_CODES: Final = FOLLOWING_CODES | {76, 137}
# As relay/failures.py words it.
_PASSING_PROCESS: Final = re.compile(r" killed by SIGKILL| exited with code (?:75|76|137|143)$")
# How a container itself ends; every other reason is one of its pod, which the cluster ended.
_CONTAINER_REASONS: Final = frozenset(
    {"", "Error", "Completed", "ContainerCannotRun", "StartError", "RunContainerError"}
)
# A pod that is evicted because of what it has written writes it again.
_FULL_DISK: Final = re.compile(r"ephemeral[- ]|emptydir|no space left", re.IGNORECASE)
# torchrun's own end, whatever its workers ended with.
_UNSPECIFIC_CODE: Final = 1
_UNSPECIFIC_REASONS: Final = ("", "Error")
# Enough to find the cause; a gang may have a hundred pods.
MAX_FAILURES: Final = 16
# Kubernetes gives the end of a container in whole seconds.
_SECOND: Final = timedelta(seconds=1)


class Failure(Frozen):
    """One bad end of one run of a pod's container, from its status and its log."""

    pod: str
    restarts: int
    at: datetime
    node: str = ""
    """Where the pod was then; it may wait for another node since."""
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    process: str = ""
    line: str = ""
    evidence: str = ""
    lost_peer: bool = False

    @property
    def follows(self) -> bool:
        """Whether it only followed from another one."""
        if self.reason not in _UNSPECIFIC_REASONS:
            return False  # OOMKilled, Evicted: the cluster itself ended it
        return self.lost_peer or (self.exit_code in FOLLOWING_CODES and not self.line)

    @property
    def rank(self) -> int:
        """How much it explains; the lowest explains most."""
        if self.follows:
            return 2
        bare = self.exit_code in (None, _UNSPECIFIC_CODE) and not (self.process or self.line)
        return 1 if bare and self.reason in _UNSPECIFIC_REASONS else 0

    @property
    def explains(self) -> bool:
        """Whether it says more than that a container has ended."""
        return self.rank == 0

    @property
    def passes(self) -> bool:
        """Whether it was ended from outside, or by what another start may not meet again."""
        if self.reason not in _CONTAINER_REASONS:
            return _FULL_DISK.search(self.message) is None
        if says_passing(self.line) or says_passing(self.evidence):
            return True
        if self.process:
            return _PASSING_PROCESS.search(self.process) is not None
        return self.exit_code in _PASSING_CODES

    @property
    def blames_machine(self) -> bool:
        """Whether its node should not be used again."""
        return says_bad_machine(self.line) or says_bad_machine(self.evidence)

    @property
    def has_words(self) -> bool:
        """Whether a log, an agent or the cluster says more of it than an exit code."""
        return bool(self.line or self.process) or self.reason not in _CONTAINER_REASONS

    @property
    def sentence(self) -> str:
        """The pod, how it ended, and the line that matters."""
        ends = "failed" if self.exit_code is None else f"exited with code {self.exit_code}"
        parts = [part for part in (self.reason, self.message) if part not in _UNSPECIFIC_REASONS]
        why = f" ({': '.join(parts)})" if parts else ""
        after = "" if not self.process else ": " if self.exit_code is None else " after "
        said = f": {self.line}" if self.line else ""
        return f"pod {self.pod} {ends}{why}{after}{self.process}{said}"


def failures_after(
    known: Sequence[Failure], event: PodChanged | ProcessFailed, *, node: str = ""
) -> list[Failure] | None:
    """Return the failures with what `event` adds to them, or None when it adds nothing.

    `node` is where the pod was last seen; "" where nobody knows.
    """
    if isinstance(event, PodChanged) and event.exit_code in (None, 0) and event.phase != "Failed":
        return None
    old = next((f for f in known if (f.pod, f.restarts) == (event.pod, event.restarts)), None)
    failure = old or Failure(pod=event.pod, restarts=event.restarts, at=event.at)
    news = shared(event, Failure)
    news["node"] = failure.node or news.get("node") or node
    if isinstance(event, PodChanged):
        news["at"] = failure.at  # a process's is that of the newest attempt in the same container
    elif failure.process and event.lost_peer and not failure.lost_peer:
        return None  # the agent has lost its peers since, because of what is known already
    others = [f for f in known if f is not old]
    news = {
        key: clipped(said, MAX_LINE) if isinstance(said, str) else said
        for key, said in news.items()
    }
    merged = sorted([*others, failure.model_copy(update=news)], key=lambda f: (f.rank, f.at))
    return merged[:MAX_FAILURES]


def still_open(known: Sequence[Failure], *, trained_at: datetime) -> list[Failure]:
    """Drop those that training has recovered from, having continued at `trained_at`."""
    return [failure for failure in known if failure.at + _SECOND > trained_at]


def first_cause(known: Sequence[Failure]) -> Failure | None:
    """Return the failure that explains the others, or None without any."""
    return min(known, key=lambda failure: (failure.rank, failure.at), default=None)
