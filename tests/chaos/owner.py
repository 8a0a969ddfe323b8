"""Somebody with an EKS cluster of their own, in which runs are guests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes

from stationmaster.domain.cluster.spec import FileSystemSpec
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import LABEL_GUESTS
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.local.cluster.trainer import NAMESPACE as TRAINER_NAMESPACE
from stationmaster.local.cluster.trainer import trainer_objects
from tests.chaos.world import World
from tests.support.kueue_objects import kueue_crds, of_kueue

NAME = "theirs"
ADDONS = ("eks-pod-identity-agent", "aws-fsx-csi-driver")
# What is looked at in Kubernetes, in all namespaces, before and after.
KINDS = [
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
    "/apis/trainer.kubeflow.org/v1alpha1/trainjobs",
    "/apis/trainer.kubeflow.org/v1alpha1/trainingruntimes",
    "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/storage.k8s.io/v1/csidrivers",
]


@dataclass
class Owner:
    """Somebody with an EKS cluster, four nodes in it, the operator, and a file system."""

    world: World
    file_system: FileSystemSpec = field(init=False)
    _serves: JobKind = JobKind.PYTORCH_JOB

    @property
    def settings(self) -> Any:
        return self.world.mode.settings

    def make(self) -> None:
        self._make_cluster()
        self._make_file_system()
        with kubernetes.config.new_client_from_config(str(self.kubeconfig)) as api:
            gateway = KubernetesGateway(api)
            gateway.apply(load_manifests("training-operator"))
            self._until_ready(gateway, "training-operator", "kubeflow")
            self.world.until(lambda: len(gateway.nodes()) == 5, "all nodes have joined")

    @property
    def kubeconfig(self) -> Any:
        return self.world.mode.cluster.kubeconfig

    def let_in(self, kubeconfig: Path, team: str = "") -> None:
        """Write a kubeconfig of somebody with the rights of docs/existing-clusters.md, no more.

        With `team` these are for its namespace only.
        """
        place = {"name": team or "functions", "namespace": "default"}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place}
        subjects = [{"kind": "ServiceAccount", **place}]
        given = load_manifests("existing-cluster-team" if team else "existing-cluster")
        for item in given:
            item["metadata"].update({"namespace": team} if team else {})
            item.update({"subjects": subjects} if item["kind"].endswith("Binding") else {})
        with kubernetes.config.new_client_from_config(str(self.kubeconfig)) as api:
            KubernetesGateway(api).apply([account, *given])
        self.world.mode.cluster.write_account_kubeconfig(kubeconfig, "default", place["name"])

    def make_team(self, team: str) -> KubernetesGateway:
        """Make what HyperPod's task governance makes for a team, and things of the team's own."""
        api = kubernetes.config.new_client_from_config(str(self.kubeconfig))
        gateway = KubernetesGateway(api, namespace=team)
        whole = f"{team}-clusterqueue"
        selector = {"matchLabels": {"kubernetes.io/metadata.name": team}}
        local = of_kueue("LocalQueue", f"{team}-localqueue", team, spec={"clusterQueue": whole})
        about = {"name": team, "labels": {LABEL_GUESTS: "allowed"}}
        own = {"name": "stationmaster-relay", "namespace": team}
        objects = [("Namespace", about), ("ServiceAccount", own), ("Secret", own)]
        theirs = [{"apiVersion": "v1", "kind": kind, "metadata": each} for kind, each in objects]
        gateway.apply([*kueue_crds(), *theirs])
        self.world.until(lambda: gateway.crd_established("localqueues.kueue.x-k8s.io"), "Kueue")
        gateway.apply(
            [of_kueue("ClusterQueue", whole, spec={"namespaceSelector": selector}), local]
        )
        place = {"clusterName": NAME, "namespace": team, "serviceAccount": "app"}
        role = self.settings.node_role_arn
        self.world.aws.client("eks").create_pod_identity_association(roleArn=role, **place)
        return gateway

    def admit(self, gateway: KubernetesGateway, run_id: str) -> None:
        """Do what Kueue does with the job of a run."""
        self.world.until(lambda: gateway.job(run_id) is not None, "the job is in the namespace")
        job, space = gateway.job(run_id), gateway.namespace
        labels = {"kueue.x-k8s.io/job-uid": job.uid if job is not None else ""}
        gateway.apply([of_kueue("Workload", f"w-{run_id}", space, labels=labels)])
        change = {"spec": {"runPolicy": {"suspend": False}}}
        about = ("kubeflow.org", "v1", space, "pytorchjobs", run_id)
        with kubernetes.config.new_client_from_config(str(self.kubeconfig)) as api:
            kubernetes.client.CustomObjectsApi(api).patch_namespaced_custom_object(*about, change)

    def _make_cluster(self) -> None:
        eks, settings = self.world.aws.client("eks"), self.settings
        eks.create_cluster(
            name=NAME,
            roleArn=settings.cluster_role_arn,
            version="1.35",
            resourcesVpcConfig={"subnetIds": list(settings.subnet_ids)},
            accessConfig={"authenticationMode": "API"},
        )
        self.world.aws.finish_lifecycles()
        for group, instance, count in (("pool", "m5.2xlarge", 4), ("tools", "c5.2xlarge", 1)):
            eks.create_nodegroup(
                clusterName=NAME,
                nodegroupName=group,
                subnets=[settings.subnet_ids[0]],
                nodeRole=settings.node_role_arn,
                instanceTypes=[instance],
                scalingConfig={"minSize": count, "maxSize": count, "desiredSize": count},
            )
        for addon in ADDONS:
            eks.create_addon(clusterName=NAME, addonName=addon)
        self.world.aws.finish_lifecycles()
        for role in settings.cluster_access_role_arns:
            eks.create_access_entry(clusterName=NAME, principalArn=role)

    def make_hyperpod(self, name: str, *, nodes: int) -> None:
        """Have nodes of SageMaker HyperPod in the same EKS cluster as well."""
        eks, sagemaker = self.world.aws.client("eks"), self.world.aws.client("sagemaker")
        group = {
            "InstanceGroupName": "workers",
            "InstanceType": "ml.m5.2xlarge",
            "InstanceCount": nodes,
            "ExecutionRole": self.settings.node_role_arn,
        }
        arn = eks.describe_cluster(name=NAME)["cluster"]["arn"]
        sagemaker.create_cluster(
            ClusterName=name,
            InstanceGroups=[group],
            Orchestrator={"Eks": {"ClusterArn": arn}},
        )
        self.world.aws.finish_lifecycles()

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
        self.world.aws.finish_lifecycles()
        self.file_system = self.world.services.existing_file_systems.look_up(made).spec

    @property
    def guest(self) -> dict[str, Any]:
        """What the request of a guest says beyond the words."""
        return {"eks_name": NAME, "file_system": self.file_system}

    def make_claim(self) -> FileSystemSpec:
        """Make a claim of their file system, open to guests, as a CSI driver leaves it."""
        shape = {"accessModes": ["ReadWriteMany"], "storageClassName": "fsx"}
        size = {"storage": "1200Gi"}
        csi = {"driver": "fsx.csi.aws.com", "volumeHandle": self.file_system.existing_id}
        of_volume = {**shape, "capacity": size, "csi": csi}
        of_claim = {**shape, "volumeName": "pvc-data", "resources": {"requests": size}}
        about = {"name": "data", "namespace": "ml", "labels": {LABEL_GUESTS: "allowed"}}
        objects = [
            {"kind": "Namespace", "metadata": {"name": "ml"}},
            {"kind": "PersistentVolume", "metadata": {"name": "pvc-data"}, "spec": of_volume},
            {"kind": "PersistentVolumeClaim", "metadata": about, "spec": of_claim},
        ]
        with kubernetes.config.new_client_from_config(str(self.kubeconfig)) as api:
            KubernetesGateway(api).apply([{"apiVersion": "v1"} | each for each in objects])
        return self.file_system.model_copy(update={"existing_id": "pvc:ml/data"})

    @contextmanager
    def with_trainer(self) -> Iterator[None]:
        """Have Kubeflow Trainer v2 in place of the Training Operator inside the block."""
        self.serve(JobKind.TRAIN_JOB)
        yield
        self.serve(JobKind.PYTORCH_JOB)

    def serve(self, kind: JobKind) -> None:
        """Have the operator of these jobs in the cluster, and no other."""
        if kind is self._serves:
            return
        with kubernetes.config.new_client_from_config(str(self.kubeconfig)) as api:
            gateway = KubernetesGateway(api)
            if kind is JobKind.TRAIN_JOB:
                gateway.delete(
                    "apps/v1", "Deployment", name="training-operator", namespace="kubeflow"
                )
                self._bring_trainer(gateway)
            else:
                self._take_trainer_away(gateway)
                gateway.apply(load_manifests("training-operator"))
                self._until_ready(gateway, "training-operator", "kubeflow")
        self._serves = kind

    def replace_node(self) -> None:
        """Let EKS bring a node in place of one that was lost."""
        eks, cluster = self.world.aws.client("eks"), self.world.mode.cluster
        sizes = {"minSize": 4, "maxSize": 4, "desiredSize": 4}
        eks.update_nodegroup_config(clusterName=NAME, nodegroupName="pool", scalingConfig=sizes)
        with kubernetes.config.new_client_from_config(str(cluster.kubeconfig)) as api:
            gateway = KubernetesGateway(api)
            self.world.until(lambda: len(gateway.nodes()) == 5, "another node joins")

    def _bring_trainer(self, gateway: KubernetesGateway) -> None:
        gateway.apply(trainer_objects())
        for item in trainer_objects():
            if item["kind"] == "Deployment":
                self._until_ready(gateway, item["metadata"]["name"], TRAINER_NAMESPACE)

    def _take_trainer_away(self, gateway: KubernetesGateway) -> None:
        for item in reversed(trainer_objects()):
            about = item["metadata"]
            where = about.get("namespace")
            gateway.delete(item["apiVersion"], item["kind"], name=about["name"], namespace=where)

    def _until_ready(self, gateway: KubernetesGateway, name: str, namespace: str) -> None:
        self.world.until(
            lambda: gateway.deployment_ready(name, namespace=namespace), f"{name} runs"
        )

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
                text = answer.read()
                # A type that is not served has no objects.
                items = json.loads(text)["items"] if answer.status == 200 else []
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
