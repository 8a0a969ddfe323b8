"""What a failed run's card names as the cause, from what the run remembers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.diagnosis.evidence import Evidence
from stationmaster.diagnosis.explaining import Context
from stationmaster.diagnosis.runs import explain_run
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.failures import Failure
from stationmaster.domain.run.kept import Results
from stationmaster.domain.run.pods import Pod
from tests.support.factories import RUN_ID, START, make_event, make_run

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
