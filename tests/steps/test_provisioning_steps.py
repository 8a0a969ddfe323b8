"""The steps that create: done once, repeated without effect, refused, and failed."""

from __future__ import annotations

import json

import boto3
import pytest

from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.errors import (
    ClusterDrained,
    PermanentError,
    ResourceFailed,
    TransientError,
)
from stationmaster.domain.names import (
    METRICS_ADDON,
    NODE_MONITORING_ADDON,
    POD_IDENTITY_AGENT,
    TAG_CLUSTER_ID,
    cluster_name,
    metrics_log_group,
)
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_file_system import ensure_file_system
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.prepare_cluster import prepare_cluster
from stationmaster.steps.prepare_run import prepare_run
from stationmaster.steps.release_lease import release_lease
from tests.support.aws_steps import Account

STEPS = {
    "cluster": (ensure_cluster, {}),
    "system nodes": (ensure_node_group, {"node_group": "system"}),
    "training nodes": (ensure_node_group, {"node_group": "training"}),
    "file system": (ensure_file_system, {}),
}
# Asked for at each call, and answered with what is there.
IDEMPOTENT_BY_AWS = {"CreateAccessEntry", "CreatePodIdentityAssociation", "CreateAddon"}
each_step = pytest.mark.parametrize(("step", "arguments"), STEPS.values(), ids=list(STEPS))


def build_before(account: Account, step: object) -> None:
    """What the workflow has made before it comes to the step."""
    account.request()
    if step is not ensure_cluster:
        account.finish(ensure_cluster)
    if step is ensure_file_system:  # it is where the nodes are
        account.finish(ensure_node_group, node_group="training")


def statuses(account: Account) -> dict[ResourceKind, ResourceStatus]:
    return {each.kind: each.status for each in account.cluster.resources.values()}


def test_prepare_run_limits_the_wait_spares_steps_and_records_nothing(account: Account):
    account.ask()
    version = account.run.version

    first = prepare_run(account.services, account.run_id)
    again = prepare_run(account.services, account.run_id)

    assert first == again
    assert first["run_id"] == account.run_id
    assert first["await_limit_s"] >= 7 * 86_400
    needed = {key: first[key] for key in ("brings_data", "pushes_model", "leaves_cluster")}
    assert needed == dict.fromkeys(needed, False)
    assert account.run.version == version


def test_prepare_cluster_lists_what_the_recipe_needs_and_enters_provisioning_once(account: Account):
    account.lease()

    first = prepare_cluster(account.services, account.cluster_id)
    again = prepare_cluster(account.services, account.cluster_id)

    assert first == again
    assert first["cluster_id"] == account.cluster_id
    assert {"fsx-csi-driver", "training-operator", "relay"} <= set(first["plugins"])
    assert {"nodes", "storage"} <= set(first["checks"])
    for kind in ("run.phase_changed", "cluster.phase_changed"):
        assert [event.phase for event in account.events(kind)] == ["provisioning"]


@pytest.mark.parametrize("node_group", ["system", "training"])
def test_nodes_of_each_group_are_let_to_the_file_system(account: Account, node_group: str):
    build_before(account, ensure_node_group)

    account.finish(ensure_node_group, node_group=node_group)

    group = account.services.security_groups.describe(account.cluster_id)
    assert group.group_id in account.template(node_group)["SecurityGroupIds"]


@each_step
def test_step_that_is_repeated_changes_and_records_nothing_more(account, step, arguments):
    build_before(account, step)
    account.finish(step, **arguments)
    versions = account.versions
    assert set(statuses(account).values()) == {ResourceStatus.ACTIVE}
    requested = [(event.kind, event.name) for event in account.events("resource.requested")]
    assert len(requested) == len(set(requested)) == len(account.cluster.resources)

    created = [name for name in account.changes(step, **arguments) if "Create" in name]

    assert account.call(step, **arguments)
    assert not {name for name in created if name not in IDEMPOTENT_BY_AWS}
    assert account.versions == versions


