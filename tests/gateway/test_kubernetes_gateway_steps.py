"""The steps that act in the cluster, with the real gateway, store and objects.

Only EKS and FSx are played, by kubernetes_gateway_world: their adapters have their own tests.
"""

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from kubernetes import client

from stationmaster.domain.cluster.events import CheckFinished, LeaseReleased
from stationmaster.domain.errors import (
    CheckFailed,
    ClusterDrained,
    JobNotStarted,
    PermanentError,
    ResourceFailed,
    RunStopped,
    StepTimedOut,
    TrainingFailed,
)
from stationmaster.domain.images import RELAY_IMAGE, TRAINING_IMAGE
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.domain.run.events import (
    RunPhase,
    StopRequested,
    TrainingStarted,
    run_event_id,
)
from stationmaster.jobs.live_run import LiveRun
from stationmaster.kubernetes.kinds import MPI_JOB
from stationmaster.local.cluster import LocalCluster
from stationmaster.steps.ensure_job_started import ensure_job_started
from stationmaster.steps.install_plugin import install_plugin
from stationmaster.steps.parts.admission import in_class
from stationmaster.steps.release_job import release_job
from stationmaster.steps.run_check import run_check
from stationmaster.steps.submit_job import submit_job
from tests.support.aws_fixtures import until as eventually
from tests.support.factories import make_event
from tests.support.kubernetes_gateway_fixtures import (
    CLUSTER_ID,
    NAMESPACE,
    REQUEST,
    RUN_ID,
    add_nodes,
    clients,
    patch_job,
    set_job_condition,
)
from tests.support.kubernetes_gateway_world import World
from tests.support.kueue_objects import kueue_crds, of_kueue
from tests.support.rendered import check_job

GPU_REQUEST = REQUEST.model_copy(
    update={"recipe": "llama2-7b", "instance_type": "p4d.24xlarge", "command": "/train llama2-7b"}
)
DEVICE = "nvidia.com/gpu"
DEVICES = {DEVICE: "8", "vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "10256Mi"}


def until_ready(step: Any, world: World, **arguments: str) -> None:
    eventually(lambda: step(world, RUN_ID, **arguments)["ready"])


def furnish(cluster: LocalCluster, world: World, *, training: int = 2) -> None:
    """Nodes, the operator, and the account that the relays of all runs have."""
    add_nodes(cluster, group="system")
    if training:
        add_nodes(cluster, group="training", count=training)
        cluster.install_addon("aws-fsx-csi-driver")
    for plugin in ("training-operator", "relay"):
        until_ready(install_plugin, world, plugin=plugin)


@pytest.mark.parametrize("cluster", [(TRAINING_IMAGE, RELAY_IMAGE)], indirect=True)
@pytest.mark.parametrize(
    ("copies", "image"),
    [("", "registry.k8s.io/etcd:3.5.21-0"), ("ecr/copies", "ecr/copies:etcd-3.5.21-0")],
)
def test_submit_job_that_starts_an_image_of_others_is_refused_where_none_can_run(
    cluster: LocalCluster, world: World, copies: str, image: str
):
    world.settings = world.settings.model_copy(update={"image_copies": copies})
    etcd = REQUEST.model_copy(update={"overrides": {"rendezvous": "etcd"}})
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING, request=etcd)

    with pytest.raises(PermanentError) as refused:
        submit_job(world, RUN_ID)

    assert str(refused.value) == (
        f"applying Deployment {RUN_ID}-etcd: the cluster answers 403: "
        f'deployments.apps "{RUN_ID}-etcd" is forbidden: this cluster cannot run the image '
        f'"{image}": its pods are processes of one machine, which has the '
        "programs of the product's own images only"
    )


def test_install_plugin_makes_it_ready_and_records_it_once(cluster: LocalCluster, world: World):
    world.begin(RunPhase.PROVISIONING)
    add_nodes(cluster, group="system")

    for _ in range(2):
        until_ready(install_plugin, world, plugin="training-operator")
    until_ready(install_plugin, world, plugin="fsx-csi-driver")

    assert [event.plugin for event in world.events("plugin.ready")] == [
        "training-operator",
        "fsx-csi-driver",
    ]
    assert world.addons.asked == ["eks-pod-identity-agent", "aws-fsx-csi-driver"]


