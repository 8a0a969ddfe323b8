"""Runs as guests in an EKS cluster that a person made: they come, train, and leave it as it was.

Real are the state machines, the handlers, the account, the cluster, its pods and the relays in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import kubernetes
import pytest
from workflow_world import Outcome, World, run_id_of

from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.spec import FileSystemSpec
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID, own_namespace
from stationmaster.domain.run.events import RunPhase
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.manifests import load_manifests

NAME = "theirs"
ADDONS = ("eks-pod-identity-agent", "aws-fsx-csi-driver")
# What is looked at in Kubernetes, in all namespaces, before and after.
KINDS = (
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/persistentvolumes",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/serviceaccounts",
    "/api/v1/secrets",
    "/api/v1/services",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/daemonsets",
    "/apis/batch/v1/jobs",
    "/apis/kubeflow.org/v1/pytorchjobs",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/storage.k8s.io/v1/csidrivers",
)


@dataclass
class Owner:
    """Somebody with an EKS cluster, four nodes in it, the operator, and a file system."""

    world: World
    file_system: FileSystemSpec = field(init=False)

    @property
    def settings(self) -> Any:
        return self.world.mode.settings

    def make(self) -> None:
        self._make_cluster()
        self._make_file_system()
        with kubernetes.config.new_client_from_config(str(self.kubeconfig)) as api:
            gateway = KubernetesGateway(api)
            gateway.apply(load_manifests("training-operator"))
            self.world.until(
                lambda: gateway.deployment_ready("training-operator", namespace="kubeflow"),
                "the operator runs",
            )
            self.world.until(lambda: len(gateway.nodes()) == 5, "all nodes have joined")

    @property
    def kubeconfig(self) -> Any:
        return self.world.mode.cluster.kubeconfig

    def _make_cluster(self) -> None:
        eks, settings = self.world.aws.client("eks"), self.settings
        eks.create_cluster(
            name=NAME,
            roleArn=settings.cluster_role_arn,
            version="1.35",
            resourcesVpcConfig={"subnetIds": list(settings.subnet_ids)},
            accessConfig={"authenticationMode": "API"},
        )
        self._until_active(lambda: eks.describe_cluster(name=NAME)["cluster"])
        for group, instance, count in (("pool", "m5.2xlarge", 4), ("tools", "c5.2xlarge", 1)):
            eks.create_nodegroup(
                clusterName=NAME,
                nodegroupName=group,
                subnets=[settings.subnet_ids[0]],
                nodeRole=settings.node_role_arn,
                instanceTypes=[instance],
                scalingConfig={"minSize": count, "maxSize": count, "desiredSize": count},
            )
            about = {"clusterName": NAME, "nodegroupName": group}
            self._until_active(lambda about=about: eks.describe_nodegroup(**about)["nodegroup"])
        for addon in ADDONS:
            about = {"clusterName": NAME, "addonName": addon}
            eks.create_addon(**about)
            self._until_active(lambda about=about: eks.describe_addon(**about)["addon"])
        for role in settings.cluster_access_role_arns:
            eks.create_access_entry(clusterName=NAME, principalArn=role)

    def _make_file_system(self) -> None:
        ec2, fsx = self.world.aws.client("ec2"), self.world.aws.client("fsx")
        group = ec2.create_security_group(
            GroupName="theirs", Description="theirs", VpcId=self.settings.vpc_id
        )["GroupId"]
        rules = [
            {
                "IpProtocol": "tcp",
                "FromPort": first,
                "ToPort": last,
                "UserIdGroupPairs": [{"GroupId": group}],
            }
            for first, last in ((988, 988), (1018, 1023))
        ]
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=rules)
        made = fsx.create_file_system(
            FileSystemType="LUSTRE",
            FileSystemTypeVersion="2.15",
            StorageCapacity=1200,
            SubnetIds=[self.settings.subnet_ids[0]],
            SecurityGroupIds=[group],
            LustreConfiguration={
                "DeploymentType": "PERSISTENT_2",
                "PerUnitStorageThroughput": 250,
            },
        )["FileSystem"]["FileSystemId"]
        self.world.until(
            lambda: (
                fsx.describe_file_systems(FileSystemIds=[made])["FileSystems"][0]["Lifecycle"]
                == "AVAILABLE"
            ),
            "the file system is available",
        )
        self.file_system = self.world.find_file_system(made).spec

    def _until_active(self, describe: Any) -> None:
        self.world.until(lambda: describe()["status"] == "ACTIVE", "EKS makes it")

    @property
    def guest(self) -> dict[str, Any]:
        """What the request of a guest says beyond the words."""
        return {"eks_name": NAME, "file_system": self.file_system}

    def belongings(self) -> dict[str, Any]:
        """All that is theirs, and whatever else is in their cluster."""
        eks, fsx = self.world.aws.client("eks"), self.world.aws.client("fsx")
        groups = eks.list_nodegroups(clusterName=NAME)["nodegroups"]
        return {
            "clusters": eks.list_clusters()["clusters"],
            "cluster": eks.describe_cluster(name=NAME)["cluster"],
            "groups": [
                eks.describe_nodegroup(clusterName=NAME, nodegroupName=each)["nodegroup"]
                for each in groups
            ],
            "addons": [
                eks.describe_addon(clusterName=NAME, addonName=each)["addon"]
                for each in eks.list_addons(clusterName=NAME)["addons"]
            ],
            "entries": eks.list_access_entries(clusterName=NAME)["accessEntries"],
            "identities": eks.list_pod_identity_associations(clusterName=NAME)["associations"],
            "file systems": fsx.describe_file_systems()["FileSystems"],
            **self.in_kubernetes(),
        }

    def in_kubernetes(self) -> dict[str, Any]:
        """Names and labels by kind."""
        with kubernetes.config.new_client_from_config(str(self.kubeconfig)) as api:
            found = {}
            for path in KINDS:
                answer = api.call_api(
                    *api.param_serialize("GET", path, auth_settings=["BearerToken"])
                )
                items = json.loads(answer.read())["items"]
                found[path] = sorted(
                    (
                        each["metadata"].get("namespace", ""),
                        each["metadata"]["name"],
                        str(each["metadata"].get("labels")),
                        str(each.get("spec", {}).get("taints")),
                    )
                    for each in items
                )
            return found


@pytest.fixture(scope="module")
def owner(world: World) -> Owner:
    made = Owner(world)
    made.make()
    return made


def test_guest_trains_in_the_cluster_of_others_and_leaves_it_as_it_was(
    world: World, owner: Owner
) -> None:
    services, run_id = world.services, run_id_of("guest")
    services.existing_clusters.look_up(NAME)
    before = owner.belongings()

    world.request("guest", plan="waits", nodes=2, **owner.guest)
    world.until_awaiting(run_id)
    gateway = services.kubernetes(ClusterId(run_id))
    pods = gateway.pods(labels={LABEL_RUN_ID: run_id, LABEL_ROLE: "training"})
    during = owner.belongings()
    world.let_end(run_id)
    world.until_rested(run_id, torn_down=True)
    outcome = world.outcome(run_id)

    run = outcome.run
    assert (run.phase, run.reason) == (RunPhase.SUCCEEDED, "")
    assert run.results is not None
    assert gateway.namespace == own_namespace(ClusterId(run_id))
    assert len({pod.node for pod in pods}) == 2
    assert len(during["identities"]) == 3
    assert during["clusters"] == [NAME], "no cluster was made"
    assert during["groups"] == before["groups"]
    assert owner.belongings() == before
    assert_left_nothing(outcome)
    assert outcome.cluster is not None
    assert outcome.cluster.cost_usd(services.now()) == 0.0
    kinds = {each.kind.value for each in outcome.cluster.resources.values()}
    assert kinds == {"namespace", "pod identity association"}


def test_two_guests_at_once_train_side_by_side_and_each_takes_its_own_away(
    world: World, owner: Owner
) -> None:
    before = owner.belongings()
    first, second = (run_id_of(f"pair: {each}") for each in "ab")

    world.request("pair: a", plan="waits", nodes=2, **owner.guest)
    world.request("pair: b", plan="waits", nodes=2, **owner.guest)
    world.until_awaiting(first)
    world.until_awaiting(second)
    world.let_end(first)
    world.until_rested(first, torn_down=True)
    between = owner.belongings()
    still_there = world.services.runs.load(second)
    world.let_end(second)
    world.until_rested(second, torn_down=True)

    assert still_there.phase is RunPhase.RUNNING
    spaces = {name for _, name, *_ in between["/api/v1/namespaces"]}
    assert own_namespace(ClusterId(second)) in spaces
    assert own_namespace(ClusterId(first)) not in spaces
    assert {each["namespace"] for each in between["identities"]} == {
        own_namespace(ClusterId(second))
    }
    for run_id in (first, second):
        outcome = world.outcome(run_id)
        assert (outcome.run.phase, outcome.run.reason) == (RunPhase.SUCCEEDED, "")
        assert_left_nothing(outcome)
    assert owner.belongings() == before


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_guest_that_is_ended_in_the_middle_leaves_nothing(
    world: World, owner: Owner, how: str
) -> None:
    before, run_id = owner.belongings(), run_id_of(f"ended by {how}")

    world.request(f"ended by {how}", plan="waits", nodes=1, **owner.guest)
    world.until_awaiting(run_id)
    if how == "stop":
        world.stop(run_id)
    else:
        world.kill(run_id)
        world.until_still(run_id)
        world.reap()
    world.until_rested(run_id, torn_down=True)

    outcome = world.outcome(run_id)
    assert outcome.run.phase is (RunPhase.STOPPED if how == "stop" else RunPhase.FAILED)
    assert_left_nothing(outcome)
    assert owner.belongings() == before


def test_cluster_without_room_is_refused_before_anything_is_made_in_it(
    world: World, owner: Owner
) -> None:
    before, run_id = owner.belongings(), run_id_of("no room")

    world.request("no room", nodes=8, **owner.guest)
    world.until_rested(run_id, torn_down=True)

    outcome = world.outcome(run_id)
    assert outcome.run.phase is RunPhase.FAILED
    assert "EKS cluster theirs: 4 of its 4 m5.2xlarge nodes have room" in outcome.run.reason
    assert outcome.cluster is not None
    assert outcome.cluster.resources == {}, "nothing was made"
    assert_left_nothing(outcome)
    assert owner.belongings() == before


def assert_left_nothing(outcome: Outcome) -> None:
    assert (outcome.teardown, outcome.left, outcome.billable_left) == (
        TeardownStatus.COMPLETED,
        [],
        [],
    )
