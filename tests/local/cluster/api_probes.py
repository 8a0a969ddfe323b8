"""Asks a local API server with plain JSON over HTTP, as a client that checks nothing itself.

Used by the tests of what a real API server refuses; each module starts its own server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cluster_fixtures import Cluster, pytorchjob_crd, start_cluster

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
NAMESPACES = "/api/v1/namespaces"
PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"
SERVICES = "/api/v1/namespaces/default/services"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PYTORCHJOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
MERGE, STRATEGIC, APPLY = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
RBAC = "rbac.authorization.k8s.io"


def volume(name: str, **spec: Any) -> dict[str, Any]:
    csi = {"driver": "fsx.csi.aws.com", "volumeHandle": "fs-1"}
    shape = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "csi": csi}
    return {"metadata": {"name": name}, "spec": {**shape, **spec}}


def claim(name: str, **spec: Any) -> dict[str, Any]:
    shape = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": {**shape, **spec}}


@dataclass
class Answer:
    """What a server said."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def message(self) -> str:
        return str(self.body["message"])

    @property
    def causes(self) -> list[tuple[str, str]]:
        """(field, reason) of each cause."""
        causes = self.body.get("details", {}).get("causes", [])
        return [(cause.get("field", ""), cause["reason"]) for cause in causes]


@dataclass
class Asked:
    """A server, asked with plain JSON."""

    cluster: Cluster
    token: str = ""

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> Answer:
        api = self.cluster.api
        headers = {"Accept": accept, **(headers or {})}
        if body is not None:
            headers["Content-Type"] = content_type
        request = api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        if self.token:
            request[2]["authorization"] = f"Bearer {self.token}"
        response = api.call_api(*request)
        raw = response.read() or b""
        text = raw.decode()
        is_json = text.startswith(("{", "["))
        return Answer(
            response.status, json.loads(text) if is_json else text, dict(response.headers)
        )


@contextmanager
def asking(directory: Path) -> Iterator[Asked]:
    """A server of its own that knows PyTorchJobs."""
    cluster = start_cluster(directory)
    asked = Asked(cluster)
    assert asked("POST", CRDS, pytorchjob_crd()).status == 201
    yield asked
    cluster.close()
