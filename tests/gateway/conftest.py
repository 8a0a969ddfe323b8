"""A local cluster of each test, the gateway to it, and a run on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stationmaster.kubernetes.connect import connect
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.local.cluster import LocalCluster
from stationmaster.settings import Settings
from tests.support.cluster_fixtures import local_cluster
from tests.support.kubernetes_gateway_world import World, world_of


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A cluster without nodes; its parameter, if any, is the images that it can run."""
    shared = tmp_path / "fsx"
    shared.mkdir()
    images = getattr(request, "param", None)
    cluster = local_cluster(
        tmp_path / "state", file_system_dir=lambda handle: shared, only_images=images
    )
    yield cluster
    cluster.stop(grace_s=0.5)


@pytest.fixture
def gateway(cluster: LocalCluster) -> Iterator[KubernetesGateway]:
    settings = Settings(
        region="us-west-2", table_name="t", bus_name="b", kubeconfig=str(cluster.kubeconfig)
    )
    gateway = KubernetesGateway(connect(settings, cluster=None))
    yield gateway
    gateway.close()


@pytest.fixture
def world(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_of(monkeypatch, cluster) as made:
        yield made
