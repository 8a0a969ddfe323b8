"""What the channel is shown: right for a person, and within Slack's limits for any run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from any_blocks import AMOUNT, CHECKS, MOMENT, RESOURCES, SLOW, TEXT, assert_slack_takes
from hypothesis import given
from hypothesis import strategies as st
from run_blocks import (
    NOW,
    REQUEST,
    RUN_ID,
    START,
    TEARDOWN_PHASE,
    _owner,
    buttons,
    event,
    in_phase,
    make_cluster,
    make_run,
    progress,
    running,
    seen,
)

from bot.blocks import answers, mrkdwn
from bot.blocks.card import card_milestone, run_card
from bot.blocks.cluster_thread import cluster_message
from bot.blocks.receipt import run_receipt
from bot.blocks.thread import thread_message
from stationmaster.domain.bus import LogTail
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.leases import Lease
from stationmaster.domain.cluster.resources import Resource, ResourceStatus
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import changes
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run, new_run_id
from stationmaster.domain.run.attempts import Attempt, first_assignment
from stationmaster.domain.run.failures import Failure
from stationmaster.domain.run.pods import Pod
from stationmaster.domain.run.speeds import Speeds
from stationmaster.domain.run.staging import Staging
from stationmaster.domain.run.view import RunView
from stationmaster.domain.sizes import counted
from stationmaster.local.slack.blocks import check_blocks
from tests.support.factories import make_event, make_request
from tests.support.plans import make_plan

PREPARING = make_event(ev.TrainingPreparing, waits_for="libraries", at=START)


def apply(view: RunView, event: ev.RunEvent) -> RunView:
    return replace(view, run=changes.apply(view.run, event))


LOSS = st.floats(-1e12, 1e12)
COUNT = st.integers(0, 2**53 - 1)


@st.composite
def any_run(draw) -> RunView:
    phase = draw(st.sampled_from(list(ev.RunPhase)))
    pods = draw(
        st.lists(st.builds(Pod, name=TEXT, phase=TEXT, reason=TEXT, message=TEXT), max_size=5)
    )
    steps = draw(st.integers(0, 10**9))
    return make_run(
        run_id=new_run_id(draw(TEXT), dedup_key="any"),
        request=REQUEST.model_copy(
            update={"recipe": draw(TEXT), "instance_type": draw(TEXT), "user_id": draw(TEXT)}
        ),
        phase=phase,
        phases=[(ev.RunPhase.REQUESTED, START), (phase, draw(MOMENT))],
        reason=draw(TEXT),
        teardown=draw(st.sampled_from(list(TEARDOWN_PHASE))),
        teardown_reason=draw(TEXT),
        left_behind=draw(st.lists(TEXT, max_size=60)),
        stop_requested_by=draw(st.none() | TEXT),
        price_per_hour_usd=draw(AMOUNT),
        estimated_cost_usd=draw(AMOUNT),
        final_cost_usd=draw(st.none() | AMOUNT),
        ended_at=draw(st.none() | MOMENT),
        resources=draw(RESOURCES),
        plugins=draw(st.lists(TEXT, max_size=40)),
        checks=draw(CHECKS),
        pods={f"{index}": pod for index, pod in enumerate(pods)},
        training_started_at=draw(st.none() | MOMENT),
        progress=draw(
            st.none()
            | st.builds(
                progress,
                st.just(steps),
                total_steps=st.integers(-1, 10**9),
                loss_nats=st.none() | LOSS,
                tokens_per_s=st.none() | AMOUNT,
                samples_per_s=st.none() | AMOUNT,
                step_time_s=st.none() | LOSS,
                mfu=st.none() | LOSS,
            )
        ),
        first_loss_nats=draw(st.none() | LOSS),
        loss_points=[(index, loss) for index, loss in enumerate(draw(st.lists(LOSS, max_size=96)))],
        last_checkpoint_step=draw(st.none() | st.integers(0, 10**9)),
        resumed_from_step=draw(st.none() | st.integers(0, 10**9)),
        num_restarts=draw(st.integers(0, 100)),
        trainer_failure=draw(TEXT),
    )


@SLOW
@given(any_run())
def test_card_and_receipt_of_any_run_are_within_slacks_limits(run):
    assert_slack_takes(run_card(run, now=NOW))
    assert_slack_takes(run_receipt(run, now=NOW))
    assert_slack_takes(answers.runs_list([run] * 20, now=NOW))


ANY_EVENT = st.one_of(
    st.builds(
        ev.PodChanged,
        event_id=st.text(min_size=1, max_size=8),
        run_id=st.just(RUN_ID),
        at=MOMENT,
        pod=TEXT,
        node=TEXT,
        reason=TEXT,
        message=TEXT,
    ),
    *(
        st.builds(
            kind,
            event_id=st.text(max_size=8),
            at=MOMENT,
            **{_owner(kind): st.just(RUN_ID)},
            **texts,
        )
        for kind, texts in (
            (ev.PhaseChanged, {"reason": TEXT}),
            (ev.StopRequested, {"user_id": TEXT}),
            (cl.ResourceCreated, {"name": TEXT}),
            (cl.ResourceDeleted, {"name": TEXT}),
            (cl.PluginReady, {"plugin": TEXT}),
            (cl.CheckFinished, {"check": TEXT, "detail": TEXT}),
            (ev.JobSubmitted, {"job": TEXT}),
            (ev.JobConditionChanged, {"reason": TEXT, "message": TEXT}),
            (ev.ClusterWarning, {"object_name": TEXT, "reason": TEXT, "message": TEXT}),
            (ev.TrainingPreparing, {"waits_for": TEXT}),
            (ev.TrainingStarted, {"total_steps": COUNT}),
            (ev.TrainingEvaluated, {"step": COUNT, "loss_nats": st.none() | LOSS}),
            (ev.CheckpointSaved, {"step": COUNT}),
            (ev.WorkersRestarting, {"pod": TEXT, "reason": TEXT}),
            (ev.ProcessFailed, {"pod": TEXT, "process": TEXT, "line": TEXT}),
            (ev.TrainingResumed, {"step": COUNT}),
            (ev.TrainingReportedFailure, {"reason": TEXT}),
            (ev.TrainingFinished, {"step": COUNT}),
            (ev.NodeLost, {"node": TEXT, "reason": TEXT}),
            (ev.NodeRecovered, {"node": TEXT}),
            (ev.JobDisappeared, {"job": TEXT}),
            (cl.TeardownStarted, {}),
        )
    ),
)


@SLOW
@given(st.lists(ANY_EVENT, max_size=60), any_run())
def test_thread_message_of_any_events_is_within_slacks_limits(events, run):
    message = thread_message(events, run)

    if message is not None:
        assert_slack_takes(message)


@SLOW
@given(
    st.lists(
        st.builds(LogTail, pod=TEXT, at=MOMENT, lines=st.lists(TEXT, max_size=200)), max_size=12
    )
)
def test_logs_of_any_pods_are_within_slacks_limits(tails):
    assert_slack_takes(answers.run_logs(make_run(pods={}).run, tails, now=NOW))


@pytest.mark.parametrize("recipe", CATALOGUE)
def test_plan_of_every_recipe_is_within_slacks_limits(recipe):
    plan = make_plan(recipe)

    assert_slack_takes(answers.plan_summary(plan, command=f"/train {recipe}"))


def test_plan_shows_its_eight_gravest_warnings_and_a_start_its_four():
    warnings = [f"warning {number}" for number in range(1, 10)]
    planned_one = make_plan("tiny-llama")
    noted = [planned_one.price_note, *warnings]
    plan = planned_one.model_copy(update={"warnings": noted})

    planned = seen(answers.plan_summary(plan, command="/train tiny-llama"))
    started = seen(answers.run_requested(make_run().run, plan, created=True))

    assert [number for number in range(1, 10) if f"warning {number}" in planned] == [*range(1, 8)]
    assert [number for number in range(1, 10) if f"warning {number}" in started] == [1, 2, 3, 4]
    assert "prices as of" not in started


def test_plan_of_images_counts_images_and_one_of_text_tokens():
    images = seen(answers.plan_summary(make_plan("resnet50"), command="/train resnet50"))
    text = seen(answers.plan_summary(make_plan("llama2-7b"), command="/train llama2-7b"))

    assert "images/s" in images
    assert "tokens/s" in text
    assert "48.7 K tokens/s" in text  # 16 A100 at 45 % MFU, 46 GFLOP a token


def test_plan_that_does_not_fit_invites_to_what_would():
    plan = make_plan("mixtral-8x7b", nodes=2, instance_type="p4d.24xlarge")
    card = seen(answers.plan_summary(plan, command="/train plan mixtral-8x7b nodes=4"))

    assert "does not fit" in card
    assert "This would fit" in card
    assert "Start it" not in card
    assert "```/train plan mixtral-8x7b nodes=4```" in card


def test_recipes_name_every_recipe_and_every_key_once():
    card = seen(answers.recipes_list(CATALOGUE.values()))

    assert all(f"*{name}*" in card for name in CATALOGUE)
    assert card.count("*keys of recipes on") == 2  # on text, on images
    assert "preset" in card
    assert "128 \u00d7 8,192 tokens" in card  # of Megatron, which reads no images
    assert "*keys of recipes of Megatron-LM*" in card


@SLOW
@given(st.text(), st.integers(1, 200))
def test_escaped_text_holds_no_control_character_and_no_broken_entity(text, limit):
    escaped = mrkdwn.escape(text, limit)

    assert len(escaped) <= limit
    assert "<" not in escaped
    assert ">" not in escaped
    assert escaped.isprintable()
    rest = escaped.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")
    assert "&" not in rest


def test_foreign_text_turns_no_direction_and_becomes_no_link():
    run = in_phase(ev.RunPhase.FAILED, reason="see \u202emoc.live\x00 https://evil.example @here")

    card = run_card(run, now=NOW)

    assert "see moc.live https://evil.example" in seen(card)
    texts = [
        block["text"] for block in card.blocks if block["type"] == "section" and "text" in block
    ]
    assert all(text["verbatim"] for text in texts)


def test_card_shows_what_a_person_wants_to_know_of_a_running_run():
    run = running(
        progress=progress(40, tokens_per_s=2048.0, step_time_s=0.5),
        first_loss_nats=8.3,
        loss_points=[(step, 8.3 - step / 10) for step in range(1, 41)],
        resources={
            "cluster": Resource(
                kind=ResourceKind.CLUSTER,
                name="stationmaster-x",
                status=ResourceStatus.ACTIVE,
                price_per_hour_usd=6.0,
                requested_at=START,
            )
        },
    )

    shown = seen(run_card(run, now=NOW))

    for part in ("66%", "step 40 of 60", "8.300", "4.250", "2.05 K tokens/s", "about 10s", "$0.70"):
        assert part in shown
    assert "<@U0OPERATOR>" in shown
    assert "\u2588" * 16 + "\u2591" * 8 in shown


def test_card_shows_where_the_newest_attempt_runs():
    placed = first_assignment(RUN_ID, REQUEST.model_copy(update={"nodes": 5}))
    attempt = Attempt(**dict(placed), started_at=START)

    assert "5 \u00d7 m5.2xlarge" in seen(run_card(running(attempts=[attempt]), now=NOW))


def test_card_and_receipt_say_that_the_loss_is_not_finite():
    diverged = progress(40, loss_nats=None)
    run = running(progress=diverged, first_loss_nats=8.3, loss_points=[(1, 8.3), (2, 8.2)])

    card = run_card(run, now=NOW)

    assert card.text.endswith("loss is not finite")
    assert "8.300 \u2192 *not finite*" in seen(card)
    assert "final loss is not finite" in seen(run_receipt(run, now=NOW))


def test_card_of_a_trainer_that_prints_no_loss_names_none():
    run = apply(running(), progress(12, loss_nats=None, has_loss=False))

    card, receipt = run_card(run, now=NOW), run_receipt(run, now=NOW)

    assert card.text.endswith("step 12 of 60")
    assert "Loss" not in seen(card)
    assert "loss" not in seen(receipt)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"perplexity": 7.389}, "loss 2.000, perplexity 7.4"),
        ({"loss_nats": None}, "loss is not finite"),
        ({"top1": 0.5, "top5": 0.75}, "top-1 50.0%, top-5 75.0%"),
    ],
)
def test_card_shows_the_newest_evaluation_on_held_out_samples(figures, expected):
    evaluated = event(ev.TrainingEvaluated, **({"step": 40, "loss_nats": 2.0} | figures))

    run = apply(running(progress=progress(40)), evaluated)

    assert expected in seen(run_card(run, now=NOW))


def test_card_counts_the_pods_of_each_phase_until_the_run_ends():
    phases = {"a": "Running", "b": "Pending", "c": "Running", "d": "Running", "e": "Failed"}
    pods = {name: Pod(name=name, phase=phase) for name, phase in phases.items()}

    assert "pods: 1 failed, 1 pending, 3 running" in seen(run_card(running(pods=pods), now=NOW))
    assert "pods:" not in seen(run_card(running(), now=NOW))
    ended = in_phase(ev.RunPhase.SUBMITTING, ev.RunPhase.FAILED, pods=pods)
    assert "pods:" not in seen(run_card(ended, now=NOW))


@pytest.mark.parametrize(
    ("phase", "reason", "known", "expected"),
    [
        ("Pending", "ErrImagePull", {}, "waits for pods to start: ErrImagePull"),
        ("Running", "", {}, "waits for the trainer, which starts on every node"),
        ("Running", "", {"preparing": PREPARING}, "waits for libraries"),
        ("Running", "", {"training_started_at": NOW}, "waits for its first step"),
        (
            "Running",
            "",
            {"preparing": PREPARING, "training_started_at": NOW},
            "waits for its first step",
        ),
    ],
)
def test_card_names_what_a_run_waits_for_until_its_first_step(phase, reason, known, expected):
    pods = {"a": Pod(name="a", phase="Running"), "b": Pod(name="b", phase=phase, reason=reason)}

    card = run_card(running(pods=pods, **known), now=NOW)

    assert expected in seen(card)
    assert expected in card.text
    begun = running(pods=pods, progress=progress(1))
    assert "waits for" not in seen(run_card(begun, now=NOW))


def test_card_shows_details_of_the_current_phase_only():
    provisioning = in_phase(
        ev.RunPhase.PROVISIONING,
        plugins=["fsx-csi"],
        resources={
            "c": Resource(
                kind=ResourceKind.CLUSTER,
                name="c",
                status=ResourceStatus.ACTIVE,
                requested_at=START,
                active_at=START + timedelta(seconds=90),
            ),
            "n": Resource(kind=ResourceKind.NODE_GROUP, name="n", requested_at=START),
        },
    )

    shown = seen(run_card(provisioning, now=NOW))

    assert "\u2713 cluster  _1m 30s_" in shown
    assert "\u25cf nodes" in shown
    assert "plugins: fsx-csi" in shown
    assert "plugins: fsx-csi" not in seen(run_card(running(plugins=["fsx-csi"]), now=NOW))


def test_card_shows_how_much_of_the_data_has_come():
    staging = Staging(
        cluster_id="warm", work="copying", done_bytes=36_200_000_000, total_bytes=145_000_000_000
    )
    preparing = staging.model_copy(update={"work": "preparing", "data_id": "d"})
    converting = staging.model_copy(update={"work": "converting"})
    request = make_request(overrides={"dataset": "s3://research-data/imagenet"})

    copied = seen(run_card(in_phase(ev.RunPhase.STAGING, staging=staging), now=NOW))
    prepared = seen(run_card(in_phase(ev.RunPhase.STAGING, staging=preparing), now=NOW))
    converted = seen(run_card(in_phase(ev.RunPhase.STAGING, staging=converting), now=NOW))

    assert "*Bringing the data*" in copied
    assert "36.2 GB of 145 GB copied, 25%" in copied
    assert "36.2 GB of 145 GB prepared, 25%" in prepared
    assert "Bring the data" not in seen(run_card(running(), now=NOW))
    assert "Bring the data" in seen(run_card(in_phase(request=request), now=NOW))
    assert "36.2 GB of 145 GB of weights downloaded and converted, 25%" in converted


def test_card_and_thread_say_that_data_is_linked_and_why():
    staging = Staging(cluster_id="warm", work="linking", data_id="d", root="d/files", linked=True)
    request = make_request(
        overrides={"dataset": "s3://research-data/imagenet"},
        link_reason="a copy takes about 75 min",
    )
    view = in_phase(ev.RunPhase.SUBMITTING, staging=staging, request=request)

    assert "linked, not copied: a copy takes about 75 min" in seen(run_card(view, now=NOW))
    copied = staging.model_copy(update={"linked": False})
    view = in_phase(ev.RunPhase.SUBMITTING, staging=copied, request=request)
    assert "not copied" not in seen(run_card(view, now=NOW))


def test_card_has_stop_and_logs_only_while_they_make_sense():
    pods = {"w": Pod(name="w", phase="Running")}

    assert buttons(run_card(make_run(), now=NOW)) == ["stop_run"]
    assert buttons(run_card(running(pods=pods), now=NOW)) == ["stop_run", "show_logs"]
    assert buttons(run_card(running(pods=pods, stop_requested_by="U0X"), now=NOW)) == ["show_logs"]
    assert buttons(run_card(in_phase(ev.RunPhase.FAILED), now=NOW)) == []


def test_stop_button_asks_before_it_acts():
    stop = run_card(make_run(), now=NOW).blocks[-1]["elements"][0]

    assert stop["style"] == "danger"
    assert "everything it created is deleted" in stop["confirm"]["text"]["text"]


def test_card_of_a_failure_says_why_and_where():
    run = in_phase(
        ev.RunPhase.PROVISIONING,
        ev.RunPhase.FAILED,
        reason="file system: AWS says <no capacity>",
        trainer_failure="CUDA out of memory",
    )

    shown = seen(run_card(run, now=NOW))

    assert "file system: AWS says &lt;no capacity&gt;" in shown
    assert "trainer: CUDA out of memory" in shown
    assert "\u2717\u2002*Provision*" in shown
    assert "\u25cb\u2002Validate" in shown


OUT_OF_MEMORY = Failure(pod="w-1", restarts=0, at=START, exit_code=137, reason="OOMKilled")
LOST_NCCL = Failure(
    pod="w-0",
    restarts=0,
    at=START,
    exit_code=1,
    line="DistBackendError: NCCL error",
    evidence="NCCL WARN Bootstrap : no socket interface found <eth9>",
)


@pytest.mark.parametrize(
    ("reason", "failures", "words"),
    [
        (
            f"{OUT_OF_MEMORY.sentence}; it failed",
            [OUT_OF_MEMORY],
            [
                "> *the kernel killed the process because the container used more memory",
                "> pod w-1 exited with code 137 (OOMKilled); it failed",
                "*What to do*\\nstart it again with less in memory",
                "`/train plan tiny-llama instance=TYPE`\\nIt was typed as `/train tiny-llama",
            ],
        ),
        (
            f"{LOST_NCCL.sentence}; it failed",
            [LOST_NCCL],
            [
                "> *NCCL_SOCKET_IFNAME leaves NCCL no network interface",
                "> pod w-0: NCCL WARN Bootstrap : no socket interface found &lt;eth9&gt;",
                "NCCL error; it failed",
                "*What to do*\\nremove NCCL_SOCKET_IFNAME",
            ],
        ),
        (
            "the workflow was stopped from outside: <x>",
            [],
            ["> the workflow was stopped from outside: &lt;x&gt;", "type its command again"],
        ),
        (
            "no known words",
            [],
            ["> no known words", "*What to do*\\n`/train preflight tiny-llama`"],
        ),
    ],
)
def test_card_of_a_failure_names_the_cause_and_the_next_command(reason, failures, words):
    run = in_phase(ev.RunPhase.FAILED, reason=reason, failures=failures)

    card = run_card(run, now=NOW)

    assert [word for word in words if word not in seen(card)] == []
    assert "OOMKilled exit code" not in seen(card)
    check_blocks(card.blocks)


def test_card_names_the_cause_while_a_run_recovers_and_while_it_is_saved():
    values = {"reason": f"{OUT_OF_MEMORY.sentence}; it failed", "failures": [OUT_OF_MEMORY]}

    for phase in (ev.RunPhase.RECOVERING, ev.RunPhase.SAVING):
        shown = seen(run_card(in_phase(phase, **values), now=NOW))

        assert "> *the kernel killed the process" in shown
        assert "What to do" not in shown


def test_card_says_that_training_resumed():
    run = running(resumed_from_step=40, num_restarts=1)

    assert "Resumed from step 40 after a restart" in seen(run_card(run, now=NOW))


def test_thread_of_a_recovered_run_keeps_how_long_it_stood_and_why():
    sentence = f"resumed from step 40, 5 steps again, after {OUT_OF_MEMORY.sentence}"
    run = running()
    for index, phase in enumerate((ev.RunPhase.RECOVERING, ev.RunPhase.RUNNING) * 2):
        at = NOW + timedelta(seconds=9 * index)
        entered = event(ev.PhaseChanged, index, at=at, phase=phase, reason=sentence)
        run = apply(run, entered)

    text = thread_message([entered], run).text

    assert f"*training continues* after 9s, restart 2: {sentence}" in text
    assert "> *the kernel killed the process because the container used more memory" in text
    first = event(ev.PhaseChanged, phase=ev.RunPhase.RUNNING)
    assert thread_message([first], running()).text.endswith("*training*")


def test_thread_says_a_setback_once_in_a_message():
    process = "process 0 was killed by SIGKILL"
    failed = event(ev.ProcessFailed, pod="w-1", process=process)
    other = event(ev.ProcessFailed, 1, pod="w-2", process=process, line="RuntimeError: x")
    restarting = event(ev.WorkersRestarting, pod="w-1", reason=process)
    reason = f"pod w-1 failed: {process}"
    recovering = event(ev.PhaseChanged, phase=ev.RunPhase.RECOVERING, reason=reason)
    resumed = event(ev.TrainingResumed, step=1000)

    def lines(*events):
        return thread_message(events, running()).text.splitlines()

    assert len(lines(failed, recovering, restarting, other, resumed)) == 3
    assert len(lines(failed, restarting, resumed)) == 3
    trains = event(
        ev.PhaseChanged,
        1,
        phase=ev.RunPhase.RUNNING,
        reason=f"resumed from step 1,000 after {reason}",
    )
    assert len(lines(resumed, trains)) == 1


def test_card_of_a_recovered_run_keeps_one_line_a_phase():
    run = running()
    for index, phase in enumerate((ev.RunPhase.RECOVERING, ev.RunPhase.RUNNING)):
        run = apply(run, event(ev.PhaseChanged, index, phase=phase))

    checklist = run_card(run, now=NOW).blocks[2]["text"]["text"]

    assert checklist.count("Train") == 1
    assert "\u25cf\u2002*Training*" in checklist


def test_milestone_moves_with_phases_and_not_with_progress():
    before = running(progress=progress(1))
    after = running(progress=progress(2))

    assert card_milestone(before) == card_milestone(after)
    assert card_milestone(after) != card_milestone(running(stop_requested_by="U0X"))
    assert card_milestone(after) != card_milestone(
        apply(after, event(ev.PhaseChanged, phase=ev.RunPhase.RECOVERING))
    )


def test_receipt_of_a_clean_teardown_lists_what_was_deleted():
    run = in_phase(
        ev.RunPhase.SUCCEEDED,
        teardown=TeardownStatus.COMPLETED,
        torn_down_at=NOW,
        final_cost_usd=0.31,
        resources={
            "f": Resource(
                kind=ResourceKind.FILE_SYSTEM,
                name="fs-1",
                status=ResourceStatus.DELETED,
                price_per_hour_usd=1.0,
                requested_at=START,
                deleted_at=START + timedelta(minutes=6),
            ),
            "c": Resource(
                kind=ResourceKind.CLUSTER,
                name="was-refused",
                status=ResourceStatus.DELETED,
                requested_at=START,
                refused_at=START,
                deleted_at=START + timedelta(minutes=6),
            ),
        },
    )

    shown = seen(run_receipt(run, now=NOW))

    assert "Nothing billable is left" in shown
    assert "was-refused" not in shown
    assert "file system `fs-1`  _6m 00s, $0.10_" in shown
    assert "$0.31" in shown


def test_cost_of_emulated_machines_is_marked_wherever_it_is_shown():
    done = in_phase(
        ev.RunPhase.SUCCEEDED,
        teardown=TeardownStatus.COMPLETED,
        torn_down_at=NOW,
        final_cost_usd=0.31,
        estimated_cost_usd=0.92,
        emulated_speed=720.0,
    )
    receipt = run_receipt(done, now=NOW)

    assert "$0.31 emulated" in receipt.text
    assert "nothing is billed" in seen(receipt)
    assert "720 times as fast" in seen(receipt)
    live = running(progress=progress(10), final_cost_usd=0.31, emulated_speed=720.0)
    assert "$0.31 emulated" in seen(run_card(live, now=NOW))
    assert "$0.31 emulated" in seen(answers.runs_list([done], now=NOW))
    real = replace(done, run=done.run.model_copy(update={"emulated_speed": None}))
    assert "emulated" not in seen(run_receipt(real, now=NOW))
    assert "emulated" not in seen(answers.runs_list([real], now=NOW))


def test_receipt_of_a_failed_teardown_names_what_is_left():
    run = in_phase(
        ev.RunPhase.FAILED,
        teardown=TeardownStatus.FAILED,
        teardown_reason="cluster is still there",
        left_behind=["cluster stationmaster-x"],
    )

    shown = seen(run_receipt(run, now=NOW))

    assert "Nothing billable is left" not in shown
    assert "`cluster stationmaster-x`" in shown
    assert "cluster is still there" in shown


def test_thread_tells_the_newest_word_on_each_pod_and_every_failure():
    pod = f"{RUN_ID}-worker-0"
    events = [
        event(ev.PodChanged, 0, pod=pod, phase="Pending", node="n1"),
        event(ev.PodChanged, 1, pod=pod, phase="Failed", reason="OOMKilled", exit_code=137),
        event(ev.PodChanged, 2, pod=pod, phase="Running", node="n1", restarts=1),
    ]

    text = thread_message(events, running()).text

    assert "scheduled" not in text
    assert "`worker-0` ended with exit code 137 (OOMKilled)" in text
    assert "`worker-0` running on `n1`, restart 1" in text


def test_thread_puts_neighbours_of_one_kind_on_one_line():
    events = [
        event(ev.PodChanged, index, pod=f"{RUN_ID}-worker-{index}", phase="Running", node="n")
        for index in range(9)
    ]

    lines = thread_message(events, running()).text.splitlines()

    assert len(lines) == 1
    assert "and 3 more running" in lines[0]


def test_thread_tells_a_failed_process_with_its_line_and_not_those_that_followed():
    pod = f"{RUN_ID}-worker-0"
    own = event(ev.ProcessFailed, 0, pod=pod, process="process 0 exited with code 1", line="E: x")
    peer = event(ev.ProcessFailed, 1, pod=pod, process="exited with code 75", lost_peer=True)

    text = thread_message([own, peer], running()).text

    assert text.splitlines() == ["\u2717 `worker-0`: process 0 exited with code 1: E: x"]


def test_card_and_thread_say_that_efa_is_not_used_and_what_to_do():
    request = make_request(recipe="llama2-7b", instance_type="p4d.24xlarge")
    seen_by_nccl = event(
        ev.NetworkObserved, job=RUN_ID, pod=f"{RUN_ID}-worker-1", uses_sockets=True
    )
    view = apply(running(request=request), seen_by_nccl)

    for text in (thread_message([seen_by_nccl], view).text, seen(run_card(view, now=NOW))):
        assert "NCCL used sockets instead of EFA on worker-1" in text
        assert "To do: put aws-ofi-nccl into the image" in text
    assert card_milestone(view) != card_milestone(running(request=request))
    assert "instead of EFA" not in seen(run_card(running(request=request), now=NOW))


def test_card_says_that_training_is_slower_than_planned():
    request = make_request(recipe="llama2-7b", instance_type="p4d.24xlarge")
    slow = Speeds(num_skipped=2, samples_per_s=(0.125,) * 10)

    assert "training is slow: 0.125 samples a second, and the plan expects" in seen(
        run_card(running(request=request, speeds=slow), now=NOW)
    )
    assert "is slow" not in seen(run_card(running(speeds=slow), now=NOW))


CLUSTER = {"kind": ResourceKind.CLUSTER, "name": f"stationmaster-{RUN_ID}"}


def after_its_cluster() -> Run:
    """A run whose cluster is gone."""
    gone = Resource(**CLUSTER, status=ResourceStatus.DELETED, requested_at=START)
    run = in_phase(ev.RunPhase.FAILED)
    assert run.cluster is not None
    resources = {"resources": {f"cluster/{gone.name}": gone}}
    return replace(run, cluster=run.cluster.model_copy(update=resources))


LATE = [
    (ev.PodChanged, {"pod": f"{RUN_ID}-worker-0", "phase": "Deleted"}),
    (ev.NodeLost, {"node": "n", "reason": "the node was deleted"}),
    (ev.JobConditionChanged, {"condition": "Failed", "reason": "r", "message": "m"}),
    (ev.ClusterWarning, {"object_name": RUN_ID, "reason": "r", "message": "m"}),
    (ev.TrainingFinished, {"step": 9}),
]


@pytest.mark.parametrize(("event_class", "fields"), LATE)
def test_thread_after_the_cluster_is_deleted_has_no_late_line_of_its_relay(event_class, fields):
    deleted = event(cl.ResourceDeleted, 0, **CLUSTER)
    late = event(event_class, 1, **fields)

    both = thread_message([deleted, late], after_its_cluster())

    assert len(both.text.splitlines()) == 1
    assert "deleted" in both.text
    assert thread_message([late], after_its_cluster()) is None
    never_was = deleted.model_copy(update={"never_was": True})
    assert thread_message([never_was], after_its_cluster()) is None


def test_thread_of_one_batch_keeps_what_the_relay_said_before_the_cluster_went():
    pod = event(ev.PodChanged, 0, pod=f"{RUN_ID}-worker-0", phase="Deleted")
    group = {"kind": ResourceKind.NODE_GROUP, "name": "training"}
    deleted = [event(cl.ResourceDeleted, 1, **CLUSTER), event(cl.ResourceDeleted, 2, **group)]

    lines = thread_message([pod, *deleted], after_its_cluster()).text.splitlines()

    assert len(lines) == 2
    assert "gone" in lines[0]


@pytest.mark.parametrize(("phase", "lines"), [(None, 1), (ev.RunPhase.STOPPED, 0)])
def test_thread_tells_a_deleted_job_unless_its_run_had_ended(phase, lines):
    run = running() if phase is None else in_phase(phase)

    message = thread_message([event(ev.JobDisappeared, 0, job=RUN_ID)], run)

    assert (message is not None) == bool(lines)


@pytest.mark.parametrize(
    ("phase", "exit_code", "seconds_after_the_end", "posted"),
    [
        (ev.RunPhase.SUCCEEDED, 143, 2, False),
        (ev.RunPhase.STOPPED, 137, 2, False),
        (ev.RunPhase.SUCCEEDED, 143, -0.5, False),
        (ev.RunPhase.SUCCEEDED, 1, 2, True),
        (ev.RunPhase.FAILED, 137, -60, True),
        (None, 143, 0, True),
    ],
)
def test_thread_tells_a_killed_pod_unless_its_teardown_killed_it(
    phase, exit_code, seconds_after_the_end, posted
):
    run = running() if phase is None else in_phase(phase, ended_at=NOW)
    at = NOW + timedelta(seconds=seconds_after_the_end)
    killed = event(
        ev.PodChanged, 0, pod=f"{RUN_ID}-worker-0", phase="Failed", exit_code=exit_code, at=at
    )

    assert (thread_message([killed], run) is not None) == posted


@pytest.mark.parametrize(
    ("ended_at", "reason", "seconds_after_the_end", "posted"),
    [
        (NOW, "NodeNotReady", 2, False),
        (NOW, "NodeNotReady", -60, True),
        (NOW, "FailedMount", 2, True),
        (None, "NodeNotReady", 2, True),
    ],
)
def test_thread_tells_a_lost_node_unless_it_was_deleted_after_the_end(
    ended_at, reason, seconds_after_the_end, posted
):
    run = in_phase(ev.RunPhase.SUCCEEDED, ended_at=ended_at)
    lost = event(
        *(ev.ClusterWarning, 0),
        object_name=f"{RUN_ID}-worker-0",
        reason=reason,
        message="Node is not ready",
        at=NOW + timedelta(seconds=seconds_after_the_end),
    )

    assert (thread_message([lost], run) is not None) == posted


def test_thread_shows_what_the_trained_model_wrote():
    samples = [{"prompt": "`if", "text": "<x>\nreturn"}]
    finished = event(ev.TrainingFinished, 0, step=9, samples=samples)

    message = thread_message([finished], running())

    assert message.text.splitlines()[1:] == ["> `'if` &lt;x&gt; return"]


def test_thread_is_silent_about_progress():
    assert thread_message([progress(1), progress(2)], running()) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 1.0, 1.0], "\u2584\u2584\u2584"),
        ([3.0, 2.0, 1.0], "\u2588\u2585\u2581"),
        ([5.0], ""),
        ([float("nan"), 2.0, 1.0], "\u2588\u2581"),
        ([1.7e308, -1.7e308], "\u2588\u2581"),
    ],
)
def test_sparkline_draws_the_shape(values, expected):
    assert mrkdwn.sparkline(values) == expected


def test_sparkline_is_never_wider_than_asked():
    assert len(mrkdwn.sparkline([float(value) for value in range(96)], width=24)) == 24


@pytest.mark.parametrize(("fraction", "full"), [(0, 0), (0.999, 23), (1, 24), (7, 24), (-1, 0)])
def test_progress_bar_is_full_only_at_the_end(fraction, full):
    assert mrkdwn.progress_bar(fraction).count("\u2588") == full


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(8, "8s"), (130, "2m 10s"), (11_100, "3h 05m"), (187_200, "2d 4h"), (float("inf"), "unknown")],
)
def test_duration_uses_two_units_at_most(seconds, shown):
    assert mrkdwn.duration(seconds) == shown


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1200, "1,200 nodes")]
)
def test_counted_noun_has_its_plural(number, shown):
    assert counted(number, "node") == shown


@pytest.mark.parametrize(
    ("usd", "shown"), [(0, "$0.00"), (0.004, "$0.004"), (0.31, "$0.31"), (1284.4, "$1,284")]
)
def test_money_keeps_the_digits_that_tell_something(usd, shown):
    assert mrkdwn.money(usd) == shown


def test_card_says_for_how_long_the_cluster_stays_after_the_run():
    kept = make_run(request=REQUEST.model_copy(update={"keep_s": 7200}))

    assert "cluster kept 2h after it" in seen(run_card(kept, now=NOW))
    assert "kept" not in seen(run_card(make_run(), now=NOW))


def test_card_of_a_range_says_how_many_of_it_the_run_has():
    request = REQUEST.model_copy(update={"nodes": 8, "min_nodes": 2})
    view = running(request=request)
    spec = view.cluster.spec.model_copy(update={"nodes": 6})
    lease = Lease(run_id=RUN_ID, nodes=6, granted_at=START)
    leased = view.cluster.model_copy(update={"spec": spec, "leases": {RUN_ID: lease}})
    open_spec = spec.model_copy(update={"nodes": 8, "min_nodes": 2})
    unsettled = leased.model_copy(update={"spec": open_spec})

    assert "6 of 2:8 nodes \u00d7 m5.2xlarge" in seen(
        run_card(replace(view, cluster=leased), now=NOW)
    )
    waiting = seen(run_card(replace(view, cluster=unsettled), now=NOW))
    assert "2:8 nodes \u00d7 m5.2xlarge" in waiting
    assert "of 2:8" not in waiting


def test_thread_names_the_full_zone_and_the_next_one():
    left = cl.ZoneGivenUp(
        event_id="z",
        cluster_id=RUN_ID,
        at=START,
        zone="us-east-1a",
        left_subnet_id="subnet-1",
        next_zone="us-east-1b",
        subnet_id="subnet-2",
        instance_type="p5.48xlarge",
        nodes=2,
    )

    assert "no 2 x p5.48xlarge free in us-east-1a, trying us-east-1b" in seen(
        thread_message([left], running())
    )
    assert "trying us-east-1b" in seen(cluster_message([left], make_cluster()))
    full = left.model_copy(update={"lacking": ResourceKind.FILE_SYSTEM})
    assert "no room for a file system in us-east-1a, trying us-east-1b" in seen(
        thread_message([full], running())
    )


def test_threads_give_the_whole_reason_of_a_check_that_failed():
    why = (
        " ".join(f"node-{number} offers 0 of 8 GPUs;" for number in range(20)) + " look at its log"
    )
    assert 300 < len(why) < 900
    about = {"cluster_id": RUN_ID, "at": START, "event_id": "f"}
    failed = cl.CheckFinished(check="gpus", passed=False, detail=why, **about)

    assert f"check *gpus*: {why}" in seen(thread_message([failed], running()))
    assert f"check *gpus*: {why}" in seen(cluster_message([failed], make_cluster()))


def test_threads_say_which_node_is_replaced_and_why():
    about = {"cluster_id": RUN_ID, "at": START, "node": "node-a", "instance_id": "i-1"}
    began = cl.NodeReplacementBegan(
        event_id="b", check="gpu-health", reason="GPU 3 is lost", number=1, **about
    )
    over = cl.NodeReplaced(event_id="o", **about)

    for text in (
        seen(thread_message([began, over], running())),
        seen(cluster_message([began, over], make_cluster())),
    ):
        assert "node `node-a` failed check *gpu-health* and is replaced (1 of at most 2)" in text
        assert "GPU 3 is lost" in text
        assert "another node came for `node-a`; every check begins anew" in text


def test_thread_of_a_range_says_how_many_nodes_it_got_and_why():
    view = running(request=REQUEST.model_copy(update={"nodes": 8, "min_nodes": 2}))
    settled = cl.SizeSettled(
        event_id="s", cluster_id=RUN_ID, at=START, nodes=6, reason="no capacity"
    )
    leased = ev.NodesLeased(
        event_id="n", run_id=RUN_ID, at=START, attempt_id="a", nodes=6, price_per_hour_usd=1.0
    )

    told = seen(thread_message([settled, leased], view))

    assert "it goes on with 6 nodes: no capacity" in told
    assert "it has 6 nodes of 2:8" in told


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"reason": "pod w-0 failed: KeyError"}, ("\u274c", "failed, saving results", "KeyError")),
        ({"reason": "stopped by U7", "stop_requested_by": "U7"}, ("\U0001f6d1", "stopped, saving")),
        ({}, ("\U0001f4be", ": saving results")),
    ],
)
def test_card_of_a_run_that_is_saved_says_first_how_it_ended(values, words):
    card = run_card(in_phase(ev.RunPhase.SAVING, **values), now=NOW)

    header = card.blocks[0]["text"]["text"]
    assert all(word in f"{header} {card.text}" for word in words)
    assert "stop_run" not in seen(card)
