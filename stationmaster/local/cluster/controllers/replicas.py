"""Pods, Services and status of a PyTorchJob, exactly as the Training Operator (v1.9) writes them.

Used by the operator's controller. Pure: job in, objects out; a status is changed in place, always
a private copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from stationmaster.local.cluster.api.conditions import condition_of, is_going, phase
from stationmaster.local.cluster.api.metadata import clone, timestamp
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.controllers.owners import owner_reference, pod_from
from stationmaster.local.cluster.labels import JOB_NAME_LABEL, TRAINING_LABEL, WAIT_FOR_MASTER

Kind = Literal["Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]


def reason(kind: str) -> str:
    return f"PyTorchJob{kind}"


def set_condition(
    status: Object, kind: Kind, message: str, *, value: str = "True", why: str = ""
) -> None:
    """Set a condition; the newest is the last. Source: pkg/util/status.go."""
    if condition_of(status, "Failed"):
        return
    conditions: list[Object] = status.setdefault("conditions", [])
    why = why or reason(kind)
    current = next((c for c in conditions if c["type"] == kind), None)
    if current is not None and (current["status"], current["reason"]) == (value, why):
        return
    now = timestamp()
    since = now
    if current is not None and current["status"] == value:
        since = current["lastTransitionTime"]
    status["conditions"] = [
        *(_aged(c, kind, now) for c in conditions if not _replaced(c["type"], kind)),
        {
            "type": kind,
            "status": value,
            "reason": why,
            "message": message,
            "lastUpdateTime": now,
            "lastTransitionTime": since,
        },
    ]


def _replaced(old: str, new: Kind) -> bool:
    return old == new or {old, new} == {"Running", "Restarting"}


def _aged(condition: Object, new: Kind, now: str) -> Object:
    """Running turns False, its reason unchanged, when the job ends."""
    ends = new in ("Succeeded", "Failed") and condition["type"] == "Running"
    if ends and condition["status"] == "True":
        times = {"lastTransitionTime": now, "lastUpdateTime": now}
        return {**condition, "status": "False", **times}
    return condition


def count(pods: Sequence[Object]) -> Object:
    """Count active, succeeded, failed of one replica type; zeros are left out, as in Go's JSON."""
    counts = {"active": 0, "succeeded": 0, "failed": 0}
    for pod in pods:
        match phase(pod):
            case "Running":
                counts["failed" if is_going(pod) else "active"] += 1
            case "Succeeded":
                counts["succeeded"] += 1
            case "Failed":
                counts["failed"] += 1
    return {name: number for name, number in counts.items() if number}


def finish_counts(status: Object) -> None:
    """Count what was active when the job succeeded as succeeded."""
    for replica in (status.get("replicaStatuses") or {}).values():
        total = replica.get("succeeded", 0) + replica.pop("active", 0)
        if total:
            replica["succeeded"] = total


DEFAULT_PORT, PORT_NAME, CONTAINER = 23456, "pytorchjob-port", "pytorch"
MASTER, WORKER = "Master", "Worker"


def replica_specs(job: Object) -> dict[str, Object]:
    """Replica specifications with the controller's defaults, Master first; copies."""
    written = job["spec"].get("pytorchReplicaSpecs") or {}
    named = {
        name[:1].upper() + name[1:].lower(): clone(spec or {}) for name, spec in written.items()
    }
    ordered = {name: named[name] for name in (MASTER, WORKER) if name in named}
    for spec in ordered.values():
        spec.setdefault("replicas", 1)
        spec.setdefault("restartPolicy", "OnFailure")
        container = _main_container(spec)
        ports = container.setdefault("ports", [])
        if not any(port.get("name") == PORT_NAME for port in ports):
            ports.append({"name": PORT_NAME, "containerPort": DEFAULT_PORT})
    return ordered


def _main_container(spec: Object) -> Object:
    containers = spec["template"]["spec"]["containers"]
    found: Object = next(c for c in containers if c["name"] == CONTAINER)
    return found


def job_labels(job: Object) -> dict[str, str]:
    """Return the labels of everything that belongs to a job."""
    return {
        JOB_NAME_LABEL: job["metadata"]["name"],
        f"{TRAINING_LABEL}operator-name": "pytorchjob-controller",
    }


def selector_text(job: Object, role: str) -> str:
    """Return the `selector` of a replica status, as labels are formatted: sorted by name."""
    labels = {**job_labels(job), f"{TRAINING_LABEL}replica-type": role.lower()}
    return ",".join(f"{name}={labels[name]}" for name in sorted(labels))


def replica_name(job: Object, role: str, index: int) -> str:
    return f"{job['metadata']['name']}-{role.lower()}-{index}"


def _replica_labels(job: Object, role: str, index: int) -> dict[str, str]:
    return {
        **job_labels(job),
        f"{TRAINING_LABEL}replica-type": role.lower(),
        f"{TRAINING_LABEL}replica-index": str(index),
    }


