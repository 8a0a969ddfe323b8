"""How the end of interest reaches a workflow that is busy: each step asks first."""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.reactions import cluster as cluster_reactions
from stationmaster.domain.reactions import run as run_reactions
from stationmaster.domain.reactions.run import POLICY
from stationmaster.domain.reactions.workflow import EndWork, StepBegins
from stationmaster.domain.run.aggregate import Run


def raise_if_stopped(run: Run) -> None:
    """End the train workflow when someone asked to stop, or when the run has ended otherwise.

    Raises:
        RunStopped: so that the state machine goes to its conclusion at once.
    """
    _raise(run_reactions.decide(run, StepBegins(), POLICY))


def raise_if_unwanted(cluster: Cluster) -> None:
    """End the cluster workflow when nobody leases the cluster any more, or when it has failed.

    Raises:
        ClusterDrained, ClusterFailed: so that the state machine goes to its conclusion at once.
    """
    _raise(cluster_reactions.decide(cluster, StepBegins()))


def _raise(reactions: Iterable[object]) -> None:
    for reaction in reactions:
        if isinstance(reaction, EndWork):
            raise reaction.error(reaction.sentence)