@pytest.mark.parametrize(
    ("step", "arguments", "service", "operation"),
    [
        (ensure_cluster, {}, "eks", "CreateCluster"),
        (ensure_cluster, {}, "ec2", "CreateSecurityGroup"),
        (ensure_node_group, {"node_group": "training"}, "eks", "CreateNodegroup"),
        (ensure_node_group, {"node_group": "training"}, "ec2", "CreateLaunchTemplate"),
        (ensure_file_system, {}, "fsx", "CreateFileSystem"),
    ],
)
@pytest.mark.parametrize(
    ("code", "error"),
    [("AccessDeniedException", PermanentError), ("ServiceUnavailable", TransientError)],
)
def test_step_that_is_refused_says_so_and_has_recorded_that_it_would_ask(
    account, step, arguments, service, operation, code, error
):
    build_before(account, step)
    account.aws.inject(service, operation, code, times=99)

    with pytest.raises(error):
        account.finish(step, **arguments)

    # The teardown looks for all that was ever asked for.
    assert ResourceStatus.REQUESTED in statuses(account).values()
    account.aws.clear_injected()
    account.finish(step, **arguments)


@pytest.mark.parametrize(
    ("fault", "step", "arguments", "words"),
    [
        (
            "cluster-fails",
            ensure_cluster,
            {},
            "EKS could not create cluster .*: InternalFailure: .* be created; try again later$",
        ),
        (
            "node-group-fails",
            ensure_node_group,
            {"node_group": "system"},
            "1 x c6in.2xlarge: .*Launching EC2 instance failed; try again later$",
        ),
        (
            "file-system-fails",
            ensure_file_system,
            {},
            r"FSx could not create file system fs-\w+: .*internal failure; try again later, "
            r"with another file_system_type=, or .* exists \(file_system=fs-...\)$",
        ),
    ],
)
def test_step_whose_creation_fails_says_what_aws_says(account, fault, step, arguments, words):
    build_before(account, step)
    account.aws.faults.add(fault)

    with pytest.raises(ResourceFailed, match=words):
        account.finish(step, **arguments)


@each_step
def test_step_of_a_cluster_whose_run_was_stopped_creates_nothing(account, step, arguments):
    build_before(account, step)
    account.happen(ev.StopRequested, user_id="U2")
    release_lease(account.services, account.run_id)
    account.aws.forget_calls()

    with pytest.raises(ClusterDrained, match=f"{account.cluster_id} is draining"):
        account.call(step, **arguments)

    assert {service for service, _ in account.aws.calls} == {"dynamodb"}


@pytest.mark.parametrize("step", [ensure_file_system, ensure_node_group])
def test_step_that_comes_before_the_cluster_waits_for_it(account, step):
    account.request()
    arguments = {"node_group": "training"} if step is ensure_node_group else {}

    with pytest.raises(TransientError, match="no security group"):
        account.call(step, **arguments)

    assert account.cluster.resources == {}


@pytest.mark.parametrize(("fault", "price"), [("", 0.10), ("extended-support-only", 0.60)])
def test_cluster_gets_the_version_that_eks_offers_and_is_paid_for_by_its_support(
    account: Account, fault: str, price: float
):
    account.request()
    account.aws.faults.update({fault} - {""})

    ensure_cluster(account.services, account.cluster_id)

    described = boto3.client("eks").describe_cluster(name=cluster_name(account.cluster_id))
    recorded = account.cluster.resource(ResourceKind.CLUSTER, cluster_name(account.cluster_id))
    assert described["cluster"]["version"] == "1.35"
    assert recorded.price_per_hour_usd == pytest.approx(price)


def test_version_that_is_set_and_not_offered_ends_the_workflow_before_the_cluster(account):
    account.set(kubernetes_version="1.30")
    account.request()

    with pytest.raises(PermanentError, match=r"offers no Kubernetes 1\.30, only 1\.31"):
        ensure_cluster(account.services, account.cluster_id)

    assert ResourceKind.CLUSTER not in statuses(account)


GPUS = {"recipe": "llama2-7b", "instance_type": "p5.48xlarge"}