def test_install_plugin_takes_the_deployments_copies_of_images(cluster: LocalCluster, world: World):
    world.begin(RunPhase.PROVISIONING)
    world.settings = world.settings.model_copy(update={"image_copies": "ecr/copies"})

    install_plugin(world, RUN_ID, plugin="training-operator")

    (operator,) = world.gateway.deployments(of="training-operator")
    assert operator.image == "ecr/copies:training-operator-v1-93c5489"


def test_install_plugin_that_never_becomes_ready_times_out_with_what_its_pods_wait_for(
    cluster: LocalCluster, world: World
):
    world.begin(RunPhase.PROVISIONING)
    add_nodes(cluster, group="system")
    cluster.faults.add("plugin-never-ready")
    assert install_plugin(world, RUN_ID, plugin="training-operator") == {"ready": False}
    eventually(
        lambda: world.gateway.pods_of("Deployment", "training-operator", namespace="kubeflow")
    )

    world.late_s = world.settings.plugin_timeout_s + 1

    with pytest.raises(
        StepTimedOut, match=r"plugin training-operator is not ready after 9.. s"
    ) as e:
        install_plugin(world, RUN_ID, plugin="training-operator")
    assert "pod training-operator-" in str(e.value)
    assert world.events("plugin.ready") == []


def test_install_plugin_of_an_addon_that_eks_cannot_create_fails(world: World):
    world.begin(RunPhase.PROVISIONING)
    world.addons.status = "CREATE_FAILED"

    with pytest.raises(ResourceFailed, match="could not install add-on aws-fsx-csi-driver"):
        install_plugin(world, RUN_ID, plugin="fsx-csi-driver")


def test_network_check_measures_between_real_pods_and_leaves_no_job(
    cluster: LocalCluster, world: World
):
    world.begin(RunPhase.PROVISIONING)
    furnish(cluster, world)

    until_ready(run_check, world, check="network")

    [finished] = world.events("check.finished")
    assert finished.passed
    assert finished.detail.endswith("among 2 ranks on 2 nodes, all values right")
    assert (finished.figures["ranks"], finished.figures["all_reduce_mib"]) == (2, 32)
    assert min(finished.figures.values()) > 0
    of_check = {"stationmaster/check": "network"}
    assert world.gateway.job_names(labels=of_check) == []
    eventually(lambda: not world.gateway.pods(labels=of_check))
    done = {"cluster_id": CLUSTER_ID, "check": "training", "passed": True, "detail": "6 steps"}
    trained = CheckFinished(event_id="trained", at=world.now(), **done)
    world.cluster_states.record(CLUSTER_ID, [trained])
    # As after a step that was killed before it had deleted the job.
    for check in ("network", "training"):
        spec = world.cluster_states.load(CLUSTER_ID).spec
        [left] = check_job(CLUSTER_ID, spec, check, name=f"left-{check}")
        left["spec"]["runPolicy"]["suspend"] = True
        world.gateway.apply([left])
        until_ready(run_check, world, check=check)
        assert world.gateway.job_names(labels={"stationmaster/check": check}) == []


@pytest.mark.parametrize("cluster", [None, (TRAINING_IMAGE, RELAY_IMAGE)], indirect=True)
def test_nccl_tests_are_started_and_released_or_refused_where_their_image_cannot_run(
    cluster: LocalCluster, world: World, request: pytest.FixtureRequest
):
    world.begin(RunPhase.PROVISIONING, request=GPU_REQUEST)
    add_nodes(cluster, group="system")
    add_nodes(cluster, group="training", cpu="96", memory="1152Gi", **DEVICES)
    until_ready(install_plugin, world, plugin="mpi-operator")
    for name in ("gpu-health", "network", "storage"):
        done = {"cluster_id": CLUSTER_ID, "check": name, "passed": True, "detail": "good"}
        passed = CheckFinished(event_id=name, at=world.now(), **done)
        world.cluster_states.record(CLUSTER_ID, [passed])

    if request.node.callspec.params["cluster"]:
        with pytest.raises(PermanentError, match=r"cannot run the image .*nccl-tests:cuda"):
            run_check(world, RUN_ID, check="nccl")
        return
    assert run_check(world, RUN_ID, check="nccl") == {"ready": False}

    of_check = {"stationmaster/check": "nccl"}
    (job,) = world.gateway.batch_jobs(labels=of_check, of=MPI_JOB)
    assert (job.succeeded, job.failed) == (False, False)
    until_ready(release_job, world)
    assert world.gateway.batch_jobs(labels=of_check, of=MPI_JOB) == []


