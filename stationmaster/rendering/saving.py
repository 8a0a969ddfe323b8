"""The Job that saves a run's result, or backs a run up, with its account and rights.

Account and Job are the run's own; the role that says what it may do in the namespace, to read pods
and their logs, is the same for every run of a cluster. It runs `python -m stationmaster.relay.save`
in the relay's image, off the training nodes, and mounts the file system read-only. In AWS, through
Pod Identity, it may write below `runs/RUN/` of one bucket, and delete nothing.

A Job's template cannot be changed: to save again with other facts, delete the Job first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import (
    NAMESPACE,
    SAVER,
    backup_name,
    results_account,
    saving_name,
)
from stationmaster.domain.results import RunFacts
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.metadata import (
    LABEL_MANAGED_BY,
    container_security,
    namespace,
    off_the_training_nodes,
    render_account,
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
    container = _container(image, variables)
    job = _job(name, labels, run_id=run_id, cluster_id=cluster_id, container=container)
    rights = render_saving_rights(results_account(run_id), binding=saving_name(run_id))
    return [namespace(), *rights, job]


def render_saving_rights(account: str = SAVER, *, binding: str = SAVER) -> list[KubernetesObject]:
    """The account of a run's savers, and what it may do; one of no run where none is named."""
    shared = {
        "name": SAVER,
        "namespace": NAMESPACE,
        "labels": {LABEL_MANAGED_BY: "stationmaster"},
    }
    return [
        render_account(account),
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
            "metadata": {**shared, "name": binding},
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": SAVER},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
        },
    ]


def _job(
    name: str,
    labels: Mapping[str, str],
    *,
    run_id: RunId,
    cluster_id: ClusterId,
    container: KubernetesObject,
) -> KubernetesObject:
    pod = {
        "serviceAccountName": results_account(run_id),
        "affinity": off_the_training_nodes(),
        "containers": [container],
        "volumes": [shared_volume(cluster_id)],
    }
    return retried_job(name, labels, pod, container=CONTAINER, deadline_s=DEADLINE_S)


def _container(image: str, variables: Mapping[str, str]) -> KubernetesObject:
    return {
        "name": CONTAINER,
        "image": image,
        "command": ["python", "-m", "stationmaster.relay.save"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {
            "requests": {"cpu": "1", "memory": "768Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": {**container_security(), "runAsUser": 65532},
        "volumeMounts": [{**shared_mount(), "readOnly": True}],
    }
