"""Everything a step or a command needs, made once and passed explicitly.

Clients are made on first use, so that a function pays only for the services that it calls. This is
the one composition root of the product; nothing here knows where it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from stationmaster.domain.ids import RunId
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from stationmaster.aws.clusters import Clusters
    from stationmaster.aws.delivery_store import DeliveryStore
    from stationmaster.aws.event_bus import EventBus
    from stationmaster.aws.file_systems import FileSystems
    from stationmaster.aws.networks import Networks
    from stationmaster.aws.run_store import RunStore
    from stationmaster.aws.secrets import Secrets
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
        self._gateways: dict[str, KubernetesGateway] = {}

    @classmethod
    def create(cls, settings: Settings | None = None) -> Services:
        """Services with settings from the environment, unless given."""
        return cls(settings or Settings.from_environment())

    # Imports below are local to each property: boto3 clients and the kubernetes package are most of
    # a function's cold start, and no function uses all of them.

    @cached_property
    def runs(self) -> RunStore:
        """Runs and events."""
        from stationmaster.aws.calls import make_client
        from stationmaster.aws.run_store import RunStore

        return RunStore(
            self.settings.table_name, make_client("dynamodb", region=self.settings.region)
        )

    @cached_property
    def deliveries(self) -> DeliveryStore:
        """What was posted in Slack of each run."""
        from stationmaster.aws.calls import make_client
        from stationmaster.aws.delivery_store import DeliveryStore

        return DeliveryStore(
            self.settings.table_name, make_client("dynamodb", region=self.settings.region)
        )

    @cached_property
    def clusters(self) -> Clusters:
        """EKS."""
        from stationmaster.aws.calls import make_client
        from stationmaster.aws.clusters import Clusters

        return Clusters(self.settings, make_client("eks", region=self.settings.region))

    @cached_property
    def file_systems(self) -> FileSystems:
        """FSx for Lustre."""
        from stationmaster.aws.calls import make_client
        from stationmaster.aws.file_systems import FileSystems

        return FileSystems(make_client("fsx", region=self.settings.region))

    @cached_property
    def networks(self) -> Networks:
        """Security groups, placement groups and launch templates."""
        from stationmaster.aws.calls import make_client
        from stationmaster.aws.networks import Networks

        return Networks(self.settings, make_client("ec2", region=self.settings.region))

    @cached_property
    def workflows(self) -> Workflows:
        """Step Functions."""
        from stationmaster.aws.calls import make_client
        from stationmaster.aws.workflows import Workflows

        return Workflows(self.settings, make_client("stepfunctions", region=self.settings.region))

    @cached_property
    def bus(self) -> EventBus:
        """EventBridge."""
        from stationmaster.aws.calls import make_client
        from stationmaster.aws.event_bus import EventBus

        return EventBus(self.settings.bus_name, make_client("events", region=self.settings.region))

    @cached_property
    def secrets(self) -> Secrets:
        """Secrets Manager."""
        from stationmaster.aws.calls import make_client
        from stationmaster.aws.secrets import Secrets

        return Secrets(
            slack_secret_id=self.settings.slack_secret_id,
            hugging_face_secret_id=self.settings.hugging_face_secret_id,
            client=make_client("secretsmanager", region=self.settings.region),
        )

    @cached_property
    def hub(self) -> Hub:
        """The Hugging Face hub, asked with the product's own token where there is one."""
        from pydantic import SecretStr

        from stationmaster.hub import Hub

        token = self.secrets.hugging_face_token()
        return Hub(self.settings.hub_url, token=token or SecretStr(""))

    def kubernetes(self, run_id: RunId) -> KubernetesGateway:
        """The Kubernetes API of the run's cluster.

        Raises:
            TransientError: the cluster has no endpoint yet.
        """
        from stationmaster.kubernetes.gateway import KubernetesGateway

        if run_id not in self._gateways:
            self._gateways[run_id] = KubernetesGateway.connect(
                self.settings, cluster=self.clusters.describe(run_id)
            )
        return self._gateways[run_id]
