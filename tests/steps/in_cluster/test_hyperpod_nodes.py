"""A node of SageMaker HyperPod that fails a check is reported, and the checks of others pass."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stationmaster.domain.cluster.events import ClusterPhase, ClusterPhaseChanged, JobKindChosen
from stationmaster.domain.errors import NodesToReplace
from stationmaster.domain.job_kinds import JobKind
from stationmaster.inspection import Finding, LiveCluster, Verdict, live_cluster
from stationmaster.rendering.metadata import LABEL_INSTANCE_TYPE
from stationmaster.steps import run_check
from stationmaster.steps.ensure_node_group import ensure_node_group
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account
from tests.support.cluster_steps import CLUSTERS, add_nodes
from tests.support.trainer_steps import EKS_NAME, theirs


def test_bad_node_goes_by_its_label_and_the_check_passes_on_the_next(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(account)
    account.request(eks_name=EKS_NAME)
    account.happen_to_cluster(JobKindChosen, kind=JobKind.PYTORCH_JOB, hyperpod_vcpus=4)
    account.happen_to_cluster(ClusterPhaseChanged, phase=ClusterPhase.VALIDATING)
    health = {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
    local = CLUSTERS[account.settings.kubeconfig]
    add_nodes(local, "pods", health, cpu="4", count=2, instance_type="ml.m5.2xlarge")
    of_type = {LABEL_INSTANCE_TYPE: "ml.m5.2xlarge"}
    gateway = account.services.kubernetes(account.cluster_id)
    until(lambda: sum(node.ready for node in gateway.nodes(labels=of_type)) == 2)
    bad, good = (
        node.name for node in live_cluster(account.services, account.cluster).training_nodes
    )

    def look(live: LiveCluster) -> Finding:
        is_bad = bad in {node.name for node in live.training_nodes}
        wrong = {bad: "7 GPUs"} if is_bad else {}
        return Finding(Verdict.BAD if is_bad else Verdict.GOOD, "GPUs", bad_nodes=wrong)

    check = SimpleNamespace(NAME="gpus", look=look)
    monkeypatch.setattr(run_check, "get_check", lambda _: check)
    with pytest.raises(NodesToReplace, match="7 GPUs"):
        account.call(run_check.run_check, check="gpus")
    until(lambda: account.call(ensure_node_group, node_group="training"))

    there = gateway.nodes(labels=of_type)
    assert (len(there), bad in {node.name for node in there}) == (2, False)
    assert good in {node.name for node in there}
    assert len(account.events("cluster.node_replaced")) == 1
    assert account.call(run_check.run_check, check="gpus")
    for node in there:
        local.lose_node(node.name)
