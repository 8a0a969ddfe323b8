"""Judges whether a cluster trains, by what the pods of `training.smoke` printed. Pure.

It fails closed: a rank that printed nothing, a loss that is not finite or that differs between
ranks, and a step without its progress line are faults. The rules explain why a program failed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from stationmaster.diagnosis.explaining import UNEXPLAINED, UNKNOWN, Context, Role, Source, explain
from stationmaster.diagnosis.matching import RULE
from stationmaster.diagnosis.rules import Rank
from stationmaster.domain.progress_lines import ProgressLine, SmokeLine, read_line


@dataclass(slots=True)
class Tried:
    """What the logs of all pods say together."""

    ranks: dict[int, SmokeLine] = field(default_factory=dict)
    steps_reported: set[int] = field(default_factory=set)
    """The steps of which the log has a progress line."""

    def take(self, lines: Iterable[str]) -> None:
        """Read the log of one pod."""
        for text in lines:
            rank_line = _rank_line(text)
            if rank_line is not None:
                self.ranks[rank_line.rank] = rank_line
                continue
            line = read_line(text)
            if isinstance(line, ProgressLine):
                self.steps_reported.add(line.step)

    @property
    def losses_nats(self) -> tuple[float, ...]:
        """The losses of the first rank, which all others must have as well; empty for none."""
        return self.ranks[min(self.ranks)].losses_nats if self.ranks else ()

    @property
    def checkpoint_bytes(self) -> int:
        """The bytes of the checkpoint that was written and read back."""
        return max((each.checkpoint_bytes for each in self.ranks.values()), default=0)


def _rank_line(text: str) -> SmokeLine | None:
    start = text.find("{")
    if start < 0 or '"smoke"' not in text:
        return None
    try:
        return SmokeLine.model_validate_json(text[start:])
    except ValidationError:
        return None


def fault_of(tried: Tried, *, num_ranks: int, steps: int, device: str) -> str:
    """Say the first thing that is wrong with a training that ended well; "" for nothing.

    `device` is where it must have been, cuda or cpu.
    """
    silent = sorted({*range(num_ranks)} - tried.ranks.keys())
    if silent:
        return f"{_listed('rank', silent)} of {num_ranks} printed no losses"
    for each in tried.ranks.values():
        if each.world_size != num_ranks:
            return f"{each.world_size} ranks trained together, {num_ranks} expected"
        if each.device != device:
            return f"rank {each.rank} on node {each.node} trained on {each.device}, not on {device}"
    for step in range(steps):
        fault = _fault_of_step(tried, step)
        if fault:
            return fault
    unreported = sorted({*range(1, steps + 1)} - tried.steps_reported)
    if unreported:
        return f"the log has no loss line of {_listed('step', unreported)}"
    return ""


def _fault_of_step(tried: Tried, step: int) -> str:
    """Say what is wrong with the losses of a step, which counts from 0 here."""
    first = tried.ranks[0]
    for each in tried.ranks.values():
        if step >= len(each.losses_nats):
            return f"rank {each.rank} on node {each.node} took {len(each.losses_nats)} steps"
        loss, expected = each.losses_nats[step], first.losses_nats[step]
        if not math.isfinite(loss):
            return f"the loss of rank {each.rank} on node {each.node} is {loss} in step {step + 1}"
        if loss != expected:
            return (
                f"the loss of step {step + 1} is {loss} for rank {each.rank} on node {each.node} "
                f"and {expected} for rank 0 on node {first.node}: what ranks exchange arrives "
                "changed"
            )
    return ""


@dataclass(frozen=True)
class Cause:
    """Why the program failed, with what to do; `bad_node` is set where a machine is at fault."""

    sentence: str
    bad_node: str = ""


def explain_failure(sources: Sequence[Source], context: Context) -> Cause | None:
    """Find the root cause in logs and ends of the program's pods; None where they say nothing.

    Sources are named after what people know: the nodes.
    """
    found = [each for each in explain(sources, context) if each.role is not Role.NOTE]
    if not found:
        return None
    first = found[0]
    where = f"node {first.source}"
    if first.rule == UNEXPLAINED:
        return Cause(f"{where}: {first.evidence}")
    # No run is there yet: what is typed of one is no advice.
    of_run = re.compile(rf"\b{UNKNOWN.run}\b")
    remedies = [each for each in first.remedy.split("; ") if not of_run.search(each)]
    is_machine = RULE[first.rule].rank is Rank.HARDWARE
    return Cause(
        f"{where}: {'; '.join([first.diagnosis, *remedies])} ({first.evidence})",
        bad_node=first.source if is_machine else "",
    )


def _listed(noun: str, numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
    return f"{noun} {shown}" if len(numbers) == 1 else f"{noun}s {shown}"
