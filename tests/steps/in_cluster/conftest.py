"""A local cluster for each test file, behind the EKS of its account."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.local.aws import LocalAws
from stationmaster.local.cluster import LocalCluster
from stationmaster.rendering.metadata import namespace
from stationmaster.settings import Settings
from tests.support.cluster_steps import cluster_with


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with the Training Operator, whose only node takes no other pods."""
    operator = {"training-operator": "kubeflow"}
    with cluster_with(
        tmp_path_factory.mktemp("cluster"),
        [namespace(), *load_manifests("training-operator")],
        deployments=operator,
    ) as started:
        yield started


@pytest.fixture(scope="module")
def endpoint(
    endpoint: tuple[LocalAws, Settings], cluster: LocalCluster
) -> tuple[LocalAws, Settings]:
    """An account whose EKS clusters are all the local one."""
    aws, settings = endpoint
    return aws, settings.model_copy(update={"kubeconfig": str(cluster.kubeconfig)})
