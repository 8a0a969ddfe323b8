"""Begins the next attempt at a run, after a failure that another start may not meet again, for what
was found wrong while it trains, or to give it another number of nodes.

The recorder calls it last, a look at a time: it deletes the job, and once its pods are gone makes
another one of the same name, for which the run's workflow keeps waiting. A node that is to blame is
terminated before, and its group launches another machine. What does not answer is tried again after
the next batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from stationmaster.domain.cluster.replacements import MAX_REPLACED
from stationmaster.domain.detected import Action
from stationmaster.domain.errors import IllegalTransition, PermanentError, TransientError
from stationmaster.domain.reactions.restarts import NextAttempt
from stationmaster.domain.reactions.run import Reaction
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import next_assignment
from stationmaster.domain.run.detections import pending_restart
from stationmaster.domain.run.events import AttemptStarted, RunPhase
from stationmaster.domain.run.failures import first_cause
from stationmaster.inspection import live_cluster
from stationmaster.jobs.live_run import LiveRun, attempt_of, cluster_of
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.rendering.metadata import run_labels
from stationmaster.services import Services
from stationmaster.steps.parts.records import price_of_lease
from stationmaster.steps.parts.removal import forget_lost
from stationmaster.steps.parts.rescaling import resize_lease

logger = logging.getLogger(__name__)


def begin_attempt(services: Services, run: Run, reactions: Iterable[Reaction]) -> None:
    """Look once at the run's next attempt where that was decided; nothing is raised."""
    for reaction in reactions:
        if not isinstance(reaction, NextAttempt):
            continue
        try:
            _look(services, run, reaction)
        except (IllegalTransition, TransientError, PermanentError) as exc:
            extra = {"run_id": run.run_id, "attempt": reaction.number, "error": str(exc)}
            logger.warning("attempt not begun yet", extra=extra)
        return


def _look(services: Services, run: Run, following: NextAttempt) -> None:
    gateway = services.kubernetes(cluster_of(run))
    job = gateway.job(run.job)
    before = attempt_of(run)
    assignment = next_assignment(run.run_id, before, number=following.number, nodes=following.nodes)
    found = pending_restart(run)
    is_made = job is not None and job.condition("Failed") is None
    if run.rescale is not None:
        if job is not None and job.condition("Succeeded") is not None:
            return  # it has done all of its work, of which the relay is about to tell
        is_made = job is not None and job.uid != run.rescale.job_uid
    elif found is not None and job is not None:
        is_made = is_made and job.created_at is not None and job.created_at > found.at
    if not is_made and not _is_removed(gateway, run):
        return
    bad_node, price = _take_out_bad_node(services, run), None
    if following.nodes is not None:
        cluster = services.cluster_states.load(before.cluster_id)
        cluster = resize_lease(services, cluster, run, following.nodes)
        price = price_of_lease(run, cluster, following.nodes)
    if not is_made:
        spec = LiveRun(services, run).spec(attempt=before.model_copy(update=dict(assignment)))
        gateway.apply(gateway.backend.render(spec))
        job = gateway.job(run.job)
    # Else a recorder that was killed has made it, and it is not written yet.
    event = AttemptStarted(
        **services.run_stamp(run.run_id, "attempt.started", following.number),
        **dict(assignment),
        after=following.why,
        bad_node=bad_node,
        price_per_hour_usd=price,
        job_uid=job.uid if job is not None else "",
    )
    run = services.runs.record(run.run_id, [event])
    if run.is_stopping or run.phase is RunPhase.SAVING or run.phase.is_terminal:
        # Whoever ended the run in this moment may have looked for a job, and seen none.
        gateway.delete_job(run.job)


def _take_out_bad_node(services: Services, run: Run) -> str:
    """Terminate the machine to blame for the run's failure, once; "" where none is, or may be."""
    cause, found = first_cause(run.failures), pending_restart(run)
    name, why = (
        (cause.node, cause.sentence) if cause is not None and cause.blames_machine else ("", "")
    )
    if not name and found is not None and found.action is Action.REPLACE:
        name, why = found.node, found.evidence
    if not name or sum(bool(each.bad_node) for each in run.attempts) >= MAX_REPLACED:
        return ""
    cluster = services.cluster_states.load(cluster_of(run))
    spec, is_hyperpod = cluster.spec, cluster.spec.hyperpod_vcpus is not None
    # The next instance of a reservation would come on the same machine.
    if (spec.eks_name and not is_hyperpod) or spec.reservation is not None:
        return ""
    cluster.refuse_going(f"replace node {name}")
    live = live_cluster(services, cluster)
    there = {node.name: node for node in live.training_nodes}
    if name in there:
        if name not in {node.name for node in live.idle_nodes}:
            return ""  # another run's pods are on it
        if is_hyperpod:
            live.kubernetes.report_node(name)  # HyperPod replaces its nodes itself
            return name
        live.kubernetes.cordon(name, f"{run.run_id}: {why}")
        services.scaling_groups.replace(there[name].instance_id)
    return name


def _is_removed(gateway: KubernetesGateway, run: Run) -> bool:
    """Delete what is left of the job; say whether its pods are gone."""
    gateway.delete_job(run.job)
    pods = gateway.pods(labels=run_labels(run.run_id, "training"))
    forget_lost(gateway, pods)
    return not pods