def test_check_of_a_file_system_that_cannot_be_written_fails_at_once_with_the_pods_line(
    cluster: LocalCluster, world: World, tmp_path: Path
):
    world.begin(RunPhase.PROVISIONING)
    add_nodes(cluster, group="training")
    cluster.install_addon("aws-fsx-csi-driver")
    (tmp_path / "fsx/.stationmaster").write_text("in the way")

    with pytest.raises(CheckFailed, match=r"check storage failed: pod .* exited with 1: storage"):
        until_ready(run_check, world, check="storage")

    (event,) = world.events("check.finished")
    assert not event.passed
    assert "Not a directory" in event.detail
    with pytest.raises(CheckFailed, match="Not a directory"):
        run_check(world, RUN_ID, check="storage")


def test_checks_of_devices_wait_for_their_plugins_and_then_pass(
    cluster: LocalCluster, world: World
):
    world.begin(RunPhase.PROVISIONING, request=GPU_REQUEST)
    add_nodes(cluster, group="training", cpu="96", memory="1152Gi", **DEVICES)
    assert run_check(world, RUN_ID, check="gpus") == {"ready": False}

    for plugin in ("nvidia-device-plugin", "efa-device-plugin"):
        until_ready(install_plugin, world, plugin=plugin)
    for check in ("gpus", "efa"):
        until_ready(run_check, world, check=check)

    assert [event.detail for event in world.events("check.finished")] == [
        "8 nvidia.com/gpu on each of 2 nodes",
        "4 vpc.amazonaws.com/efa on each of 2 nodes",
    ]
    # A broken GPU explains a network that fails, so it is looked for first.
    assert run_check(world, RUN_ID, check="network") == {"ready": False}
    world.late_s = world.settings.check_timeout_s + 1  # it waits within the time of the others
    assert run_check(world, RUN_ID, check="network") == {"ready": False}
    assert world.gateway.job_names(labels={"stationmaster/check": "network"}) == []
    world.late_s = world.settings.check_timeout_s + 1
    done = {"cluster_id": CLUSTER_ID, "check": "gpu-health", "passed": True, "detail": "healthy"}
    healthy = CheckFinished(event_id="healthy", at=world.now(), **done)
    world.cluster_states.record(CLUSTER_ID, [healthy])
    add_nodes(cluster, group="training", count=1)  # one is lost: it waits, and its time began now
    assert run_check(world, RUN_ID, check="network") == {"ready": False}


def test_check_of_access_is_given_up_sooner_than_others(world: World):
    world.begin(RunPhase.PROVISIONING)
    assert run_check(world, RUN_ID, check="access") == {"ready": False}
    account = {"namespace": NAMESPACE, "name": "stationmaster-saver"}
    world.gateway.delete("v1", "ServiceAccount", **account)

    world.late_s = 200

    with pytest.raises(CheckFailed, match=r"stationmaster-saver is not there \(after 20\d s\)"):
        run_check(world, RUN_ID, check="access")
    assert run_check(world, RUN_ID, check="nodes") == {"ready": False}


def test_job_is_submitted_started_and_released_to_the_last_object(
    cluster: LocalCluster, world: World
):
    wish = REQUEST.model_copy(update={"nodes": 3})  # the attempt was placed on two
    job = f"{RUN_ID}-again"
    assignment = first_assignment(RUN_ID, REQUEST).model_copy(update={"job": job})
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING, request=wish, assignment=assignment)
    furnish(cluster, world)

    for _ in range(2):
        submit_job(world, RUN_ID)
    until_ready(ensure_job_started, world)
    started = world.runs.load(RUN_ID)
    with clients(cluster) as api:
        relay = client.AppsV1Api(api).read_namespaced_deployment(f"{RUN_ID}-relay", NAMESPACE)
    (container,) = relay.spec.template.spec.containers
    watched = {each.name: each.value for each in container.env}["STATIONMASTER_JOB"]
    until_ready(release_job, world)

    assert (started.phase, watched) == (RunPhase.RUNNING, job)
    (submitted,) = world.events("job.submitted")
    event_id = run_event_id(RUN_ID, "job.submitted", assignment.attempt_id)
    assert (submitted.job, submitted.event_id) == (job, event_id), "one of each attempt"
    assert world.gateway.job(job) is None
    assert world.gateway.pods(labels={"stationmaster/run-id": RUN_ID}) == []
    assert not world.gateway.exists("v1", "PersistentVolume", name=f"{RUN_ID}-fsx")
    assert release_job(world, RUN_ID) == {"ready": True}


