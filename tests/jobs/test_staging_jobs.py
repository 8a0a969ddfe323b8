"""The Jobs that bring a run's data: what hurts when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.datasets import Preparation
from stationmaster.domain.errors import UserError
from stationmaster.domain.ids import RunId
from stationmaster.domain.restoring import RestoringOrder, ResumePoint
from stationmaster.domain.staged_data import LookingOrder, StagingOrder
from stationmaster.jobs import convert, look_over, next_staging, prepare, restore, stage
from stationmaster.jobs.bringing import staging_settings
from stationmaster.steps.prepare_run import brings_data
from tests.support.factories import make_request
from tests.support.live_runs import jobs_in, live_run

ROOT = Path(__file__).parents[2]
RUN_ID = RunId("resnet50-0123abcd")
COPIED = {"dataset": "s3://research-data/x"}
POINT = ResumePoint(run_id=RunId("a-00000001"), step=5)


def copying() -> dict[str, Any]:
    overrides = COPIED | {"tokenizer": "a$(HOME)b"}
    objects = stage.render(live_run(RUN_ID, recipe="llama2-7b", overrides=overrides))
    return {item["kind"]: item for item in objects}


def preparing(
    recipe: str, preparation: Preparation, *, data_id: str = "copied", **overrides: str
) -> dict[str, Any]:
    live = live_run(
        RUN_ID,
        staged={"data_id": data_id, "preparation": preparation},
        recipe=recipe,
        instance_type="p4d.24xlarge",
        nodes=4,
        overrides=COPIED | overrides,
    )
    (job,) = jobs_in(prepare.render(live))
    return job


def pod(job: dict[str, Any]) -> Any:
    return job["spec"]["template"]["spec"]


def test_copying_runs_off_the_training_nodes_with_the_stagers_account() -> None:
    objects = copying()
    spec = pod(objects["Job"])

    assert spec["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]
    assert "nodeAffinity" in spec["affinity"]
    assert "tolerations" not in spec
    (container,) = spec["containers"]
    assert (container["image"], container["command"][-1]) == (
        "relay:1",
        "stationmaster.relay.stage",
    )
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == "/fsx"
    assert "readOnly" not in mount


def test_each_result_is_brought_back_by_a_job_with_the_account_of_its_run() -> None:
    first, second = RunId("a-00000001"), RunId("b-00000002")
    point = ResumePoint(run_id=first, step=5)

    jobs = jobs_in(restore.render(live_run(RUN_ID, resume_from=point, weights_from=second)))

    assert [pod(job)["serviceAccountName"] for job in jobs] == [first, second]
    assert len({job["metadata"]["name"] for job in jobs}) == 2
    orders = [
        RestoringOrder.model_validate_json(pod(job)["containers"][0]["env"][0]["value"])
        for job in jobs
    ]
    assert [(each.checkpoint is None, each.model_of) for each in orders] == [
        (False, None),
        (True, second),
    ]


def test_looking_has_the_user_of_the_trainer_no_rights_and_cannot_write() -> None:
    (job,) = jobs_in(
        look_over.render(
            live_run(RUN_ID, recipe="resnet50", overrides={"dataset": "/fsx/imagenet"})
        )
    )

    spec = pod(job)
    (container,) = spec["containers"]
    assert "serviceAccountName" not in spec
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"]["runAsUser"] == 1000
    assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/fsx", "readOnly": True}]
    variables = {each["name"]: each["value"] for each in container["env"]}
    order = LookingOrder.model_validate_json(variables["STATIONMASTER_LOOKING_ORDER"])
    assert (order.path, order.num_classes) == ("/fsx/imagenet", 1000)


def test_text_of_a_person_is_not_expanded_and_reads_back() -> None:
    (container,) = pod(copying()["Job"])["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}

    text = variables["STATIONMASTER_STAGING_ORDER"]
    assert "$" not in text
    order = StagingOrder.model_validate_json(text)
    assert order.settings["tokenizer"] == "a$(HOME)b"


def test_preparing_has_a_pod_on_each_node_and_asks_for_no_gpu() -> None:
    job = preparing("resnet50", Preparation.IMAGES)
    spec = pod(job)

    assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (4, 4)
    (apart,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert apart["labelSelector"]["matchLabels"].items() <= labels.items()
    (container,) = spec["containers"]
    assert container["command"][3:7] == ["images", "copied", "--classes", "1000"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}


@pytest.mark.parametrize("preparation", [Preparation.TOKENS, Preparation.MEGATRON])
def test_packing_names_the_tokenizer_and_the_models_vocabulary(preparation: Preparation) -> None:
    job = preparing("llama2-7b", preparation, tokenizer="a/b")

    (container,) = pod(job)["containers"]
    words = container["command"]
    assert words[3:] == [
        *(preparation.value, "copied", "--tokenizer", "a/b", "--vocab-size", "32000"),
        *("--data-directory", "/fsx/data", "--run-id", RUN_ID),
    ]


def test_converting_has_one_gpu_of_one_node_and_the_converter_of_its_image() -> None:
    live = live_run(
        RUN_ID,
        recipe="megatron-bridge-llama3.1-8b",
        instance_type="p4d.24xlarge",
        nodes=4,
        overrides={"weights": "org/model"},
    )

    (job,) = jobs_in(convert.render(live))

    assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (1, 1)
    (container,) = pod(job)["containers"]
    assert container["image"] == "nemo:1"
    assert container["command"][2:] == [
        *("org/model", "--data-directory", "/fsx/data", "--run-id", RUN_ID),
    ]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    copied = (ROOT / "container/nemo/Dockerfile").read_text()
    directory, _, name = container["command"][1].rpartition("/")
    assert f"container/nemo/{name} " in copied
    assert f"    {directory}/\n" in copied


@pytest.mark.parametrize(("root", "is_needed"), [("", True), ("w1/files", False)])
def test_weights_are_converted_until_they_are_there(root: str, is_needed: bool) -> None:
    megatron = {"recipe": "megatron-llama3-8b", "instance_type": "p4d.24xlarge"}
    overrides = {"weights": "org/model"}
    live = live_run(RUN_ID, staged={"weights_root": root}, overrides=overrides, **megatron)

    assert convert.applies(live.run, live.run.staging) is is_needed


def test_only_what_decides_the_preparation_is_part_of_the_settings() -> None:
    tuned = make_request(recipe="llama2-7b-finetune").resolved
    images = make_request(recipe="resnet50").resolved

    assert staging_settings(tuned) == {}
    assert staging_settings(images) == {"num_classes": 1000}
    alone = make_request(recipe="resnet50", overrides={"eval_every": "0"}).resolved
    assert staging_settings(alone) == {"num_classes": 1000, "no_validation": 1}


@pytest.mark.parametrize("recipe", ["megatron-llama3-8b", "megatron-bridge-llama3.1-8b"])
@pytest.mark.parametrize(
    ("data", "what"), [("", ("--dataset", "hub:o/texts")), ("copied", ("copied",))]
)
def test_text_of_a_framework_is_prepared_with_the_recipes_tokenizer(
    recipe: str, data: str, what: tuple[str, ...]
) -> None:
    job = preparing(recipe, Preparation.MEGATRON, data_id=data, dataset="packed:hub:o/texts")

    (container,) = pod(job)["containers"]
    assert container["command"][3:-4] == [
        *("megatron", *what),
        *("--tokenizer", "meta-llama/Llama-3.1-8B", "--vocab-size", "128256"),
    ]


def test_run_that_does_not_evaluate_needs_no_validation_images() -> None:
    alone, both = (
        preparing("resnet50", Preparation.IMAGES, **overrides)
        for overrides in ({"eval_every": "0"}, {})
    )

    assert "--no-validation" in pod(alone)["containers"][0]["command"]
    assert "--no-validation" not in pod(both)["containers"][0]["command"]


@pytest.mark.parametrize("recipe", CATALOGUE)
@pytest.mark.parametrize("dataset", ["", "s3://research-data/x", "/fsx/x", "packed:c4"])
def test_workflow_knows_beforehand_whether_a_run_brings_data(recipe: str, dataset: str) -> None:
    known = CATALOGUE[recipe]
    words = {"dataset": dataset} if dataset else {}
    where = {"nodes": known.default_nodes, "instance_type": known.default_instance}
    live = live_run(RUN_ID, recipe=recipe, overrides=words, **where)
    try:
        job = next_staging(live)
    except UserError:
        return  # the recipe does not take such data

    assert brings_data(live.run.request) is (job is not None)


@pytest.mark.parametrize(
    ("request_", "job"),
    [
        ({"resume_from": POINT}, restore),
        ({"resume_from": POINT, "overrides": COPIED}, restore),
        ({"weights_from": RunId("a-00000001")}, restore),
        ({"program": ("x",), "overrides": {"dataset": "/fsx/x"}}, look_over),
        ({"program": ("x",), "overrides": COPIED}, stage),
        ({"program": ("x",), "overrides": {}}, None),
        ({"program": ("x",), "overrides": {"dataset": "mine"}}, None),
    ],
)
def test_workflow_knows_what_results_and_commands_bring(request_: Any, job: Any) -> None:
    live = live_run(RUN_ID, **request_)

    assert next_staging(live) is job
    assert brings_data(live.run.request) is (job is not None)
