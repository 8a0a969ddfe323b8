"""Environment of training containers: what NCCL, libfabric and PyTorch need, and nothing else.

What the environment policy wants on a machine is data (`domain/catalogue/variables.py`; what it
does not want is beside it); values that name directories of the run are here. The operator appends
its own variables (PYTHONUNBUFFERED, PET_*) after these, and of two with the same name the last one
counts. Left out on purpose: GLOO_SOCKET_IFNAME (takes no exclusion list, and the interface's name
differs between pods and hosts), OMP_NUM_THREADS on CPU recipes (PyTorch takes every core).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pydantic import SecretStr

from stationmaster.domain.catalogue.places import Machine
from stationmaster.domain.catalogue.variables import wanted_values
from stationmaster.domain.keys.own_code import EXPANDED, RESUME_DIR, is_joining
from stationmaster.domain.trackers import read_tracker
from stationmaster.rendering.frameworks import framework_environment
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, JobSpec, KubernetesObject
from stationmaster.rendering.metadata import LABEL_MANAGED_BY, render_secret

HUGGING_FACE_SECRET: Final = "huggingface"
HUGGING_FACE_SECRET_KEY: Final = "token"

# Compiler caches take file locks, which are slow on Lustre: they go to a local emptyDir.
SCRATCH_MOUNT: Final = "/scratch"

# More threads a process than this bring a GPU trainer nothing: its CPU work is the data loader's.
_MAX_THREADS: Final = 8


def render_environment(spec: JobSpec) -> list[KubernetesObject]:
    """Return the container's env, in a fixed order."""
    values = {
        "STATIONMASTER_RUN_ID": spec.run_id,
        # The rendezvous store must not double as the workers' store: a restarted agent would find
        # the old group's keys in it.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(spec.shutdown_timeout_s),
    }
    machine = Machine(
        instance=spec.instance,
        num_gpus=spec.num_gpus,
        num_efa=spec.num_efa,
        on_host_network=spec.options.host_network,
    )
    values |= wanted_values(machine)
    if spec.options.nccl_debug is not None:
        values["NCCL_DEBUG"] = spec.options.nccl_debug
        values.pop("NCCL_DEBUG_SUBSYS", None)  # a level that was typed is of all subsystems
    if spec.options.efa == 0:
        values["NCCL_NET"] = "Socket"  # libfabric would offer its own provider for TCP
    values |= _gpu_values(spec) if spec.num_gpus else {}
    if spec.options.cpus is not None:  # PyTorch counts the cores of the node, not those of the pod
        values["OMP_NUM_THREADS"] = str(max(1, spec.options.cpus // spec.processes_per_node))
    values |= framework_environment(spec.recipe, spec.instance)
    values |= _own_code_values(spec)
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        # The address that peers reach this pod under; host names are not resolvable everywhere.
        {"name": "PET_LOCAL_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        # The name that people know the node by.
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        render_hugging_face_token(),
        *_tracking_variables(spec),
    ]


# Bars of rich, as Lightning has them, are drawn for terminals only, and cut at 80 columns.
_TERMINAL: Final = {"TTY_COMPATIBLE": "1", "COLUMNS": "160"}

_OWN_VARIABLE: Final = re.compile(
    r"\$\$(?:\{(NAMES)\}|(NAMES)(?!\w))".replace("NAMES", "|".join(EXPANDED))
)


def render_hugging_face_token() -> KubernetesObject:
    """Return the variable HF_TOKEN, which is missing where the cluster has no token."""
    return _of_secret("HF_TOKEN", HUGGING_FACE_SECRET_KEY)


def _tracking_variables(spec: JobSpec) -> list[KubernetesObject]:
    """Return what the client of a tracker takes from its environment."""
    tracker = read_tracker(spec.track)
    return [_of_secret(name, name) for name in tracker.variables] if tracker is not None else []


def _of_secret(name: str, key: str) -> KubernetesObject:
    reference = {"name": HUGGING_FACE_SECRET, "key": key, "optional": True}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def render_tokens(tokens: Mapping[str, SecretStr]) -> KubernetesObject:
    """Return the Secret behind HF_TOKEN and the variables of trackers, for the cluster's jobs."""
    labels = {LABEL_MANAGED_BY: "stationmaster"}
    return render_secret(HUGGING_FACE_SECRET, labels, tokens)


def _own_code_values(spec: JobSpec) -> dict[str, str]:
    """Return what a custom command is told, and where it can write."""
    values = {}
    if spec.program:
        values["STATIONMASTER_OUTPUT_DIR"] = spec.program_output_dir
        values["STATIONMASTER_STOP_SECONDS"] = str(spec.stop_deadline_s)
        values |= _TERMINAL
        values |= _lightning_values(spec) if spec.is_command else {}
        if spec.venv:
            values["VIRTUAL_ENV"] = literal(spec.venv)
        if spec.is_resumed:
            values[RESUME_DIR] = spec.program_output_dir
        if spec.dataset:
            values["STATIONMASTER_DATASET"] = literal(spec.dataset)
    if spec.has_own_image:
        values["HOME"] = SCRATCH_MOUNT  # the user that it runs as has none in the image
    return values


def _lightning_values(spec: JobSpec) -> dict[str, str]:
    """Return what Lightning's Trainer takes where its caller does not say: a node, this folder."""
    values = {"PL_TRAINER_DEFAULT_ROOT_DIR": spec.program_output_dir}
    if is_joining(spec.program) and spec.min_nodes is None:
        values["PL_TRAINER_NUM_NODES"] = str(spec.nodes)
    return values


def literal(text: str) -> str:
    """Keep the kubelet from expanding $(VAR) in text that a person typed."""
    return text.replace("$", "$$")


def program_word(text: str, *, is_resumed: bool) -> str:
    """Write a word of a command so that the kubelet fills in the product's variables, only these.

    In a manifest `$(NAME)` is a variable and `$$` the sign itself. As in a shell, nothing stands
    for what is absent: the directory to resume from, at a first start.
    """

    def reference(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return f"$({name})" if is_resumed or name != RESUME_DIR else ""

    return _OWN_VARIABLE.sub(reference, literal(text))


def _gpu_values(spec: JobSpec) -> dict[str, str]:
    threads = max(1, min(_MAX_THREADS, spec.instance.vcpus // (2 * spec.processes_per_node)))
    return {
        "OMP_NUM_THREADS": str(threads),
        # Weights and tokenised data are gigabytes: one node fetches them, all read them.
        "STATIONMASTER_CACHE_DIR": f"{RUNS_DIRECTORY}/cache",
        # Beside the trainer's own records, which outlive the pod.
        "TORCH_FR_DUMP_TEMP_FILE": f"{spec.output_dir}/flight-recorder/nccl_trace_rank_",
        "TRITON_CACHE_DIR": f"{SCRATCH_MOUNT}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{SCRATCH_MOUNT}/inductor",
    }
