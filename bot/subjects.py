"""What has a live card in a channel: a run, or a kept cluster.

Each has a card, a thread below it, and a receipt at its end; `bot.blocks` draws them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from bot.blocks.card import card_milestone, run_card
from bot.blocks.cluster_card import cluster_card, cluster_milestone
from bot.blocks.cluster_thread import cluster_message, is_posted
from bot.blocks.elements import Content
from bot.blocks.failures import fold_key
from bot.blocks.receipt import cluster_receipt, run_receipt
from bot.blocks.thread import is_noteworthy, thread_message
from bot.blocks.thread_lines import ThreadEvent
from stationmaster.aws.delivery_store import Owner, of_cluster, of_run
from stationmaster.domain.aggregates import CLUSTER, RUN
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.events import ApprovalEvent as ClusterApproval
from stationmaster.domain.cluster.events import (
    ClusterPhaseChanged,
    ClusterRequested,
    DeletionRequested,
    KeepEnding,
    Requester,
    RoomLow,
)
from stationmaster.domain.cluster.nodes import NodesSeen
from stationmaster.domain.run.events import (
    ApprovalEvent,
    BudgetReached,
    CapacityEnding,
    CheckpointSaved,
    PhaseChanged,
    ProgressReported,
    ResultsUnsaved,
    RunPhase,
    RunRequested,
    StopRequested,
    TrainingEvaluated,
)
from stationmaster.domain.run.view import ClusterView, RunView


@dataclass(frozen=True)
class RunSubject:
    """A run, with its cluster where it has one."""

    view: RunView
    kind: ClassVar = "run"
    """The word that people use for such a thing."""

    @property
    def owner(self) -> Owner:
        """The owner under which its deliveries are kept."""
        return of_run(self.view.run.run_id)

    @property
    def key(self) -> str:
        """The key by which its records are found in a batch of the table's stream."""
        return f"{RUN.key_prefix}#{self.view.run.run_id}"

    @property
    def ids(self) -> Mapping[str, str]:
        """The ids by which the log's lines name it."""
        return {"run_id": self.view.run.run_id}

    @property
    def channel_id(self) -> str:
        """The channel where it was asked for."""
        return self.view.run.request.channel_id

    @property
    def user_id(self) -> str:
        """The person who asked for it."""
        return self.view.run.request.user_id

    @property
    def requested_at(self) -> datetime:
        """The time at which it was asked for."""
        return self.view.run.requested_at

    @property
    def is_live(self) -> bool:
        """Whether something is still in progress."""
        return self.view.is_live

    @property
    def has_ended(self) -> bool:
        """Whether its card has to show its end, which comes before all else."""
        return self.view.run.phase.is_terminal

    @property
    def is_over_since(self) -> datetime | None:
        """When the last of it was seen to be gone; None before."""
        return self.view.torn_down_at

    @property
    def teardown(self) -> TeardownStatus:
        """The state of its end; a receipt is due when it is no longer live."""
        return self.view.teardown

    @property
    def phase_times(self) -> Sequence[datetime]:
        """The moments at which its last phases began."""
        return [at for _, at in self.view.run.phases]

    @property
    def milestone(self) -> str:
        """Make a key that changes whenever the card must not be late."""
        return card_milestone(self.view)

    def card(self, *, now: datetime, moved_from: tuple[str, str] | None = None) -> Content:
        """Draw its one live message."""
        return run_card(self.view, now=now, moved_from=moved_from)

    def receipt(self, *, now: datetime) -> Content:
        """Write what is posted at its end."""
        return run_receipt(self.view, now=now)

    def is_noteworthy(self, event: ThreadEvent) -> bool:
        """Say whether this event is posted in its thread at all."""
        return is_noteworthy(event, self.view.run)

    def message(
        self, events: Sequence[ThreadEvent], *, past: Sequence[ThreadEvent] = ()
    ) -> Content | None:
        """Make one message of the noteworthy `events`, or None; an end counts repeats in `past`."""
        return thread_message(events, self.view, past=past)

    def claim_key(self, event: ThreadEvent) -> str:
        """Return what is claimed before posting: equal for events of which one is enough.

        It is the event, its minute where many may follow, or its sentence where that repeats.

        A run that saves, evaluates or restarts every few seconds would drown its thread; the card
        names the newest.
        """
        if isinstance(event, CheckpointSaved):
            return f"checkpoint-{event.at:%Y%m%dT%H%M}"
        if isinstance(event, TrainingEvaluated):
            return f"evaluation-{event.at:%Y%m%dT%H%M}"
        said = fold_key(event)
        return event.event_id if said is None else hashlib.sha256(said.encode()).hexdigest()[:24]

    def is_warning(self, event: ThreadEvent) -> bool:
        """Say whether everybody in the channel has to see this event."""
        return False

    def is_pressing(self, event: ThreadEvent) -> bool:
        """Say whether its line is posted at once; others wait to share a message."""
        if isinstance(event, PhaseChanged):
            is_failed = event.phase is RunPhase.SAVING and bool(event.reason)
            return event.phase.is_terminal or is_failed
        return isinstance(
            event,
            StopRequested
            | BudgetReached
            | CapacityEnding
            | ResultsUnsaved
            | RunRequested
            | ApprovalEvent,
        )

    def is_steady(self, events: Sequence[ThreadEvent]) -> bool:
        """Say whether more of the same will follow, so that a skipped card loses nothing."""
        return all(
            isinstance(event, ProgressReported | CheckpointSaved | TrainingEvaluated)
            for event in events
        )


