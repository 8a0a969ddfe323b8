"""A node that fails a check is replaced once, whatever dies meanwhile, and the checks run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stationmaster.aws.node_groups import NodeGroup
from stationmaster.domain.cluster.events import (
    ClusterPhase,
    ClusterPhaseChanged,
)
from stationmaster.domain.detected import Action, Detection, Kind
from stationmaster.domain.errors import (
    CheckFailed,
    ClusterDrained,
    NodesToReplace,
    ResourceFailed,
    StepTimedOut,
)
from stationmaster.domain.names import LABEL_ROLE, NAMESPACE
from stationmaster.domain.run import events as ev
from stationmaster.inspection import live_cluster
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.kubernetes.views import NodeView
from stationmaster.local.aws.emulation import current
from stationmaster.local.cluster import LocalCluster
from stationmaster.local.cluster_behind_eks import ClusterBehindEks
from stationmaster.rendering.metadata import namespace
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.parts.node_replacements import WAIT_S
from stationmaster.steps.run_check import run_check
from tests.support.aws_fixtures import until
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import CLUSTERS, hear
from tests.support.factories import TO_RUNNING
from tests.support.kill_points import Killed, Writes

SPEED = IDLE
P4D: dict[str, Any] = {"recipe": "llama2-7b", "instance_type": "p4d.24xlarge"}


@pytest.fixture(autouse=True)
def nodes_follow_eks(
    account: Account, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The instances of EKS's node groups are nodes of the local cluster, with their devices."""
    monkeypatch.setattr(current(), "observer", ClusterBehindEks(cluster, tmp_path))
    yield
    cluster.faults.clear()
    account.aws.finish_lifecycles()
    cluster.reset(grace_s=0.1)


def nodes(account: Account) -> list[NodeView]:
    return live_cluster(account.services, account.cluster).training_nodes


def begin(account: Account, *, num_nodes: int = 2, fault: str = "gpu-short") -> None:
    """A cluster with its nodes and the NVIDIA device plugin; one of them is a GPU short."""
    if fault:
        CLUSTERS[account.settings.kubeconfig].faults.add(fault)
    account.request(**P4D, nodes=num_nodes)
    for step, arguments in ((ensure_cluster, {}), (ensure_node_group, {"node_group": "training"})):
        finish(account, step, **arguments)
    account.services.kubernetes(account.cluster_id).apply(load_manifests("nvidia-device-plugin"))
    if fault == "gpu-short":
        offer_gpus(account)
    account.happen_to_cluster(ClusterPhaseChanged, phase=ClusterPhase.VALIDATING)


def offer_gpus(account: Account) -> None:
    until(lambda: all(node.count("nvidia.com/gpu") for node in nodes(account)))


def finish(account: Account, step: Any, **arguments: str) -> None:
    while not account.call(step, **arguments):
        account.aws.finish_lifecycles()
        account.late += timedelta(seconds=15)


def fail_check(account: Account) -> None:
    """The check of GPUs looks until its time is over."""
    account.call(run_check, check="gpus")
    account.late += timedelta(seconds=account.settings.check_timeout_s + 1)
    account.call(run_check, check="gpus")


def replace(account: Account) -> bool:
    return account.call(ensure_node_group, node_group="training")


def instances(account: Account) -> list[str]:
    """Those that are paid for."""
    return [left.id for left in account.services.instances.left(account.cluster_id)]


def bad_instance(account: Account) -> str:
    (bad,) = [node for node in nodes(account) if node.count("nvidia.com/gpu") == 7]
    return bad.instance_id


def test_node_that_fails_a_check_is_replaced_and_every_check_begins_anew(account: Account):
    begin(account)
    bad = bad_instance(account)
    account.call(run_check, check="nodes")

    with pytest.raises(NodesToReplace, match=r"it offers 7 nvidia.com/gpu, 8 expected"):
        fail_check(account)
    with pytest.raises(NodesToReplace):  # the other checks end as well
        account.call(run_check, check="nodes")
    finish(account, ensure_node_group, node_group="training")
    offer_gpus(account)

    assert account.call(run_check, check="gpus")
    assert account.call(run_check, check="nodes")
    (began,) = account.events("cluster.node_replacement_began")
    assert (began.instance_id, began.check, began.number) == (bad, "gpus", 1)
    assert len(account.events("cluster.node_replaced")) == 1
    assert {each.name for each in account.cluster.checks} == {"gpus", "nodes"}
    assert bad not in instances(account)
    assert {node.instance_id for node in nodes(account)} == set(instances(account))
    assert len(instances(account)) == 2
    assert all(node.schedulable for node in nodes(account))


def test_no_second_node_goes_for_a_bad_one_wherever_steps_die(account: Account, writes: Writes):
    begin(account)
    bad, before = bad_instance(account), set(instances(account))
    account.restart()  # the clients of these services are watched

    with pytest.raises(NodesToReplace):
        dying(account, writes, lambda: fail_check(account))
    while not dying(account, writes, lambda: replace(account)):
        account.aws.finish_lifecycles()

    (replacement,) = account.cluster.replacements
    assert (replacement.instance_id, replacement.replaced_at is None) == (bad, False)
    assert len(instances(account)) == len(before)
    assert before - set(instances(account)) == {bad}
    assert replace(account)  # a late call changes nothing
    assert before - set(instances(account)) == {bad}


