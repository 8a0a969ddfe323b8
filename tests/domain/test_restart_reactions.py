"""Which failures start a run's job again, and which end the run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.domain.errors import TrainingFailed
from stationmaster.domain.reactions.restarts import MAX_RESTARTS, SETTLING, RestartJob
from stationmaster.domain.reactions.run import (
    POLICY,
    ChangePhase,
    RelayHeard,
    decide,
    phase_changes,
)
from stationmaster.domain.reactions.workflow import EndWait
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.events import RunEvent, RunPhase
from tests.support import factories
from tests.support.factories import RUN_ID, START

COMMAND = factories.make_request(program=("torchrun", "crash.py"))


def event(kind: type, *, at: float = 0, **fields: object):
    moment = START + timedelta(seconds=at)
    return kind(event_id=f"{kind.__name__}-{at}-{fields}", run_id=RUN_ID, at=moment, **fields)


def failed(at: float = 2) -> RunEvent:
    return event(ev.JobConditionChanged, at=at, condition="Failed", reason="r", message="1 failed")


def process(line: str, how: str = "process 0 exited with code 1", *, at: float = 1, **fields):
    return event(ev.ProcessFailed, at=at, pod="w-0", process=how, line=line, **fields)


def ended(code: int, reason: str = "Error", *, pod: str = "w-0", at: float = 1):
    return event(
        ev.PodChanged, at=at, pod=pod, phase="Failed", node="n-0", reason=reason, exit_code=code
    )


def after(*events: RunEvent, run: Run | None = None) -> Run:
    run = run or factories.make_run(RunPhase.RUNNING, request=COMMAND)
    for each in events:
        run = apply(run, each)
        for change in phase_changes(run, each):
            run = apply(run, change)
    return run


def heard(run: Run, *, at: float = 3):
    """What follows when the batch is recorded, `at` seconds after the start."""
    wanted = (EndWait, RestartJob)
    reactions = decide(run, RelayHeard(START + timedelta(seconds=at), heartbeat=True), POLICY)
    return [each for each in reactions if isinstance(each, wanted)]


PROGRAM = {
    "exception": [process("KeyError: 'loss'")],
    "import": [process("ModuleNotFoundError: No module named 'mylib'")],
    "memory of the GPU": [process("torch.OutOfMemoryError: CUDA out of memory")],
    "wrong argument": [ended(2)],
    "crash of native code": [process("", "process 0 was killed by SIGSEGV")],
    "full disk": [
        event(
            ev.PodChanged,
            at=1,
            pod="w-0",
            phase="Failed",
            reason="Evicted",
            message='Usage of EmptyDir volume "scratch" exceeds the limit "20Gi"',
            exit_code=137,
        )
    ],
    "pod that is deleted after its end": [
        ended(3),
        event(ev.PodChanged, at=2, pod="w-0", phase="Deleted"),
    ],
    "peers that follow": [
        process("", "process 1 exited with code 1", at=1, lost_peer=True),
        event(ev.ProcessFailed, at=1.5, pod="w-1", process="p", line="ValueError: 7 columns"),
    ],
}
PASSING = {
    "kill": [process("", "process 0 was killed by SIGKILL")],
    "kill of the container": [ended(137)],
    "memory of the node": [ended(137, "OOMKilled")],
    "eviction": [ended(1, "Evicted")],
    "Xid": [process("RuntimeError: CUDA error: uncorrectable ECC error encountered")],
    "rendezvous": [process("torch.distributed.elastic.RendezvousTimeoutError")],
    "lost node": [
        event(ev.NodeLost, at=0.5, node="n-1", reason="NotReady"),
        process("RuntimeError: an odd error of a rank that lost its peer"),
    ],
    "spot notice": [
        event(ev.NodeTakenBack, at=0.2, node="n-0"),
        event(ev.PodChanged, at=0.4, pod="w-0", phase="Running", node="n-0"),
        process("KeyError: 'x'"),
    ],
}


@pytest.mark.parametrize(("name", "events"), PROGRAM.items(), ids=PROGRAM)
def test_failure_of_the_program_ends_the_run_without_a_restart(name, events):
    not_explained = name in ("wrong argument", "pod that is deleted after its end")
    run = after(*events)

    assert run.phase is not RunPhase.RECOVERING
    for now in (run, after(failed(), run=run)):
        # An exit code alone waits for the line of the log that explains it.
        assert (heard(now, at=3) == []) is not_explained
        (end,) = heard(now, at=15)
        assert (type(end), end.error) == (EndWait, TrainingFailed)


@pytest.mark.parametrize("events", PASSING.values(), ids=PASSING)
def test_failure_from_outside_makes_the_job_anew(events):
    run = after(*events)

    assert (run.phase, heard(run)) == (RunPhase.RECOVERING, [])
    (restart,) = heard(after(failed(), run=run))
    assert (type(restart), restart.number) == (RestartJob, 1)


def test_failure_of_the_products_trainer_recovers_inside_its_job():
    run = after(*PASSING["kill"], run=factories.make_run(RunPhase.RUNNING))

    assert (run.phase, heard(run)) == (RunPhase.RECOVERING, [])
    # Until its restarts there are used up.
    assert [type(each) for each in heard(after(failed(), run=run))] == [RestartJob]


def test_workers_that_never_come_to_a_step_end_the_run():
    run = factories.make_run(RunPhase.RUNNING)
    for number in range(MAX_RESTARTS):
        killed = process("", "process 0 was killed by SIGKILL", at=10 * number)
        again = event(ev.WorkersRestarting, at=10 * number, pod="w-0", reason="killed")
        run = after(killed, again, run=run)
    assert (run.restarts_in_vain, heard(run, at=50)) == (MAX_RESTARTS, [])

    run = after(event(ev.WorkersRestarting, at=60, pod="w-0", reason="killed"), run=run)

    assert "3 restarts brought no new checkpoint" in heard(run, at=60)[0].sentence


def test_lost_peer_alone_is_explained_later_or_restarted():
    run = after(process("", lost_peer=True), failed())

    assert heard(run, at=5) == []
    assert [type(each) for each in heard(run, at=3 + SETTLING.total_seconds())] == [RestartJob]
    explained = after(event(ev.ProcessFailed, at=6, pod="w-1", line="KeyError: 'x'"), run=run)
    assert heard(explained, at=7)[0].sentence == "pod w-1 failed: KeyError: 'x'; 1 failed"


def test_job_that_failed_without_a_word_ends_the_run_once_it_had_time():
    run = after(failed())

    assert heard(run, at=5) == []
    assert heard(run, at=40) == [EndWait(TrainingFailed, "1 failed")]


def test_restarted_job_runs_again_and_forgets_what_ended_it():
    run = after(*PASSING["kill"], failed())
    anew = after(event(ev.JobRestarted, at=9, number=1, reason="it was killed"), run=run)

    assert (anew.job_condition, anew.pods, anew.failures) == ("", {}, [])
    assert (anew.job_restarts, anew.num_restarts, heard(anew)) == (1, 1, [])
    running = event(ev.JobConditionChanged, at=12, condition="Running", reason="r", message="m")
    assert after(running, run=anew).phase is RunPhase.RUNNING


def _round(number: int, *, checkpoint: bool) -> list[RunEvent]:
    at = 100.0 * number
    running = event(ev.JobConditionChanged, at=at, condition="Running", reason="r", message="m")
    saved = [event(ev.CheckpointSaved, at=at + 1, step=10 * number)] if checkpoint else []
    lost = process("", "process 0 was killed by SIGKILL", at=at + 2)
    return [running, *saved, lost, failed(at + 3)]


def _after_rounds(count: int, *, checkpoint: bool) -> list:
    run = after(*_round(0, checkpoint=checkpoint))
    for number in range(1, count + 1):
        reactions = heard(run, at=100 * number)
        if not isinstance(reactions[0], RestartJob):
            return reactions
        restarted = event(ev.JobRestarted, at=100 * number - 1, number=number, reason="r")
        run = after(restarted, *_round(number, checkpoint=checkpoint), run=run)
    return heard(run, at=100 * (count + 1))


def test_restarts_without_a_new_checkpoint_end_the_run():
    assert isinstance(_after_rounds(MAX_RESTARTS - 1, checkpoint=False)[0], RestartJob)
    (end,) = _after_rounds(MAX_RESTARTS, checkpoint=False)
    assert end.sentence.endswith("; 3 restarts brought no new checkpoint")


def test_restarts_with_progress_go_on():
    assert isinstance(_after_rounds(3 * MAX_RESTARTS, checkpoint=True)[0], RestartJob)


def test_stop_comes_before_a_restart():
    run = after(*PASSING["kill"], failed(), event(ev.StopRequested, at=4, user_id="U1"))

    assert [type(each) for each in heard(run)] == [EndWait]
    assert not any(isinstance(each, ChangePhase) for each in heard(run))


def with_restarts(number: int) -> Run:
    request = COMMAND.model_copy(update={"restarts": number})
    return factories.make_run(RunPhase.RUNNING, request=request)


@pytest.mark.parametrize("events", [*PROGRAM.values(), *PASSING.values(), []])
def test_typed_restarts_count_in_place_of_the_cause(events):
    run = after(*events, failed(), run=with_restarts(1))

    (restart,) = heard(run, at=15)
    assert (type(restart), restart.number) == (RestartJob, 1)
    anew = after(event(ev.JobRestarted, at=16, number=1, reason="r"), run=run)
    assert (anew.phase, heard(anew, at=17)) == (RunPhase.RECOVERING, [])
    again = after(*events, failed(20), run=anew)
    assert [type(each) for each in heard(again, at=40)] == [EndWait]


def test_job_that_may_not_be_restarted_ends_with_the_key_in_its_reason():
    (end,) = heard(after(*PASSING["kill"], failed(), run=with_restarts(0)))

    assert end.sentence.endswith("; restarts=0 allows no more")


def test_typed_restarts_need_no_new_checkpoint_in_between():
    run = with_restarts(MAX_RESTARTS + 2)
    for number in range(MAX_RESTARTS + 2):
        run = after(*_round(number, checkpoint=False), run=run)
        (restart,) = heard(run, at=100 * number + 20)
        assert restart.number == number + 1
        run = after(
            event(ev.JobRestarted, at=100 * number + 21, number=number + 1, reason="r"), run=run
        )
        assert heard(run, at=100 * number + 22) == []


def test_failure_that_the_trainer_reports_is_restarted_where_that_was_typed():
    own = factories.make_request().model_copy(update={"restarts": 1})
    run = factories.make_run(RunPhase.RUNNING, request=own)
    run = after(event(ev.TrainingReportedFailure, at=1, reason="the loss is nan"), run=run)

    assert heard(run, at=2) == []
    (restart,) = heard(after(failed(), run=run), at=15)
    assert (type(restart), "the loss is nan" in restart.why) == (RestartJob, True)
