"""The local AWS of each test file, and a gateway to an API server that answers as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stationmaster.kubernetes.connect import connect
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.local.aws import Deployment, LocalAws
from stationmaster.settings import Settings
from tests.support.answering_server import AnsweringServer, answering_server
from tests.support.answering_server import settings as server_settings
from tests.support.aws_fixtures import aws, deployed

__all__ = ["aws", "deployed"]  # fixtures


@pytest.fixture
def settings(aws: LocalAws, deployed: Deployment, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Those of a deployment in the local account, whose address the environment has."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    role = deployed.role_arns["eks-cluster"]
    return Settings(
        region=aws.region,
        table_name="runs",
        bus_name="events",
        vpc_id=deployed.vpc_id,
        subnet_ids=tuple(deployed.subnet_ids),
        cluster_role_arn=role,
        node_role_arn=role,
        relay_role_arn=role,
        saver_role_arn=role,
        stager_role_arn=role,
        fsx_csi_role_arn=role,
        cluster_access_role_arns=(role,),
    )


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    with answering_server() as server:
        yield server


@pytest.fixture
def kubeconfig(server: AnsweringServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                "users": [{"name": "u", "user": {"token": "secret-token"}}],
            }
        )
    )
    return path


@pytest.fixture
def gateway(kubeconfig: Path) -> Iterator[KubernetesGateway]:
    gateway = KubernetesGateway(connect(server_settings(str(kubeconfig)), cluster=None))
    yield gateway
    gateway.close()
