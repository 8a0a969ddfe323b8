"""Runs of people's own image and command, in the steps that know of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from stationmaster.domain.errors import JobNotStarted
from stationmaster.domain.planning.plan import LONGEST_COMMAND
from stationmaster.domain.results import RunFacts
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.ensure_job_started import ensure_job_started
from stationmaster.steps.prepare_run import prepare_run
from stationmaster.steps.save_results import save_results
from stationmaster.steps.stage_data import stage_data
from stationmaster.steps.submit_job import submit_job
from tests.support.aws_fixtures import until
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import kubelet_says, objects_of_run, ready_for_job
from tests.support.factories import TO_RUNNING

SPEED = IDLE
IMAGE = "registry.example.com/team/trainer:1.0"
OWN = {"image": IMAGE, "program": ("torchrun", "train.py", "$(HOSTNAME)")}


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (template,) = [replica["template"] for replica in job["spec"]["pytorchReplicaSpecs"].values()]
    (container,) = template["spec"]["containers"]
    return container


def cannot_pull(account: Account, reason: str, message: str) -> None:
    """The pods of the job wait for their image."""
    scheduled = {"type": "PodScheduled", "status": "True"}
    state = {"waiting": {"reason": reason, "message": message}}
    kubelet_says(account, {"image": IMAGE, "state": state}, conditions=[scheduled])


def test_image_that_cannot_be_pulled_ends_the_run_in_time_with_its_words(account: Account):
    ready_for_job(account, **OWN)
    submit_job(account.services, account.run_id)
    said = f'Back-off pulling image "{IMAGE}": 403 Forbidden'
    cannot_pull(account, "ImagePullBackOff", said)

    # A registry or a role may be slow: it has its time.
    assert ensure_job_started(account.services, account.run_id) == {"ready": False}
    account.pass_time()

    with pytest.raises(JobNotStarted) as error:
        ensure_job_started(account.services, account.run_id)
    assert "0 of 2 pods run" in str(error.value)
    assert f"ImagePullBackOff: {said}" in str(error.value)


def test_image_whose_name_no_kubelet_takes_ends_the_run_at_once(account: Account):
    ready_for_job(account)
    submit_job(account.services, account.run_id)
    cannot_pull(account, "InvalidImageName", "couldn't parse image reference")

    with pytest.raises(JobNotStarted, match="InvalidImageName: couldn't parse image reference"):
        ensure_job_started(account.services, account.run_id)


def test_wait_for_a_command_has_a_limit_of_its_own(account: Account):
    account.request(program=OWN["program"])

    prepared = prepare_run(account.services, account.run_id)

    assert prepared["await_limit_s"] == LONGEST_COMMAND.total_seconds()


def test_command_that_never_said_that_it_trains_has_its_results_saved(account: Account):
    ready_for_job(account, **OWN, overrides={"dataset": "hub:a/b"})
    account.enter(*TO_RUNNING[2:])

    save = partial(save_results, account.services, account.run_id)
    until(lambda: not save()["ready"] and objects_of_run(account, "jobs"))

    assert account.run.phase is RunPhase.SAVING
    (job,) = objects_of_run(account, "jobs")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (text,) = [each["value"] for each in container["env"] if each["name"].endswith("_RUN_FACTS")]
    facts = RunFacts.model_validate_json(text)
    assert (facts.image, facts.program) == (IMAGE, OWN["program"])
    # What a recipe would say of itself is not claimed of a command.
    assert (facts.model, facts.seed, facts.data) == ("", None, "hub:a/b")
    assert "$" not in text


def test_command_that_failed_before_all_pods_ran_has_its_logs_saved(account: Account):
    account.request(**OWN)
    account.enter(*TO_RUNNING[1:3])

    account.happen(ev.PodChanged, pod="w-0", phase="Running", node="n", exit_code=1, reason="Error")

    assert account.run.has_unsaved_results


def staging_container(account: Account) -> dict[str, Any]:
    (job,) = objects_of_run(account, "jobs")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


def test_usual_data_of_a_recipe_is_not_looked_for_where_a_command_was_typed(account: Account):
    # resnet50 reads /fsx/imagenet unless another data set was typed.
    account.request(recipe="resnet50", instance_type="p4d.24xlarge", program=OWN["program"])
    account.enter(*TO_RUNNING[1:2])

    assert stage_data(account.services, account.run_id) == {"ready": True}


def test_data_is_prepared_by_the_deployments_own_image(account: Account):
    ready_for_job(account, image=IMAGE, overrides={"dataset": "packed:hub:a/b"})

    stage_data(account.services, account.run_id)

    assert staging_container(account)["image"] == account.settings.training_image


@pytest.mark.parametrize(("program", "is_small"), [((), True), (("python", "a.py"), False)])
def test_recipe_on_cpus_takes_the_small_image_where_the_deployment_has_it(
    account: Account, program: tuple[str, ...], is_small: bool
):
    account.set(cpu_image=IMAGE)
    ready_for_job(account, recipe="ddp-cpu", instance_type="m5.2xlarge", program=program)

    submit_job(account.services, account.run_id)

    (job,) = objects_of_run(account, "pytorchjobs")
    assert (container_of(job)["image"] == IMAGE) is is_small
    assert account.settings.trainer_image(on_gpus=True) == account.settings.training_image


MEGATRON = {"recipe": "megatron-llama3-8b", "instance_type": "p5.48xlarge"}


def test_framework_runs_in_its_own_image_of_the_deployment(account: Account):
    account.set(megatron_image=IMAGE)
    ready_for_job(account, **MEGATRON)

    submit_job(account.services, account.run_id)

    (job,) = objects_of_run(account, "pytorchjobs")
    assert container_of(job)["image"] == IMAGE
    assert container_of(job)["command"][:2] == ["torchrun", "/opt/Megatron-LM/pretrain_gpt.py"]
