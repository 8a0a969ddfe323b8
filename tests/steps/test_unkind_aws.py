"""Steps in an account that refuses, forgets, loses answers and has no machines.

Each fault ends well: the cluster comes up all the same, or one sentence says what is wrong, where,
and what to do. Whatever happened, the steps that delete leave nothing in the account.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from bot.blocks.receipt import run_receipt
from stationmaster.aws.tags import tag_specification
from stationmaster.domain.errors import PermanentError, ResourceFailed, TransientError
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.view import RunView
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_teardown import conclude_teardown
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_file_system import ensure_file_system
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.parts.leftovers import find_left
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_file_system import release_file_system
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.release_network import release_network
from stationmaster.steps.release_node_group import release_node_group
from stationmaster.steps.verify_released import verify_released
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account, Step

SYSTEM, TRAINING = {"node_group": "system"}, {"node_group": "training"}
MAKING: list[tuple[Step, dict[str, str]]] = [
    (ensure_cluster, {}),
    (ensure_node_group, SYSTEM),
    (ensure_node_group, TRAINING),
    (ensure_file_system, {}),
]
DELETING: list[tuple[Step, dict[str, str]]] = [
    (release_node_group, TRAINING),
    (release_file_system, {}),
    (release_node_group, SYSTEM),
    (release_cluster, {}),
    (release_network, {}),
    (verify_released, {}),
]
# As often as the state machines try a step again.
TRIES = 7


@pytest.fixture(autouse=True)
def empty_account(account: Account) -> Iterator[None]:
    """What is there after the test is what was there before it."""
    before = everything(account)
    yield
    account.aws.finish_lifecycles()
    assert everything(account) == before


def everything(account: Account) -> dict[str, set[str]]:
    """What an account pays for or is blocked by, as EC2, EKS and FSx list it."""
    ec2, eks, fsx = (account.aws.client(name) for name in ("ec2", "eks", "fsx"))
    living = [{"Name": "instance-state-name", "Values": ["pending", "running", "stopping"]}]
    reservations = ec2.describe_instances(Filters=living)["Reservations"]
    groups = ec2.describe_security_groups()["SecurityGroups"]
    return {
        "clusters": set(eks.list_clusters()["clusters"]),
        "file systems": {f["FileSystemId"] for f in fsx.describe_file_systems()["FileSystems"]},
        "instances": {i["InstanceId"] for each in reservations for i in each["Instances"]},
        "volumes": {each["VolumeId"] for each in ec2.describe_volumes()["Volumes"]},
        "interfaces": {
            each["NetworkInterfaceId"]
            for each in ec2.describe_network_interfaces()["NetworkInterfaces"]
        },
        "security groups": {group["GroupId"] for group in groups},
        "placement groups": {
            each["GroupName"] for each in ec2.describe_placement_groups()["PlacementGroups"]
        },
        "launch templates": {
            each["LaunchTemplateId"] for each in ec2.describe_launch_templates()["LaunchTemplates"]
        },
    }


def finish(account: Account, step: Step, arguments: dict[str, str]) -> None:
    """Call a step as its state machine does: again after an answer, and after what passes."""
    tries = 0

    def is_done() -> bool:
        nonlocal tries
        account.late += timedelta(seconds=1)
        try:
            done = account.call(step, **arguments)
        except TransientError:
            tries += 1
            if tries == TRIES:
                raise
            return False
        tries = 0
        return done

    until(is_done)


def make(account: Account, **request: Any) -> None:
    account.request(**request)
    for step, arguments in MAKING:
        finish(account, step, arguments)


def delete(account: Account) -> None:
    account.enter(ev.RunPhase.FAILED, reason="for the test")
    release_lease(account.services, account.run_id)
    finish(account, begin_teardown, {})
    for step, arguments in DELETING:
        finish(account, step, arguments)
    assert find_left(account.services, account.cluster_id) == []


@pytest.mark.parametrize(
    "fault",
    [
        "eventual-consistency",
        "lost-answers",
        "node-group-delete-fails",
        "placement-group-in-use",
        "interfaces-left",
    ],
)
def test_cluster_comes_up_and_goes_all_the_same(account: Account, fault: str):
    account.aws.faults.add(fault)

    make(account, instance_type="p4d.24xlarge")
    made = everything(account)
    delete(account)

    assert len(made["instances"]) == len(made["volumes"]) == account.cluster.spec.nodes + 1
    assert made["placement groups"]


def test_receipt_names_what_aws_made_for_the_cluster_too(account: Account):
    account.aws.faults.add("interfaces-left")
    make(account)
    of_cluster = tag_specification("volume", account.cluster_id, None, deployment="d")
    account.aws.client("ec2").create_volume(
        AvailabilityZone="us-west-2a", Size=8, TagSpecifications=[of_cluster]
    )
    account.enter(ev.RunPhase.FAILED, reason="for the test")
    release_lease(account.services, account.run_id)
    for step, arguments in ((begin_teardown, {}), DELETING[0]):
        finish(account, step, arguments)

    cause = {"Error": "LeftBehind", "Cause": "it takes too long"}
    conclude_teardown(account.services, account.cluster_id, error=cause)
    receipt = run_receipt(RunView(run=account.run, cluster=account.cluster), now=account.now())

    (still,) = (text for text in map(json.dumps, receipt.blocks) if "Still there" in text)
    names = [line.split("`")[1] for line in still.split("\\n")[1:]]
    longest_first = sorted(ResourceKind, key=len, reverse=True)
    kinds = {next(kind for kind in longest_first if name.startswith(kind)) for name in names}
    assert kinds == {
        *(ResourceKind.CLUSTER, ResourceKind.NODE_GROUP, ResourceKind.FILE_SYSTEM),
        *(ResourceKind.INSTANCE, ResourceKind.VOLUME, ResourceKind.NETWORK_INTERFACE),
        *(ResourceKind.LAUNCH_TEMPLATE, ResourceKind.SECURITY_GROUP),
        ResourceKind.EKS_SECURITY_GROUP,
    }
    for step, arguments in DELETING[1:]:
        finish(account, step, arguments)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (
            "no-capacity",
            ResourceFailed,
            r"no 2 x p4d.24xlarge free in us-west-2a, us-west-2b, us-west-2c: .*"
            r"InsufficientInstanceCapacity.*\(us-west-2c\).*; try again later, or with another "
            r"instance type or fewer nodes, or reserve instances and type capacity=odcr:ID$",
        ),
        (
            "vcpu-quota",
            ResourceFailed,
            r"node group training of 2 x p4d.24xlarge: .*VcpuLimitExceeded.*limit of 0.*; "
            r"ask for more vCPUs of these instances in Service Quotas$",
        ),
        (
            "unsupported-zone",
            PermanentError,
            r"creating cluster .*us-west-2a.*choose from these availability zones: us-west-2b.*; "
            r"a deployment names its subnets with vpc_id and subnet_ids: two of them have to be",
        ),
    ],
)
def test_cluster_that_cannot_be_made_says_why_where_and_what_to_do(
    account: Account, fault: str, error: type[Exception], words: str
):
    account.aws.faults.add(fault)

    with pytest.raises(error, match=words) as caught:
        make(account, instance_type="p4d.24xlarge", nodes=2)

    assert "\n" not in str(caught.value)
    delete(account)
