"""TrainJobs as Kubeflow Trainer and JobSet run them: pods, ends, refusals."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.local.cluster.trainer import trainer_objects
from stationmaster.rendering import train_job
from stationmaster.rendering.job_spec import JobSpec
from tests.support.cluster_fixtures import Cluster, eventually, start_cluster

SPACE = "stationmaster-c-1"


class World:
    """A cluster with Trainer and two nodes, in which the product is a guest."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.gateway = KubernetesGateway(cluster.api, namespace=SPACE, kind=JobKind.TRAIN_JOB)

    def install(self) -> None:
        room = {"cpu": "8", "memory": "32Gi"}
        self.cluster.add_nodes(count=2, instance_type="m5.2xlarge", capacity=room)
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
        self.gateway.apply([*trainer_objects(), space])
        for name in ("kubeflow-trainer-controller-manager", "jobset-controller-manager"):
            eventually(
                lambda name=name: self.gateway.deployment_ready(name, namespace="kubeflow-system"),
                f"{name} runs",
            )

    def submit(self, name: str, script: str, *, nodes: int = 2) -> None:
        self.gateway.apply(objects(name, script, nodes=nodes))

    def ended(self, name: str) -> str:
        def look() -> str:
            conditions = self.gateway.job(name).conditions
            return next((each.name for each in conditions if each.ends), "")

        return str(eventually(look, f"the end of {name}"))

    def pods(self, name: str) -> list[Any]:
        label = f"jobset.sigs.k8s.io/jobset-name={name}"
        return list(self.cluster.core.list_namespaced_pod(SPACE, label_selector=label).items)


def objects(name: str, script: str, *, nodes: int) -> list[dict[str, Any]]:
    """A rendered job, whose pods run a script and mount nothing of a file system."""
    runtime, job = train_job.render(
        JobSpec(
            run_id=RunId(name),
            cluster_id=ClusterId("c-1"),
            job=name,
            rendezvous_id=name,
            recipe=get_recipe("tiny-llama"),
            overrides={},
            instance=get_instance("m5.2xlarge"),
            nodes=nodes,
            image="trial:1",
            program=("sh", "-c", script),
            options=JobOptions(),
        )
    )
    pod = pod_of(runtime)
    pod["volumes"] = [each for each in pod["volumes"] if each["name"] != "shared"]
    del pod["initContainers"]  # it makes a directory there
    (container,) = pod["containers"]
    container["resources"] = {"requests": {"cpu": "1"}}
    mounts = container["volumeMounts"]
    container["volumeMounts"] = [each for each in mounts if each["name"] != "shared"]
    pod["terminationGracePeriodSeconds"] = 1
    return [runtime, job]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    started = World(start_cluster(tmp_path_factory.mktemp("cluster")))
    started.install()
    yield started
    started.cluster.close()


def test_job_succeeds_with_its_pods(world: World) -> None:
    world.submit("succeeds", "exit 0")

    assert world.ended("succeeds") == "Succeeded"


def test_job_fails_with_its_first_pod(world: World) -> None:
    world.submit("fails", "exit 3", nodes=1)

    assert world.ended("fails") == "Failed"
    failed = world.gateway.job("fails").condition("Failed")
    assert failed.reason == "ReachedMaxRestarts"
    assert "(first failed job: fails-node-0)" in failed.message
    (pod,) = world.pods("fails")
    assert pod.status.phase == "Failed", "its log stays readable"


def test_pod_that_is_deleted_under_way_ends_the_job(world: World) -> None:
    world.submit("loses", "exec sleep 600")

    def running() -> list[Any]:
        pods = [pod for pod in world.pods("loses") if pod.status.phase == "Running"]
        return pods if len(pods) == 2 else []

    pods = eventually(running, "the pods run")
    eventually(lambda: world.gateway.job("loses").condition("Running"), "it says that it runs")

    world.gateway.delete("v1", "Pod", name=pods[1].metadata.name)

    assert world.ended("loses") == "Failed"
    world.gateway.delete_job("loses")
    eventually(lambda: not world.pods("loses"), "its pods go")
    runtime = ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime")
    assert not world.gateway.exists(*runtime, name="loses", namespace=SPACE)


def test_what_trainer_refuses_is_refused(world: World) -> None:
    runtime, job = objects("refused", "true", nodes=1)
    taken, typo, unnamed = copy.deepcopy(job), copy.deepcopy(runtime), copy.deepcopy(runtime)
    taken["spec"]["trainer"]["env"] = [{"name": "PET_NNODES", "value": "1"}]
    pod_of(typo)["tolerationz"] = []
    pod_of(unnamed)["containers"][0]["name"] = "pytorch"

    for applied, says in (
        ([job], "must be created before the TrainJob"),
        ([unnamed, job], "must contain the required container for the ancestor: trainer"),
        ([typo, job], ".spec.template.spec.tolerationz: field not declared in schema"),
        ([runtime, taken], "must not have reserved envs, invalid envs configured: [PET_NNODES]"),
    ):
        with pytest.raises(PermanentError, match=r"refused") as caught:
            world.gateway.apply(applied)
        assert says in str(caught.value)
    assert world.gateway.job("refused") is None
    world.gateway.delete_job("refused")


def pod_of(runtime: dict[str, Any]) -> dict[str, Any]:
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return node["template"]["spec"]["template"]["spec"]
