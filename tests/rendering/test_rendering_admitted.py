"""Every object that the product applies is one that an API server takes, strictly looked at.

The objects go through the local server's own decoding, typed patches, defaults and validation;
of PyTorchJobs and workloads so do the pods that are made of them. Each recipe on each instance type
that a plan finds room on also passes the linter without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from stationmaster.checks import gpu_health
from stationmaster.checks.storage import render_jobs, render_speed_jobs
from stationmaster.diagnosis.lint import lint
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.cluster.spec import spec_for_any
from stationmaster.domain.commands.grammar import parse_request
from stationmaster.domain.errors import UserError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import NAMESPACE
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.jobs import export, look_over, prepare, push, restore, stage
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.controllers import replicas
from stationmaster.local.cluster.controllers.owners import pod_from
from stationmaster.plugins.relay import render_people_rights
from stationmaster.rendering import pytorch_job
from stationmaster.rendering.examples import example, saving_example, to_yaml
from stationmaster.rendering.job_spec import job_spec
from stationmaster.rendering.placing import placed
from stationmaster.rendering.pytorch_job import render_pytorch_job
from stationmaster.rendering.relay import render_relay_rights
from stationmaster.rendering.rendezvous import render_etcd
from stationmaster.rendering.run_objects import render_all
from stationmaster.rendering.shared_volume import SharedStorage, render_storage
from tests.support.admitting import admit_pod, api_server, store
from tests.support.factories import make_request
from tests.support.live_runs import live_run
from tests.support.rendered import check_job, relay_objects

RUN_ID = RunId("resnet50-0123abcd")
# As long as a name in the channel may be.
LONG = ClusterId("c" * 32)
STORAGE = SharedStorage("fs-0123456789abcdef0", "fs-0.fsx.amazonaws.com", "abcdefgh", 1200)
HOSTNAME = "ip-10-0-1-2.us-west-2.compute.internal"
GPU_CLUSTER = spec_for_any(INSTANCES["p5.48xlarge"], nodes=2, file_system_gib=1200)
PLUGINS = ("training-operator", "nvidia-device-plugin", "efa-device-plugin")


def of_run(recipe: str, **overrides: Any) -> list[dict[str, Any]]:
    request = make_request(recipe=recipe, overrides=overrides)
    spec = job_spec(request, first_assignment(RUN_ID, request), run_id=RUN_ID, image="training:1")
    return [render_pytorch_job(spec), *relay_objects(RUN_ID), *render_etcd(RUN_ID, job=RUN_ID)]


def of_data() -> list[dict[str, Any]]:
    other = RunId("other-0123abcd")
    brought = live_run(RUN_ID, cluster_id=LONG, overrides={"dataset": "s3://bucket/x"})
    looked_at = live_run(RUN_ID, cluster_id=LONG, overrides={"dataset": "/fsx/x"})
    trained = live_run(
        RUN_ID,
        cluster_id=LONG,
        recipe="megatron-llama3-8b",
        overrides={"dataset": "packed:c4"},
        push_to="org/name",
        weights_from=other,
    )
    return [
        *stage.render(brought),
        *look_over.render(looked_at),
        *restore.render(trained),
        *prepare.render(trained),
        *export.render(trained),
        *push.render(trained),
        *render_jobs(LONG, hostnames=[HOSTNAME], image="t:1"),
        *render_speed_jobs(LONG, hostnames=[HOSTNAME], image="t:1", storage_gib=1200),
        *gpu_health.render_jobs(LONG, hostnames=[HOSTNAME], image="t:1", spec=GPU_CLUSTER),
        *check_job(LONG, GPU_CLUSTER, "network", name=f"{LONG}-nw-0a1b2c", nodes=64),
        *check_job(LONG, GPU_CLUSTER, "training", name=f"{LONG}-tr-0a1b2c", nodes=64),
        *yaml.safe_load_all(saving_example()),
    ]


SETS: dict[str, list[dict[str, Any]]] = {
    "shared": [
        *render_relay_rights(pytorch_job),
        *render_people_rights(),
        *render_storage(LONG, STORAGE),
    ],
    "data": of_data(),
    **{name: list(load_manifests(name)) for name in PLUGINS},
    **{name: list(yaml.safe_load_all(example(CATALOGUE[name]))) for name in CATALOGUE},
    "etcd": of_run("tiny-llama", rendezvous="etcd"),
}


@pytest.fixture(scope="module")
def objects() -> Objects:
    return api_server(
        item
        for item in load_manifests("training-operator")
        if item["kind"] in ("CustomResourceDefinition", "ValidatingWebhookConfiguration")
    )


def pods_of(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A pod of each kind that is made of the object."""
    if item["kind"] == "PyTorchJob":
        for role in replicas.replica_specs(item):
            yield replicas.pod(item, role, 0)
    elif item["kind"] in ("Deployment", "DaemonSet", "Job"):
        pod = pod_from(item["spec"]["template"], item, labels={})
        yield {**pod, "metadata": {**pod["metadata"], "generateName": "made-"}}


@pytest.mark.parametrize("name", SETS)
def test_everything_that_is_applied_is_admitted_and_so_are_its_pods(
    objects: Objects, name: str
) -> None:
    rights = [item for item in SETS["shared"] if item["kind"] == "ServiceAccount"]
    for item in (*rights, *SETS[name]):
        stored = store(objects, placed(item, NAMESPACE))
        for pod in pods_of(stored):
            admit_pod(objects, pod, namespace=stored["metadata"]["namespace"])


def plans_that_fit(recipe: str) -> Iterator[Plan]:
    """On every instance type, with the first that fits of one node, two and the recipe's own."""
    for instance in INSTANCES:
        for nodes in sorted({1, 2, CATALOGUE[recipe].default_nodes}):
            try:
                plan = parse_request([recipe, f"instance={instance}", f"nodes={nodes}"]).plan
            except UserError:
                continue  # an instance that cannot run the recipe, whatever its size
            if plan.fits:
                yield plan
                break


@pytest.mark.parametrize("recipe", CATALOGUE)
def test_recipe_on_every_instance_that_fits_is_linted_clean_and_admitted(
    objects: Objects, recipe: str
) -> None:
    plans = list(plans_that_fit(recipe))

    assert len(plans) >= 4
    for number, plan in enumerate(plans):
        request = make_request(recipe=recipe, nodes=plan.nodes, instance_type=plan.instance_type)
        rendered = render_all(request, run_id=RunId(f"{recipe.replace('.', '-')}-{number:08x}"))
        # What is not the job is the same for every instance: one of them stands for all.
        looked_at = rendered if number == 0 else rendered[-1:]
        found = lint([(plan.instance_type, to_yaml(looked_at))]).findings
        assert found == []
        for item in looked_at:
            stored = store(objects, item)
            for pod in pods_of(stored):
                admit_pod(objects, pod, namespace=NAMESPACE)
