"""How a job starts and ends: torchrun's flags, processes, ports, restarts, elasticity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stationmaster.diagnosis.lint.containers import Container
from stationmaster.diagnosis.lint.findings import Found, found
from stationmaster.diagnosis.lint.launch import AGENT, Flag, Launch
from stationmaster.diagnosis.lint.manifest import EFA, GPU, Manifest, Pod
from stationmaster.diagnosis.lint.placeholders import is_unresolved
from stationmaster.diagnosis.lint.values import mapping, sequence, whole
from stationmaster.domain.catalogue.pytorch_job_rules import PORT

_STATIC_FLAGS: Final = ("node_rank", "master_addr", "master_port")
# Programs that start processes of their own.
_LAUNCHERS: Final = frozenset(
    {
        "accelerate",
        "deepspeed",
        "mpirun",
        "mpiexec",
        "srun",
        "colossalai",
        "horovodrun",
        "ray",
        "tune",
    }
)
_RENDEZVOUS_FLAGS: Final = ("rdzv_endpoint", "rdzv_id", "rdzv_conf")


def check(manifest: Manifest) -> Iterator[Found]:
    """Check the job's own fields, then each container's command."""
    if manifest.kind == "PyTorchJob":
        yield from _elastic(manifest)
        yield from _restarts(manifest)
        yield from _replicas(manifest)
    yield from _run_policy(manifest)
    if manifest.kind == "Job":
        yield from _job_restarts(manifest)
    for pod in manifest.pods:
        yield from _network(manifest, pod)
        for container in pod.workers:
            for launch in container.launches:
                yield from _path(launch)
                if launch.torchrun is not None:
                    yield from _torchrun(manifest, pod, container, launch, launch.torchrun)
            yield from _processes(manifest, pod, container)
            yield from _one_process(manifest, pod, container)
            yield from _ports(manifest, container)
            yield from _ranks(manifest, container)


def _elastic(manifest: Manifest) -> Iterator[Found]:
    policy = mapping(manifest.spec.get("elasticPolicy"))
    at = ("spec", "elasticPolicy")
    if policy.get("metrics"):
        yield found(
            "elastic",
            (*at, "metrics"),
            "metrics make the operator create a HorizontalPodAutoscaler, which changes the number "
            "of nodes while they train, and fails where no metrics server runs",
            fix="remove metrics",
        )
    least, most = whole(policy.get("minReplicas")), whole(policy.get("maxReplicas"))
    workers = whole(mapping(_replica(manifest, "Worker")).get("replicas"))
    if least is not None and most is not None and least > most:
        message = f"minReplicas {least} is above maxReplicas {most}"
        fix = "swap them"
        yield found("elastic", (*at, "minReplicas"), message, fix=fix, severity="error")
    for name, bound, wrong in (
        ("minReplicas", least, workers is not None and least is not None and workers < least),
        ("maxReplicas", most, workers is not None and most is not None and workers > most),
    ):
        if wrong:
            yield found(
                "elastic",
                (*at, name),
                f"{workers} workers and {name} {bound}: torchrun never starts with that number",
                fix=f"make {name} fit, or change replicas",
                severity="error",
            )
    if least == 1 and most is not None and most > 1 and (workers or 0) > 1:
        yield found(
            "elastic",
            (*at, "minReplicas"),
            f"minReplicas 1 of {workers}: whichever pod comes first starts alone, and all restart "
            "when the next one joins",
            fix="raise minReplicas to the fewest nodes that are worth training on",
            severity="info",
        )
    if str(policy.get("rdzvBackend", "")).startswith("etcd"):
        if policy.get("rdzvHost") in (None, ""):
            message = "rendezvous on etcd, and no rdzvHost: the operator names the first worker"
            fix = "set rdzvHost and rdzvPort (2379), or use c10d"
            yield found("elastic", at, message, fix=fix, severity="error")
        if not policy.get("rdzvId"):
            message = "rendezvous on etcd without rdzvId: every job's is none, and they meet"
            fix = "set rdzvId to a name of the run, or use c10d"
            yield found("elastic", at, message, fix=fix)


def _replica(manifest: Manifest, role: str) -> Mapping[str, Any]:
    return mapping(mapping(manifest.spec.get("pytorchReplicaSpecs")).get(role))


def _restarts(manifest: Manifest) -> Iterator[Found]:
    limit = mapping(manifest.spec.get("runPolicy")).get("backoffLimit")
    for role in mapping(manifest.spec.get("pytorchReplicaSpecs")):
        policy = _replica(manifest, role).get("restartPolicy", "OnFailure")
        path = ("spec", "pytorchReplicaSpecs", role, "restartPolicy")
        if policy in ("OnFailure", "Always") and limit is None:
            yield found(
                "restarts",
                path,
                f"restartPolicy {policy} and no runPolicy.backoffLimit: a job that cannot work "
                "restarts for ever, and its nodes are paid for",
                fix="set runPolicy.backoffLimit to a few times the number of pods; the operator "
                "adds up the restarts of all of them",
            )
        if policy == "ExitCode" and limit is not None:
            yield found(
                "restarts",
                path,
                "with ExitCode the operator makes pods anew, which starts the count of "
                "backoffLimit again: a loop of retryable exits (128 and more) does not end",
                fix="use OnFailure, or watch the job",
                severity="info",
            )
        template = mapping(mapping(_replica(manifest, role).get("template")).get("spec"))
        own = template.get("restartPolicy")
        if own is not None and own != policy:
            yield found(
                "restarts",
                ("spec", "pytorchReplicaSpecs", role, "template", "spec", "restartPolicy"),
                f"the operator overwrites the template's restartPolicy {own} with the replica's, "
                f"{policy}",
                fix=f"remove it here, and set restartPolicy of {role}",
            )
        elastic = manifest.spec.get("elasticPolicy")
        # Without restarts of workers either, somebody else makes the job anew.
        if policy == "Never" and elastic is not None and mapping(elastic).get("maxRestarts") != 0:
            yield found(
                "restarts",
                path,
                "an elastic job whose pods never restart: after a lost node it does not go on",
                fix="use OnFailure with a backoffLimit",
            )
    if limit == 0 and not isinstance(limit, bool):
        yield found(
            "restarts",
            ("spec", "runPolicy", "backoffLimit"),
            "backoffLimit 0: the first restart of any pod ends the job",
            fix="allow a restart or two for each pod",
            severity="info",
        )


def _run_policy(manifest: Manifest) -> Iterator[Found]:
    policy = mapping(manifest.spec.get("runPolicy"))
    if manifest.kind == "PyTorchJob" and policy.get("activeDeadlineSeconds") is not None:
        yield found(
            "deadline",
            ("spec", "runPolicy", "activeDeadlineSeconds"),
            "the Training Operator looks at this deadline only when something else happens to the "
            "job: one that hangs runs on",
            fix="set activeDeadlineSeconds in the pod template as well",
        )


def _job_restarts(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        if not pod.asks(GPU):
            continue
        if manifest.spec.get("backoffLimit") is None:
            yield found(
                "restarts",
                ("spec",),
                "a Job without backoffLimit is tried 7 times, on GPUs that are paid for",
                fix="set backoffLimit, e.g. 1",
                severity="info",
            )


def _replicas(manifest: Manifest) -> Iterator[Found]:
    master, worker = _replica(manifest, "Master"), _replica(manifest, "Worker")
    if not master or not worker or not mapping(worker.get("template")):
        return
    for name in (GPU, EFA):
        counts = {
            pod.role: pod.count(name)
            for pod in manifest.pods
            if pod.role in ("Master", "Worker") and not pod.is_unresolved
        }
        if len(set(counts.values())) > 1:
            yield found(
                "replicas-differ",
                ("spec", "pytorchReplicaSpecs", "Worker"),
                f"the Master asks for {counts.get('Master')} {name}, a Worker for "
                f"{counts.get('Worker')}: every node must run as many processes",
                fix="give both the same resources, command and variables",
            )


def _path(launch: Launch) -> Iterator[Found]:
    if launch.torchrun_word.startswith("/"):
        yield found(
            "torchrun-path",
            launch.path,
            f"{launch.torchrun_word}: images keep torchrun in different places (newer PyTorch "
            "images have no /opt/conda); with one that has none there, pods do not start",
            fix="write torchrun, or python -m torch.distributed.run",
        )


def _torchrun(
    manifest: Manifest, pod: Pod, container: Container, launch: Launch, flags: dict[str, Flag]
) -> Iterator[Found]:
    if manifest.kind == "HyperPodPyTorchJob" and AGENT not in launch.torchrun_word:
        yield found(
            "torchrun",
            launch.path,
            "HyperPod's operator starts and watches training through its agent, and hears nothing "
            "of torchrun",
            fix=f"install hyperpod-elastic-agent in the image and write {AGENT} for torchrun, or "
            "use a PyTorchJob",
        )
    static = [name for name in _STATIC_FLAGS if name in flags]
    backend = flags.get("rdzv_backend")
    if backend is not None and backend.value != "static" and static:
        yield found(
            "torchrun",
            flags[static[0]].path,
            f"--{static[0]} is of a static rendezvous, and --rdzv_backend {backend.value} does not "
            "read it",
            fix="keep either --rdzv_backend, --rdzv_endpoint and --rdzv_id, or --node_rank, "
            "--master_addr and --master_port",
        )
    if backend is None and not static and "standalone" not in flags:
        used = [name for name in _RENDEZVOUS_FLAGS if name in flags]
        if used and manifest.spec.get("elasticPolicy") is None:
            yield found(
                "torchrun",
                flags[used[0]].path,
                f"--{used[0]} without --rdzv_backend: torchrun's default is static, not c10d",
                fix="add --rdzv_backend=c10d",
                severity="warning",
            )
    if "standalone" in flags and manifest.trains and (manifest.num_pods or 1) > 1:
        message = f"--standalone in each of {manifest.num_pods} pods: they train apart"
        fix = "remove it; the operator tells torchrun where to meet"
        yield found("torchrun", flags["standalone"].path, message, fix=fix)
    named = "rdzv_id" in flags or mapping(manifest.spec.get("elasticPolicy")).get("rdzvId")
    if backend is not None and backend.value.startswith("etcd") and not named:
        message = "rendezvous on etcd without --rdzv_id: the runs of all jobs meet"
        fix = "add --rdzv_id with a name of the run"
        yield found("torchrun", backend.path, message, fix=fix, severity="warning")
    rank = flags.get("node_rank")
    if rank is not None and whole(rank.value) is not None and (pod.replicas or 1) > 1:
        yield found(
            "torchrun",
            rank.path,
            f"--node_rank {rank.value} is the same in all {pod.replicas} pods, of which each must "
            "have its own: they wait for each other for ever",
            fix="remove --node_rank, --master_addr and --master_port, and use --rdzv_backend=c10d, "
            "which numbers nodes itself",
        )
    yield from _nodes(manifest, flags)
    yield from _processes_flag(pod, container, flags)


def _nodes(manifest: Manifest, flags: dict[str, Flag]) -> Iterator[Found]:
    flag = flags.get("nnodes")
    if flag is None or is_unresolved(flag.value):
        return
    least, colon, most = flag.value.partition(":")
    low, high = whole(least), whole(most) if colon else whole(least)
    if low is None or high is None or low > high:
        message = f"--nnodes {flag.value} is neither a number nor MIN:MAX"
        yield found("torchrun", flag.path, message, fix="write e.g. --nnodes=2 or --nnodes=2:4")
        return
    pods = manifest.num_pods
    if manifest.trains and pods is not None and not low <= pods <= high:
        yield found(
            "torchrun",
            flag.path,
            f"--nnodes {flag.value}, and pods of the job: {pods}; the flag beats the operator's "
            "PET_NNODES, so torchrun waits for nodes that never come, or leaves some out",
            fix="remove --nnodes; the operator sets it",
        )


def _processes_flag(pod: Pod, container: Container, flags: dict[str, Flag]) -> Iterator[Found]:
    flag = flags.get("nproc_per_node")
    count, gpus = whole(flag.value) if flag else None, container.count(GPU)
    if flag is None or count is None or not gpus or count == gpus:
        return
    yield _mismatch(flag.path, f"--nproc_per_node {count}", count, gpus)


def _mismatch(path: tuple[str | int, ...], shown: str, count: int, gpus: int) -> Found:
    if count > gpus:
        what = f"{shown} on {gpus} GPUs: NCCL refuses two processes on one GPU"
        return found("processes", path, what, fix=f"start {gpus} processes")
    what = f"{shown} on {gpus} GPUs: {gpus - count} of them do nothing"
    return found("processes", path, what, fix=f"start {gpus} processes", severity="warning")


def _processes(manifest: Manifest, pod: Pod, container: Container) -> Iterator[Found]:
    gpus = container.count(GPU)
    if not gpus:
        return
    match manifest.kind:
        case "PyTorchJob":
            fields = [("spec", "nprocPerNode"), ("spec", "elasticPolicy", "nProcPerNode")]
        case "TrainJob":
            fields = [("spec", "trainer", "numProcPerNode")]
        case "MPIJob" if pod.role == "Worker":
            fields = [("spec", "slotsPerWorker")]
        case _:
            fields = []
    for path in fields:
        holder = manifest.spec if len(path) == 2 else mapping(manifest.spec.get(path[1]))
        count = whole(holder.get(path[-1]))
        if count is not None and count != gpus:
            yield _mismatch(path, f"{path[-1]} {count}", count, gpus)


def _one_process(manifest: Manifest, pod: Pod, container: Container) -> Iterator[Found]:
    """Check that something starts a process for each GPU of a training pod."""
    gpus, launches = container.count(GPU), container.launches
    if not manifest.trains or manifest.kind == "MPIJob" or gpus < 2 or not launches:
        return
    words = {word.rpartition("/")[2] for launch in launches for word in launch.words}
    if any(launch.torchrun is not None for launch in launches) or words & _LAUNCHERS:
        return
    declared = whole(manifest.spec.get("nprocPerNode")) or 1
    yield found(
        "processes",
        launches[0].path,
        f"{launches[0].program} is started as one process and the pod has {gpus} GPUs: unless it "
        f"starts others itself, {gpus - 1} of them do nothing; only torchrun reads nprocPerNode",
        fix=f"start it with torchrun, or ask for one GPU; {launches[0].program} then gets "
        "LOCAL_RANK, RANK and WORLD_SIZE",
        severity="error" if declared > 1 else "warning",
    )


def _ports(manifest: Manifest, container: Container) -> Iterator[Found]:
    if manifest.kind != "PyTorchJob":
        return
    port = _rendezvous_port(container)
    places = [(each.path, each.value) for each in container.env if each.name == "MASTER_PORT"]
    for launch in container.launches:
        flags = launch.torchrun or {}
        if "master_port" in flags:
            places.append((flags["master_port"].path, flags["master_port"].value))
        if "rdzv_endpoint" in flags and not is_unresolved(flags["rdzv_endpoint"].value):
            endpoint = flags["rdzv_endpoint"].value
            backend = flags.get("rdzv_backend")
            is_etcd = "etcd" in endpoint or (backend is not None and "etcd" in backend.value)
            if ":" in endpoint and not is_etcd:
                places.append((flags["rdzv_endpoint"].path, endpoint.rpartition(":")[2]))
    for path, value in places:
        named = whole(value)
        if named is not None and named != port:
            yield found(
                "port",
                path,
                f"port {named}, and the operator's is {port}: its Services do not have yours, and "
                "MASTER_PORT is overwritten",
                fix=f"use {port}, or declare containerPort {named} with the name pytorchjob-port",
            )


def _rendezvous_port(container: Container) -> int:
    """Return the declared port of the operator's name, or the one that the operator adds."""
    declared = [
        whole(mapping(port).get("containerPort"))
        for port in sequence(container.body.get("ports"))
        if mapping(port).get("name") == "pytorchjob-port"
    ]
    return declared[0] if declared and declared[0] else PORT


