"""What must hold of runs whatever goes wrong. Pure: it judges what was seen of a local mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.run.events import ProgressReported, TrainingRecovered
from stationmaster.domain.run.goodput import goodput
from stationmaster.domain.run.view import RunView

# From the moment at which a budget is used up until its run is stopped: a relay's heartbeat comes
# each 20 s; where that relay was killed or held up, the next one or the one after it counts.
BUDGET_LATE_S: Final = 60.0


class Mark(NamedTuple):
    """What a message of the bot is about, by one of its keys, and what it says."""

    about: str
    key: str
    text: str


@dataclass(frozen=True)
class Seen:
    """What a local mode shows at one moment; `losses` are those of the undisturbed run, by step."""

    now: datetime
    runs: Sequence[RunView]
    events: Sequence[ProgressReported | TrainingRecovered]
    marks: Sequence[Mark]
    losses: Mapping[int, float | None]
    pods: Counter[str]
    """How many pods of each run train."""


def broken(seen: Seen) -> list[str]:
    """Say what does not hold of what must hold at any time."""
    return [*_doubled(seen), *_other_losses(seen), *_money(seen)]


def broken_at_end(
    seen: Seen, clusters: Sequence[Cluster], left: Sequence[str], executions: Sequence[str]
) -> list[str]:
    """Say what does not hold once faults have stopped and nothing moves any more.

    `left` is what the account still has, and `executions` are the workflows that run.
    """
    found = broken(seen)
    cards = {mark.about: mark.text for mark in seen.marks if mark.key == "card"}
    for view in seen.runs:
        run_id, phase = view.run.run_id, view.run.phase
        if not phase.is_terminal or view.is_live:
            found.append(f"final state: {run_id} is {phase} and its teardown {view.teardown}")
        elif phase.value not in cards.get(run_id, ""):
            found.append(f'final state: {run_id} is {phase}, its card says "{cards.get(run_id)}"')
    for each in clusters:
        if each.teardown is not TeardownStatus.COMPLETED or each.billable_left:
            found.append(f"ledger: {each.cluster_id} is {each.teardown}, left {each.billable_left}")
    found += [f"ledger: the account still has {each}" for each in left]
    return [*found, *(f"final state: workflow {each} still runs" for each in executions)]


def _doubled(seen: Seen) -> Iterator[str]:
    for (about, key), times in Counter(mark[:2] for mark in seen.marks).items():
        if times > 1:
            yield f"one card a run: {key} of {about} was posted {times} times"
    for command, times in Counter(view.run.request.command for view in seen.runs).items():
        # Somebody may resume one run several times.
        if times > 1 and "resume" not in command:
            yield f'no double launch: "{command}" has {times} runs'
    for view in seen.runs:
        if seen.pods[view.run.run_id] > view.run.request.nodes:
            yield f"no double launch: {seen.pods[view.run.run_id]} pods of {view.run.run_id} train"


def _other_losses(seen: Seen) -> Iterator[str]:
    for event in seen.events:
        if isinstance(event, ProgressReported):
            loss = seen.losses.get(event.step, event.loss_nats)
            if event.loss_nats != loss:
                said = f"{event.loss_nats}, undisturbed {loss}"
                yield f"same losses: step {event.step} of {event.run_id} has {said}"
        elif event.recovery.equal != event.recovery.compared:
            said = f"{event.recovery.equal} of {event.recovery.compared} repeated losses are equal"
            yield f"same losses: {said} after a setback of {event.run_id}"


def _money(seen: Seen) -> Iterator[str]:
    for view in seen.runs:
        run, budget = view.run, view.run.request.budget_usd
        if budget is not None and not run.is_ending:
            over = view.cost_usd(seen.now) - budget
            if over > run.price_per_hour_usd * BUDGET_LATE_S / 3600:
                yield f"budget: {run.run_id} is ${over:.4f} over its ${budget:.2f} and not stopped"
        found, spans = goodput(view, seen.now), view.paid_spans(seen.now)
        paid = sum((end - start for start, end in spans), timedelta())
        if found is not None and (found.paid != paid or min(found.spent.values()) < timedelta()):
            yield f"goodput: the parts of {run.run_id} add up to {found.paid}, and {paid} was paid"
