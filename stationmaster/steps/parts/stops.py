"""How the end of interest reaches a workflow that is busy: each step asks first."""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.reactions import cluster as cluster_reactions
from stationmaster.domain.reactions import run as run_reactions
from stationmaster.domain.reactions.run import POLICY
from stationmaster.domain.reactions.workflow import EndWork, StepBegins
from stationmaster.domain.run.aggregate import Run
from stationmaster.services import Services


def raise_if_stopped(run: Run) -> None:
    """End the train workflow when someone asked to stop, or when the run has ended otherwise.

    Raises:
        RunStopped: so that the state machine goes to its conclusion at once.
    """
    _raise(run_reactions.decide(run, StepBegins(), POLICY))


def wanted_run(services: Services, run_id: RunId) -> Run:
    """Load the run for a step of the train workflow, unless `raise_if_stopped` ends that."""
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    return run


def wanted_cluster(services: Services, cluster_id: ClusterId) -> Cluster:
    """Load the cluster for a step of its workflow, unless nobody wants it any more.

    Raises:
        ClusterDrained, ClusterFailed: so that the state machine goes to its conclusion at once.
    """
    cluster = services.cluster_states.load(cluster_id)
    _raise(cluster_reactions.decide(cluster, StepBegins()))
    return cluster


def _raise(reactions: Iterable[object]) -> None:
    for reaction in reactions:
        if isinstance(reaction, EndWork):
            raise reaction.error(reaction.sentence)