def _ranks(manifest: Manifest, container: Container) -> Iterator[Found]:
    """Check RANK, which counts pods: with several processes a pod it is no process's rank."""
    if manifest.kind != "PyTorchJob" or "Master" not in mapping(
        manifest.spec.get("pytorchReplicaSpecs")
    ):
        return
    many = container.count(GPU) > 1 or (whole(manifest.spec.get("nprocPerNode")) or 1) > 1
    starts = any(launch.torchrun is not None for launch in container.launches)
    if not many or starts or not container.launches:
        return
    program = container.launches[0]
    if any(word.rpartition("/")[2] in ("accelerate", "deepspeed") for word in program.words):
        return
    yield found(
        "ranks",
        program.path,
        f"{program.program} is started once in a pod with {container.count(GPU)} GPUs, without "
        "torchrun: the operator's RANK is the pod's number and its WORLD_SIZE counts processes, so "
        "the group never gathers",
        fix="start it with torchrun",
    )


def _network(manifest: Manifest, pod: Pod) -> Iterator[Found]:
    if pod.spec.get("hostNetwork") is not True or not (manifest.trains or pod.asks(GPU)):
        return
    shares_port = all(_rendezvous_port(container) == PORT for container in pod.containers)
    same = f"two jobs on a node want the same rendezvous port ({PORT}), and " if shares_port else ""
    yield found(
        "host-network",
        (*pod.path, "hostNetwork"),
        "EFA does not need hostNetwork: the device plugin puts its interfaces into ordinary pods. "
        f"With it, {same}NCCL sees every interface of the node",
        fix="remove hostNetwork and dnsPolicy: ClusterFirstWithHostNet",
    )
    if pod.spec.get("dnsPolicy") != "ClusterFirstWithHostNet":
        yield found(
            "host-network",
            (*pod.path, "hostNetwork"),
            "hostNetwork without dnsPolicy: ClusterFirstWithHostNet: names of pods do not resolve",
            fix="remove hostNetwork, or add that dnsPolicy",
            severity="error",
        )
