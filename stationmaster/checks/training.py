"""The training check: a few steps of a small model on all idle nodes, in full validations.

A job, rendered as those of runs are, trains the preset `smoke` of the recipe that the cluster was
made for, stops half way with a checkpoint on the file system, and continues from it
(`training.smoke`). It passes when every rank has the same finite losses and the log has them; a
failure is explained as that of a run is.
"""

from __future__ import annotations

from typing import Final

from stationmaster.checks.whole_job import (
    Ended,
    how_it_ended,
    job_name,
    look_at_job,
    render_job,
    with_nodes,
)
from stationmaster.diagnosis.explaining import Context, Seen, Source
from stationmaster.diagnosis.rules import POD
from stationmaster.diagnosis.training_smoke import Tried, explain_failure, fault_of
from stationmaster.domain.catalogue.entries import CATALOGUE, TINY_LLAMA
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.sizes import counted, size_text
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.views import PodView
from stationmaster.rendering.check_job import SMOKE_STEPS, processes_on_node, smoke
from stationmaster.rendering.job_spec import KubernetesObject

NAME: Final = "training"
_LETTERS: Final = "tr"
# Of each pod that is asked why training failed: together those of 100 nodes fit into a function.
_LAST_LINES: Final = 2000


def applies(spec: ClusterSpec, *, is_full: bool) -> bool:
    """Say whether it is a full validation: it takes as long as the start of training."""
    return is_full


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make the volume that training pods mount, and the job on the idle nodes.

    Raises:
        TransientError: the file system is not there (any more).
    """
    name, nodes = job_name(cluster, _LETTERS), len(cluster.idle_nodes)
    program = smoke(cluster.spec, name=name, nodes=nodes, recipe=recipe_name(cluster))
    return render_job(cluster, program, check=NAME, name=name)


def recipe_name(cluster: LiveCluster) -> str:
    """Choose the recipe of the run that the cluster was made for; else the catalogue's smallest.

    Custom images and commands and models of the hub are not tried: nobody knows how long they take.
    """
    runs, _ = cluster.services.runs.load_each([cluster.run_id] if cluster.run_id else [])
    for run in runs:
        name, is_own = run.request.recipe, run.request.image or run.request.program
        if name in CATALOGUE and CATALOGUE[name].smoke is not None and not is_own:
            return name
    return TINY_LLAMA.name


def look(cluster: LiveCluster) -> Finding:
    """Judge the job of the present nodes, once all of its pods have ended."""
    num_nodes, undone = len(cluster.idle_nodes), "training was not tried"
    if not num_nodes:
        return Finding(Verdict.GOOD, "runs train on all nodes", {"nodes": 0})
    name = job_name(cluster, _LETTERS)
    ended = look_at_job(cluster, check=NAME, name=name, undone=undone)
    if isinstance(ended, Finding):
        return ended
    if ended.failed is not None:
        return _bad(cluster, ended, ended.failed)
    # One log at a time: those of many nodes do not fit into the memory of a function together.
    tried = Tried()
    for pod in ended.pods:
        tried.take(cluster.kubernetes.log(pod.name).splitlines())
    num_ranks = num_nodes * processes_on_node(cluster.spec)
    device = "cuda" if cluster.spec.num_gpus else "cpu"
    fault = fault_of(tried, num_ranks=num_ranks, steps=SMOKE_STEPS, device=device)
    if fault:
        return Finding(Verdict.BAD, fault)
    return _good(tried, num_ranks=num_ranks, num_nodes=num_nodes)


def _good(tried: Tried, *, num_ranks: int, num_nodes: int) -> Finding:
    first, last = tried.losses_nats[0], tried.losses_nats[-1]
    ranks, nodes = counted(num_ranks, "rank"), counted(num_nodes, "node")
    return Finding(
        Verdict.GOOD,
        f"{SMOKE_STEPS} steps on {ranks} of {nodes}, loss {first:.3f} to {last:.3f}, the same on "
        f"every rank; a checkpoint of {size_text(tried.checkpoint_bytes)} was written and read "
        "back",
        {
            "steps": SMOKE_STEPS,
            "ranks": num_ranks,
            "nodes": num_nodes,
            "first_loss_nats": first,
            "last_loss_nats": last,
            "checkpoint_bytes": tried.checkpoint_bytes,
        },
    )


def _bad(cluster: LiveCluster, ended: Ended, failed: PodView) -> Finding:
    """Find the root cause in the logs and the ends of all pods, as for a run that failed."""
    spec = cluster.spec
    context = Context(
        recipe=recipe_name(cluster),
        cluster=cluster.cluster_id,
        instance=spec.instance_type,
        num_efa=spec.num_efa,
    )
    cause = explain_failure([_source(cluster, pod) for pod in ended.pods], context)
    if cause is None:
        return Finding(Verdict.BAD, how_it_ended(cluster, failed))
    sentence = with_nodes(cause.sentence, ended.pods)
    bad_nodes = {cause.bad_node: sentence} if cause.bad_node else {}
    return Finding(Verdict.BAD, sentence, bad_nodes=bad_nodes)


def _source(cluster: LiveCluster, pod: PodView) -> Source:
    status = pod.terminated_reason
    if pod.exit_code:
        status += f" exit code {pod.exit_code}"
    return Source(
        name=pod.node or pod.name,
        lines=cluster.kubernetes.log(pod.name).splitlines()[-_LAST_LINES:],
        seen=[Seen(text=status, where=POD, subject=pod.name)] if status else [],
    )
