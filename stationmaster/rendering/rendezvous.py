"""How the agents of a job's pods meet, whatever kind of job starts them; and the job's own etcd.

With c10d the first worker's agent hosts the rendezvous, and every agent starts again when that one
dies. With etcd they wait for it instead. One member without a volume: what it holds is worth
something only while the agents that wrote it live. Applied before the job, deleted after its pods.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.ids import RunId
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID
from stationmaster.rendering.job_spec import JobSpec, KubernetesObject
from stationmaster.rendering.metadata import (
    container_security,
    metadata,
    render_deployment,
    run_labels,
    small_resources,
)

# Torch elastic restarts the worker processes inside living pods this many times.
MAX_WORKER_RESTARTS: Final = 3
# How long an agent waits for the others (join_timeout), and for the first worker, which hosts the
# rendezvous (read_timeout; torch's default of 60 s restarts every pod each minute or two). Nodes
# pull the image at different speeds, and a lost node is replaced after 890 s: noticed 50, pods
# moved 300, removed 60, instance 180, image 300. See docs/decisions/0007. A static rendezvous waits
# as long for its master, and starts no workers again inside living pods: each agent ends with its
# first failure, and the whole gang is started again.
RENDEZVOUS_WAIT_S: Final = 900
# A dead agent is noticed after 3 x 3 s, where the default of 3 x 5 s would cost idle GPUs.
_RENDEZVOUS: Final = {
    "join_timeout": str(RENDEZVOUS_WAIT_S),
    "keep_alive_interval": "3",
    "keep_alive_max_attempt": "3",
}

# torch's rendezvous speaks the v2 protocol, which etcd has on demand up to 3.5 and no more in 3.6.
IMAGE: Final = "registry.k8s.io/etcd:3.5.21-0"
ETCD_PORT: Final = 2379
_PEER_PORT: Final = 2380
_DATA: Final = "/var/lib/etcd"

# An agent exits when etcd is not there yet, six seconds after its start, and each restart counts
# against the job. So its container starts when etcd listens. Arguments: host:port, seconds.
WAIT_SCRIPT: Final = """\
import socket, sys, time

address, wait_s = sys.argv[1:]
host, port = address.rsplit(":", 1)
deadline = time.monotonic() + float(wait_s)
while True:
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        break
    except OSError as error:
        if time.monotonic() > deadline:
            sys.exit(f"etcd at {address} does not answer after {wait_s} s: {error}")
        time.sleep(0.5)
"""
_WAIT_S: Final = 900


def rendezvous_conf(spec: JobSpec) -> dict[str, str]:
    """Settings of torchrun's rendezvous, as `--rdzv-conf` takes them."""
    match spec.rendezvous:
        case "c10d":
            return _RENDEZVOUS | {"read_timeout": str(RENDEZVOUS_WAIT_S)}
        case "etcd":
            return dict(_RENDEZVOUS)  # it answers at once or is gone: a minute is enough for a read
        case "static":
            return {"timeout": str(RENDEZVOUS_WAIT_S)}


def as_option(settings: dict[str, str]) -> str:
    """Settings as torchrun takes them in PET_RDZV_CONF."""
    return ",".join(f"{key}={value}" for key, value in settings.items())


def etcd_name(job: str) -> str:
    """Name the Deployment and Service of a job's etcd: a DNS-1035 label, as the job's is."""
    return f"{job}-etcd"


def render_rendezvous(spec: JobSpec) -> list[KubernetesObject]:
    """Return what the job's agents need besides themselves to meet; nothing for c10d."""
    return render_etcd(spec.run_id, job=spec.job) if spec.rendezvous == "etcd" else []


def render_wait(spec: JobSpec) -> list[KubernetesObject]:
    """Init containers that a training pod needs to meet the others; none for c10d."""
    if spec.rendezvous != "etcd":
        return []
    where = [f"{etcd_name(spec.job)}:{ETCD_PORT}", str(_WAIT_S)]
    return [
        {
            "name": "await-etcd",
            "image": spec.image,
            "command": ["python", "-c", WAIT_SCRIPT, *where],
            "resources": {
                "requests": {"cpu": "100m", "memory": "64Mi"},
                "limits": {"memory": "256Mi"},
            },
            "securityContext": container_security(),
        }
    ]


def render_etcd(run_id: RunId, *, job: str) -> list[KubernetesObject]:
    """Return the Service that the agents find it under, and the Deployment.

    Two etcds at a time would be two different meeting places. The Service comes first: the local
    node knows by it, when it starts a pod, at which port that is served.
    """
    name = etcd_name(job)
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(run_labels(run_id, "rendezvous"), name=name),
            "spec": {
                "selector": {LABEL_RUN_ID: run_id, LABEL_ROLE: "rendezvous"},
                "ports": [{"name": "client", "port": ETCD_PORT, "targetPort": ETCD_PORT}],
            },
        },
        render_deployment(run_id, "rendezvous", name=name, pod=_pod_spec(name)),
    ]


def _pod_spec(name: str) -> KubernetesObject:
    container = {
        "name": "etcd",
        "image": IMAGE,
        "command": _command(name),
        "ports": [{"name": "client", "containerPort": ETCD_PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": ETCD_PORT},
            "periodSeconds": 2,
        },
        "resources": small_resources(),
        "securityContext": {**container_security(), "runAsUser": 65532},
        "volumeMounts": [{"name": "data", "mountPath": _DATA}],
    }
    return {
        "automountServiceAccountToken": False,
        # The variables that Kubernetes makes of every Service of the namespace would be read by
        # etcd as its own settings: a Service named etcd gives ETCD_PORT.
        "enableServiceLinks": False,
        "containers": [container],
        "securityContext": {"fsGroup": 65532},
        "volumes": [{"name": "data", "emptyDir": {}}],
    }


def _command(name: str) -> list[str]:
    """Return the command of etcd with the v2 protocol, alone, known by the Service's name."""
    peer = f"http://127.0.0.1:{_PEER_PORT}"
    return [
        "etcd",
        "--enable-v2=true",
        f"--data-dir={_DATA}/data",
        f"--listen-client-urls=http://0.0.0.0:{ETCD_PORT}",
        # Clients that lose their connection dial what is advertised.
        f"--advertise-client-urls=http://{name}:{ETCD_PORT}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]
