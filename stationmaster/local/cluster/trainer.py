"""python -m stationmaster.local.cluster.trainer

Prints Kubeflow Trainer v2.3 with JobSet 0.12, as an existing cluster has them, for kubectl apply.

`controllers/trainer.py` does their work while the Deployments are
available. The types declare the fields that can be used here; a Job template in them is checked as
a Job is. Pure.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import yaml

from stationmaster.local.cluster.api.admission import GROUP
from stationmaster.local.cluster.api.resources import Object

JOBSET_GROUP: Final = "jobset.x-k8s.io"
NAMESPACE: Final = "kubeflow-system"
_TRAINER: Final = "kubeflow-trainer-controller-manager"
_JOBSET: Final = "jobset-controller-manager"
_IMAGES: Final = {
    _TRAINER: "ghcr.io/kubeflow/trainer/trainer-controller-manager:v2.3.0",
    _JOBSET: "registry.k8s.io/jobset/jobset:v0.12.0",
}

_TEXT: Final[dict[str, Any]] = {"type": "string"}
_NUMBER: Final[dict[str, Any]] = {"type": "integer", "format": "int32"}
_SWITCH: Final[dict[str, Any]] = {"type": "boolean"}
_ANY: Final[dict[str, Any]] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return schema | ({"required": list(required)} if required else {})


def _list(items: Any, *keys: str) -> dict[str, Any]:
    if not keys:
        return {"type": "array", "items": items, "x-kubernetes-list-type": "atomic"}
    by = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    return {"type": "array", "items": items, **by}


_CONDITION: Final = _object(
    ("type", "status"),
    type=_TEXT,
    status=_TEXT,
    reason=_TEXT,
    message=_TEXT,
    lastTransitionTime=_TEXT,
    observedGeneration={"type": "integer", "format": "int64"},
)
_COUNTS: Final = _object(
    ("name",),
    name=_TEXT,
    **dict.fromkeys(("ready", "succeeded", "failed", "active", "suspended"), _NUMBER),
)
_JOB_SET_SPEC: Final = _object(
    replicatedJobs=_list(
        _object(
            ("name", "template"),
            name=_TEXT,
            groupName=_TEXT | {"default": "default"},
            replicas=_NUMBER | {"default": 1},
            template=_ANY,
        ),
        "name",
    ),
    # The emulated JobSet does not start Jobs again.
    failurePolicy=_object(maxRestarts=_NUMBER | {"default": 0, "maximum": 0}),
    network=_object(enableDNSHostnames=_SWITCH, subdomain=_TEXT, publishNotReadyAddresses=_SWITCH),
    suspend=_SWITCH,
    managedBy=_TEXT,
    ttlSecondsAfterFinished=_NUMBER,
)
_JOB_SET_STATUS: Final = _object(
    conditions=_list(_CONDITION, "type"),
    restarts=_NUMBER | {"default": 0},
    replicatedJobsStatus=_list(_COUNTS, "name"),
)
_TRAIN_JOB_SPEC: Final = _object(
    ("runtimeRef",),
    runtimeRef=_object(
        ("name",),
        name=_TEXT | {"minLength": 1},
        apiGroup=_TEXT | {"default": GROUP},
        kind=_TEXT | {"default": "ClusterTrainingRuntime"},
    ),
    trainer=_object(
        image=_TEXT,
        command=_list(_TEXT),
        args=_list(_TEXT),
        env=_list(_object(("name",), name=_TEXT, value=_TEXT, valueFrom=_ANY), "name"),
        numNodes=_NUMBER,
        resourcesPerNode=_ANY,
        numProcPerNode=_NUMBER,
    ),
    suspend=_SWITCH | {"default": False},
    activeDeadlineSeconds={"type": "integer", "format": "int64", "minimum": 1},
    managedBy=_TEXT | {"default": f"{GROUP}/trainjob-controller"},
)
_RUNTIME_SPEC: Final = _object(
    mlPolicy=_object(numNodes=_NUMBER, torch=_object(envInjection=_ANY)),
    template=_object(metadata=_ANY, spec=_JOB_SET_SPEC),
)


def trainer_objects() -> list[Object]:
    """Return everything that an installation consists of and that matters here."""
    status = _object(conditions=_list(_CONDITION, "type"), jobsStatus=_list(_COUNTS, "name"))
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        _type(GROUP, "v1alpha1", "TrainJob", spec=_TRAIN_JOB_SPEC, status=status),
        _type(GROUP, "v1alpha1", "TrainingRuntime", spec=_RUNTIME_SPEC),
        _type(JOBSET_GROUP, "v1alpha2", "JobSet", spec=_JOB_SET_SPEC, status=_JOB_SET_STATUS),
        *(_deployment(name, image) for name, image in _IMAGES.items()),
        _webhooks(),
    ]


def _type(group: str, version: str, kind: str, **properties: Any) -> Object:
    plural = f"{kind.lower()}s"
    column = {"jsonPath": ".status.conditions[-1:].type", "name": "State", "type": "string"}
    schema = _object(apiVersion=_TEXT, kind=_TEXT, metadata={"type": "object"}, **properties)
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        **({"subresources": {"status": {}}} if "status" in properties else {}),
        **({"additionalPrinterColumns": [column]} if "status" in properties else {}),
    }
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [served]},
    }


def _deployment(name: str, image: str) -> Object:
    labels = {"app.kubernetes.io/name": name}
    pod = {
        "containers": [{"name": "manager", "image": image}],
        "tolerations": [{"operator": "Exists"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _webhooks() -> Object:
    def hook(singular: str) -> Object:
        path = f"/validate-trainer-kubeflow-org-v1alpha1-{singular}"
        service = {"name": _TRAINER, "namespace": NAMESPACE, "path": path}
        rule = {
            "apiGroups": [GROUP],
            "apiVersions": ["v1alpha1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": [f"{singular}s"],
        }
        return {
            "name": f"validator.{singular}.{GROUP}",
            "clientConfig": {"service": service},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "rules": [rule],
        }

    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"validator.{GROUP}"},
        "webhooks": [hook("trainingruntime"), hook("trainjob")],
    }


if __name__ == "__main__":
    yaml.safe_dump_all(trainer_objects(), sys.stdout, sort_keys=False)