@dataclass(frozen=True)
class ClusterSubject:
    """A kept cluster, with the runs that use it or wait for it."""

    view: ClusterView
    kind: ClassVar = "cluster"

    @property
    def owner(self) -> Owner:
        return of_cluster(self.view.cluster.cluster_id)

    @property
    def key(self) -> str:
        return f"{CLUSTER.key_prefix}#{self.view.cluster.cluster_id}"

    @property
    def ids(self) -> Mapping[str, str]:
        return {"cluster_id": self.view.cluster.cluster_id}

    @property
    def _requester(self) -> Requester:
        requester = self.view.cluster.requester
        assert requester is not None, "only kept clusters have a card"
        return requester

    @property
    def channel_id(self) -> str:
        return self._requester.channel_id

    @property
    def user_id(self) -> str:
        return self._requester.user_id

    @property
    def requested_at(self) -> datetime:
        return self.view.cluster.requested_at

    @property
    def is_live(self) -> bool:
        return self.view.is_live

    @property
    def has_ended(self) -> bool:
        return self.view.cluster.is_going_away

    @property
    def is_over_since(self) -> datetime | None:
        return self.view.cluster.torn_down_at

    @property
    def teardown(self) -> TeardownStatus:
        return self.view.cluster.teardown

    @property
    def phase_times(self) -> Sequence[datetime]:
        return [at for _, at in self.view.cluster.phases]

    @property
    def milestone(self) -> str:
        return cluster_milestone(self.view.cluster)

    def card(self, *, now: datetime, moved_from: tuple[str, str] | None = None) -> Content:
        return cluster_card(self.view, now=now, moved_from=moved_from)

    def receipt(self, *, now: datetime) -> Content:
        return cluster_receipt(self.view, now=now)

    def is_noteworthy(self, event: ThreadEvent) -> bool:
        return is_posted(event)

    def message(
        self, events: Sequence[ThreadEvent], *, past: Sequence[ThreadEvent] = ()
    ) -> Content | None:
        return cluster_message(events, self.view.cluster)

    def claim_key(self, event: ThreadEvent) -> str:
        return event.event_id

    def is_warning(self, event: ThreadEvent) -> bool:
        return isinstance(event, KeepEnding)

    def is_pressing(self, event: ThreadEvent) -> bool:
        return isinstance(
            event,
            KeepEnding
            | ClusterPhaseChanged
            | DeletionRequested
            | ClusterRequested
            | NodesSeen
            | RoomLow
            | ClusterApproval,
        )

    def is_steady(self, events: Sequence[ThreadEvent]) -> bool:
        return False


Subject = RunSubject | ClusterSubject