def dying(account: Account, writes: Writes, call: Callable[[], Any]) -> Any:
    """Call until it ends by itself; it dies after its first write, then after its second..."""
    for number in count(1):
        writes.start(number)
        try:
            with writes.watched():
                return call()
        except Killed:
            account.restart()
    raise AssertionError


def test_nothing_is_replaced_in_a_cluster_that_goes_away_or_under_a_job(account: Account):
    begin(account)
    with pytest.raises(NodesToReplace):
        fail_check(account)
    bad = account.cluster.replacements[0]
    gateway = account.services.kubernetes(account.cluster_id)
    about = {"name": "busy", "namespace": NAMESPACE, "labels": {LABEL_ROLE: "training"}}
    pod = {"nodeName": bad.node, "containers": [{"name": "c", "image": "i", "command": ["sleep"]}]}
    gateway.apply(
        [namespace(), {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": pod}]
    )

    under_a_job = account.changes(ensure_node_group, node_group="training")
    account.happen_to_cluster(ClusterPhaseChanged, phase=ClusterPhase.DRAINING)

    assert under_a_job == []
    assert [node.name for node in nodes(account) if not node.schedulable] == [bad.node]
    with pytest.raises(ClusterDrained):
        replace(account)
    assert bad.instance_id in instances(account)


@pytest.mark.parametrize("has_capacity", [True, False])
def test_wait_for_another_node_ends_with_what_is_wrong_with_the_bad_one(
    account: Account, has_capacity: bool
):
    begin(account)
    with pytest.raises(NodesToReplace):
        fail_check(account)
    if not has_capacity:
        account.aws.faults.add("no-capacity")
    replace(account)
    if has_capacity:
        account.late += timedelta(seconds=WAIT_S + 1)
    else:
        account.aws.finish_lifecycles()

    sentence = r"failed check gpus \(it offers 7 .*\) and no other one has come"
    ended = StepTimedOut if has_capacity else ResourceFailed
    with pytest.raises(ended, match=sentence):
        replace(account)


def test_launches_that_failed_before_a_node_was_replaced_do_not_count(account: Account):
    """As where a group with fewer nodes than asked for has settled for them."""
    begin(account)
    (group,) = described(account).scaling_groups
    for minutes in (2, 1):
        current().scaling_activities.failed(
            group,
            "InsufficientInstanceCapacity",
            at=account.now() - timedelta(minutes=minutes),
            subnet=SimpleNamespace(id="subnet-1", availability_zone="us-west-2a"),
        )
    assert account.services.scaling_groups.add_to(described(account)).failed_attempts == 2

    with pytest.raises(NodesToReplace):
        fail_check(account)

    assert not replace(account)


def described(account: Account) -> NodeGroup:
    found = account.services.node_groups.describe(account.cluster_id, "training")
    assert found is not None
    return found


def test_nodes_that_all_lack_their_device_plugin_are_not_replaced(account: Account):
    begin(account, fault="device-plugin-missing")
    sentence = r"offers 0 nvidia.com/gpu, 8 .*start it again.*2 of 2 nodes failed, so none"

    assert not account.call(run_check, check="gpu-health")
    with pytest.raises(CheckFailed, match=sentence):
        fail_check(account)

    # It waits for the GPUs, whose check is the one to fail.
    assert account.events("check.finished")[0].check == "gpus"
    assert account.cluster.replacements == []


@pytest.mark.parametrize(
    "line", ["CUDA error: uncorrectable ECC error", "KeyError: 'loss'", "straggler"]
)
def test_machine_to_blame_for_a_failed_run_is_replaced_before_the_next_attempt(account, line):
    begin(account, fault="")
    operator = load_manifests("training-operator")
    types = [each for each in operator if each["kind"] == "CustomResourceDefinition"]
    account.services.kubernetes(account.cluster_id).apply([namespace(), *types])
    account.enter(*TO_RUNNING[1:])
    bad, other = nodes(account)
    account.happen(ev.PodChanged, pod="w-0", phase="Running", node=bad.name)
    if line == "straggler":
        said = {"at": account.now(), "evidence": "rank 0 is slow", "remedy": "r", "node": bad.name}
        found = Detection(kind=Kind.STRAGGLER, attempt=1, action=Action.REPLACE, **said)
        account.happen(ev.TroubleDetected, detection=found)
    else:
        ended = "process 0 exited with code 1"
        account.happen(ev.ProcessFailed, pod="w-0", process=ended, line=line)
        account.happen(ev.JobConditionChanged, condition="Failed", reason="r", message="1 failed")

    if "KeyError" in line:
        hear(account)
        assert len(account.run.attempts) == 1
        assert {bad.instance_id, other.instance_id} == set(instances(account))
        return
    until(lambda: hear(account) or len(account.run.attempts) == 2)
    assert [each.bad_node for each in account.run.attempts] == ["", bad.name]
    until(lambda: account.aws.finish_lifecycles() or len(nodes(account)) == 2)
    until(lambda: bad.name not in {node.name for node in nodes(account)})
    assert bad.instance_id not in instances(account)
