"""The Job that saves a run's result, or backs a run up, with its account and rights.

Account and rights are the same for every run of a cluster and named after the product; the Job is
the run's own. It runs `python -m relay.save` in the relay's image, off the training nodes, and
mounts the file system read-only. In the namespace it may read pods and their logs; in AWS, through
Pod Identity, it may write below `runs/` of one bucket, and delete nothing.

A Job's template cannot be changed: to save again with other facts, delete the Job first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import NAMESPACE, SAVER, backup_name, saving_name
from stationmaster.domain.results import RunFacts
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.metadata import (
    LABEL_MANAGED_BY,
    container_security,
    namespace,
    off_the_training_nodes,
    run_labels,
)
from stationmaster.rendering.retried_job import retried_job
from stationmaster.rendering.storage import shared_mount, shared_volume

CONTAINER: Final = "save"
# A terabyte takes 20 minutes at the 1 GB/s of a system node: a saver that hangs is ended.
DEADLINE_S: Final = 6 * 3600

_RBAC: Final = "rbac.authorization.k8s.io"


def render_saving(
    facts: RunFacts,
    *,
    cluster_id: ClusterId,
    image: str,
    bucket: str,
    region: str,
    backup_number: int | None = None,
) -> list[KubernetesObject]:
    """Everything that saving a run's result needs, the namespace first; `image` is the relay's.

    With `backup_number` the Job is that of a backup of a run that trains.
    """
    variables = {
        "STATIONMASTER_RUN_ID": facts.run_id,
        "STATIONMASTER_ARTIFACTS_BUCKET": bucket,
        "STATIONMASTER_RUN_DIRECTORY": f"{RUNS_DIRECTORY}/{facts.run_id}",
        # A person's own text is in it: the kubelet must not expand $(VAR).
        "STATIONMASTER_RUN_FACTS": facts.model_dump_json().replace("$", "\\u0024"),
        "AWS_REGION": region,
    }
    run_id = facts.run_id
    if backup_number is None:
        name, labels = saving_name(run_id), run_labels(run_id, "saving")
    else:
        name, labels = backup_name(run_id, backup_number), run_labels(run_id, "backup")
    job = _job(name, labels, cluster_id=cluster_id, container=_container(image, variables))
    return [namespace(), *render_saving_rights(), job]


def render_saving_rights() -> list[KubernetesObject]:
    """The account of all savers of a cluster, and what it may do."""
    shared = {
        "name": SAVER,
        "namespace": NAMESPACE,
        "labels": {LABEL_MANAGED_BY: "stationmaster"},
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": shared},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": shared,
            "rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
                {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
            ],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": shared,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": SAVER},
            "subjects": [{"kind": "ServiceAccount", "name": SAVER, "namespace": NAMESPACE}],
        },
    ]


def _job(
    name: str, labels: Mapping[str, str], *, cluster_id: ClusterId, container: KubernetesObject
) -> KubernetesObject:
    pod = {
        "serviceAccountName": SAVER,
        "affinity": off_the_training_nodes(),
        "containers": [container],
        "volumes": [shared_volume(cluster_id)],
    }
    return retried_job(name, labels, pod, container=CONTAINER, deadline_s=DEADLINE_S)


def _container(image: str, variables: Mapping[str, str]) -> KubernetesObject:
    return {
        "name": CONTAINER,
        "image": image,
        "command": ["python", "-m", "relay.save"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {
            "requests": {"cpu": "1", "memory": "768Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": {**container_security(), "runAsUser": 65532},
        "volumeMounts": [{**shared_mount(), "readOnly": True}],
    }
