"""How the agents of a job's pods meet: torchrun's settings, whatever kind of job starts them."""

from __future__ import annotations

from typing import Final

from stationmaster.rendering.job_spec import JobSpec

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