def test_job_whose_relay_does_not_start_fails_with_what_the_relay_waits_for(
    cluster: LocalCluster, world: World
):
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING)
    furnish(cluster, world)
    cluster.faults.add("plugin-never-ready")
    submit_job(world, RUN_ID)
    labels = {"stationmaster/run-id": RUN_ID, "stationmaster/role": "training"}
    eventually(lambda: [p.phase for p in world.gateway.pods(labels=labels)] == ["Running"] * 2)
    assert ensure_job_started(world, RUN_ID) == {"ready": False}

    world.late_s = world.settings.job_start_timeout_s + 1

    with pytest.raises(JobNotStarted, match=f"the relay that is .* pod {RUN_ID}-relay-"):
        ensure_job_started(world, RUN_ID)
    assert world.runs.load(RUN_ID).phase is RunPhase.SUBMITTING


@pytest.mark.parametrize(
    ("fields", "handed_over"),
    [({"token": "hf_not_one"}, True), ({"token": ""}, False), ({"WANDB_API_KEY": "k"}, True)],
)
def test_submit_job_hands_the_tokens_of_hub_and_trackers_to_the_pods_where_there_are_any(
    cluster: LocalCluster, world: World, fields: dict[str, str], handed_over: bool
):
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING)
    furnish(cluster, world, training=0)
    boto3.client("secretsmanager", region_name="us-west-2").create_secret(
        Name="huggingface", SecretString=json.dumps({"token": ""} | fields)
    )
    world.settings = world.settings.model_copy(update={"hugging_face_secret_id": "huggingface"})

    submit_job(world, RUN_ID)

    assert world.gateway.exists("v1", "Secret", name="huggingface", namespace=NAMESPACE) == (
        handed_over
    )


def test_job_of_a_range_has_started_once_it_trains_without_the_pods_that_wait(
    cluster: LocalCluster, world: World
):
    ranged = REQUEST.model_copy(update={"min_nodes": 1})
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING, request=ranged)
    furnish(cluster, world, training=1)
    submit_job(world, RUN_ID)
    labels = {"stationmaster/run-id": RUN_ID, "stationmaster/role": "training"}
    eventually(lambda: [p for p in world.gateway.pods(labels=labels) if p.phase == "Running"])
    eventually(lambda: world.gateway.deployment_ready(f"{RUN_ID}-relay"))
    assert ensure_job_started(world, RUN_ID) == {"ready": False}

    trains = make_event(TrainingStarted, run_id=RUN_ID, total_steps=9, world_size=1)
    world.runs.record(RUN_ID, [trains])

    assert ensure_job_started(world, RUN_ID) == {"ready": True}
    assert world.runs.load(RUN_ID).phase is RunPhase.RUNNING


def test_job_that_was_deleted_behind_our_back_is_reported(cluster: LocalCluster, world: World):
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING)
    furnish(cluster, world, training=0)
    submit_job(world, RUN_ID)
    world.gateway.delete("kubeflow.org/v1", "PyTorchJob", name=RUN_ID, namespace=NAMESPACE)

    with pytest.raises(JobNotStarted, match="is not in the cluster any more"):
        eventually(lambda: ensure_job_started(world, RUN_ID) and False)


def test_job_that_failed_before_it_was_seen_running_is_a_training_failure(
    cluster: LocalCluster, world: World
):
    request = REQUEST.model_copy(update={"overrides": {"dataset": "/nowhere"}})
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING, request=request)
    furnish(cluster, world, training=0)
    submit_job(world, RUN_ID)
    set_job_condition(cluster, "Failed", "it broke")

    with pytest.raises(TrainingFailed, match="it broke"):
        ensure_job_started(world, RUN_ID)


def test_release_of_a_run_whose_api_does_not_answer_is_ready(cluster: LocalCluster, world: World):
    world.begin(RunPhase.PROVISIONING)
    world.gateway.close()
    cluster.stop(grace_s=0.1)

    assert release_job(world, RUN_ID) == {"ready": True}


@pytest.mark.parametrize(
    "step",
    [submit_job, ensure_job_started],
)
def test_steps_of_a_stopped_run_end_the_workflow(world: World, step: Any):
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING)
    stop = StopRequested(event_id="stop", run_id=RUN_ID, at=world.now(), user_id="U1")
    world.runs.record(RUN_ID, [stop])

    with pytest.raises(RunStopped, match="stopped by U1"):
        step(world, RUN_ID)


