"""What the Training Operator makes of pods in states that are rare: looked at without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.local.cluster.api import admission, resources
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.controllers import replicas
from stationmaster.local.cluster.controllers.operator import PyTorchJobController
from stationmaster.local.cluster.events import EventRecorder
from tests.support.cluster_fixtures import operator_deployment, pytorchjob, pytorchjob_crd


class World:
    """A store with an operator that looks when it is told to."""

    def __init__(self) -> None:
        self.objects = Objects()
        for name in ("default", "kubeflow"):
            self.objects.create(resources.NAMESPACES, {"metadata": {"name": name}})
        self.objects.create(resources.CRDS, pytorchjob_crd())
        self.objects.create(resources.DEPLOYMENTS, operator_deployment(), namespace="kubeflow")
        self.set_status(resources.DEPLOYMENTS, "kubeflow", "training-operator", availableReplicas=1)
        recorder = EventRecorder(self.objects, "pytorchjob-controller")
        self._controller = PyTorchJobController(self.objects, recorder)
        found = self.objects.catalog.by_key("pytorchjobs.kubeflow.org")
        assert found is not None
        self.jobs = found

    def submit(self, job: Object) -> None:
        self.objects.create(self.jobs, job, namespace="default")
        self.look(job["metadata"]["name"])

    def reconcile(self, name: str) -> None:
        self._controller.reconcile(("default", name))

    def look(self, name: str) -> dict[str, Any]:
        self.reconcile(name)
        found: dict[str, Any] = self.objects.get(self.jobs, "default", name)["status"]
        return found

    def set_status(
        self, resource: resources.Resource, namespace: str, name: str, **status: Any
    ) -> None:
        def change(stored: Object) -> None:
            stored["status"] = {**(stored.get("status") or {}), **status}

        self.objects.modify(resource, namespace, name, change)

    def set_pod(self, name: str, **status: Any) -> None:
        self.set_status(resources.PODS, "default", name, **status)

    def hold(self, pod: str) -> None:
        """Let a pod that is deleted stay."""

        def change(stored: Object) -> None:
            stored["metadata"]["finalizers"] = ["example.com/hold"]

        self.objects.modify(resources.PODS, "default", pod, change)

    def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.objects.list(resources.PODS, "default")]


@pytest.fixture
def world() -> World:
    return World()


def test_operator_that_is_not_available_does_nothing(world: World) -> None:
    place = ("kubeflow", "training-operator")
    world.set_status(resources.DEPLOYMENTS, *place, availableReplicas=0)
    world.objects.create(world.jobs, pytorchjob("early"), namespace="default")

    world.reconcile("early")

    assert world.pods() == []


def variables(job: Object, role: str, index: int) -> list[tuple[str, str]]:
    listed = replicas.replica_environment(job, role, index)
    return [(each["name"], each["value"]) for each in listed]


def test_job_with_master_gets_the_operators_environment_in_order() -> None:
    job = pytorchjob("envs", workers=2, nprocPerNode="4")

    assert variables(job, "Worker", 1) == [
        ("PYTHONUNBUFFERED", "1"),
        ("MASTER_PORT", "23456"),
        ("PET_MASTER_PORT", "23456"),
        ("MASTER_ADDR", "envs-master-0"),
        ("PET_MASTER_ADDR", "envs-master-0"),
        ("WORLD_SIZE", "12"),
        ("RANK", "2"),
        ("PET_NODE_RANK", "2"),
        ("PET_NPROC_PER_NODE", "4"),
        ("PET_NNODES", "3"),
    ]
    assert ("RANK", "0") in variables(job, "Master", 0)


@pytest.mark.parametrize(
    ("policy", "nodes"),
    [
        ({"minReplicas": 2}, "2:2"),
        ({"maxReplicas": 5}, "5:5"),
        ({"minReplicas": 2, "maxReplicas": 5}, "2:5"),
        ({"rdzvHost": "", "rdzvPort": 0}, "3:3"),
    ],
)
def test_elastic_job_gets_rendezvous_and_no_ranks(policy: dict[str, Any], nodes: str) -> None:
    conf = [{"key": "timeout", "value": "900"}]
    elastic = policy | {"maxRestarts": 5, "rdzvConf": conf}
    job = pytorchjob("elastic", master=False, workers=3, elasticPolicy=elastic)

    assert variables(job, "Worker", 0) == [
        ("PYTHONUNBUFFERED", "1"),
        ("PET_NPROC_PER_NODE", "auto"),
        ("PET_RDZV_ENDPOINT", "elastic-worker-0:23456"),
        ("PET_RDZV_BACKEND", "c10d"),
        ("PET_NNODES", nodes),
        ("PET_MAX_RESTARTS", "5"),
        ("PET_RDZV_CONF", "timeout=900"),
    ]


@pytest.mark.parametrize(
    ("workers", "changes", "reason"),
    [
        (0, {"elasticPolicy": {"minReplicas": 1}}, "must be configured if elastic policy is used"),
        (
            1,
            {"nprocPerNode": "2", "elasticPolicy": {"nProcPerNode": 2}},
            "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode",
        ),
    ],
)
def test_webhook_denies_elastic_policies_that_cannot_be(
    workers: int, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ApiError, match="denied the request: ") as denied:
        admission.check_job(pytorchjob("denied", workers=workers, **changes))

    assert reason in denied.value.message


def test_job_fails_once_its_pods_have_restarted_too_often(world: World) -> None:
    world.submit(pytorchjob("often", workers=1, runPolicy={"backoffLimit": 3}))

    for role, restarts in (("master", 1), ("worker", 2)):
        statuses = [{"name": "pytorch", "restartCount": restarts, "state": {}}]
        world.set_pod(f"often-{role}-0", phase="Running", containerStatuses=statuses)
    *_, last = world.look("often")["conditions"]

    assert last["type"] == "Failed"
    assert last["message"].endswith("reached the specified backoff limit")


def test_failed_pod_that_is_still_going_lets_the_job_restart_at_every_look(world: World) -> None:
    world.submit(pytorchjob("slow", workers=0))
    name = "slow-master-0"

    world.hold(name)
    world.set_pod(name, phase="Failed")
    for _ in range(3):
        world.look("slow")

    events = world.objects.list(resources.EVENTS, "default")
    counts = {
        (event["reason"], event["message"].partition(" ")[0]): event["count"] for event in events
    }
    assert counts["PyTorchJobRestarting", "job"] == 3
    assert counts["SuccessfulDeletePod", "Deleted"] == 1
