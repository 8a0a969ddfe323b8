"""Every rule: a manifest that breaks it in one place, on whose line it is found, and one that does
not. The unchanged manifests have no finding at all."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lint_manifests
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from lint_manifests import (
    BATCH,
    G5,
    JOB,
    MPI,
    NODES,
    RUNTIME,
    STATIC,
    STORAGE,
    TRAIN,
    changed,
    findings,
)

from stationmaster.diagnosis.lint import lint
from stationmaster.diagnosis.lint.findings import RULES
from stationmaster.domain.catalogue.places import On
from stationmaster.domain.catalogue.unwanted_variables import UNWANTED
from stationmaster.kubernetes.manifests import MANIFESTS

ENV = "                - {name: NCCL_DEBUG, value: WARN}\n"
COMMAND = "[torchrun, --nproc_per_node=8, /app/train.py, --output_dir=/fsx/llama]"
# Two pods of a Job, which nobody tells where they meet.
MEETING = BATCH.replace("  backoffLimit: 1", "  backoffLimit: 1\n  parallelism: 2").replace(
    "command: [nvidia-smi]",
    "command: [torchrun, --nnodes=2, /app/train.py]\n"
    "          resources: {limits: {nvidia.com/gpu: 1}}",
)
SHM = "{name: shm, emptyDir: {medium: Memory, sizeLimit: 200Gi}}"
SHARED = "{name: shared, persistentVolumeClaim: {claimName: fsx-claim}}"
HOST = "        spec:\n          nodeSelector:\n"
ON_HOST = (
    "        spec:\n          hostNetwork: true\n"
    "          dnsPolicy: ClusterFirstWithHostNet\n          nodeSelector:\n"
)
SHAPE = (
    "[torchrun, train.py, --hidden_width=2048, --num_layers=16, --num_heads=32, "
    "--model_type=llama_v3, --num_key_value_heads=8, --intermediate_size=8192]"
)
MEGATRON = (
    "[torchrun, pretrain_gpt.py, --tensor-model-parallel-size=2, --num-layers=32, "
    "--tokenizer-model=/fsx/tokenizer/llama-3.1-8b, --swiglu, --group-query-attention, "
    "--untie-embeddings-and-output-weights, --use-distributed-optimizer]"
)
WORKER = JOB[JOB.index("    Worker:") :]
SHAPES = (Path(__file__).parent / "public_shapes.yaml").read_text().split("\n---\n")
ETCD_JOB = "elasticPolicy:\n    rdzvBackend: etcd-v2\n    rdzvHost: etcd\n    rdzvPort: 2379"


def env(base: str, name: str, value: str) -> str:
    """With one more variable, or another value of one that is there."""
    line = f'                - {{name: {name}, value: "{value}"}}\n'
    kept = "".join(
        each for each in base.splitlines(keepends=True) if f"{{name: {name}, value" not in each
    )
    anchor = "{name: TRITON_CACHE_DIR, value"
    before = next(each for each in kept.splitlines(keepends=True) if anchor in each)
    return changed(kept, before, line + before)


def without(base: str, name: str) -> str:
    return "".join(x for x in base.splitlines(keepends=True) if f"{{name: {name}, value" not in x)


def command(words: str, base: str = JOB) -> str:
    return changed(base, COMMAND, words)


# Its schema has the job's fields, and is no job.
CUSTOM_TYPE = (MANIFESTS / "training-operator" / "1-crd.yaml").read_text()


# Of each rule, by how bad it is: a text with one fault, and a part of the line that has it.
BAD = {
    ("yaml-key-twice", "error"): [
        (changed(JOB, "  name: llama\n", "  name: a\n  name: b\n"), "b"),
    ],
    ("template-unresolved", "error"): [
        (changed(JOB, "1.4.0", "$VERSION"), "$VERSION"),
        (changed(STORAGE, "mountname: a", "mountname: ${M}a"), "${M}"),
        (changed(JOB, "registry.example.com", "<your-registry>"), "<your-registry>"),
    ],
    ("unknown-field", "error"): [
        (changed(JOB, "cleanPodPolicy", "cleanPodPolices"), "cleanPodPolices"),
        (changed(JOB, "          nodeSelector:", "          nodeSelectors:"), "nodeSelectors"),
        (changed(JOB, "volumeMounts:", "volumeMount:"), "volumeMount:"),
        (
            changed(
                JOB,
                HOST,
                "        spec:\n          imagePullPolicy: Always\n          nodeSelector:\n",
            ),
            "image",
        ),
        (changed(MPI, "slotsPerWorker", "slotPerWorker"), "slotPerWorker"),
        (changed(TRAIN, "numNodes", "nodes"), "nodes:"),
        (NODES.replace("instanceType", "instancesType"), "instancesType"),
    ],
    ("template-default", "error"): [
        (changed(JOB, "1.4.0", "${VERSION:-1}"), "${VERSION:-1}"),
    ],
    ("template-eats-shell", "warning"): [
        (
            command('[bash, -c, "echo $HOST && torchrun a.py"]').replace("1.4.0", "${VERSION}"),
            "$HOST",
        ),
    ],
    ("template-misspelt", "error"): [
        (changed(JOB, "1.4.0", "{{ .Values.tag }}"), "{{ .Values"),
    ],
    ("wrong-type", "error"): [
        (changed(JOB, 'value: "0"', "value: 0"), "value: 0"),
        (changed(JOB, 'nprocPerNode: "8"', "nprocPerNode: 8"), "nprocPer"),
        (changed(JOB, "minReplicas: 2", 'minReplicas: "2"'), "minRep"),
        (changed(JOB, "cpu: 90", "cpu: many"), "cpu: many"),
        (changed(JOB, "labels: {app: llama}", "labels: {app: 7}"), "app: 7"),
        (
            changed(
                JOB,
                "            node.kubernetes.io/instance-type: p4d.24xlarge",
                "            - p4d",
            ),
            "nodeSelector",
        ),
        (
            changed(
                JOB,
                "instance-type: p4d.24xlarge",
                "instance-type: p4d.24xlarge\n            gpu: true",
            ),
            "gpu: true",
        ),
        (changed(BATCH, "  name: look\nspec", "  - name\nspec"), "metadata"),
        (changed(BATCH, "command: [nvidia-smi]", "command: nvidia-smi"), "command"),
        (changed(BATCH, "[nvidia-smi]", "[nvidia-smi, 5]"), "5"),
    ],
    ("admission", "error"): [
        (changed(JOB, "name: pytorch", "name: megatron"), "name: megatron"),
        (changed(JOB, "  name: llama\n", "  name: Llama_7b\n"), "Llama_7b"),
        (changed(JOB, "    Worker:", "    Workers:"), "Workers"),
        (changed(JOB, "OnFailure", "Sometimes"), "Sometimes"),
        (changed(JOB, "PodPolicy: None", "PodPolicy: Never"), "Never"),
        (changed(JOB, "rdzvBackend: c10d", "rdzvBackend: c10"), "c10"),
        (changed(STATIC, "replicas: 1", "replicas: 2"), "replicas: 2"),
        (JOB + "    Master: {replicas: 1}\n", "Master: {"),
        (changed(JOB, "kubeflow.org/v1", "kubeflow.org/v2"), "kubeflow"),
        (changed(MPI, "    Launcher:", "    Launch:"), "Launch:"),
        (changed(MPI, "OnFailure", "Always"), "Always"),
        (changed(MPI, "      replicas: 1\n", "      replicas: 2\n"), "2"),
        (changed(MPI, "  slots", "  cleanPodPolicy: All\n  slots"), "All"),
        (changed(TRAIN, "    name: torch-distributed", "    kind: X"), "Ref"),
        (changed(TRAIN, "name: NCCL_DEBUG", "name: PET_NNODES"), "PET_"),
        (changed(TRAIN, "  name: llama\n", "  name: 7b\n"), "7b"),
        (changed(BATCH, "restartPolicy: Never", "restartPolicy: Always"), "Al"),
        (changed(BATCH, "          image: nvidia", "          x: nvidia"), "na"),
        (changed(JOB, 'nprocPerNode: "8"', 'nprocPerNode: "all"'), "all"),
        (changed(MPI, "  slots", "  mpiImplementation: OpenMP\n  slots"), "OpenMP"),
        (changed(MPI, "name: nccl-tests", "name: " + "n" * 60), "nnn"),
        (MPI[: MPI.index("    Launcher:")] + MPI[MPI.index("    Worker:") :], "mpiReplicaSpecs"),
        (changed(MPI, "      replicas: 2\n", "      replicas: 0\n"), "replicas: 0"),
        (changed(TRAIN, "resourcesPerNode", "resources"), "resources"),
        (
            BATCH[: BATCH.index("        - name")].replace("containers:", "containers: []"),
            "containers",
        ),
    ],
    ("old-api", "error"): [
        (changed(JOB, "kubeflow.org/v1", "elastic.pytorch.org/v1alpha1"), "el"),
    ],
    ("mpijob-version", "warning"): [
        (changed(MPI, "v2beta1", "v1"), "kubeflow.org/v1"),
    ],
    ("same-object", "error"): [
        (f"{BATCH}---\n{changed(BATCH, 'nvidia-smi', 'ls')}", "name: look"),
    ],
    ("old-api", "warning"): [
        (changed(TRAIN, "  trainer:", "  podSpecOverrides: []\n  trainer:"), "podSpecOverrides"),
    ],
    ("env-policy", "warning"): [
        (changed(MPI, "NCCL_DEBUG=INFO", "NCCL_ALGO=Ring"), "NCCL_ALGO"),
    ],
    ("env-wanted", "warning"): [
        (without(JOB, "NCCL_NET"), "env:"),
        (env(JOB, "FI_EFA_USE_HUGE_PAGE", "1"), "HUGE_PAGE"),
        (without(G5, "FI_EFA_USE_DEVICE_RDMA"), "env:"),
        (without(MPI, "NCCL_NET"), "env:"),
    ],
    ("env-wanted", "error"): [
        (env(JOB, "FI_PROVIDER", "sockets"), "FI_PROVIDER"),
        (env(G5, "FI_EFA_USE_DEVICE_RDMA", "1"), "DEVICE_RDMA"),
    ],
    ("env-conflict", "error"): [
        (env(JOB, "GLOO_SOCKET_IFNAME", "^lo"), "GLOO"),
        (env(JOB, "NCCL_NET", "Socket"), "name: pytorch"),
    ],
    ("env-conflict", "warning"): [
        (JOB.replace("memory: 900Gi,", "memory: 900Gi, hugepages-2Mi: 5120Mi,"), "resources"),
    ],
    ("env-twice", "warning"): [
        (changed(JOB, ENV, ENV + ENV), "NCCL_DEBUG"),
    ],
    ("env-not-expanded", "error"): [
        (
            env(JOB, "LD_LIBRARY_PATH", "/opt/amazon/ofi-nccl/lib:$LD_LIBRARY_PATH"),
            "LD_LIBRARY_PATH",
        ),
    ],
    ("library-path", "info"): [
        (env(JOB, "LD_LIBRARY_PATH", "/usr/local/cuda/lib64"), "LD_LIB"),
    ],
    ("operator-variable", "warning"): [
        (env(STATIC, "WORLD_SIZE", "16"), "WORLD_SIZE"),
        (env(JOB, "PET_NNODES", "2"), "PET_NNODES"),
    ],
    ("nccl-log", "warning"): [
        (changed(MPI, "NCCL_DEBUG=INFO", "A=1"), "name: launcher"),
    ],
    ("secret-in-clear", "error"): [
        (env(JOB, "HF_TOKEN", "hf_abc"), '"hf_abc"'),
        (env(JOB, "AWS_SECRET_ACCESS_KEY", "x"), "AWS_SECRET"),
        (command('[bash, -c, "huggingface-cli login --token ${TOKEN} && torchrun a.py"]'), "login"),
        (command("[python, a.py, --hf_token=abc]"), "--hf_token"),
    ],
    ("image-tag", "warning"): [
        (changed(JOB, ":1.4.0", ""), "image:"),
        (changed(JOB, "1.4.0", "latest"), "image:"),
    ],
    ("image-version", "warning"): [
        (MPI.replace("efa1.49.0", "efa1.48.0"), "image:"),
        (MPI.replace("ofiv1.20.0", "ofiv1.14.0"), "image:"),
    ],
    ("image-region", "warning"): [
        (
            STORAGE
            + "---\n"
            + changed(JOB, "registry.example.com", "123456789012.dkr.ecr.us-east-1.amazonaws.com"),
            "us-east-1",
        ),
    ],
    ("instance-unknown", "error"): [
        (changed(JOB, "p4d.24xlarge", "g4d.8xlarge"), "g4d"),
    ],
    ("instance-unnamed", "info"): [
        (
            changed(JOB, "node.kubernetes.io/instance-type: p4d.24xlarge", "group: training"),
            "spec:",
        ),
    ],
    ("gpu-count", "error"): [
        (JOB.replace("gpu: 8", "gpu: 16"), "resources"),
        (JOB.replace("gpu: 8", "gpu: 4", 1), "requests"),
    ],
    ("efa-count", "error"): [
        (JOB.replace("efa: 4", "efa: 32"), "resources"),
        (JOB.replace("efa: 4", "efa: 1", 1), "requests"),
    ],
    ("efa-partial", "warning"): [
        (JOB.replace("efa: 4", "efa: 1"), "resources"),
        (JOB.replace(", vpc.amazonaws.com/efa: 4", ""), "resources"),
    ],
    ("efa-without-gpu", "error"): [
        (JOB.replace(" nvidia.com/gpu: 8,", ""), "resources"),
    ],
    ("host-device", "error"): [
        (
            changed(
                JOB,
                SHARED,
                SHARED + "\n            - {name: ib, hostPath: {path: /dev/infiniband}}",
            ),
            "/dev/infiniband",
        ),
    ],
    ("host-device", "warning"): [
        (
            changed(
                JOB,
                "              resources:\n",
                "              securityContext: {privileged: true}\n              resources:\n",
            ),
            "privileged",
        ),
    ],
    ("host-network", "warning"): [
        (changed(JOB, HOST, ON_HOST), "hostNetwork"),
        (
            changed(JOB, HOST, ON_HOST).replace(
                "              env:\n",
                "              ports: [{name: pytorchjob-port, containerPort: 20001}]\n"
                "              env:\n",
                1,
            ),
            "hostNetwork",
        ),
    ],
    ("host-network", "error"): [
        (
            changed(
                JOB, HOST, ON_HOST.replace("          dnsPolicy: ClusterFirstWithHostNet\n", "")
            ),
            "hostNetwork",
        ),
    ],
    ("hugepages", "error"): [
        (JOB.replace("900Gi,", "900Gi, hugepages-2Mi: 20Gi,"), "resources"),
        (
            changed(
                BATCH, "command:", "resources: {limits: {hugepages-2Mi: 2Mi}}\n          command:"
            ),
            "resources",
        ),
    ],
    ("memory", "error"): [
        (changed(JOB, "cpu: 90", "cpu: 96"), "resources"),
        (JOB.replace("memory: 900Gi", "memory: 1152Gi"), "resources"),
        (
            JOB.replace("memory: 900Gi", "memory: 800Gi", 1).replace(
                "limits: {memory: 900Gi", "limits: {memory: 700Gi"
            ),
            "requests",
        ),
    ],
    ("memory", "warning"): [
        (MPI.replace("memory: 64Gi", "memory: 17Gi"), "limits"),
    ],
    ("shared-memory", "warning"): [
        (
            changed(JOB, "{name: shm, mountPath: /dev/shm}", "{name: shm, mountPath: /mnt}"),
            "volumeMounts",
        ),
        (changed(JOB, SHM, "{name: shm, hostPath: {path: /dev/shm}}"), "mountPath: /dev/shm"),
        (changed(JOB, SHM, "{name: shm, emptyDir: {}}"), "/dev/shm"),
        (changed(JOB, "200Gi", "900Gi"), "/dev/shm"),
    ],
    ("processes", "error"): [
        (changed(JOB, "--nproc_per_node=8", "--nproc_per_node=16"), "torchrun"),
        (changed(TRAIN, "numProcPerNode: 8", "numProcPerNode: 9"), "numProc"),
        (command("[python, /app/train.py]"), "python"),
    ],
    ("processes", "warning"): [
        (changed(JOB, 'nprocPerNode: "8"', 'nprocPerNode: "4"'), "nproc"),
        (changed(MPI, "slotsPerWorker: 8", "slotsPerWorker: 4"), "slots"),
        (
            command(
                "[python, /app/train.py]", JOB.replace('nprocPerNode: "8"', "nprocPerNode: auto")
            ),
            "python",
        ),
    ],
    ("torchrun", "error"): [
        (command("[torchrun, --nnodes=4, /app/train.py]"), "--nnodes"),
        (command("[torchrun, --nnodes=2:x, /app/train.py]"), "--nnodes"),
        (command("[torchrun, --rdzv_backend=c10d, --master_addr=a, train.py]"), "--master_addr"),
        (command("[torchrun, --standalone, /app/train.py]"), "--standalone"),
        (command("[torchrun, --node_rank=0, --master_addr=a, /app/train.py]"), "--node_rank"),
        (MEETING, "--nnodes"),
    ],
    ("torchrun", "warning"): [
        (command("[torchrun, --rdzv_endpoint=a:23456, /app/train.py]", STATIC), "--rdzv_endpoint"),
        (command("[torchrun, --rdzv_backend=etcd, /app/train.py]", STATIC), "etcd"),
    ],
    ("accelerate", "warning"): [
        (command("[accelerate, launch, /app/train.py]"), "accelerate"),
    ],
    ("torchrun-path", "warning"): [
        (command("[/opt/conda/bin/torchrun, /app/t.py]"), "/opt/conda"),
    ],
    ("port", "warning"): [
        (
            command("[torchrun, --rdzv_backend=c10d, '--rdzv_endpoint=a:29500', /app/train.py]"),
            "29500",
        ),
        (command("[torchrun, --master_port=29500, a.py]", STATIC), "29500"),
    ],
    ("ranks", "warning"): [
        (command("[python, /app/train.py]", STATIC), "python"),
    ],
    ("replicas-differ", "warning"): [
        (STATIC + WORKER.replace("gpu: 8", "gpu: 4"), "Worker:"),
    ],
    ("elastic", "warning"): [
        (changed(JOB, "    maxRestarts: 3", "    metrics: [x]"), "metrics"),
        (
            changed(JOB, "elasticPolicy:\n    rdzvBackend: c10d\n    rdzvId: llama-1", ETCD_JOB),
            "elasticP",
        ),
    ],
    ("elastic", "error"): [
        (changed(JOB, "maxReplicas: 2", "maxReplicas: 1"), "Replicas"),
        (changed(JOB, "      replicas: 2", "      replicas: 3"), "maxRep"),
        (changed(JOB, "rdzvBackend: c10d", "rdzvBackend: etcd"), "elasticP"),
        (changed(JOB, "minReplicas: 2", "minReplicas: 4"), "minReplicas"),
    ],
    ("elastic", "info"): [
        (changed(JOB, "minReplicas: 2", "minReplicas: 1"), "minRep"),
    ],
    ("restarts", "warning"): [
        (changed(JOB, "    backoffLimit: 6\n", ""), "OnFailure"),
        (changed(JOB, "OnFailure", "Never"), "Never"),
        (
            changed(JOB, HOST, HOST.replace("spec:\n", "spec:\n          restartPolicy: Always\n")),
            "Always",
        ),
    ],
    ("restarts", "info"): [
        (changed(JOB, "OnFailure", "ExitCode"), "ExitCode"),
        (changed(JOB, "backoffLimit: 6", "backoffLimit: 0"), "backoffLimit"),
    ],
    ("deadline", "warning"): [
        (
            changed(
                JOB, "    backoffLimit: 6", "    backoffLimit: 6\n    activeDeadlineSeconds: 9"
            ),
            "activeDeadline",
        ),
    ],
    ("node-volume", "warning"): [
        (changed(NODES, "    volumeSize: 200\n", ""), "- name: gpu"),
        (changed(NODES, "volumeSize: 200", "volumeSize: 80"), "volumeSi"),
    ],
    ("node-range", "info"): [
        (changed(NODES, "autoScaler", "ebs"), "maxSize: 8"),
    ],
    ("volume", "error"): [
        (changed(JOB, "{name: shared, mount", "{name: fsx, mount"), "fsx"),
        (changed(JOB, "mountPath: /scratch", "mountPath: /dev/shm"), "scratch"),
        (changed(JOB, SHARED, SHARED[:-1] + ", emptyDir: {}}"), "shared, p"),
    ],
    ("volume", "info"): [
        (changed(JOB, SHARED, SHARED + "\n            - {name: x, emptyDir: {}}"), "name: x"),
    ],
    ("claim", "error"): [
        (STORAGE + "---\n" + changed(JOB, "fsx-claim", "fsx-claimc"), "claimc"),
        (
            STORAGE.replace(
                'accessModes: [ReadWriteMany]\n  storageClassName: ""\n  volumeName',
                'accessModes: [ReadWriteOnce]\n  storageClassName: ""\n  volumeName',
            )
            + "---\n"
            + JOB,
            "fsx-claim",
        ),
        (changed(STORAGE, "      mountname: abcdefgh\n", ""), "volumeAttributes"),
        (changed(STORAGE, '  storageClassName: ""\n  volumeName', "  volumeName"), "spec:"),
        (changed(STORAGE, "    volumeHandle: fs-0123456789abcdef0\n", ""), "csi"),
    ],
    ("storage-not-shared", "warning"): [
        (changed(JOB, SHARED, "{name: shared, hostPath: {path: /mnt/k8s-disks/0}}"), "spec:"),
        (changed(JOB, "=/fsx/llama", "=."), "output_dir"),
        (
            changed(JOB, "--output_dir=/fsx/llama", "--resume_from_checkpoint=./checkpoints"),
            "./checkpoints",
        ),
    ],
    ("cache-on-shared-storage", "warning"): [
        (changed(JOB, "/scratch/triton", "/fsx/triton"), "TRITON"),
    ],
    ("cache-on-shared-storage", "info"): [
        (changed(JOB, "/scratch/triton", "/tmp/triton"), "TRITON"),
    ],
    ("etcd-beside-job", "warning"): [
        (
            JOB
            + "---\n"
            + BATCH.replace("batch/v1", "apps/v1")
            .replace("kind: Job", "kind: Deployment")
            .replace("name: look\nspec", "name: etcd\nspec"),
            "name: etcd",
        ),
    ],
    ("claim", "warning"): [
        (STORAGE.replace("[ReadWriteMany]", "[ReadWriteOnce]", 1), "accessModes"),
    ],
    ("model-shape", "warning"): [
        (command(SHAPE.replace("heads=8", "heads=2")), "key_value"),
        (command(SHAPE.replace("8192", "11008")), "intermediate"),
        (command(SHAPE.replace("]", ", --max_context_width=128256]")), "context"),
    ],
    ("trainer-flag", "warning"): [
        (command(SHAPE.replace("]", ", --dataset_path=c4]")), "dataset"),
    ],
    ("tokenizer", "warning"): [
        (
            command(SHAPE.replace("]", ", --tokenizer=hf-internal-testing/llama-tokenizer]")),
            "tokenizer",
        ),
    ],
    ("megatron", "warning"): [
        (command(MEGATRON.replace(" --swiglu,", "")), "pretrain_gpt"),
        (command(MEGATRON.replace(", --use-distributed-optimizer", "")), "pretrain_gpt"),
    ],
    ("megatron", "info"): [
        (command(MEGATRON.replace("]", ", --load=/fsx/c, --save=/fsx/c]")), "pretrain_gpt"),
    ],
}

GOOD = [
    ("torchrun", changed(MEETING, "--nnodes=2", "--nnodes=2, --master_addr=a-0")),
    ("torchrun", changed(MEETING, "parallelism: 2", "parallelism: 1")),
    ("accelerate", command("[accelerate, launch, --num_machines, 2, /app/train.py]")),
    ("template-unresolved", command('[bash, -c, "for i in 1 2; do echo ${i}; done"]')),
    ("template-eats-shell", command('[bash, -c, "for i in 1 2; do echo ${i}; done"]')),
    ("same-object", f"{BATCH}---\n{BATCH.replace('name: look', 'name: other')}"),
    ("same-object", f"{STORAGE}---\n{STORAGE}"),
    ("env-policy", env(G5, "NCCL_PROTO", "simple")),
    ("env-policy", env(command(MEGATRON), "CUDA_DEVICE_MAX_CONNECTIONS", "1")),
    ("env-policy", env(JOB, "NCCL_SOCKET_IFNAME", "eth0")),
    ("env-policy", env(JOB, "NCCL_NVLS_ENABLE", "1")),
    ("env-policy", env(env(JOB, "NCCL_DEBUG", "INFO"), "NCCL_DEBUG_SUBSYS", "INIT, net")),
    ("env-policy", env(JOB, "LD_PRELOAD", "/usr/lib/libjemalloc.so")),
    ("env-policy", changed(env(JOB, "FI_EFA_SET_CUDA_SYNC_MEMOPS", "0"), "1.4.0", "efa1.28.0")),
    ("env-policy", changed(env(JOB, "NCCL_ASYNC_ERROR_HANDLING", "1"), "1.4.0", "torch2.1.2")),
    ("env-wanted", env(JOB, "NCCL_NET", "Libfabric")),
    ("env-wanted", env(JOB, "NCCL_NET", "$TRANSPORT")),
    ("env-wanted", changed(without(MPI, "NCCL_NET"), "NCCL_DEBUG=INFO", "NCCL_NET=AWS Libfabric")),
    (
        "torchrun",
        changed(STATIC + "    Worker: {replicas: 1}\n", COMMAND, "[torchrun, --nnodes=2, a.py]"),
    ),
    (
        "env-policy",
        env(
            changed(
                MPI,
                "{name: FI_EFA_USE_HUGE",
                "{name: TRITON_CACHE_DIR, value: a}\n                - {name: FI_EFA_USE_HUGE",
            ),
            "NCCL_DEBUG",
            "INFO",
        ),
    ),
    ("admission", CUSTOM_TYPE),
    ("env-not-expanded", env(JOB, "CACHE", "$(TRITON_CACHE_DIR)/x")),
    ("library-path", env(JOB, "LD_LIBRARY_PATH", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu")),
    ("operator-variable", env(JOB, "MASTER_ADDR", "somewhere")),
    ("operator-variable", env(JOB, "PET_RDZV_CONF", "timeout=900")),
    ("secret-in-clear", env(JOB, "TOKENIZER", "meta-llama/Llama-3.1-8B")),
    ("secret-in-clear", env(JOB, "HF_TOKEN_PATH", "/secrets/token")),
    ("secret-in-clear", command('[bash, -c, "huggingface-cli login --token $HF_TOKEN; ls"]')),
    ("image-tag", changed(JOB, ":1.4.0", "@sha256:" + "a" * 64)),
    ("image-version", MPI.replace("ofiv1.20.0", "ofiv1.17.2")),
    ("instance-unknown", changed(JOB, "p4d.24xlarge", "ml.p4d.24xlarge")),
    ("instance-unknown", changed(JOB, "p4d.24xlarge", "${INSTANCE_TYPE}")),
    ("efa-count", JOB.replace("p4d.24xlarge", "p5.48xlarge").replace("efa: 4", "efa: 32")),
    ("efa-count", JOB.replace("efa: 4", "efa: $EFA_PER_NODE")),
    (
        "efa-partial",
        JOB.replace("replicas: 2", "replicas: 1")
        .replace("Replicas: 2", "Replicas: 1")
        .replace(", vpc.amazonaws.com/efa: 4", ""),
    ),
    ("hugepages", JOB.replace("900Gi,", "900Gi, hugepages-2Mi: 5120Mi,")),
    (
        "host-device",
        changed(
            BATCH,
            "      containers:",
            "      volumes: [{name: ib, hostPath: {path: /dev/infiniband}}]\n      containers:",
        ),
    ),
    ("memory", JOB.replace("memory: 900Gi", "memory: 1082712Mi")),
    ("node-volume", changed(NODES, "volumeSize: 200", "volumeSize: ${GIB}")),
    ("node-volume", changed(NODES, "    volumeSize: 200", "    launchTemplate: {id: lt-1}")),
    ("node-volume", changed(NODES, "p4d.24xlarge", "m5.2xlarge")),
    ("node-range", changed(NODES, "autoScaler: true", "autoScaler: true, ebs: true")),
    ("node-range", changed(changed(NODES, "minSize: 0", "minSize: 8"), "autoScaler", "ebs")),
    ("processes", JOB.replace('nprocPerNode: "8"', "nprocPerNode: auto")),
    ("processes", command("[accelerate, launch, /app/train.py]")),
    ("volume", RUNTIME),
    ("not-an-object", "- {op: replace, path: /spec/replicas, value: 2}\n"),
    ("template-unresolved", command('[bash, -c, "python a.py < list > log"]')),
    ("torchrun", command("[torchrun, '--nnodes=1:4', /app/train.py, --master_port=x]")),
    ("torchrun", command("[torchrun, --rdzv_id=a, /app/train.py]")),
    ("port", command("[torchrun, '--rdzv_endpoint=a:23456', --rdzv_backend=c10d, a.py]")),
    ("port", command("[torchrun, '--rdzv_endpoint=etcd:2379', --rdzv_backend=etcd, a.py]")),
    ("ranks", command("[accelerate, launch, train.py]", STATIC)),
    ("elastic", changed(JOB, "minReplicas: 2", "minReplicas: ${MIN}")),
    ("replicas-differ", STATIC + WORKER),
    ("claim", STORAGE + "---\n" + JOB),
    ("storage-not-shared", changed(JOB, "=/fsx/llama", "=s3://bucket/llama")),
    ("model-shape", command(SHAPE)),
    ("model-shape", command(SHAPE.replace("layers=16", "layers=17").replace("heads=8", "heads=2"))),
    ("tokenizer", command(SHAPE.replace("]", ", --tokenizer=meta-llama/Llama-3.2-1B]"))),
    ("megatron", command(MEGATRON)),
]


@pytest.mark.parametrize(
    "name", ["JOB", "STATIC", "G5", "MPI", "TRAIN", "BATCH", "STORAGE", "NODES"]
)
def test_manifest_without_a_fault_has_no_finding(name):
    assert findings(getattr(lint_manifests, name)) == []


@pytest.mark.parametrize(
    ("rule", "severity", "text", "part"),
    [(*how, *fault) for how, faults in BAD.items() for fault in faults],
    ids=lambda each: each[:30],
)
def test_fault_is_found_on_its_line(rule, severity, text, part):
    lines = text.splitlines()

    of_rule = [each for each in findings(text) if each.rule == rule]

    places = [(each.severity, lines[each.line - 1]) for each in of_rule]
    assert any(each == severity and part in line for each, line in places), places
    assert all(each.fix and each.message for each in of_rule)


@pytest.mark.parametrize(("rule", "text"), GOOD, ids=lambda each: each[:40])
def test_what_only_looks_like_the_fault_is_not_found(rule, text):
    assert [each for each in findings(text) if each.rule == rule] == []


def test_fault_of_master_and_worker_alike_is_found_once():
    text = changed(STATIC, "1.4.0", "latest") + changed(WORKER, "1.4.0", "latest")

    assert [each.rule for each in findings(text) if each.rule == "image-tag"] == ["image-tag"]


def test_misplaced_field_is_told_where_it_belongs():
    (found,) = findings(
        changed(JOB, HOST, HOST.replace("node", "imagePullPolicy: A\n          node"))
    )

    assert (found.message, found.fix) == (
        'spec.pytorchReplicaSpecs.Worker.template.spec has no field "imagePullPolicy"',
        "it belongs into containers[]; move it there",
    )


def test_patch_of_another_object_is_no_manifest():
    patch = changed(JOB, "              image: registry.example.com/team/trainer:1.4.0\n", "")

    assert "admission" in {each.rule for each in lint([("job.yaml", patch)]).findings}
    assert lint([("overlay/patch.yaml", patch)]).findings == []


def test_every_rule_is_tested_with_a_fault():
    of_texts = {"yaml", "yaml-too-large", "not-an-object"}  # with the reader of YAML

    assert {rule for rule, _ in BAD} | of_texts == set(RULES)


def test_instance_of_the_command_line_counts_where_the_manifest_names_none():
    text = changed(JOB, "node.kubernetes.io/instance-type: p4d.24xlarge", "group: training")

    assert "efa-partial" in {each.rule for each in findings(text, instance="p5.48xlarge")}
    assert "instance-unnamed" not in {each.rule for each in findings(text, instance="p4d.24xlarge")}


def test_a_claim_of_another_file_counts_and_an_equal_name_there_is_a_warning():
    assert findings(JOB, STORAGE) == []
    (found,) = findings(BATCH, changed(BATCH, "nvidia-smi", "ls"))
    assert (found.rule, found.severity, found.file) == ("same-object", "warning", "1")


ON_BASES = {
    On.EFA_WITHOUT_GPUDIRECT: G5,
    On.NO_NVLINK: G5,
    On.HOST_NETWORK: changed(JOB, HOST, ON_HOST),
    On.NO_EFA: JOB.replace(", vpc.amazonaws.com/efa: 4", ""),
    On.EFA_UNKNOWN: changed(JOB, "node.kubernetes.io/instance-type: p4d.24xlarge", "a: b"),
}


@pytest.mark.parametrize("row", UNWANTED, ids=lambda row: f"{row.name}-{row.on.name}")
def test_every_row_of_unwanted_variables_is_found_where_it_holds(row):
    value = row.values[0] if row.values else "/opt/libnccl.so"
    text = env(ON_BASES.get(row.on, JOB), row.name.replace("*", "X"), value)

    found = [each for each in findings(text) if each.rule == "env-policy"]

    assert (row.severity, row.fix) in {
        (each.severity, each.fix) for each in found if row.reason in each.message
    }


def test_one_fault_many_times_is_shown_some_times_with_the_number_of_the_others():
    variables = "".join(f"                - {{name: NCCL_ALGO, value: R{n}}}\n" for n in range(70))

    found = [each for each in findings(changed(JOB, ENV, variables)) if each.rule == "env-twice"]

    assert len(found) == 50
    assert found[-1].message.endswith("(and 19 more in this file)")


ODD = [None, True, 0, -1, 3.5, 10**30, "", "8", "${A}", "{{ x }}", [], {}, [1], [None], [[]]]
PLACES = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(ODD)), min_size=1, max_size=3)


@pytest.mark.parametrize(
    "text", SHAPES, ids=[yaml.safe_load(text)["metadata"]["name"] for text in SHAPES]
)
def test_public_examples_that_work_have_no_error(text: str) -> None:
    linted = lint([("a.yaml", text)])

    assert linted.num_objects == 1
    assert [each for each in linted.findings if each.severity == "error"] == []


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([JOB, STATIC, MPI, TRAIN, BATCH, STORAGE, NODES]), PLACES)
def test_values_of_the_wrong_type_anywhere_are_no_error_of_the_linter(text, places):
    documents = list(yaml.safe_load_all(text))
    for number, value in places:
        slots = list(slots_of(documents[0]))
        holder, key = slots[number % len(slots)]
        holder[key] = copy.deepcopy(value)
        if not list(slots_of(documents[0])):
            break

    found = findings(yaml.safe_dump_all(documents))

    assert all(each.line >= 1 and each.rule in RULES for each in found)


def slots_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document that can hold another value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(pairs):
        yield value, key
        if isinstance(item, dict | list):
            yield from slots_of(item)


@pytest.mark.parametrize(
    ("old", "new", "rule", "says"),
    [
        ("hyperpodrun", "torchrun", "torchrun", "hears nothing of torchrun"),
        ("jobMaxRetryCount", "jobMaxRetries", "unknown-field", 'no field "jobMaxRetries"'),
        ("efa: 32", "efa: 16", "efa-partial", "16 of the 32 EFA interfaces of p5.48xlarge"),
    ],
)
def test_faults_of_a_job_of_hyperpods_own_operator_are_found(old, new, rule, says):
    text = next(each for each in SHAPES if "HyperPodPyTorchJob" in each)

    assert not [each for each in findings(text) if each.rule == rule]
    (fault,) = [each for each in findings(text.replace(old, new)) if each.rule == rule]
    assert says in fault.message
