"""What is said of a run that trains or has ended, and nothing where it does well."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.diagnosis.evidence import Evidence
from stationmaster.diagnosis.explaining import Context
from stationmaster.diagnosis.running import planned, running_findings
from stationmaster.diagnosis.runs import explain_run
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.failures import Failure
from stationmaster.domain.run.kept import Results
from stationmaster.domain.run.pods import Pod
from stationmaster.domain.run.speeds import KEPT_LINES, SKIPPED_LINES, Speeds
from tests.support.factories import RUN_ID, START, make_event, make_request, make_run

LINES = SKIPPED_LINES + KEPT_LINES
GPU = "llama2-7b"


def trains(recipe=GPU, **values):
    """A run of the recipe where it trains by default."""
    known = CATALOGUE[recipe]
    wish = {"nodes": known.default_nodes, "instance_type": known.default_instance}
    request = make_request(recipe=recipe, **(wish | values.pop("wish", {})))
    return make_run(ev.RunPhase.RUNNING, request=request, **values)


def after(run, *, part=1.0, lines=LINES, gpu_use=None, first=1):
    """After progress lines with this part of the planned speed."""
    plan = planned(run)
    speed = part * (plan.samples_per_s if plan is not None else 1.0)
    for step in range(first, first + lines):
        line = make_event(
            ev.ProgressReported,
            event_id=f"p{step}",
            seq=step,
            step=step,
            total_steps=1000,
            loss_nats=2.0,
            samples_per_s=speed,
            gpu_use=gpu_use,
        )
        run = apply(run, line)
    return run


def said(run):
    return [found.text for found in running_findings(run)]


def network(**values):
    usual = {"job": RUN_ID, "pod": f"{RUN_ID}-worker-1", "uses_sockets": True}
    return make_event(ev.NetworkObserved, **(usual | values))


@pytest.mark.parametrize("recipe", CATALOGUE)
def test_run_of_each_recipe_is_slow_below_half_of_its_plan_only(recipe):
    run = trains(recipe)

    assert said(after(run, part=1.0)) == []
    assert said(after(run, part=0.51)) == []
    slow = said(after(run, part=0.49))
    assert len(slow) == (1 if CATALOGUE[recipe].needs_gpu else 0)


def test_run_that_was_given_fewer_efa_interfaces_is_not_held_against_the_plan():
    options = {"job_options": JobOptions(efa=2)}
    wish = {"nodes": 2, "instance_type": "p4d.24xlarge"}
    run = after(trains(wish=wish), part=0.25)
    fewer = run.model_copy(update={"request": run.request.model_copy(update=options)})

    assert (len(said(run)), said(fewer)) == (1, [])
    lacking = {"uses_sockets": False, "num_nics": 1}
    assert "1 of 2 EFA" in said(fewer.model_copy(update={"network": network(**lacking)}))[0]


def test_slow_run_says_both_figures_and_where_to_look():
    run = trains(wish={"nodes": 2, "instance_type": "p4d.24xlarge"})
    plan = planned(run).samples_per_s

    (found,) = running_findings(after(run, part=0.25))

    assert f"{plan / 4:,.3g} samples a second" in found.text
    assert f"expects {plan:,.3g} on 2 x p4d.24xlarge" in found.text
    assert f"`/train logs {RUN_ID}`" in found.remedy
    assert "validate=full" in found.remedy


@pytest.mark.parametrize("values", [{}, {"wish": {"program": ("python", "train.py")}}])
def test_idle_gpu_is_said_with_what_it_waits_for_also_where_there_is_no_plan(values):
    run = trains(**values)

    (found,) = running_findings(after(run, part=0.1, gpu_use=0.37))

    assert "a GPU is idle 63% of the time" in found.text
    assert "more data_workers" in found.remedy
    assert said(after(run, gpu_use=0.5)) == []
    assert said(after(run, gpu_use=0.37, lines=LINES - 1)) == []


@pytest.mark.parametrize(
    "run",
    [
        after(trains(), part=0.1, lines=LINES - 1),
        after(trains(emulated_speed=60.0), part=0.0),
        after(trains("tiny-llama"), part=0.0),
        after(trains(wish={"program": ("python", "train.py")}), part=0.0),
        after(trains(wish={"instance_type": "p9.unknown"}), part=0.0),
        after(trains(), part=0.1).model_copy(update={"phase": ev.RunPhase.SUCCEEDED}),
        after(trains(), part=0.1).model_copy(update={"phase": ev.RunPhase.RECOVERING}),
        # It has just been started again, and the new speed is not known yet.
        apply(
            after(trains(), part=0.1),
            make_event(ev.TrainingResumed, event_id="r", step=5),
        ),
    ],
    ids=["few-lines", "emulated", "cpu", "program", "unknown", "ended", "recovering", "resumed"],
)
def test_nothing_is_said_where_nothing_is_known(run):
    assert said(run) == []


def test_first_lines_of_a_start_do_not_count_and_old_ones_go():
    run = after(trains(), part=0.01, lines=SKIPPED_LINES)
    assert after(trains(), lines=2).speeds.samples_per_s == ()
    run = after(run, part=1.0, lines=KEPT_LINES, first=10)
    assert len(run.speeds.samples_per_s) == KEPT_LINES
    assert said(run) == []
    assert len(after(run, part=0.1, lines=50, first=100).speeds.samples_per_s) == KEPT_LINES
    assert len(said(after(run, part=0.1, lines=6, first=100))) == 1


def test_lost_nodes_are_not_expected_to_work():
    run = trains(wish={"nodes": 8, "min_nodes": 2}, left_nodes=["n-1"])
    assert planned(run).nodes == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"plugin_not_found": True}, "used sockets instead of EFA on worker-1: its plugin"),
        ({"provider": "tcp;ofi_rxm"}, "libfabric sent over tcp;ofi_rxm instead of EFA"),
        (
            {"uses_sockets": False, "provider": "efa", "num_nics": 1},
            "1 of 4 EFA interfaces were found on worker-1",
        ),
    ],
)
def test_network_says_what_is_not_used_and_what_to_do(values, words):
    run = apply(trains(wish={"nodes": 2, "instance_type": "p4d.24xlarge"}), network(**values))

    (found,) = running_findings(run)

    assert words in found.text
    assert found.remedy
    assert running_findings(run.model_copy(update={"phase": ev.RunPhase.FAILED})) == []


def test_network_of_a_new_attempt_is_not_that_of_the_one_before():
    run = trains(wish={"nodes": 2, "instance_type": "p4d.24xlarge"})
    assert said(apply(run, network(job="another"))) == []
    started = make_event(
        ev.AttemptStarted,
        event_id="a",
        attempt_id="attempt-1",
        cluster_id="c",
        placement=run.placement,
        job=f"{RUN_ID}-2",
        rendezvous_id="x",
    )
    assert said(apply(apply(run, network()), started)) == []
    assert said(apply(trains(wish={"nodes": 1, "instance_type": "p4d.24xlarge"}), network())) == []


def test_run_that_was_stored_before_has_no_finding():
    stored = trains().model_dump(mode="json")
    del stored["speeds"], stored["network"]
    read = type(trains()).model_validate(stored)
    assert read.run_id == RunId(RUN_ID)
    assert read.requested_at == START
    assert (read.speeds, said(read)) == (Speeds(), [])


CONTEXT = Context(run=RUN_ID, recipe="tiny-llama")
NCCL = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, internal error"
NO_INTERFACE = "w:1:1 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found"
KEY_ERROR = "KeyError: 'model'"
SAVED = Results(
    uri="s3://b/runs/r/", num_files=1, num_bytes=1, manifest_sha256="0" * 64, saved_at=START
)


def failure(pod, at, **values):
    return Failure(pod=pod, restarts=0, at=START + timedelta(seconds=at), **values)


def explained(*failures, reason=None, **values):
    said = failures[0].sentence + "; the job failed" if reason is None else reason
    run = make_run(ev.RunPhase.FAILED, reason=said, failures=list(failures), **values)
    found = explain_run(run, CONTEXT)
    return found and found.rule


@pytest.mark.parametrize(
    ("failures", "rule"),
    [
        # The pod whose log came first only followed.
        (
            (
                failure("w-0", 1, exit_code=1, line=NCCL),
                failure("w-1", 2, exit_code=137, reason="OOMKilled"),
            ),
            "oom-host",
        ),
        ((failure("w-0", 1, exit_code=1, line=NCCL, evidence=NO_INTERFACE),), "net-boot"),
        ((failure("w-0", 1, exit_code=1, line=KEY_ERROR),), "unexplained"),
        # A kill that came with the end of the job explains less than what the program said.
        (
            (failure("w-0", 1, exit_code=1, line=KEY_ERROR), failure("w-1", 2, exit_code=137)),
            "unexplained",
        ),
        ((failure("w-0", 1, process="process 0 was killed by SIGKILL"),), "killed"),
    ],
)
def test_cause_is_found_among_all_pods(failures, rule):
    assert explained(*failures) == rule


@pytest.mark.parametrize(
    ("reason", "rule"),
    [
        ("the workflow was stopped from outside: stopped by a test", "workflow-stopped"),
        ("file system: FSx could not create file system fs-0aa: no room", "not-created"),
        (
            "EKS could not create node group training of 2 x p4d.24xlarge: "
            "InsufficientInstanceCapacity: none",
            "capacity",
        ),
        ("pod w-0 exited with code 137 (OOMKilled); the job failed", "oom-host"),
        ("something else", "unexplained"),
        ("", None),
    ],
)
def test_sentence_of_a_step_is_explained(reason, rule):
    assert explained(reason=reason) == rule


def test_pods_do_not_explain_what_a_step_says():
    killed = failure("w-0", 1, exit_code=137)

    assert explained(killed, reason="the workflow was stopped from outside") == "workflow-stopped"


def test_what_fails_after_training_was_given_up_is_no_cause():
    first = failure("w-0", 1, exit_code=1, line=NCCL)
    late = failure("w-1", 900, exit_code=137, reason="OOMKilled")

    assert explained(first, late, ended_at=START + timedelta(seconds=60)) == "unexplained"


NO_HOST = "socket.gaierror: [Errno -2] Name or service not known"


@pytest.mark.parametrize(
    ("trainer_said", "rule"),
    [
        ("", "rdzv-name"),
        ("dataset=hub:a/b: the hub does not answer: Name or service not known", "unexplained"),
        ("torch.distributed.DistNetworkError: Name or service not known", "rdzv-name"),
    ],
)
def test_trainers_own_sentence_stands_above_what_the_network_says(trainer_said, rule):
    assert (
        explained(failure("w-0", 1, exit_code=1, line=NO_HOST), trainer_failure=trainer_said)
        == rule
    )


@pytest.mark.parametrize(
    ("reason", "values", "remedy"),
    [
        (
            "the workflow was stopped from outside",
            {},
            "without a checkpoint, type its command again",
        ),
        (
            "node n is lost",
            {"last_checkpoint_step": 20},  # on a file system that is gone
            f"`/train status {RUN_ID}` says whether it recovers on another node; "
            "type its command again: it has saved no checkpoint to resume from",
        ),
        (
            "node n is lost",
            {"last_checkpoint_step": 20, "results": SAVED},
            f"`/train status {RUN_ID}` says whether it recovers on another node; otherwise "
            f"`/train resume {RUN_ID}`",
        ),
    ],
)
def test_only_a_run_with_a_saved_checkpoint_is_advised_to_resume(reason, values, remedy):
    run = make_run(ev.RunPhase.FAILED, reason=reason, **values)

    assert explain_run(run, CONTEXT).remedy == remedy


@pytest.mark.parametrize(
    ("pods", "command"),
    [({}, "/train preflight tiny-llama"), ({"w": Pod(name="w", phase="Failed")}, "/train logs")],
)
def test_failure_that_no_rule_explains_has_a_next_command(pods, command):
    run = make_run(ev.RunPhase.FAILED, reason="something else", pods=pods)

    found = explain_run(run, CONTEXT)

    assert found.evidence == "something else"
    assert command in found.remedy


@pytest.mark.parametrize(
    ("lines", "said", "is_named", "evidence"),
    [
        ([NO_INTERFACE, NCCL], NCCL, True, NO_INTERFACE),
        ([NO_INTERFACE], KEY_ERROR, True, ""),
        ([NO_INTERFACE], "the end", False, NO_INTERFACE),
        (["CUDA out of memory", NO_INTERFACE], NCCL, True, "CUDA out of memory"),
        ([NCCL, "Connection reset by peer"], "the end", False, ""),
        ([NO_INTERFACE], "CUDA out of memory", True, ""),
        (['{"stationmaster":1,"kind":"failed","reason":"CUDA out of memory"}'], NCCL, True, ""),
    ],
)
def test_evidence_is_the_line_that_explains_more_than_the_error(lines, said, is_named, evidence):
    found = Evidence()
    for line in lines:
        found.take(line)

    assert found.beside(said, is_named=is_named) == evidence


def test_event_without_evidence_is_read():
    old = make_event(ev.ProcessFailed, pod="w-0", line=KEY_ERROR).model_dump(mode="json")
    old.pop("evidence")

    assert ev.RUN_EVENT.validate_python(old).evidence == ""
