"""Environment of training containers: what NCCL, libfabric and PyTorch need, and nothing else.

The operator appends its own variables (PYTHONUNBUFFERED, PET_*) after these, and of two with the
same name the last one counts. Left out on purpose: NCCL_PROTO, NCCL_ALGO and buffer sizes (the
tuner knows better), NCCL_TIMEOUT, TORCH_DISTRIBUTED_TIMEOUT (nobody reads them), FI_EFA_FORK_SAFE
(not needed on current kernels), GLOO_SOCKET_IFNAME (takes no exclusion list, and the interface's
name differs between pods and hosts), OMP_NUM_THREADS on CPU recipes (PyTorch takes every core).
"""

from __future__ import annotations

import base64
from typing import Final

from pydantic import SecretStr

from stationmaster.domain.names import NAMESPACE
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, JobSpec, KubernetesObject
from stationmaster.rendering.metadata import LABEL_MANAGED_BY

HUGGING_FACE_SECRET: Final = "huggingface"
HUGGING_FACE_SECRET_KEY: Final = "token"

# Loopback, bridges and the link-local interface of Pod Identity: a TCP fallback that picks one of
# them hangs instead of failing.
NOT_FOR_NCCL: Final = "^lo,docker,veth,eni,pod-id-link0"

# EFA without GPUDirect RDMA: libfabric must not try device memory, and NCCL copies over shared
# memory with the copy engine.
_EFA_WITHOUT_GPUDIRECT: Final = ("g5.", "g6.", "g6e.")

# Compiler caches take file locks, which are slow on Lustre: they go to a local emptyDir.
SCRATCH_MOUNT: Final = "/scratch"

# More threads a process than this bring a GPU trainer nothing: its CPU work is the data loader's.
_MAX_THREADS: Final = 8


def render_environment(spec: JobSpec) -> list[KubernetesObject]:
    """The container's env, in a fixed order."""
    values = {
        "STATIONMASTER_RUN_ID": spec.run_id,
        # The rendezvous store must not double as the workers' store: a restarted agent would find
        # the old group's keys in it.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(spec.shutdown_timeout_s),
    }
    values |= _gpu_values(spec) if spec.num_gpus else {"NVIDIA_VISIBLE_DEVICES": "void"}
    values |= _own_code_values(spec)
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        # The address that peers reach this pod under; host names are not resolvable everywhere.
        {"name": "PET_LOCAL_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        render_hugging_face_token(),
    ]


def render_hugging_face_token() -> KubernetesObject:
    """The variable HF_TOKEN, which is missing where the cluster has no token."""
    return {
        "name": "HF_TOKEN",
        "valueFrom": {
            "secretKeyRef": {
                "name": HUGGING_FACE_SECRET,
                "key": HUGGING_FACE_SECRET_KEY,
                "optional": True,
            }
        },
    }


def render_hugging_face_secret(token: SecretStr) -> KubernetesObject:
    """The Secret behind HF_TOKEN, shared by the jobs of the cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": HUGGING_FACE_SECRET,
            "namespace": NAMESPACE,
            "labels": {LABEL_MANAGED_BY: "stationmaster"},
        },
        "type": "Opaque",
        "data": {
            HUGGING_FACE_SECRET_KEY: base64.b64encode(token.get_secret_value().encode()).decode()
        },
    }


def _own_code_values(spec: JobSpec) -> dict[str, str]:
    """What code of people's own is told, and where it can write."""
    values = {}
    if spec.program:
        values["STATIONMASTER_OUTPUT_DIR"] = spec.program_output_dir
        if spec.dataset:
            values["STATIONMASTER_DATASET"] = literal(spec.dataset)
    if spec.has_own_image:
        values["HOME"] = SCRATCH_MOUNT  # the user that it runs as has none in the image
    return values


def literal(text: str) -> str:
    """Keep the kubelet from expanding $(VAR) in text that a person typed."""
    return text.replace("$", "$$")


def _gpu_values(spec: JobSpec) -> dict[str, str]:
    threads = max(1, min(_MAX_THREADS, spec.instance.vcpus // (2 * spec.processes_per_node)))
    values = {
        "OMP_NUM_THREADS": str(threads),
        # Weights and tokenised data are gigabytes: one node fetches them, all read them.
        "STATIONMASTER_CACHE_DIR": f"{RUNS_DIRECTORY}/cache",
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": NOT_FOR_NCCL,
        # The first name is deprecated and the second ignored by some releases for this option.
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": "20000",
        # Beside the trainer's own records, which outlive the pod.
        "TORCH_FR_DUMP_TEMP_FILE": f"{spec.output_dir}/flight-recorder/nccl_trace_rank_",
        "TRITON_CACHE_DIR": f"{SCRATCH_MOUNT}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{SCRATCH_MOUNT}/inductor",
    }
    if spec.num_efa:
        # libfabric offers nothing but EFA. Alone this would let NCCL fall back to its own sockets,
        # 100 times slower; naming the plugin's network makes a missing EFA an error. The plugin
        # calls itself Libfabric since 1.12, and goes by its older name too where this asks for it.
        values["FI_PROVIDER"] = "efa"
        values["NCCL_NET"] = "AWS Libfabric"
        # Data loaders fork; with huge pages libfabric's memory makes that fail with ENOMEM.
        values["FI_EFA_USE_HUGE_PAGE"] = "0"
        if spec.instance.name.startswith(_EFA_WITHOUT_GPUDIRECT):
            values["FI_EFA_USE_DEVICE_RDMA"] = "0"
            values["NCCL_SHM_USE_CUDA_MEMCPY"] = "1"
    return values
