"""Manifests without a finding, of each kind; tests change a line of them."""

from __future__ import annotations

from stationmaster.diagnosis.lint import Finding, lint
from stationmaster.domain.catalogue.instances import get_instance

JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: llama
  namespace: training
spec:
  nprocPerNode: "8"
  runPolicy:
    cleanPodPolicy: None
    backoffLimit: 6
  elasticPolicy:
    rdzvBackend: c10d
    rdzvId: llama-1
    minReplicas: 2
    maxReplicas: 2
    maxRestarts: 3
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        metadata:
          labels: {app: llama}
        spec:
          nodeSelector:
            node.kubernetes.io/instance-type: p4d.24xlarge
          containers:
            - name: pytorch
              image: registry.example.com/team/trainer:1.4.0
              command: [torchrun, --nproc_per_node=8, /app/train.py, --output_dir=/fsx/llama]
              env:
                - {name: NCCL_DEBUG, value: WARN}
                - {name: FI_PROVIDER, value: efa}
                - {name: NCCL_NET, value: AWS Libfabric}
                - {name: FI_EFA_USE_HUGE_PAGE, value: "0"}
                - {name: NCCL_SOCKET_IFNAME, value: "^lo,docker,veth,eni,pod-id-link0"}
                - {name: TRITON_CACHE_DIR, value: /scratch/triton}
                - name: HF_TOKEN
                  valueFrom: {secretKeyRef: {name: huggingface, key: token}}
              resources:
                requests: {cpu: 90, memory: 900Gi, nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 4}
                limits: {memory: 900Gi, nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 4}
              volumeMounts:
                - {name: shm, mountPath: /dev/shm}
                - {name: scratch, mountPath: /scratch}
                - {name: shared, mountPath: /fsx}
          volumes:
            - {name: shm, emptyDir: {medium: Memory, sizeLimit: 200Gi}}
            - {name: scratch, emptyDir: {sizeLimit: 20Gi}}
            - {name: shared, persistentVolumeClaim: {claimName: fsx-claim}}
"""

# The same as a static job: a Master, and the operator's MASTER_ADDR.
STATIC = (
    JOB.replace("    Worker:\n      replicas: 2", "    Master:\n      replicas: 1")
    .replace("          labels: {app: llama}\n", "          labels: {app: llama, role: master}\n")
    .replace("  elasticPolicy:\n    rdzvBackend: c10d\n    rdzvId: llama-1\n", "")
    .replace("    minReplicas: 2\n    maxReplicas: 2\n    maxRestarts: 3\n", "")
)

# On instances whose EFA has no GPUDirect RDMA.
G5 = (
    JOB.replace("p4d.24xlarge", "g5.48xlarge")
    .replace("vpc.amazonaws.com/efa: 4", "vpc.amazonaws.com/efa: 1")
    .replace("memory: 900Gi", "memory: 600Gi")
    .replace(
        "                - {name: TRITON",
        '                - {name: FI_EFA_USE_DEVICE_RDMA, value: "0"}\n'
        '                - {name: NCCL_SHM_USE_CUDA_MEMCPY, value: "1"}\n'
        "                - {name: TRITON",
    )
)

MPI = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: nccl-tests
spec:
  slotsPerWorker: 8
  runPolicy:
    cleanPodPolicy: Running
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: launcher
              image: public.ecr.aws/hpc-cloud/nccl-tests:cuda13.0.2-efa1.49.0-ofiv1.20.0
              command:
                - mpirun
                - -np
                - "16"
                - -x
                - NCCL_DEBUG=INFO
                - /opt/nccl-tests/build/all_reduce_perf
                - -b
                - "8"
    Worker:
      replicas: 2
      template:
        spec:
          nodeSelector:
            node.kubernetes.io/instance-type: p4d.24xlarge
          containers:
            - name: worker
              image: public.ecr.aws/hpc-cloud/nccl-tests:cuda13.0.2-efa1.49.0-ofiv1.20.0
              env:
                - {name: NCCL_NET, value: AWS Libfabric}
                - {name: FI_EFA_USE_HUGE_PAGE, value: "0"}
              resources:
                requests: {memory: 64Gi, nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 4}
                limits: {memory: 64Gi, nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 4}
              volumeMounts:
                - {name: shm, mountPath: /dev/shm}
          volumes:
            - {name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}
"""

TRAIN = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: llama
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    image: registry.example.com/team/trainer:1.4.0
    numNodes: 2
    numProcPerNode: 8
    command: [torchrun, /app/train.py]
    env:
      - {name: NCCL_DEBUG, value: WARN}
    resourcesPerNode:
      limits: {nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 4}
      requests: {nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 4}
"""

# A runtime whose JobSet makes the volume that its pods mount.
RUNTIME = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata:
  name: torchtune
spec:
  template:
    spec:
      volumeClaimPolicies:
        - templates:
            - metadata: {name: initializer}
              spec:
                accessModes: [ReadWriteOnce]
                resources: {requests: {storage: 20Gi}}
      replicatedJobs:
        - name: node
          template:
            spec:
              template:
                spec:
                  containers:
                    - name: node
                      image: registry.example.com/team/tune:1.0.0
                      volumeMounts:
                        - {name: initializer, mountPath: /workspace}
"""

BATCH = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: look
spec:
  backoffLimit: 1
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: look
          image: nvidia/cuda:12.8.0-base-ubuntu22.04
          command: [nvidia-smi]
"""

STORAGE = """\
apiVersion: v1
kind: PersistentVolume
metadata:
  name: fsx-pv
spec:
  capacity: {storage: 1200Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  csi:
    driver: fsx.csi.aws.com
    volumeHandle: fs-0123456789abcdef0
    volumeAttributes:
      dnsname: fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com
      mountname: abcdefgh
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: fsx-claim
  namespace: training
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: fsx-pv
  resources: {requests: {storage: 1200Gi}}
"""

NODES = """\
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata:
  name: training
  region: us-west-2
managedNodeGroups:
  - name: gpu
    instanceType: p4d.24xlarge
    minSize: 0
    maxSize: 8
    desiredCapacity: 2
    volumeSize: 200
    iam: {withAddonPolicies: {autoScaler: true}}
  - name: system
    instanceType: c5.2xlarge
    minSize: 1
    maxSize: 1
"""


def findings(*texts: str, instance: str = "") -> list[Finding]:
    """What is found in files named 0, 1, ..."""
    files = [(str(number), text) for number, text in enumerate(texts)]
    return lint(files, instance=get_instance(instance) if instance else None).findings


def changed(base: str, old: str, new: str) -> str:
    """The manifest with one place changed; the place must be there once."""
    assert base.count(old) == 1, (base.count(old), old)
    return base.replace(old, new)
