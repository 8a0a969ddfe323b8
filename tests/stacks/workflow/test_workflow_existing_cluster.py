"""Runs as guests in an EKS cluster that a person made: they come, train, and leave it as it was.

Real are the state machines, the handlers, the account, the cluster, its pods and the relays in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import kubernetes
import pytest
from workflow_world import Outcome, World, run_id_of

from local.slack import OPERATOR_ID, TEAM_ID, TRAINING_CHANNEL_ID
from stationmaster import commands
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.spec import FileSystemSpec, spec_for
from stationmaster.domain.commands.requests import CreateCluster
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID, own_namespace
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run.events import RunPhase
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.steps.leftovers import find_left

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

    @contextmanager
    def without(self, what: str) -> Iterator[None]:
        """Take something away for a while; its owner puts it back."""
        cluster = self.world.mode.cluster
        if what == "relay rights":
            cluster.faults.add("plugin-never-ready")
        with kubernetes.config.new_client_from_config(str(self.kubeconfig)) as api:
            core = kubernetes.client.CoreV1Api(api)
            storage = kubernetes.client.StorageV1Api(api)
            driver = storage.list_csi_driver().items[0]
            pool = [each for each in core.list_node().items if "m5" in str(each.metadata.labels)]
            closed = pool[:3] if what == "cordoned" else []
            for node in closed:
                core.patch_node(node.metadata.name, {"spec": {"unschedulable": True}})
            if what == "no driver":
                storage.delete_csi_driver(driver.metadata.name)
            yield
            for node in closed:
                core.patch_node(node.metadata.name, {"spec": {"unschedulable": None}})
            if what == "no driver":
                driver.metadata.resource_version = driver.metadata.uid = None
                storage.create_csi_driver(driver)
        cluster.faults.discard("plugin-never-ready")

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
    assert during["clusters"] == before["clusters"], "no cluster was made"
    assert during["groups"] == before["groups"]
    assert owner.belongings() == before
    assert_left_nothing(outcome)
    assert outcome.cluster is not None
    assert outcome.cluster.cost_usd(services.now()) == 0.0
    kinds = {each.kind.value for each in outcome.cluster.resources.values()}
    assert kinds == {"namespace", "pod identity association"}


def test_command_that_a_person_types_plans_and_starts_a_guest(world: World, owner: Owner) -> None:
    before, services = owner.belongings(), world.services
    known = {run.run_id for run in services.runs.list_recent(limit=50)}
    words = f"tiny-llama nodes=1 cluster=eks:{NAME} file_system={owner.file_system.existing_id}"
    slack = world.mode.slack

    plan = str(slack.type_command(f"/train plan {words}"))
    refused = str(slack.type_command(f"/train {words.replace(NAME, 'nobodys')}"))
    slack.type_command(f"/train {words}")
    (run_id,) = {run.run_id for run in services.runs.list_recent(limit=50)} - known
    world.until_rested(run_id, torn_down=True)

    assert f"a namespace in EKS cluster {NAME}" in plan
    assert "there is no EKS cluster nobodys in region" in refused
    outcome = world.outcome(run_id)
    assert (outcome.run.phase, outcome.run.reason) == (RunPhase.SUCCEEDED, "")
    assert (outcome.run.price_per_hour_usd, outcome.run.estimated_cost_usd) == (0.0, 0.0)
    assert_left_nothing(outcome)
    assert owner.belongings() == before


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


def test_kept_guest_serves_two_runs_in_turn_and_goes_when_it_is_deleted(
    world: World, owner: Owner
) -> None:
    services, before = world.services, owner.belongings()
    spec = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="m5.2xlarge").model_copy(
        update={"eks_name": NAME, "file_system": owner.file_system}
    )
    lab, _ = commands.create_cluster(
        services,
        CreateCluster(name="guest-lab", spec=spec, ttl_s=3600),
        request_id="guest-lab",
        team_id=TEAM_ID,
        channel_id=TRAINING_CHANNEL_ID,
        user_id=OPERATOR_ID,
    )
    first, second = (run_id_of(f"kept guest: {each}") for each in "ab")

    world.request("kept guest: a", plan="waits", nodes=2, cluster_id=lab.cluster_id)
    world.until_awaiting(first)
    world.request("kept guest: b", nodes=1, cluster_id=lab.cluster_id)
    world.until(lambda: services.runs.load(second).phase is RunPhase.QUEUED, "the second waits")
    world.let_end(first)
    for run_id in (first, second):
        world.until_left(run_id)
    world.delete_cluster(lab.cluster_id)
    clusters = services.cluster_states
    world.until(
        lambda: clusters.load(lab.cluster_id).teardown is TeardownStatus.COMPLETED,
        "the lab is torn down",
    )

    for run_id in (first, second):
        run = services.runs.load(run_id)
        assert (run.phase, run.reason) == (RunPhase.SUCCEEDED, "")
    gone = clusters.load(lab.cluster_id)
    assert (gone.billable_left, find_left(services, lab.cluster_id)) == ([], [])
    assert gone.cost_usd(services.now()) == 0.0
    assert owner.belongings() == before


@pytest.mark.parametrize("how", ["cordoned", "no driver"])
def test_what_kubernetes_says_against_it_ends_the_run_with_what_to_type(
    world: World, owner: Owner, how: str
) -> None:
    before, run_id = owner.belongings(), run_id_of(f"refused: {how}")
    says = {
        "cordoned": "is cordoned (kubectl uncordon)",
        "no driver": "aws eks create-addon --cluster-name theirs --addon-name aws-fsx-csi-driver",
    }

    with owner.without(how):
        world.request(f"refused: {how}", nodes=2, **owner.guest)
        world.until_rested(run_id, torn_down=True)

    outcome = world.outcome(run_id)
    assert outcome.run.phase is RunPhase.FAILED
    assert says[how] in outcome.run.reason
    assert outcome.cluster is not None
    assert outcome.cluster.resources == {}, "nothing was made"
    assert_left_nothing(outcome)
    assert owner.belongings() == before


def test_guest_whose_cluster_workflow_is_killed_leaves_nothing(world: World, owner: Owner) -> None:
    before, run_id = owner.belongings(), run_id_of("killed early")

    with owner.without("relay rights"):
        world.request("killed early", nodes=1, **owner.guest)
        world.until(
            lambda: own_namespace(ClusterId(run_id)) in str(owner.in_kubernetes()),
            "the namespace is made",
        )
        world.kill(run_id, "cluster")
    world.until_still(run_id)
    world.reap()
    world.until_rested(run_id, torn_down=True)

    outcome = world.outcome(run_id)
    assert outcome.run.phase is RunPhase.FAILED
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
