"""Everything a step or a command needs, made once and passed explicitly.

Clients are made on first use, so that a function pays only for the services that it calls. This is
the one composition root of the product; nothing here knows where it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import NAMESPACE, own_namespace
from stationmaster.domain.resources import ResourceKind
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from stationmaster.aws.access_entries import AccessEntries
    from stationmaster.aws.account import Account
    from stationmaster.aws.addons import Addons
    from stationmaster.aws.artifacts import Artifacts
    from stationmaster.aws.cluster_store import ClusterStore
    from stationmaster.aws.clusters import Clusters, EksCluster
    from stationmaster.aws.data_links import DataLinks
    from stationmaster.aws.datasets import Datasets
    from stationmaster.aws.delivery_store import DeliveryStore
    from stationmaster.aws.eks_security_groups import EksSecurityGroups
    from stationmaster.aws.event_bus import EventBus
    from stationmaster.aws.existing_clusters import ExistingClusters
    from stationmaster.aws.existing_file_systems import ExistingFileSystems
    from stationmaster.aws.file_system_room import FileSystemRoom
    from stationmaster.aws.file_systems import FileSystems
    from stationmaster.aws.guard_store import GuardStore
    from stationmaster.aws.instance_types import InstanceTypes
    from stationmaster.aws.instances import Instances
    from stationmaster.aws.kinds import Releasable
    from stationmaster.aws.launch_templates import LaunchTemplates
    from stationmaster.aws.log_groups import LogGroups
    from stationmaster.aws.metrics_logs import MetricsLogs
    from stationmaster.aws.network_interfaces import NetworkInterfaces
    from stationmaster.aws.node_groups import NodeGroups
    from stationmaster.aws.orphan_store import OrphanStore
    from stationmaster.aws.placement_groups import PlacementGroups
    from stationmaster.aws.pod_identities import PodIdentities
    from stationmaster.aws.reservations import Reservations
    from stationmaster.aws.run_store import RunStore
    from stationmaster.aws.scaling_activities import ScalingActivities
    from stationmaster.aws.scaling_groups import ScalingGroups
    from stationmaster.aws.schedules import Schedules
    from stationmaster.aws.secrets import Secrets
    from stationmaster.aws.security_groups import SecurityGroups
    from stationmaster.aws.set_aside_store import SetAsideStore
    from stationmaster.aws.slack_writer import SlackWriter
    from stationmaster.aws.subnets import Subnets
    from stationmaster.aws.tagged import TaggedResources
    from stationmaster.aws.volumes import Volumes
    from stationmaster.aws.workflows import Workflows
    from stationmaster.hub import Hub
    from stationmaster.kubernetes.gateway import KubernetesGateway


class Services:
    """The outside world as the product sees it; `now` is the only clock."""

    def __init__(
        self, settings: Settings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.settings = settings
        self.now = now
        self._clients: dict[str, Any] = {}
        self._gateways: dict[str, KubernetesGateway] = {}
        self._guests: dict[str, tuple[str, JobKind]] = {}

    @classmethod
    def create(cls, settings: Settings | None = None) -> Services:
        """Services with settings from the environment, unless given."""
        return cls(settings or Settings.from_environment())

    # Imports below are local to each property: boto3 clients and the kubernetes package are most of
    # a function's cold start, and no function uses all of them.

    @cached_property
    def runs(self) -> RunStore:
        """Runs and events."""
        from stationmaster.aws.run_store import RunStore

        return RunStore(self.settings.table_name, self._client("dynamodb"))

    @cached_property
    def cluster_states(self) -> ClusterStore:
        """Clusters and their events: what the product knows of them; `clusters` is EKS."""
        from stationmaster.aws.cluster_store import ClusterStore

        return ClusterStore(self.settings.table_name, self._client("dynamodb"))

    @cached_property
    def guard(self) -> GuardStore:
        """The item that starts take turns at, where they are limited."""
        from stationmaster.aws.guard_store import GuardStore

        return GuardStore(self.settings.table_name, self._client("dynamodb"))

    @cached_property
    def deliveries(self) -> DeliveryStore:
        """What was posted in Slack of each run."""
        from stationmaster.aws.delivery_store import DeliveryStore

        return DeliveryStore(self.settings.table_name, self._client("dynamodb"))

    @cached_property
    def set_aside(self) -> SetAsideStore:
        """What functions could not read."""
        from stationmaster.aws.set_aside_store import SetAsideStore

        return SetAsideStore(self.settings.table_name, self._client("dynamodb"))

    @cached_property
    def slack_writer(self) -> SlackWriter:
        """Which invocation of the notifier may write to Slack."""
        from stationmaster.aws.slack_writer import SlackWriter

        return SlackWriter(self.settings.table_name, self._client("dynamodb"))

    @cached_property
    def clusters(self) -> Clusters:
        """EKS control planes."""
        from stationmaster.aws.clusters import Clusters

        return Clusters(self.settings, self._client("eks"))

    @cached_property
    def existing_clusters(self) -> ExistingClusters:
        """Existing EKS clusters; asked quickly, for a command that a person waits for."""
        from stationmaster.aws.calls import QUICK, make_client
        from stationmaster.aws.existing_clusters import ExistingClusters

        client = make_client("eks", region=self.settings.region, config=QUICK)
        return ExistingClusters(self.settings, client)

    @cached_property
    def node_groups(self) -> NodeGroups:
        """EKS node groups."""
        from stationmaster.aws.node_groups import NodeGroups

        return NodeGroups(self.settings, self._client("eks"))

    @cached_property
    def scaling_activities(self) -> ScalingActivities:
        """What the Auto Scaling groups of node groups have tried."""
        from stationmaster.aws.scaling_activities import ScalingActivities

        return ScalingActivities(self._client("autoscaling"))

    @cached_property
    def scaling_groups(self) -> ScalingGroups:
        """The same groups, which replace instances."""
        from stationmaster.aws.scaling_groups import ScalingGroups

        return ScalingGroups(self._client("autoscaling"))

    @cached_property
    def addons(self) -> Addons:
        """EKS add-ons."""
        from stationmaster.aws.addons import Addons

        return Addons(self.settings, self._client("eks"))

    @cached_property
    def metrics_logs(self) -> MetricsLogs:
        """Log groups of clusters whose metrics go to CloudWatch."""
        from stationmaster.aws.metrics_logs import MetricsLogs

        return MetricsLogs(self.settings, self._client("logs"))

    @cached_property
    def log_groups(self) -> LogGroups:
        """Log groups that clusters have left."""
        from stationmaster.aws.log_groups import LogGroups

        return LogGroups(self._client("logs"))

    @cached_property
    def access_entries(self) -> AccessEntries:
        """Who may talk to a cluster."""
        from stationmaster.aws.access_entries import AccessEntries

        return AccessEntries(self.settings, self._client("eks"))

    @cached_property
    def pod_identities(self) -> PodIdentities:
        """AWS roles of pods."""
        from stationmaster.aws.pod_identities import PodIdentities

        return PodIdentities(self.settings, self._client("eks"))

    @cached_property
    def schedules(self) -> Schedules:
        """EventBridge Scheduler: the clocks of kept clusters."""
        from stationmaster.aws.schedules import Schedules

        return Schedules(self.settings, self._client("scheduler"))

    @cached_property
    def file_systems(self) -> FileSystems:
        """FSx for Lustre."""
        from stationmaster.aws.file_systems import FileSystems

        return FileSystems(self.settings, self._client("fsx"))

    @cached_property
    def data_links(self) -> DataLinks:
        """FSx data repository associations."""
        from stationmaster.aws.data_links import DataLinks

        return DataLinks(self.settings, self._client("fsx"))

    @cached_property
    def existing_file_systems(self) -> ExistingFileSystems:
        """File systems that somebody else made."""
        from stationmaster.aws.existing_file_systems import ExistingFileSystems

        return ExistingFileSystems(self.settings, self._client("fsx"), self._client("ec2"))

    @cached_property
    def quick_file_systems(self) -> ExistingFileSystems:
        """The same, asked quickly: for a command that a person waits for."""
        from stationmaster.aws.calls import QUICK, make_client
        from stationmaster.aws.existing_file_systems import ExistingFileSystems

        region = self.settings.region
        fsx, ec2 = (make_client(each, region=region, config=QUICK) for each in ("fsx", "ec2"))
        return ExistingFileSystems(self.settings, fsx, ec2)

    @cached_property
    def file_system_room(self) -> FileSystemRoom:
        """How much of a file system is free; asked quickly."""
        from stationmaster.aws.calls import QUICK, make_client
        from stationmaster.aws.file_system_room import FileSystemRoom

        client = make_client("cloudwatch", region=self.settings.region, config=QUICK)
        return FileSystemRoom(client, now=self.now)

    @cached_property
    def artifacts(self) -> Artifacts:
        """What runs have left in the artifacts bucket."""
        from stationmaster.aws.artifacts import Artifacts

        return Artifacts(self.settings.artifacts_bucket, self._client("s3"))

    @cached_property
    def quick_artifacts(self) -> Artifacts:
        """The same, asked quickly: for a command that a person waits for."""
        from botocore.config import Config

        from stationmaster.aws.artifacts import Artifacts
        from stationmaster.aws.calls import QUICK, make_client

        # Links to what a KMS key encrypts have to be signed with version 4.
        config = QUICK.merge(Config(signature_version="s3v4"))
        client = make_client("s3", region=self.settings.region, config=config)
        return Artifacts(self.settings.artifacts_bucket, client)

    @cached_property
    def datasets(self) -> Datasets:
        """What S3 holds for runs to train on; asked quickly, for a plan that a person waits for."""
        from stationmaster.aws.calls import QUICK, make_client
        from stationmaster.aws.datasets import Datasets

        client = make_client("s3", region=self.settings.region, config=QUICK)
        return Datasets(
            self.settings.dataset_buckets,
            client,
            linked=self.settings.linked_buckets,
            link_saves_s=self.settings.link_saves_s,
        )

    @cached_property
    def security_groups(self) -> SecurityGroups:
        """EC2 security groups."""
        from stationmaster.aws.security_groups import SecurityGroups

        return SecurityGroups(self.settings, self._client("ec2"))

    @cached_property
    def subnets(self) -> Subnets:
        """The zones that nodes may be in."""
        from stationmaster.aws.subnets import Subnets

        return Subnets(self._client("ec2"), subnet_ids=self.settings.subnet_ids)

    @cached_property
    def eks_security_groups(self) -> EksSecurityGroups:
        """EC2 security groups that EKS made."""
        from stationmaster.aws.eks_security_groups import EksSecurityGroups

        return EksSecurityGroups(self._client("ec2"))

    @cached_property
    def instances(self) -> Instances:
        """EC2 instances, which EKS launched."""
        from stationmaster.aws.instances import Instances

        return Instances(self._client("ec2"))

    @cached_property
    def volumes(self) -> Volumes:
        """EBS volumes that instances left behind."""
        from stationmaster.aws.volumes import Volumes

        return Volumes(self._client("ec2"))

    @cached_property
    def tagged(self) -> TaggedResources:
        """Resources of all clusters, known or not."""
        from stationmaster.aws.tagged import TaggedResources

        return TaggedResources(self._client("resourcegroupstaggingapi"), self._client("ec2"))

    @cached_property
    def orphans(self) -> OrphanStore:
        """Since when the reaper has seen orphans."""
        from stationmaster.aws.orphan_store import OrphanStore

        return OrphanStore(self.settings.table_name, self._client("dynamodb"))

    @cached_property
    def network_interfaces(self) -> NetworkInterfaces:
        """EC2 network interfaces that nodes left behind."""
        from stationmaster.aws.network_interfaces import NetworkInterfaces

        return NetworkInterfaces(self._client("ec2"))

    @cached_property
    def launch_templates(self) -> LaunchTemplates:
        """EC2 launch templates."""
        from stationmaster.aws.launch_templates import LaunchTemplates

        return LaunchTemplates(self.settings, self._client("ec2"))

    @cached_property
    def placement_groups(self) -> PlacementGroups:
        """EC2 placement groups."""
        from stationmaster.aws.placement_groups import PlacementGroups

        return PlacementGroups(self.settings, self._client("ec2"))

    def in_deletion_order(self) -> dict[ResourceKind, Releasable]:
        """Return every kind that is deleted by itself; each may hold the ones after it."""
        return {
            ResourceKind.DATA_LINK: self.data_links,
            ResourceKind.FILE_SYSTEM: self.file_systems,
            ResourceKind.NODE_GROUP: self.node_groups,
            ResourceKind.CLUSTER: self.clusters,
            **self.network_in_deletion_order(),
        }

    def network_in_deletion_order(self) -> dict[ResourceKind, Releasable]:
        """Return the kinds that nodes and file system use, and the log group that nodes write to.

        The VPC itself is shared and stays.
        """
        return {
            ResourceKind.INSTANCE: self.instances,
            ResourceKind.VOLUME: self.volumes,
            ResourceKind.NETWORK_INTERFACE: self.network_interfaces,
            ResourceKind.LAUNCH_TEMPLATE: self.launch_templates,
            ResourceKind.PLACEMENT_GROUP: self.placement_groups,
            ResourceKind.EKS_SECURITY_GROUP: self.eks_security_groups,
            ResourceKind.SECURITY_GROUP: self.security_groups,
            ResourceKind.LOG_GROUP: self.log_groups,
        }

    @cached_property
    def instance_types(self) -> InstanceTypes:
        """What EC2 offers; asked quickly, for a plan that a person waits for."""
        from stationmaster.aws.calls import QUICK, make_client
        from stationmaster.aws.instance_types import InstanceTypes

        region = self.settings.region
        client = make_client("ec2", region=region, config=QUICK)
        return InstanceTypes(client, region=region, now=self.now)

    @cached_property
    def account(self) -> Account:
        """Quotas, offers, images and buckets, before anything is made."""
        from stationmaster.aws.account import Account
        from stationmaster.aws.calls import CONFIG

        return Account(region=self.settings.region, config=CONFIG)

    @cached_property
    def quick_account(self) -> Account:
        """The same, asked quickly: for a command that a person waits for."""
        from stationmaster.aws.account import Account
        from stationmaster.aws.calls import QUICK

        return Account(region=self.settings.region, config=QUICK)

    @cached_property
    def reservations(self) -> Reservations:
        """EC2 capacity reservations."""
        from stationmaster.aws.reservations import Reservations

        return Reservations(self._client("ec2"), subnet_ids=self.settings.subnet_ids, now=self.now)

    @cached_property
    def quick_reservations(self) -> Reservations:
        """The same, asked quickly: for a command that a person waits for."""
        from stationmaster.aws.calls import QUICK, make_client
        from stationmaster.aws.reservations import Reservations

        client = make_client("ec2", region=self.settings.region, config=QUICK)
        return Reservations(client, subnet_ids=self.settings.subnet_ids, now=self.now)

    @cached_property
    def workflows(self) -> Workflows:
        """Step Functions."""
        from stationmaster.aws.workflows import Workflows

        return Workflows(self.settings, self._client("stepfunctions"))

    @cached_property
    def bus(self) -> EventBus:
        """EventBridge."""
        from stationmaster.aws.event_bus import EventBus

        return EventBus(self.settings.bus_name, self._client("events"))

    @cached_property
    def secrets(self) -> Secrets:
        """Secrets Manager."""
        from stationmaster.aws.secrets import Secrets

        return Secrets(
            slack_secret_id=self.settings.slack_secret_id,
            hugging_face_secret_id=self.settings.hugging_face_secret_id,
            relay_secret_id=self.settings.relay_secret_id,
            client=self._client("secretsmanager"),
        )

    @cached_property
    def hub(self) -> Hub:
        """The Hugging Face hub, asked with the product's own token where there is one."""
        from pydantic import SecretStr

        from stationmaster.hub import Hub

        token = self.secrets.hugging_face_token()
        return Hub(self.settings.hub_url, token=token or SecretStr(""))

    def eks_name(self, cluster_id: ClusterId) -> str:
        """Return the existing EKS cluster that a cluster uses; "" where it has one of its own."""
        return self._guest(cluster_id)[0]

    def _guest(self, cluster_id: ClusterId) -> tuple[str, JobKind]:
        """Return the existing EKS cluster of a cluster, and the kind of its jobs, once settled."""
        if cluster_id in self._guests:
            return self._guests[cluster_id]
        cluster = self.cluster_states.find(cluster_id)
        if cluster is None:
            return "", JobKind.PYTORCH_JOB
        found = cluster.spec.eks_name, cluster.job_kind or JobKind.PYTORCH_JOB
        if not cluster.spec.eks_name or cluster.job_kind is not None:
            self._guests[cluster_id] = found
        return found

    def control_plane(self, cluster_id: ClusterId) -> EksCluster | None:
        """Return a cluster's EKS cluster, its own or an existing one; None if it is gone."""
        eks_name = self.eks_name(cluster_id)
        return self.clusters.find(eks_name) if eks_name else self.clusters.describe(cluster_id)

    def kubernetes(self, cluster_id: ClusterId) -> KubernetesGateway:
        """Connect to a cluster's Kubernetes API; in an existing EKS cluster, to its namespace.

        Raises:
            TransientError: the cluster has no endpoint yet.
        """
        from stationmaster.kubernetes.gateway import KubernetesGateway

        eks_name, kind = self._guest(cluster_id)
        known = self._gateways.get(cluster_id)
        if known is None or known.backend.KIND is not kind:
            known = self._gateways[cluster_id] = KubernetesGateway.connect(
                self.settings,
                cluster=self.control_plane(cluster_id),
                namespace=own_namespace(cluster_id) if eks_name else NAMESPACE,
                kind=kind,
            )
        return known

    def _client(self, service: str) -> Any:
        """Return the client of one AWS service, shared by the kinds of resources that it has."""
        from stationmaster.aws.calls import make_client

        if service not in self._clients:
            self._clients[service] = make_client(service, region=self.settings.region)
        return self._clients[service]
