"""What is decided of what waits for an approval, a run or a kept cluster, and what follows at once.

Whoever is killed between the write and what follows leaves that to the reaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from stationmaster.cluster_upkeep import follow_up, make_change, start_pass
from stationmaster.domain.approvals import Approval
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.run import events as run_events
from stationmaster.domain.run.aggregate import Run
from stationmaster.services import Services


def record_decision(
    services: Services,
    subject: Run | Cluster,
    decision: Literal["given", "refused", "reminded"],
    asked: Approval,
    user_id: str = "",
    *,
    also: Sequence[Any] = (),
) -> Run | Cluster:
    """Record a decision about what `subject` asks for; the last approval starts or changes it.

    Raises:
        IllegalTransition: the cluster cannot be changed so any more; nothing was written.
        WriteConflict: `also` refuses; nothing was written.
    """
    about = ("decided", decision, user_id, asked.asked_at)
    fingerprint = asked.wish.fingerprint
    said: Any = {"decision": decision, "user_id": user_id, "fingerprint": fingerprint}
    if isinstance(subject, Run):
        event = run_events.ApprovalDecided(**services.run_stamp(subject.run_id, *about), **said)
        run = services.runs.record(subject.run_id, [event], also=also)
        if run.phase is run_events.RunPhase.AWAITING_APPROVAL and run.is_approved:
            services.workflows.start_train(run.run_id)
        return run
    of_cluster = services.cluster_stamp(subject.cluster_id, *about)
    decided = cluster_events.ApprovalDecided(**of_cluster, **said)
    cluster = services.cluster_states.record(subject.cluster_id, [decided], also=also)
    cluster = begin_approved(services, cluster)
    follow_up(services, cluster)
    return cluster


def begin_approved(services: Services, cluster: Cluster) -> Cluster:
    """Begin what all have agreed to who have to; nothing twice."""
    asked, change = cluster.approval, cluster.change
    if asked is None or not asked.is_given or cluster.is_ending:
        return cluster
    if change is not None and not change.is_made:
        return make_change(services, cluster, change)
    start_pass(services, cluster)  # a new one; later executions were started before
    return cluster


def look_at_approval(services: Services, subject: Run | Cluster) -> bool:
    """Remind the approvers of what waits for them, or end its wait; say whether it was due."""
    if isinstance(subject, Cluster) and subject.change is not None and not subject.change.is_made:
        begin_approved(services, subject)  # who approved it may have been killed before
    asked = subject.open_approval
    due = asked.due(services.now()) if asked is not None else None
    if asked is None or due is None:
        return False
    record_decision(services, subject, due, asked)
    return True
