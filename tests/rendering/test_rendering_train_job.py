"""The run's job as a TrainJob of Kubeflow Trainer v2, with a runtime of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from stationmaster.diagnosis.lint.linting import lint
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.rendering import pytorch_job, train_job
from stationmaster.rendering.examples import to_yaml
from stationmaster.rendering.job_spec import CheckJob, JobSpec
from stationmaster.rendering.rendezvous import MAX_WORKER_RESTARTS

JOB = "llama2-7b-0123abcd"
# Set by Trainer's torch plugin, whose webhook refuses them in a TrainJob.
RESERVED = {
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
}


def spec(recipe: str = "llama2-7b", instance: str = "p4d.24xlarge", **changes: Any) -> JobSpec:
    overrides = changes.pop("overrides", {})
    made = JobSpec(
        run_id=RunId(JOB),
        cluster_id=ClusterId("c-1"),
        job=JOB,
        rendezvous_id=JOB,
        recipe=get_recipe(recipe).with_overrides(overrides),
        overrides=overrides,
        instance=get_instance(instance),
        nodes=2,
        image="training:1",
    )
    return dataclasses.replace(made, **changes)


def pod_of(runtime: dict[str, Any]) -> dict[str, Any]:
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return node["template"]["spec"]["template"]


def pytorch_pod(of: JobSpec) -> dict[str, Any]:
    (job,) = pytorch_job.render(of)
    return next(iter(job["spec"]["pytorchReplicaSpecs"].values()))["template"]


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    names = [each["name"] for each in container["env"]]
    assert len(names) == len(set(names))
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"options": JobOptions(host_network=True, priority_class="high", nccl_debug="INFO")},
        {"program": ("python", "main.py"), "image": "own:1", "has_own_image": True},
    ],
)
def test_pods_are_those_of_a_pytorch_job_but_for_how_they_meet(given: dict[str, Any]) -> None:
    runtime, _ = train_job.render(spec(**given))

    ours, theirs = pod_of(runtime), pytorch_pod(spec(**given))
    (container,), (other,) = ours["spec"]["containers"], theirs["spec"]["containers"]
    assert ours["metadata"] == theirs["metadata"]
    own = {"PET_RDZV_CONF", "PYTHONUNBUFFERED", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}
    known = variables(ours)
    assert {name: value for name, value in known.items() if name not in own} == variables(theirs)
    assert not RESERVED & known.keys()
    for field in ("image", "command", "resources", "securityContext", "volumeMounts"):
        assert container[field] == other[field]
    theirs["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        0
    ]["labelSelector"]["matchLabels"] = {"jobset.sigs.k8s.io/jobset-name": JOB}
    without = {"containers", "restartPolicy"}
    assert {key: value for key, value in ours["spec"].items() if key not in without} == {
        key: value for key, value in theirs["spec"].items() if key not in without
    }


def test_runtime_and_job_are_what_trainer_wants() -> None:
    runtime, job = train_job.render(spec())

    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert (node["name"], node["replicas"]) == ("node", 1)
    labels = node["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert [each["name"] for each in pod_of(runtime)["spec"]["containers"]] == ["node"]
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}
    assert job["spec"] == {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "TrainingRuntime",
            "name": runtime["metadata"]["name"],
        },
        "trainer": {"numNodes": 2, "numProcPerNode": 8},
        "suspend": False,
    }


def test_queue_suspends_the_job_and_labels_nothing_else() -> None:
    runtime, job = train_job.render(spec(options=JobOptions(queue="team-a")))

    assert job["spec"]["suspend"] is True
    assert train_job.is_suspended(job)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert "kueue" not in str(runtime)


def test_pod_that_fails_ends_the_job() -> None:
    runtime, _ = train_job.render(spec())

    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    policy = runtime["spec"]["template"]["spec"]["failurePolicy"]
    assert policy == {"maxRestarts": 0}
    assert node["template"]["spec"]["backoffLimit"] == 0
    assert pod_of(runtime)["spec"]["restartPolicy"] == "Never"


def test_etcd_stays_the_rendezvous_and_restarts_workers_inside_of_pods() -> None:
    runtime, _ = train_job.render(spec(overrides={"rendezvous": "etcd"}))

    known = variables(pod_of(runtime))
    assert known["PET_RDZV_BACKEND"] == "etcd-v2"
    assert known["PET_RDZV_ENDPOINT"] == f"{JOB}-etcd:2379"
    assert known["PET_RDZV_ID"] == JOB
    assert known["PET_MAX_RESTARTS"] == str(MAX_WORKER_RESTARTS)
    assert [each["name"] for each in pod_of(runtime)["spec"]["initContainers"]] == ["await-etcd"]


def test_c10d_becomes_the_static_rendezvous_of_trainer() -> None:
    runtime, _ = train_job.render(spec(overrides={"rendezvous": "c10d"}))

    known = variables(pod_of(runtime))
    assert "PET_RDZV_BACKEND" not in known
    assert known["PET_RDZV_CONF"] == "timeout=900"
    assert known["MASTER_ADDR"] == f"{JOB}-node-0-0.{JOB}"
    assert (known["MASTER_PORT"], known["WORLD_SIZE"]) == ("29500", "16")
    assert "job-completion-index" in str(known["RANK"])


def test_job_of_a_check_is_started_once_and_has_an_end() -> None:
    check = CheckJob(labels={"stationmaster/check": "network"}, deadline_s=1800)
    runtime, job = train_job.render(spec(check=check))

    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert runtime["spec"]["template"]["spec"]["failurePolicy"] == {"maxRestarts": 0}
    assert node["template"]["spec"]["activeDeadlineSeconds"] == 1800
    for item in (runtime, job, pod_of(runtime)):
        assert item["metadata"]["labels"] == check.labels


@pytest.mark.parametrize("recipe", ["tiny-llama", "llama2-7b", "resnet50"])
def test_linter_finds_nothing_in_what_is_rendered(recipe: str) -> None:
    instance = get_recipe(recipe).default_instance
    objects = train_job.render(spec(recipe=recipe, instance=instance))

    linted = lint([("job.yaml", to_yaml(objects))])

    assert (linted.findings, linted.num_objects) == ([], 2)


def test_range_of_nodes_is_refused_with_what_to_type() -> None:
    refusal = train_job.refusal(least=1, most=2)

    assert train_job.refusal(least=2, most=2) == ""
    assert "nodes=1:2 cannot be had" in refusal
    assert "ask for nodes=2" in refusal


def condition(kind: str, value: str = "True", **fields: str) -> dict[str, str]:
    return {"type": kind, "status": value, "lastTransitionTime": "t", **fields}


@pytest.mark.parametrize(
    ("status", "names"),
    [
        ({}, []),
        ({"jobsStatus": [{"name": "node", "ready": 0, "active": 1}]}, []),
        ({"jobsStatus": [{"name": "node", "ready": 1, "active": 1}]}, ["Running"]),
        ({"conditions": [condition("Suspended")]}, ["Suspended"]),
        (
            {
                "conditions": [condition("Suspended", "False")],
                "jobsStatus": [{"name": "node", "ready": 1}],
            },
            ["Running"],
        ),
        (
            {"conditions": [condition("Complete")], "jobsStatus": [{"succeeded": 1, "ready": 1}]},
            ["Succeeded"],
        ),
        ({"conditions": [condition("Failed", reason="ReachedMaxRestarts")]}, ["Failed"]),
    ],
)
def test_conditions_are_said_in_the_words_of_all_kinds(
    status: dict[str, Any], names: list[str]
) -> None:
    job = {"metadata": {"name": JOB, "creationTimestamp": "made"}, "status": status}

    assert [each.name for each in train_job.conditions(job)] == names


def test_job_that_is_resumed_runs_anew_at_another_time() -> None:
    ready = {"jobsStatus": [{"name": "node", "ready": 1}]}
    resumed = {"conditions": [condition("Suspended", "False")], **ready}
    metadata = {"name": JOB, "creationTimestamp": "made"}

    (first,) = train_job.conditions({"metadata": metadata, "status": ready})
    (second,) = train_job.conditions({"metadata": metadata, "status": resumed})

    assert (first.since, second.since) == ("made", "t")


@pytest.mark.parametrize(
    ("kind", "name", "is_of_it"),
    [
        ("TrainJob", JOB, True),
        ("JobSet", JOB, True),
        ("Job", f"{JOB}-node-0", True),
        ("Pod", f"{JOB}-node-0-11-x7k2p", True),
        ("Pod", f"{JOB}-node-0-x7k2p", False),
        ("Pod", f"other-{JOB}-node-0-0-x7k2p", False),
        ("Job", f"{JOB}-save", False),
        ("PyTorchJob", JOB, False),
    ],
)
def test_events_of_the_job_and_its_parts_are_known(kind: str, name: str, is_of_it: bool) -> None:
    assert train_job.is_of_job(kind, name, job=JOB) is is_of_it


def test_pods_that_follow_each_other_have_one_place_in_the_job() -> None:
    place = f"{JOB}-node-0-0"
    pods = [{"metadata": {"name": f"{place}-{n}aaaa"}, "spec": {"hostname": place}} for n in "ab"]

    assert [train_job.replica_of(each) for each in pods] == [place, place]