def watched(account: Account, request: dict[str, str] = GPUS, **settings: object) -> None:
    """A cluster of machines with GPUs, of a deployment with these settings."""
    account.set(**settings)
    account.request(**request)
    account.finish(ensure_cluster)


@pytest.mark.parametrize(("request_", "role"), [(GPUS, ""), ({}, "arn:of:a:role")])
def test_nothing_watches_nodes_unless_the_deployment_asks_for_it_and_they_have_gpus(
    account: Account, request_: dict[str, str], role: str
):
    watched(account, request_, metrics_role_arn=role)

    name = cluster_name(account.cluster_id)
    assert boto3.client("eks").list_addons(clusterName=name)["addons"] == [POD_IDENTITY_AGENT]
    groups = boto3.client("logs").describe_log_groups(
        logGroupNamePrefix=metrics_log_group(account.cluster_id)
    )
    assert groups["logGroups"] == []


def test_metrics_of_gpus_come_with_a_role_and_a_log_group_that_expires(account: Account):
    role = account.settings.relay_role_arn

    watched(account, metrics_role_arn=role)

    name, group = cluster_name(account.cluster_id), metrics_log_group(account.cluster_id)
    addon = boto3.client("eks").describe_addon(clusterName=name, addonName=METRICS_ADDON)["addon"]
    assert addon["podIdentityAssociations"] == [
        {"serviceAccount": "cloudwatch-agent", "roleArn": role}
    ]
    configured = json.loads(addon["configurationValues"])
    assert configured["containerLogs"] == {"enabled": False}
    assert configured["agent"]["config"]["logs"]["metrics_collected"] == {
        "kubernetes": {"enhanced_container_insights": True}
    }
    logs = boto3.client("logs")
    (found,) = logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    assert found["retentionInDays"] == 7
    assert logs.list_tags_log_group(logGroupName=group)["tags"][TAG_CLUSTER_ID] == str(
        account.cluster_id
    )


@pytest.mark.parametrize("node_group", ["system", "training"])
def test_nodes_are_repaired_where_the_deployment_asks_for_it(account: Account, node_group: str):
    watched(account, node_repair=True)

    account.finish(ensure_node_group, node_group=node_group)

    eks, name = boto3.client("eks"), cluster_name(account.cluster_id)
    assert account.node_group(node_group)["nodeRepairConfig"] == {"enabled": True}
    assert NODE_MONITORING_ADDON in eks.list_addons(clusterName=name)["addons"]


def test_scratch_file_system_is_asked_for_without_a_throughput(account: Account):
    account.request(file_system_mbps_per_tib=200)
    account.finish(ensure_cluster)

    account.call(ensure_file_system)

    listed = account.aws.client("fsx").describe_file_systems()["FileSystems"]
    (made,) = (
        each
        for each in listed
        if {"Key": TAG_CLUSTER_ID, "Value": account.cluster_id} in each["Tags"]
    )
    lustre = made["LustreConfiguration"]
    assert lustre["DeploymentType"] == "SCRATCH_2"
    assert "PerUnitStorageThroughput" not in lustre
    assert made["StorageCapacity"] == account.cluster.spec.file_system.storage_gib


def test_what_a_cluster_is_made_of_has_the_tags_of_the_organization(account: Account):
    role = f"arn:aws:iam::{account.settings.cluster_role_arn.split(':')[4]}:role/teams/ml/worker"
    watched(account, tags=("CostCenter=42", "Owner=a=b"), cluster_access_role_arns=(role,))
    account.finish(ensure_node_group, node_group="training")
    account.call(ensure_file_system)

    eks, name = boto3.client("eks"), cluster_name(account.cluster_id)
    for tags in (
        eks.describe_access_entry(clusterName=name, principalArn=role)["accessEntry"]["tags"],
        account.node_group("training")["tags"],
        *(
            {tag["Key"]: tag["Value"] for tag in each["Tags"]}
            for each in boto3.client("fsx").describe_file_systems()["FileSystems"]
            if {"Key": TAG_CLUSTER_ID, "Value": str(account.cluster_id)} in each["Tags"]
        ),
    ):
        assert (tags["CostCenter"], tags["Owner"]) == ("42", "a=b")