@pytest.mark.parametrize(
    ("step", "arguments"), [(install_plugin, {"plugin": "relay"}), (run_check, {"check": "nodes"})]
)
def test_steps_of_a_cluster_that_nobody_leases_end_its_workflow(
    world: World, step: Any, arguments: dict[str, str]
):
    world.begin(RunPhase.PROVISIONING)
    released = LeaseReleased(
        event_id="released", cluster_id=CLUSTER_ID, at=world.now(), run_id=RUN_ID
    )
    world.cluster_states.record(CLUSTER_ID, [released])

    with pytest.raises(ClusterDrained, match="is draining"):
        step(world, CLUSTER_ID, **arguments)


def test_job_for_a_queue_waits_for_kueue_and_starts_when_it_is_admitted(
    cluster: LocalCluster, world: World
):
    options = JobOptions(queue="night", priority_class="high")
    request = REQUEST.model_copy(update={"job_options": options})
    world.begin(RunPhase.PROVISIONING, RunPhase.VALIDATING, request=request)
    furnish(cluster, world)
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 9}

    refused = [refusal(submit_job, world)]
    world.gateway.apply(kueue_crds())
    eventually(lambda: world.gateway.crd_established("workloads.kueue.x-k8s.io"))
    refused.append(refusal(submit_job, world))
    world.gateway.apply([{**high, "metadata": {"name": "high"}}])
    refused.append(refusal(submit_job, world))
    of_team = {"matchLabels": {"kubernetes.io/metadata.name": "hyperpod-ns-team"}}
    ours = {"matchLabels": {"app.kubernetes.io/managed-by": "stationmaster"}}
    world.gateway.apply([of_kueue("ClusterQueue", "night", spec={"namespaceSelector": of_team})])
    refused.append(refusal(submit_job, world))
    world.gateway.apply([of_kueue("ClusterQueue", "night", spec={"namespaceSelector": ours})])
    spec = LiveRun(world, world.runs.load(RUN_ID)).spec()
    assert in_class(world.gateway, spec) == spec
    world.gateway.apply([of_kueue("WorkloadPriorityClass", "high", value=9)])
    for _ in range(2):
        submit_job(world, RUN_ID)
    job = world.gateway.job(RUN_ID)
    made = world.gateway.find("kubeflow.org/v1", "PyTorchJob", name=RUN_ID)
    unknown = ensure_job_started(world, RUN_ID)
    world.late_s = world.settings.job_start_timeout_s + 1
    with pytest.raises(StepTimedOut, match=r"no Workload .* enable the integration"):
        ensure_job_started(world, RUN_ID)
    world.late_s = 0
    no_quota = {"type": "QuotaReserved", "status": "False", "message": "2 more CPUs needed"}
    labels = {"kueue.x-k8s.io/job-uid": job.uid}
    status = {"conditions": [no_quota]}
    world.gateway.apply([of_kueue("Workload", "w", labels=labels, status=status)])
    until_ready(ensure_job_started, world)
    queued = world.runs.load(RUN_ID)

    patch_job(cluster, {"spec": {"runPolicy": {"suspend": False}}})  # as Kueue does
    submit_job(world, RUN_ID)  # repeated, it must not suspend the job again
    until_ready(ensure_job_started, world)

    assert [sentence.partition(";")[0] for sentence in refused] == [
        "queue=night: the cluster has no Kueue that serves v1beta2 or v1beta1 of kueue.x-k8s.io",
        "priority_class=high: the cluster has no PriorityClass or WorkloadPriorityClass of that "
        "name",
        "queue=night: namespace stationmaster has no LocalQueue and the cluster no ClusterQueue "
        "of that name",
        "queue=night: its namespaceSelector does not take namespace stationmaster, in which the "
        "run is",
    ]
    assert made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    assert "priorityClassName" not in json.dumps(made)
    assert (job.suspended, unknown) == (True, {"ready": False})
    assert world.gateway.exists("kueue.x-k8s.io/v1beta2", "LocalQueue", name="night")
    assert (queued.phase, queued.reason) == (
        RunPhase.QUEUED,
        "Kueue has not admitted the job to queue night yet: 2 more CPUs needed",
    )
    assert world.runs.load(RUN_ID).phase is RunPhase.RUNNING


def refusal(step: Any, world: World) -> str:
    with pytest.raises(JobNotStarted) as refused:
        step(world, RUN_ID)
    return str(refused.value)
