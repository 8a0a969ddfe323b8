"""The relays of a run in its cluster: their account and rights, their Deployment, Lease and key.

Account and rights are the cluster's, the same for every run and named after the product; the others
are the run's own, and come and go with its job.

Relays read jobs, pods, logs and events in their own namespace and nodes anywhere. They write one
thing: the Lease by which they agree on which of them sends. Their AWS role comes from a Pod
Identity association of the service account, made by the cluster step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import SecretStr

from stationmaster.domain.ids import RunId
from stationmaster.domain.names import (
    RELAY,
    RELAY_KEY_VARIABLE,
    relay_name,
)
from stationmaster.rendering.job_backends import JobBackend
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import (
    GPU_TAINT,
    LABEL_HOSTNAME,
    TRAINING_TOLERATION,
    account_subject,
    container_security,
    metadata,
    render_account,
    render_deployment,
    render_role,
    render_secret,
    run_labels,
    small_resources,
)

METRICS_PORT: Final = 9464  # of a pod, for the figures that Prometheus reads
# By what Prometheus' Helm chart, and the agents of others, find pods; the path is /metrics.
_SCRAPED: Final = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS_PORT)}
_KEY: Final = "key"
_READ: Final = ["get", "list", "watch"]


def render_relay(
    run_id: RunId,
    *,
    job: str,
    image: str,
    bus_name: str,
    bucket: str,
    region: str,
    backend: JobBackend,
    replicas: int = 2,
) -> list[KubernetesObject]:
    """Return the relays of a run, in a cluster that has the account and the rights of relays.

    `job` is the job of the attempt that they watch, of the kind of `backend`. Two or more need a
    Lease; one is alone.
    """
    variables = {
        "STATIONMASTER_RUN_ID": run_id,
        "STATIONMASTER_JOB": job,
        "STATIONMASTER_JOB_KIND": backend.KIND.value,
        "STATIONMASTER_BUS_NAME": bus_name,
        "STATIONMASTER_ARTIFACTS_BUCKET": bucket,
        "AWS_REGION": region,
    }
    if replicas == 1:
        return [_deployment(run_id, image, variables)]
    variables["STATIONMASTER_LEASE"] = relay_name(run_id)
    return [_lease(run_id), _replicated(_deployment(run_id, image, variables), replicas)]


def render_relay_key(run_id: RunId, key: SecretStr) -> KubernetesObject:
    """Make the Secret with which the run's relays sign; needed before they start."""
    return render_secret(relay_name(run_id), run_labels(run_id, "relay"), {_KEY: key})


def render_relay_rights(backend: JobBackend) -> list[KubernetesObject]:
    """Make the account and rights of all relays of a cluster; `backend` is of its jobs."""
    group, plural = backend.TYPES[0]
    subject = account_subject(RELAY)
    rules = [
        {"apiGroups": [""], "resources": ["pods", "events"], "verbs": _READ},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [group], "resources": [plural], "verbs": _READ},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "create", "update"],
        },
    ]
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": _READ}
    return [
        render_account(RELAY),
        *render_role(RELAY, rules, subject),
        *render_role(RELAY, [nodes], subject, everywhere=True),
    ]


def _deployment(run_id: RunId, image: str, variables: Mapping[str, str]) -> KubernetesObject:
    """Return one relay: two without a lease would report everything twice, harmless as it is."""
    own_name = {"fieldRef": {"fieldPath": "metadata.name"}}
    own_address = {"fieldRef": {"fieldPath": "status.podIP"}}
    key = {"secretKeyRef": {"name": relay_name(run_id), "key": _KEY}}
    container = {
        "name": "relay",
        "image": image,
        "command": ["python", "-m", "stationmaster.relay"],
        "env": [
            *({"name": name, "value": variables[name]} for name in variables),
            {"name": "STATIONMASTER_POD", "valueFrom": own_name},
            {"name": "STATIONMASTER_POD_IP", "valueFrom": own_address},
            {"name": RELAY_KEY_VARIABLE, "valueFrom": key},
        ],
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "resources": small_resources(),
        "securityContext": {**container_security(), "runAsUser": 65532},
    }
    pod = {"serviceAccountName": RELAY, "containers": [container]}
    deployment = render_deployment(run_id, "relay", name=relay_name(run_id), pod=pod)
    deployment["spec"]["template"]["metadata"]["annotations"] = _SCRAPED
    return deployment


def _lease(run_id: RunId) -> KubernetesObject:
    """Held by nobody yet. Applying it again leaves what relays have written."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata(run_labels(run_id, "relay"), name=relay_name(run_id)),
    }


def _replicated(deployment: KubernetesObject, replicas: int) -> KubernetesObject:
    """Return the Deployment with more relays, no two of them on one node.

    The first goes to the system node, the next to a training node: these are there anyway.
    """
    spec = deployment["spec"]
    spec["replicas"] = replicas
    # A node has room for one of them: an old one makes place before a new one comes.
    rolling = {"maxSurge": 0, "maxUnavailable": 1}
    spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": rolling}
    pod = spec["template"]["spec"]
    term = {"labelSelector": dict(spec["selector"]), "topologyKey": LABEL_HOSTNAME}
    pod["affinity"]["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    pod["tolerations"] = [TRAINING_TOLERATION, {"key": GPU_TAINT, "operator": "Exists"}]
    return deployment
