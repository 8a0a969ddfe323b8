"""Ends what was in progress when the last local mode stopped: its pods and its account are gone.

The facts are recorded as the product records them, at the time of that stop; what follows from
them (cards, teardowns, receipts) is then the product's own work.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from stationmaster.aws.delivery_store import LEASE
from stationmaster.aws.workflows import train_name
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.keeping import is_unapproved
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.events import RunPhase
from stationmaster.local.aws import LocalAws
from stationmaster.local.saved import Saved
from stationmaster.services import Services
from stationmaster.settings import Settings
from stationmaster.steps.parts.records import enter_cluster_phase, resources_deleted
from stationmaster.steps.record_events import record_dead_execution
from stationmaster.steps.start_teardown import start_teardown

_WHY: Final = "local mode was stopped"


def resume(aws: LocalAws, saved: Saved, settings: Settings) -> None:
    """Give a deployed account what the last start saved, and end what that start left open.

    Raises:
        ValueError: it cannot be read, and was moved aside.
    """
    if saved.written_at is None:
        return
    stopped_at = saved.written_at
    try:
        aws.restore()
    except (KeyError, TypeError, ValueError) as exc:
        saved.move_aside(f"{type(exc).__name__}: {exc}")
        raise ValueError(f"{saved.damage}; start again") from exc
    _end_interrupted(settings, stopped_at=stopped_at)


def _end_interrupted(settings: Settings, *, stopped_at: datetime) -> None:
    """Record the end of every open cluster and run that had begun; finish their teardowns."""
    services = Services(settings, now=lambda: stopped_at)
    # The notifier that had it is gone too; cards need not wait until its lease runs out.
    services.slack_writer.take(_WHY, now=stopped_at + 2 * LEASE)
    services.slack_writer.give_back(_WHY)
    for cluster in services.cluster_states.list_open():
        left = resources_deleted(services, cluster, *ResourceKind)
        if not (left.is_ending or is_unapproved(left)):
            enter_cluster_phase(services, left, ClusterPhase.FAILED, reason=_WHY)
    for run in services.runs.list_open():
        if run.phase is RunPhase.REQUESTED or run.awaits_approval:
            continue  # nothing has begun: it goes on
        record_dead_execution(
            services,
            state_machine_arn=settings.train_state_machine_arn,
            execution_name=train_name(run.run_id, run.passes),
            status="ABORTED",
            cause=_WHY,
        )
    for cluster in services.cluster_states.list_open():
        if cluster.is_going_away:
            start_teardown(services, cluster.cluster_id)
