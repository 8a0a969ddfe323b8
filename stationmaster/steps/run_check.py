"""One validation check of a cluster: passed, or nobody trains there and wastes money.

What may still settle (nodes joining, plugins counting devices) is looked at again until the time is
up; a verdict that is final ends the workflow at once.
"""

from __future__ import annotations

from datetime import datetime

from stationmaster.checks import (
    NEEDS_NO_NODES,
    USE_WHOLE_NODES,
    Check,
    before,
    get_check,
    nccl,
    nodes,
    time_limit_s,
)
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import CheckFinished, ClusterPhase
from stationmaster.domain.cluster.replacing import checked_since
from stationmaster.domain.errors import CheckFailed
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import LABEL_CLUSTER_ID
from stationmaster.inspection import Finding, LiveCluster, Verdict, live_cluster
from stationmaster.rendering.metadata import LABEL_CHECK
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.exit_from_existing import taken_out_when_late
from stationmaster.steps.parts.node_replacements import (
    begin_replacing,
    of_nodes,
    raise_if_replacing,
)
from stationmaster.steps.parts.records import enter_cluster_phase, mirror_phase, of_pass
from stationmaster.steps.parts.removal import remove_labelled_jobs
from stationmaster.steps.parts.stops import wanted_cluster


def run_check(services: Services, cluster_id: ClusterId, *, check: str) -> StepResult:
    """Look at the cluster once; ready when the check has passed.

    Raises:
        NodesToReplace: single nodes are bad, and other ones are to come in their place.
        CheckFailed: with the figures seen and expected.
        ClusterDrained: nobody leases the cluster any more.
    """
    cluster = wanted_cluster(services, cluster_id)
    raise_if_replacing(cluster)
    cluster = enter_cluster_phase(services, cluster, ClusterPhase.VALIDATING)
    mirror_phase(services, cluster)
    finished = next((known for known in cluster.checks if known.name == check), None)
    if finished is not None:
        _clean_up(services, cluster, check)
        if finished.passed:
            return READY
        raise CheckFailed(f"check {check} failed: {finished.detail}")
    over = {known.name for known in cluster.checks if known.passed}
    if not over.issuperset(before(check, cluster.spec, is_full=cluster.is_full)):
        return NOT_READY  # which has a limit of its own, and ends the pass where it fails
    live = live_cluster(services, cluster)
    finding = _look(live, get_check(check))
    detail = finding.sentence
    if finding.verdict not in (Verdict.GOOD, Verdict.BAD):
        waited_s = (services.now() - _may_start_since(cluster, check)).total_seconds()
        if waited_s <= time_limit_s(check, longest_s=services.settings.check_timeout_s):
            return NOT_READY
        detail = f"{detail} (after {waited_s:.0f} s)"
    if finding.verdict is not Verdict.GOOD and finding.bad_nodes:
        why_not = begin_replacing(services, cluster, live, check=check, bad=finding.bad_nodes)
        detail = f"{detail}; {why_not}"
    event = CheckFinished(
        **services.cluster_stamp(
            cluster_id, "check.finished", check, *of_pass(cluster), *of_nodes(cluster)
        ),
        check=check,
        passed=finding.verdict is Verdict.GOOD,
        detail=detail,
        figures=dict(finding.figures),
        bad_nodes=tuple(finding.bad_nodes),
        table=finding.table,
    )
    raise_if_replacing(services.cluster_states.record(cluster_id, [event]))
    _clean_up(services, cluster, check)
    if not event.passed:
        raise CheckFailed(f"check {check} failed: {detail}")
    return READY


def _may_start_since(cluster: Cluster, check: str) -> datetime:
    """Return from when on the check's time counts: after that of the checks it waits for."""
    awaited = before(check, cluster.spec, is_full=cluster.is_full)
    ends = [known.at for known in cluster.checks if known.name in awaited and known.at is not None]
    return max([checked_since(cluster) or cluster.pass_began_at, *ends])


def _look(cluster: LiveCluster, check: Check) -> Finding:
    """Return the check's finding, once all nodes have joined; until then, that of the nodes."""
    if check.NAME not in NEEDS_NO_NODES:
        joined = nodes.look(cluster)
        if joined.verdict is not Verdict.GOOD:
            return joined
    finding = check.look(cluster)
    if finding.verdict is Verdict.MISSING:
        _start(cluster, check)
    return finding


def _start(cluster: LiveCluster, check: Check) -> None:
    """Apply what the check runs, and delete its jobs for nodes that are no longer there."""
    objects = check.render(cluster)
    kinds = ("Job", "MPIJob", cluster.kubernetes.backend.KIND)
    wanted = {each["metadata"]["name"] for each in objects if each["kind"] in kinds}
    selector = {LABEL_CLUSTER_ID: cluster.cluster_id, LABEL_CHECK: check.NAME}
    has_mpi = check.NAME == nccl.NAME
    remove_labelled_jobs(cluster.kubernetes, selector, but=wanted, has_mpi=has_mpi)
    with taken_out_when_late(cluster.services, cluster.cluster_id):
        cluster.kubernetes.apply(objects)


def _clean_up(services: Services, cluster: Cluster, check: str) -> None:
    """Delete the jobs of a check that has ended, which use whole nodes while they run."""
    if check in USE_WHOLE_NODES:
        selector = {LABEL_CLUSTER_ID: cluster.cluster_id, LABEL_CHECK: check}
        gateway = live_cluster(services, cluster).kubernetes
        remove_labelled_jobs(gateway, selector, has_mpi=check == nccl.NAME)
