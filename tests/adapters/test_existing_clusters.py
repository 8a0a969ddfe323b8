"""Existing EKS clusters, as EKS describes them: usable, or what their owners have to type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import POD_IDENTITY_AGENT
from stationmaster.domain.resources import ResourceKind
from stationmaster.local.aws import LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.aws_fixtures import until

NAMES = (f"theirs-{number}" for number in count())


class Owner:
    """Somebody who has an EKS cluster, and makes what is asked for by hand."""

    def __init__(self, aws: LocalAws, settings: Settings) -> None:
        self.eks, self.sagemaker = aws.client("eks"), aws.client("sagemaker")
        self.role = settings.cluster_role_arn
        self.name = next(NAMES)
        self.settings = settings.model_copy(update={"eks_clusters": (self.name,)})

    def services(self, **changes: Any) -> Services:
        return Services(self.settings.model_copy(update=changes))

    def cluster(self, **changes: Any) -> None:
        wanted = {
            "name": self.name,
            "roleArn": self.role,
            "version": "1.35",
            "resourcesVpcConfig": {"subnetIds": [*self.settings.subnet_ids]},
            "accessConfig": {"authenticationMode": "API"},
        }
        self.eks.create_cluster(**(wanted | changes))
        until(lambda: self.status != "CREATING")

    @property
    def status(self) -> str:
        return str(self.eks.describe_cluster(name=self.name)["cluster"]["status"])

    def entry(self) -> None:
        self.eks.create_access_entry(clusterName=self.name, principalArn=self.role)

    def agent(self) -> None:
        about = {"clusterName": self.name, "addonName": POD_IDENTITY_AGENT}
        self.eks.create_addon(**about)
        until(lambda: self.eks.describe_addon(**about)["addon"]["status"] == "ACTIVE")

    def refusal(self, name: str = "", **settings: Any) -> str:
        with pytest.raises(NotPossibleNow) as caught:
            self.services(**settings).existing_clusters.look_up(name or self.name)
        return str(caught.value)


@pytest.fixture
def owner(aws: LocalAws, settings: Settings) -> Iterator[Owner]:
    made = Owner(aws, settings)
    yield made
    with suppress(made.eks.exceptions.ResourceNotFoundException):  # the test has deleted it
        made.eks.delete_cluster(name=made.name)


def test_cluster_that_has_everything_can_be_used_and_each_step_to_it_is_named(
    owner: Owner,
) -> None:
    assert f"there is no EKS cluster {owner.name} in region us-west-2" in owner.refusal()
    owner.cluster()
    said = owner.refusal()
    assert "has no access entry for 1 of 1 roles of this deployment; type for role in" in said
    assert f"aws eks create-access-entry --cluster-name {owner.name} --principal-arn $role" in said
    assert "AmazonEKSClusterAdminPolicy --access-scope type=cluster" in said
    owner.entry()
    assert f"aws eks create-addon --cluster-name {owner.name} --addon-name" in owner.refusal()
    owner.agent()

    owner.services().existing_clusters.look_up(owner.name)
    owner.services(eks_clusters=("*",)).existing_clusters.look_up(owner.name)


def test_hyperpod_cluster_leads_to_its_eks_cluster_and_slurms_are_refused(owner: Owner) -> None:
    owner.cluster()
    sagemaker, find = owner.sagemaker, owner.services().hyperpod_clusters.eks_name
    arn = owner.eks.describe_cluster(name=owner.name)["cluster"]["arn"]
    role = "arn:aws:iam::123456789012:role/nodes"
    group = {
        "InstanceGroupName": "workers",
        "InstanceType": "ml.m5.2xlarge",
        "InstanceCount": 1,
        "ExecutionRole": role,
    }
    for name, orchestrator in (("pod", {"Eks": {"ClusterArn": arn}}), ("slurm", {"Slurm": {}})):
        sagemaker.create_cluster(
            ClusterName=f"{owner.name}-{name}", InstanceGroups=[group], Orchestrator=orchestrator
        )

    assert find(f"{owner.name}-pod") == owner.name
    with pytest.raises(NotPossibleNow, match="Slurm orchestrates it, and runs are Kubernetes jobs"):
        find(f"{owner.name}-slurm")
    with pytest.raises(NotPossibleNow, match="there is no HyperPod cluster none in region us-west"):
        find("none")


def test_clusters_are_used_only_where_the_deployment_names_them(owner: Owner) -> None:
    owner.cluster()

    assert "eks_clusters in cdk.json" in owner.refusal(eks_clusters=())
    assert "not one that this deployment may use: other" in owner.refusal(eks_clusters=("other",))


def test_cluster_of_another_mode_or_network_is_refused(owner: Owner) -> None:
    owner.cluster(accessConfig={"authenticationMode": "CONFIG_MAP"})

    assert "has authentication mode CONFIG_MAP, API or API_AND_CONFIG_MAP" in owner.refusal()
    assert "is in network vpc-" in owner.refusal(vpc_id="vpc-0")


def test_cluster_that_is_not_active_is_refused(aws: LocalAws, owner: Owner) -> None:
    aws.faults.add("cluster-fails")
    owner.cluster()
    aws.faults.clear()

    assert "is FAILED, ACTIVE is needed" in owner.refusal()


def test_cluster_with_an_old_kubernetes_is_refused_with_the_update(owner: Owner) -> None:
    owner.cluster(version="1.30")

    assert (
        "has Kubernetes 1.30, 1.31 or newer is needed; type aws eks update-cluster-version"
        in owner.refusal()
    )


def test_agent_that_does_not_work_is_refused(aws: LocalAws, owner: Owner) -> None:
    owner.cluster()
    owner.entry()
    aws.faults.add("addon-fails")
    about = {"clusterName": owner.name, "addonName": POD_IDENTITY_AGENT}
    owner.eks.create_addon(**about)
    until(lambda: owner.eks.describe_addon(**about)["addon"]["status"] == "CREATE_FAILED")
    aws.faults.clear()

    assert "is CREATE_FAILED, ACTIVE is needed; aws eks describe-addon" in owner.refusal()


def test_roles_of_a_guests_pods_are_its_own_and_go_without_those_of_others(owner: Owner) -> None:
    owner.cluster()
    identities = owner.services().pod_identities
    first, second = ClusterId("tiny-llama-1"), ClusterId("tiny-llama-2")
    theirs = owner.eks.create_pod_identity_association(
        clusterName=owner.name, namespace="prod", serviceAccount="app", roleArn=owner.role
    )["association"]["associationId"]

    for cluster_id in (first, first, second):
        identities.ensure(cluster_id, owner.name)
    left = identities.left_in(first, owner.name)

    accounts = {"stationmaster-relay", "stationmaster-stager"}
    assert {each.name for each in left} == accounts
    assert {each.kind for each in left} == {ResourceKind.POD_IDENTITY}
    in_eks = owner.eks.list_pod_identity_associations(
        clusterName=owner.name, namespace="stationmaster-tiny-llama-1"
    )["associations"]
    assert {each["associationId"] for each in in_eks} == {each.id for each in left}
    for each in [*left, left[0]]:
        identities.release_in(owner.name, each.id)
    assert identities.left_in(first, owner.name) == []
    assert len(identities.left_in(second, owner.name)) == 2
    found = owner.eks.list_pod_identity_associations(clusterName=owner.name)["associations"]
    assert theirs in {each["associationId"] for each in found}
    assert identities.left_in(first, "gone") == []


def test_accounts_of_results_have_their_role_until_no_run_needs_them(owner: Owner) -> None:
    owner.cluster()
    identities, cluster_id = owner.services().pod_identities, ClusterId("kept-1")
    first, second = RunId("tiny-llama-00000001"), RunId("tiny-llama-00000002")
    identities.ensure(cluster_id, owner.name)

    def ensure() -> bool:
        return identities.ensure_results(cluster_id, owner.name, [first, second], run_id=first)

    assert [ensure(), ensure()] == [True, False]
    assert identities.release_results(cluster_id, owner.name, but=[second]) == [first]
    assert {each.name for each in identities.left_in(cluster_id, owner.name)} == {
        "stationmaster-relay",
        "stationmaster-stager",
        second,
    }


def test_in_the_namespace_of_a_team_only_associations_with_the_clusters_tag_are_its_own(
    owner: Owner,
) -> None:
    owner.cluster()
    identities, place = owner.services().pod_identities, f"{owner.name}/hyperpod-ns-a"
    first, second = ClusterId("tiny-llama-1"), ClusterId("tiny-llama-2")
    theirs = {"namespace": "hyperpod-ns-a", "serviceAccount": "app", "roleArn": owner.role}
    owner.eks.create_pod_identity_association(clusterName=owner.name, **theirs)

    for cluster_id in (first, second):
        identities.ensure(cluster_id, place)
        identities.ensure_results(cluster_id, place, [RunId(cluster_id)], run_id=RunId(cluster_id))
    released = identities.release_results(first, place)
    left = {each.name for each in identities.left_in(first, place)}

    assert released == [first]
    assert left == {"stationmaster-tiny-llama-1-relay", "stationmaster-tiny-llama-1-stager"}
    assert len(identities.left_in(second, place)) == 3
