"""Everything a step or a command needs, made once and passed explicitly.

Clients are made on first use, so that a function pays only for the services that it calls. This is
the one composition root of the product; nothing here knows where it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from stationmaster.domain.cluster.events import cluster_event_id
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import ClusterId, EventId, RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import NAMESPACE, own_namespace
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.events import run_event_id
from stationmaster.making import of, part, quick, rows
from stationmaster.settings import Settings, read_rules

if TYPE_CHECKING:
    from botocore.config import Config

    from stationmaster.aws.access_entries import AccessEntries
    from stationmaster.aws.account import Account
    from stationmaster.aws.addons import Addons
    from stationmaster.aws.artifacts import Artifacts
    from stationmaster.aws.audit_store import AuditStore
    from stationmaster.aws.cluster_store import ClusterStore
    from stationmaster.aws.clusters import Clusters, EksCluster
    from stationmaster.aws.data_links import DataLinks
    from stationmaster.aws.datasets import Datasets
    from stationmaster.aws.delivery_store import DeliveryStore, SlackWriter
    from stationmaster.aws.ec2_leftovers import (
        EksSecurityGroups,
        Instances,
        NetworkInterfaces,
        Volumes,
    )
    from stationmaster.aws.event_bus import EventBus
    from stationmaster.aws.existing_clusters import ExistingClusters
    from stationmaster.aws.existing_file_systems import ExistingFileSystems
    from stationmaster.aws.file_system_room import FileSystemRoom
    from stationmaster.aws.file_systems import FileSystems
    from stationmaster.aws.guard_store import GuardStore
    from stationmaster.aws.hyperpod_clusters import HyperPodClusters
    from stationmaster.aws.instance_types import InstanceTypes
    from stationmaster.aws.kinds import Releasable
    from stationmaster.aws.launch_templates import LaunchTemplates
    from stationmaster.aws.log_groups import LogGroups, MetricsLogs
    from stationmaster.aws.node_groups import NodeGroups
    from stationmaster.aws.orphan_store import OrphanStore
    from stationmaster.aws.people_store import PeopleStore
    from stationmaster.aws.placement_groups import PlacementGroups
    from stationmaster.aws.pod_identities import PodIdentities
    from stationmaster.aws.price_list import PriceList
    from stationmaster.aws.reservations import Reservations
    from stationmaster.aws.run_store import RunStore
    from stationmaster.aws.scaling_groups import ScalingGroups
    from stationmaster.aws.schedules import Schedules
    from stationmaster.aws.secrets import Secrets
    from stationmaster.aws.security_groups import SecurityGroups
    from stationmaster.aws.set_aside_store import SetAsideStore
    from stationmaster.aws.subnets import Subnets
    from stationmaster.aws.tagged import TaggedResources
    from stationmaster.aws.workflows import Workflows
    from stationmaster.domain.cluster.spec import ClusterSpec
    from stationmaster.domain.rules import Rules
    from stationmaster.hub import Hub
    from stationmaster.kubernetes.gateway import KubernetesGateway
    from stationmaster.workspace import Workspace


class RunStamp(TypedDict):
    """The fields that every event of a run has."""

    event_id: EventId
    run_id: RunId
    at: datetime


class ClusterStamp(TypedDict):
    """The fields that every event of a cluster has."""

    event_id: EventId
    cluster_id: ClusterId
    at: datetime


class Services:
    """The outside world as the product sees it; `now` is the only clock."""

    clock: ClassVar[Callable[[], datetime]] = staticmethod(lambda: datetime.now(UTC))
    """The clock of whoever brings none; local mode lets it jump."""

    def __init__(self, settings: Settings, *, now: Callable[[], datetime] | None = None) -> None:
        self.settings = settings
        self.now = now or (lambda: type(self).clock())
        self._clients: dict[str, Any] = {}
        self._gateways: dict[str, KubernetesGateway] = {}
        self._guests: dict[str, tuple[ClusterSpec | None, JobKind]] = {}

    @classmethod
    def create(cls, settings: Settings | None = None) -> Services:
        """Services with settings from the environment, unless given."""
        return cls(settings or Settings.from_environment())

    runs: RunStore = part("run_store.RunStore", rows)
    """Runs and events."""
    cluster_states: ClusterStore = part("cluster_store.ClusterStore", rows)
    """Clusters and their events: what the product knows of them; `clusters` is EKS."""
    guard: GuardStore = part("guard_store.GuardStore", rows)
    """The item that starts take turns at, where they are limited."""
    deliveries: DeliveryStore = part("delivery_store.DeliveryStore", rows)
    """What was posted in Slack of each run."""
    audit: AuditStore = part("audit_store.AuditStore", rows)
    """Who did what in each channel."""
    people: PeopleStore = part("people_store.PeopleStore", rows)
    """What people have chosen, for themselves or for a channel."""
    set_aside: SetAsideStore = part("set_aside_store.SetAsideStore", rows)
    """What functions could not read."""
    slack_writer: SlackWriter = part("delivery_store.SlackWriter", rows)
    """Which invocation of the notifier may write to Slack."""
    orphans: OrphanStore = part("orphan_store.OrphanStore", rows)
    """Since when the reaper has seen orphans."""

    clusters: Clusters = part("clusters.Clusters", of("eks"))
    """EKS control planes."""
    existing_clusters: ExistingClusters = part("existing_clusters.ExistingClusters", quick("eks"))
    """Existing EKS clusters."""
    hyperpod_clusters: HyperPodClusters = part(
        "hyperpod_clusters.HyperPodClusters", quick("sagemaker")
    )
    """SageMaker HyperPod clusters."""
    price_list: PriceList = part(
        "price_list.PriceList",
        lambda our, kind: kind(our.settings, our.quick_client("pricing", region="us-east-1")),
    )
    """Prices of their nodes, which one region has for all; asked quickly."""
    node_groups: NodeGroups = part("node_groups.NodeGroups", of("eks"))
    addons: Addons = part("addons.Addons", of("eks"))
    access_entries: AccessEntries = part("access_entries.AccessEntries", of("eks"))
    """Who may talk to a cluster."""
    pod_identities: PodIdentities = part("pod_identities.PodIdentities", of("eks"))
    """AWS roles of pods."""
    scaling_groups: ScalingGroups = part("scaling_groups.ScalingGroups", of("autoscaling"))
    """The Auto Scaling groups of node groups."""
    metrics_logs: MetricsLogs = part("log_groups.MetricsLogs", of("logs"))
    """Log groups of clusters whose metrics go to CloudWatch."""
    log_groups: LogGroups = part("log_groups.LogGroups", of("logs"))
    """Log groups that clusters have left."""
    schedules: Schedules = part("schedules.Schedules", of("scheduler"))
    """EventBridge Scheduler: the clocks of kept clusters."""

    file_systems: FileSystems = part("file_systems.FileSystems", of("fsx"))
    """FSx for Lustre."""
    data_links: DataLinks = part("data_links.DataLinks", of("fsx"))
    """FSx data repository associations."""
    existing_file_systems: ExistingFileSystems = part(
        "existing_file_systems.ExistingFileSystems", of("fsx", "ec2")
    )
    """File systems that somebody else made."""
    quick_file_systems: ExistingFileSystems = part(
        "existing_file_systems.ExistingFileSystems", quick("fsx", "ec2")
    )
    file_system_room: FileSystemRoom = part(
        "file_system_room.FileSystemRoom",
        lambda our, kind: kind(our.quick_client("cloudwatch"), now=our.now),
    )
    """How much of a file system is free."""

    security_groups: SecurityGroups = part("security_groups.SecurityGroups", of("ec2"))
    subnets: Subnets = part("subnets.Subnets", of("ec2"))
    """The zones that nodes may be in."""
    eks_security_groups: EksSecurityGroups = part("ec2_leftovers.EksSecurityGroups", of("ec2"))
    """EC2 security groups that EKS made."""
    instances: Instances = part("ec2_leftovers.Instances", of("ec2"))
    """EC2 instances, which EKS launched."""
    volumes: Volumes = part("ec2_leftovers.Volumes", of("ec2"))
    """EBS volumes that instances left behind."""
    network_interfaces: NetworkInterfaces = part("ec2_leftovers.NetworkInterfaces", of("ec2"))
    """EC2 network interfaces that nodes left behind."""
    launch_templates: LaunchTemplates = part("launch_templates.LaunchTemplates", of("ec2"))
    placement_groups: PlacementGroups = part("placement_groups.PlacementGroups", of("ec2"))
    tagged: TaggedResources = part(
        "tagged.TaggedResources",
        lambda our, kind: kind(our.client("resourcegroupstaggingapi"), our.client("ec2")),
    )
    """Resources of all clusters, known or not."""
    instance_types: InstanceTypes = part(
        "instance_types.InstanceTypes",
        lambda our, kind: kind(our.quick_client("ec2"), region=our.settings.region, now=our.now),
    )
    """What EC2 offers; asked quickly."""
    reservations: Reservations = part(
        "reservations.Reservations",
        lambda our, kind: kind(our.client("ec2"), subnet_ids=our.settings.subnet_ids, now=our.now),
    )
    """EC2 capacity reservations."""
    quick_reservations: Reservations = part(
        "reservations.Reservations",
        lambda our, kind: kind(
            our.quick_client("ec2"), subnet_ids=our.settings.subnet_ids, now=our.now
        ),
    )

    artifacts: Artifacts = part(
        "artifacts.Artifacts",
        lambda our, kind: kind(our.settings.artifacts_bucket, our.client("s3")),
    )
    """What runs have left in the artifacts bucket."""
    datasets: Datasets = part(
        "datasets.Datasets",
        lambda our, kind: kind(
            our.settings.dataset_buckets,
            our.quick_client("s3"),
            linked=our.settings.linked_buckets,
            link_saves_s=our.settings.link_saves_s,
        ),
    )
    """What S3 holds for runs to train on; asked quickly."""
    workflows: Workflows = part("workflows.Workflows", of("stepfunctions"))
    """Step Functions."""
    bus: EventBus = part("event_bus.EventBus", of("events"))
    """EventBridge."""
    secrets: Secrets = part("secrets.Secrets", of("secretsmanager"))
    """Secrets Manager."""

    @cached_property
    def quick_artifacts(self) -> Artifacts:
        """The artifacts, asked quickly: for a command that a person waits for."""
        from botocore.config import Config

        from stationmaster.aws.artifacts import Artifacts

        # Links to what a KMS key encrypts have to be signed with version 4.
        client = self.quick_client("s3", Config(signature_version="s3v4"))
        return Artifacts(self.settings.artifacts_bucket, client)

    @cached_property
    def account(self) -> Account:
        """Quotas, offers, images and buckets, before anything is made."""
        from stationmaster.aws.account import Account
        from stationmaster.aws.configs import CONFIG

        return Account(region=self.settings.region, config=CONFIG)

    @cached_property
    def quick_account(self) -> Account:
        """The account, asked quickly: for a command that a person waits for."""
        from stationmaster.aws.account import Account
        from stationmaster.aws.configs import QUICK

        return Account(region=self.settings.region, config=QUICK)

    def run_stamp(self, run_id: RunId, *about: object, at: datetime | None = None) -> RunStamp:
        """Stamp an event of a run; `about` makes its id."""
        event_id = run_event_id(run_id, *about)
        return {"event_id": event_id, "run_id": run_id, "at": at or self.now()}

    def cluster_stamp(
        self, cluster_id: ClusterId, *about: object, at: datetime | None = None
    ) -> ClusterStamp:
        """Stamp an event of a cluster; `about` makes its id."""
        event_id = cluster_event_id(cluster_id, *about)
        return {"event_id": event_id, "cluster_id": cluster_id, "at": at or self.now()}

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
    def hub(self) -> Hub:
        """The Hugging Face hub, asked with the product's own token where there is one."""
        from pydantic import SecretStr

        from stationmaster.hub import Hub

        token = self.secrets.hugging_face_token()
        return Hub(self.settings.hub_url, token=token or SecretStr(""))

    @cached_property
    def rules(self) -> Rules:
        """Who may do what in each channel.

        Raises:
            PermanentError: the file with them is missing or malformed: nobody may do anything.
        """
        from stationmaster.domain.rules import Rules

        path = self.settings.rules_file
        try:
            return read_rules(Path(path)) if path else Rules()
        except (OSError, ValueError) as exc:
            raise PermanentError(f"the rules of channels cannot be read: {exc}") from exc

    @cached_property
    def workspace(self) -> Workspace:
        """Who is in Slack's user groups; asked quickly."""
        from slack_sdk import WebClient

        from stationmaster.workspace import Workspace

        client = WebClient(base_url=self.settings.slack_api_url, timeout=1)
        return Workspace(client, token_of=self.secrets.reload_bot_token, now=self.now)

    def eks_name(self, cluster_id: ClusterId) -> str:
        """Return the existing EKS cluster that a cluster uses; "" where it has one of its own."""
        spec, _ = self._guest(cluster_id)
        return spec.eks_name if spec is not None else ""

    def guest_spec(self, cluster_id: ClusterId) -> ClusterSpec | None:
        """Return what a cluster was to be; what was found in an existing one, once settled."""
        return self._guest(cluster_id)[0]

    def _guest(self, cluster_id: ClusterId) -> tuple[ClusterSpec | None, JobKind]:
        """Return what a cluster was to be, and the kind of its jobs, once settled."""
        if cluster_id in self._guests:
            return self._guests[cluster_id]
        cluster = self.cluster_states.find(cluster_id)
        if cluster is None:
            return None, JobKind.PYTORCH_JOB
        found = cluster.spec, cluster.job_kind or JobKind.PYTORCH_JOB
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
        from stationmaster.kubernetes.connect import connect
        from stationmaster.kubernetes.gateway import KubernetesGateway

        spec, kind = self._guest(cluster_id)
        is_guest, queue = (bool(spec.eks_name), spec.queue) if spec is not None else (False, None)
        known = self._gateways.get(cluster_id)
        if known is None or (known.backend.KIND, known.queue) != (kind, queue):
            known = self._gateways[cluster_id] = KubernetesGateway(
                connect(self.settings, cluster=self.control_plane(cluster_id)),
                namespace=own_namespace(cluster_id) if is_guest else NAMESPACE,
                queue=queue,
                kind=kind,
            )
        return known

    def quick_client(self, service: str, config: Config | None = None, region: str = "") -> Any:
        """Return a client for what a person waits for: it gives up after seconds.

        Args:
            region: "" for the deployment's.
        """
        from stationmaster.aws.calls import make_client
        from stationmaster.aws.configs import QUICK

        quick = QUICK.merge(config) if config is not None else QUICK
        return make_client(service, region=region or self.settings.region, config=quick)

    def client(self, service: str) -> Any:
        """Return the client of one AWS service, shared by the kinds of resources that it has."""
        from stationmaster.aws.calls import make_client

        if service not in self._clients:
            self._clients[service] = make_client(service, region=self.settings.region)
        return self._clients[service]
