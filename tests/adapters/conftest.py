"""The local AWS of each test file, and a gateway to an API server that answers as a test says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from answering_server import AnsweringServer, settings

from stationmaster.kubernetes.gateway import KubernetesGateway
from tests.support.aws_fixtures import aws, deployed

__all__ = ["aws", "deployed"]  # fixtures


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    server = AnsweringServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def kubeconfig(server: AnsweringServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    address = f"http://127.0.0.1:{server.server_address[1]}"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": address}}],
                "users": [{"name": "u", "user": {"token": "secret-token"}}],
            }
        )
    )
    return path


@pytest.fixture
def gateway(kubeconfig: Path) -> Iterator[KubernetesGateway]:
    gateway = KubernetesGateway.connect(settings(str(kubeconfig)), cluster=None)
    yield gateway
    gateway.close()