def service(job: Object, role: str, index: int) -> Object:
    """Return the headless Service in front of one replica."""
    specs = replica_specs(job)
    ports = [
        {"name": port["name"], "port": port["containerPort"]}
        for port in _main_container(specs[role])["ports"]
    ]
    labels = _replica_labels(job, role, index)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": replica_name(job, role, index),
            "namespace": job["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {"clusterIP": "None", "selector": dict(labels), "ports": ports},
    }


def pod(job: Object, role: str, index: int) -> Object:
    """Return the pod of one replica."""
    specs = replica_specs(job)
    labels = _replica_labels(job, role, index)
    if role == MASTER or (MASTER not in specs and index == 0):
        labels[f"{TRAINING_LABEL}job-role"] = "master"
    made = pod_from(specs[role]["template"], job, labels=labels)
    made["metadata"]["name"] = replica_name(job, role, index)
    environment = replica_environment(job, role, index)
    for container in made["spec"]["containers"]:
        container["env"] = [*(container.get("env") or []), *clone(environment)]
    if role == WORKER and MASTER in specs:
        made["spec"].setdefault("initContainers", []).append(_wait_for_master(job))
    made["spec"]["restartPolicy"] = specs[role]["restartPolicy"]
    return made


def _wait_for_master(job: Object) -> Object:
    master = replica_name(job, MASTER, 0)
    script = (
        f"err=1;for i in $(seq 100); do if nslookup {master}; then err=0 && break; fi;"
        "echo waiting for master; sleep 2; done; exit $err"
    )
    return {
        "name": WAIT_FOR_MASTER,
        "image": "alpine:3.10",
        "imagePullPolicy": "IfNotPresent",
        "resources": {
            "limits": {"cpu": "100m", "memory": "20Mi"},
            "requests": {"cpu": "50m", "memory": "10Mi"},
        },
        "command": ["sh", "-c", script],
    }


def _port_of(spec: Object) -> int:
    ports = _main_container(spec)["ports"]
    return int(next(port["containerPort"] for port in ports if port.get("name") == PORT_NAME))


def replica_environment(job: Object, role: str, index: int) -> list[Object]:
    """List what the operator appends to each container. Source: envvar.go, setPodEnv."""
    specs, spec = replica_specs(job), job["spec"]
    elastic = spec.get("elasticPolicy")
    total = sum(replica["replicas"] for replica in specs.values())
    per_node = str(spec.get("nprocPerNode", "auto"))
    pairs: list[tuple[str, Any]] = [("PYTHONUNBUFFERED", "1")]
    if MASTER in specs:
        port, address = _port_of(specs[MASTER]), replica_name(job, MASTER, 0)
        rank = 0 if role == MASTER else index + 1
        world_size = total * (int(per_node) if per_node.isdigit() else 1)
        pairs += [("MASTER_PORT", port), ("PET_MASTER_PORT", port)]
        pairs += [("MASTER_ADDR", address), ("PET_MASTER_ADDR", address)]
        pairs += [("WORLD_SIZE", world_size), ("RANK", rank), ("PET_NODE_RANK", rank)]
    pairs.append(("PET_NPROC_PER_NODE", per_node))
    if elastic is None:
        pairs.append(("PET_NNODES", total))
    else:
        pairs += _elastic_environment(job, elastic, specs[WORKER])
    return [{"name": name, "value": str(value)} for name, value in pairs]


def _elastic_environment(
    job: Object, elastic: Mapping[str, Any], worker: Object
) -> list[tuple[str, Any]]:
    """Source: elastic.go."""
    host = elastic.get("rdzvHost") or replica_name(job, WORKER, 0)
    port = elastic.get("rdzvPort") or _port_of(worker)
    # One that is given stands for both. Source: pytorch_defaults.go, setElasticPolicy.
    least = elastic.get("minReplicas") or elastic.get("maxReplicas") or worker["replicas"]
    most = elastic.get("maxReplicas") or elastic.get("minReplicas") or worker["replicas"]
    pairs: list[tuple[str, Any]] = [
        ("PET_RDZV_ENDPOINT", f"{host}:{port}"),
        ("PET_RDZV_BACKEND", elastic.get("rdzvBackend") or "c10d"),
        ("PET_NNODES", f"{least}:{most}"),
    ]
    optional = (("PET_MAX_RESTARTS", "maxRestarts"), ("PET_RDZV_ID", "rdzvId"))
    pairs += [(name, elastic[key]) for name, key in optional if elastic.get(key) is not None]
    if elastic.get("rdzvConf"):
        listed = ",".join(f"{item['key']}={item['value']}" for item in elastic["rdzvConf"])
        pairs.append(("PET_RDZV_CONF", listed))
    return pairs
