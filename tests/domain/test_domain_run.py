"""The life of a run: every event on every phase either applies or raises, and facts count once."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import MAX_LOSS_POINTS, new_run_id
from stationmaster.domain.run.attempts import attempt_id
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.request import Placement
from tests.support.factories import RUN_ID, START, make_run
from tests.support.factories import make_event as event


def progress(seq, step, loss):
    return event(
        ev.ProgressReported, event_id=f"p{seq}", seq=seq, step=step, total_steps=60, loss_nats=loss
    )


HAPPY_PATH = [
    RunPhase.PROVISIONING,
    RunPhase.VALIDATING,
    RunPhase.SUBMITTING,
    RunPhase.RUNNING,
    RunPhase.RECOVERING,
    RunPhase.RUNNING,
    RunPhase.SUCCEEDED,
]


def test_apply_along_the_happy_path_keeps_every_phase_once():
    run = make_run()

    for phase in HAPPY_PATH:
        run = apply(run, event(ev.PhaseChanged, phase=phase))

    assert run.ended_at == START
    assert run.phase_names == ["requested", *dict.fromkeys(phase.value for phase in HAPPY_PATH)]


FOLLOW = {
    "requested": "awaiting_approval queued provisioning validating staging submitting",
    "awaiting_approval": "queued provisioning validating staging submitting",
    "queued": "provisioning validating staging submitting running saving succeeded",
    "provisioning": "validating staging submitting",
    "validating": "staging submitting",
    "staging": "submitting",
    "submitting": "queued running saving",
    "running": "queued recovering saving succeeded",
    "recovering": "queued running saving succeeded",
    "saving": "succeeded",
}


@pytest.mark.parametrize("phase", RunPhase)
def test_each_phase_follows_only_where_it_may(phase):
    may = {*FOLLOW[phase].split(), "failed", "stopped"} if phase in FOLLOW else set()

    for following in RunPhase:
        change = event(ev.PhaseChanged, phase=following)
        if following in may:
            assert apply(make_run(phase), change).phase is following
        else:
            with pytest.raises(IllegalTransition, match=f"cannot become {following.value}"):
                apply(make_run(phase), change)


def test_event_that_cannot_happen_to_the_run_is_refused():
    with pytest.raises(IllegalTransition, match="is not of"):
        apply(make_run(), event(ev.NodeRecovered, node="n", run_id="other-12345678"))
    with pytest.raises(IllegalTransition, match="is stopped already"):
        apply(make_run(RunPhase.STOPPED), begin_attempt(1))


def test_progress_after_a_resume_replaces_the_curve_from_there_on():
    run = make_run(RunPhase.RUNNING)
    for seq, (step, loss) in enumerate([(1, 8.0), (2, 7.0), (3, 6.0), (2, 7.1), (3, 6.1)]):
        run = apply(run, progress(seq, step, loss))

    assert run.loss_points == [(1, 8.0), (2, 7.1), (3, 6.1)]
    assert run.first_loss_nats == 8.0


def test_steps_of_one_moment_all_count_and_late_lines_do_not():
    run = make_run(RunPhase.RUNNING)
    for seq, step in [(5, 1), (5, 2), (5, 2), (5, 3), (4, 9), (5, 1)]:
        run = apply(run, progress(seq, step, 8.0 - step))

    assert run.loss_points == [(1, 7.0), (2, 6.0), (3, 5.0)]
    assert run.progress.step == 3


def test_figures_of_a_step_count_after_the_bar_that_tells_of_it_in_one_moment():
    bar = progress(5, 1, None).model_copy(update={"has_loss": False})

    run = apply(apply(make_run(RunPhase.RUNNING), bar), progress(5, 1, 8.0))

    assert run.loss_points == [(1, 8.0)]


def test_lines_of_two_pods_are_never_mixed():
    def said(seconds, step, pod):
        at = START + timedelta(seconds=seconds)
        return progress(seconds, step, 8.0 - step).model_copy(update={"at": at, "pod": pod})

    run = make_run(RunPhase.RUNNING)
    for each in (said(1, 1, "w-1"), said(2, 2, "w-0"), said(3, 2, "w-1")):
        run = apply(run, each)
    assert run.loss_points == [(1, 7.0), (2, 6.0)]
    assert (run.progress.seq, run.progress.pod) == (3, "w-1")

    lost = event(ev.PodChanged, pod="w-1", phase="Failed", exit_code=1, at=START + timedelta(0, 4))
    assert apply(apply(run, lost), said(5, 3, "w-0")).progress.step == 3
    assert apply(run, said(603, 3, "w-0")).progress.step == 3


@pytest.mark.parametrize(("late_s", "kept"), [(30, True), (31, False)])
def test_step_reported_just_after_a_loss_may_have_been_taken_before_it(late_s, kept):
    killed = event(ev.PodChanged, pod="w-0", phase="Running", exit_code=137)
    run = apply(make_run(RunPhase.RUNNING), event(ev.NodeLost, node="n-0", reason="NotReady"))
    run = apply(run, killed)

    late = progress(1, 1, 8.0).model_copy(update={"at": START + timedelta(seconds=late_s)})
    run = apply(run, late)

    assert list(run.lost_nodes) == (["n-0"] if kept else [])
    assert [failure.pod for failure in run.failures] == (["w-0"] if kept else [])


def test_progress_with_a_loss_that_is_not_finite_counts_but_draws_no_point():
    run = apply(make_run(RunPhase.RUNNING), progress(1, 1, None))
    run = apply(run, progress(2, 2, 7.0))
    run = apply(run, progress(3, 3, None))

    assert (run.progress.step, run.progress.loss_nats) == (3, None)
    assert (run.first_loss_nats, run.loss_points) == (7.0, [(2, 7.0)])


def test_wait_that_is_reported_late_takes_no_newer_ones_place():
    run = make_run()

    for seconds, waits_for in ((1, "data"), (3, "libraries"), (2, "tokenizer")):
        at = START + timedelta(seconds=seconds)
        run = apply(run, event(ev.TrainingPreparing, waits_for=waits_for, at=at))

    assert run.preparing.waits_for == "libraries"


def test_loss_points_of_a_long_run_stay_bounded_and_keep_the_last():
    run = make_run(RunPhase.RUNNING)
    for step in range(1, 2000):
        run = apply(run, progress(step, step, 8.0 / step))

    assert len(run.loss_points) <= MAX_LOSS_POINTS
    assert run.loss_points[-1] == (1999, 8.0 / 1999)
    assert run.loss_points == sorted(run.loss_points)


@pytest.mark.parametrize(("restarting", "kept"), [(False, "stood still"), (True, "")])
def test_failure_that_workers_restart_from_is_no_failure_of_the_run(restarting, kept):
    failure = event(ev.TrainingReportedFailure, reason="stood still", restarting=restarting)

    assert apply(make_run(RunPhase.RUNNING), failure).trainer_failure == kept


def begin_attempt(number, *, nodes=2, cluster_id=RUN_ID, at=START):
    return event(
        ev.AttemptStarted,
        at=at,
        event_id=f"attempt-{number}",
        attempt_id=attempt_id(RUN_ID, number),
        cluster_id=cluster_id,
        placement=Placement(nodes=nodes, instance_type="m5.2xlarge"),
        job=RUN_ID,
        rendezvous_id=RUN_ID,
    )


def test_attempt_begins_with_its_cluster_and_placement_and_ends_with_the_run():
    wished = make_run()
    run = apply(wished, begin_attempt(1, nodes=4))
    assert wished.placement == wished.request.wish
    assert (run.cluster_id, run.placement.nodes, run.request.nodes) == (RUN_ID, 4, 2)

    end = START + timedelta(hours=1)
    run = apply(run, event(ev.PhaseChanged, phase=RunPhase.FAILED, reason="no capacity", at=end))

    assert (run.attempt.ended_at, run.attempt.why) == (end, "no capacity")


def test_attempt_keeps_what_its_job_is_and_sentences_name_it():
    run = apply(make_run(), begin_attempt(1))
    submitted = event(ev.JobSubmitted, job=run.job, kind=JobKind.TRAIN_JOB)
    other = submitted.model_copy(update={"job": "another"})

    assert apply(run, other).job_kind is JobKind.PYTORCH_JOB
    assert apply(run, submitted).job_kind is JobKind.TRAIN_JOB
    gone = apply(apply(run, submitted), event(ev.JobDisappeared, job=run.job))
    (reaction,) = decide(gone, event(ev.JobDisappeared, job=run.job), POLICY)
    assert str(reaction.sentence).startswith(f"TrainJob {run.job} was deleted from the cluster")


def test_second_attempt_ends_the_first_and_may_be_elsewhere():
    later = START + timedelta(hours=1)
    run = apply(make_run(), begin_attempt(1))
    run = apply(run, begin_attempt(2, nodes=4, cluster_id="kept-0a1b2c3d", at=later))

    first, second = run.attempts
    assert (first.ended_at, second.ended_at) == (later, None)
    assert (run.cluster_id, second.placement.nodes) == ("kept-0a1b2c3d", 4)
    assert first.attempt_id != second.attempt_id


def test_run_that_is_stopped_twice_was_stopped_by_the_first():
    run = apply(make_run(), event(ev.StopRequested, user_id="U1"))

    again = apply(run, event(ev.StopRequested, event_id="second", user_id="U2", why="late"))

    assert (again.stop_requested_by, again.stop_why) == ("U1", "")


@given(st.text(max_size=80), st.text(max_size=40))
def test_new_run_id_is_a_valid_name_and_depends_on_the_key_only(recipe, key):
    run_id = new_run_id(recipe, dedup_key=key)

    assert run_id == new_run_id(recipe, dedup_key=key)
    assert len(run_id) <= 45
    assert run_id[0].isalpha()
    assert all(c.isascii() and (c.islower() or c.isdigit() or c == "-") for c in run_id)
