"""Which runs a cluster can take that others made, and what a refusal says."""

from __future__ import annotations

import pytest

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase, Requester
from stationmaster.domain.cluster.fitting import why_unfit
from tests.support.factories import make_cluster

NEEDED = make_cluster(nodes=2).spec


def kept(phase: ClusterPhase = ClusterPhase.READY, **values: object) -> Cluster:
    requester = Requester(team_id="T1", channel_id="C1", user_id="U1")
    cluster = make_cluster(phase, nodes=4, leased=False)
    return cluster.model_copy(update={"name": "lab", "requester": requester} | values)


@pytest.mark.parametrize(
    "phase", [ClusterPhase.REQUESTED, ClusterPhase.PROVISIONING, ClusterPhase.READY]
)
def test_cluster_of_enough_nodes_of_the_type_takes_a_run_now_or_later(phase):
    assert why_unfit(kept(phase), NEEDED) == ""
    assert why_unfit(kept(phase), NEEDED.model_copy(update={"nodes": 4})) == ""


@pytest.mark.parametrize(
    ("cluster", "change", "sentence"),
    [
        (kept(requester=None), {}, "was made for one run and goes with it"),
        (kept(ClusterPhase.RELEASED), {}, "is released and takes no more runs"),
        (kept(ClusterPhase.FAILED, reason="no capacity"), {}, "no more runs: no capacity"),
        (kept(), {"nodes": 5}, "has 4 training nodes, the run wants 5"),
        (kept(), {"instance_type": "p4d.24xlarge"}, "has m5.2xlarge nodes, the run wants p4d.24x"),
        (kept(), {"num_gpus": 8}, "offers 0 GPUs a node, the run needs 8"),
        (kept(), {"num_efa": 4}, "offers 0 EFA interfaces a node, the run needs 4"),
    ],
)
def test_refusal_names_the_cluster_and_both_figures(cluster, change, sentence):
    said = why_unfit(cluster, NEEDED.model_copy(update=change))

    assert said.startswith("cluster ")
    assert sentence in said
