"""What the channel is shown: right for a person, and within Slack's limits for any run."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
from any_blocks import (
    AMOUNT,
    CHECKS,
    MOMENT,
    RESOURCES,
    SLOW,
    TEXT,
    any_event,
    assert_slack_takes,
)
from hypothesis import given
from hypothesis import strategies as st
from run_blocks import (
    NOW,
    REQUEST,
    START,
    TEARDOWN_PHASE,
    in_phase,
    make_run,
    progress,
    running,
    seen,
)

from bot.blocks import answers, mrkdwn
from bot.blocks.answers import preflight_findings
from bot.blocks.approval import decision_taken
from bot.blocks.card import run_card
from bot.blocks.comparing import audit_list, month_cost, runs_compared, runs_differ
from bot.blocks.elements import Content
from bot.blocks.home import home_view
from bot.blocks.receipt import run_receipt
from bot.blocks.refusals import refusal
from bot.blocks.stopping import stops_offered
from bot.blocks.thread import thread_message
from stationmaster.commands.comparing import Comparison
from stationmaster.commands.home import Home
from stationmaster.domain.audit import Entry
from stationmaster.domain.bus import LogTail
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.notices import Notices
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import new_run_id
from stationmaster.domain.run.pods import Pod
from stationmaster.domain.run.view import RunView
from stationmaster.domain.sizes import counted
from stationmaster.preflight.findings import Finding, Severity, unanswered
from stationmaster.spending import Bill, Spent
from tests.support.plans import make_plan

LOSS = st.floats(-1e12, 1e12)
DURATIONS = [
    *((8, "8s"), (130, "2m 10s"), (11_100, "3h 05m"), (187_200, "2d 4h")),
    (float("inf"), "unknown"),
]
NODES = [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1200, "1,200 nodes")]
MONEY = [(0, "$0.00"), (0.004, "$0.004"), (0.31, "$0.31"), (1284.4, "$1,284")]


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
            update={
                **{name: draw(TEXT) for name in ("recipe", "instance_type", "user_id")},
                "command": f"/train x {draw(TEXT)}",
            }
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
        pods={f"{index}": pod for index, pod in enumerate(pods * 100)},
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
@given(any_run(), TEXT)
def test_whatever_shows_any_run_is_within_slacks_limits_and_harmless(view, text):
    run, bill = view.run, Spent(*[text] * 4, 1.0, 1.0, is_run=True, is_open=True)
    compared = Comparison((view, view), ((text, (text, text)),), (text,))
    entry = Entry(seq=1, at=NOW, channel_id="C1", user_id=text, via="", act="look", about=text)
    entry = entry.model_copy(update={"words": text, "refused": text})
    for content in (
        run_card(view, now=NOW),
        run_card(view, now=NOW, moved_from=(text, text)),
        run_receipt(view, now=NOW),
        answers.runs_list([view] * 20, now=NOW),
        *(answer(run) for answer in (answers.stop_accepted, answers.saving_again, decision_taken)),
        answers.preflight_findings([(text, [unanswered(text, text)])]),
        stops_offered([view] * 9, why="two", more=1, now=NOW),
        refusal(f"no {text}", suggestion=f"/train plan {text}"),
        audit_list([entry] * 9),
        month_cost(Bill("2026-01", (bill,) * 90, NOW, is_emulated=False)),
        runs_differ(compared),
        runs_compared(compared, has_picture=True, now=NOW),
    ):
        assert_slack_takes(content)
    theirs = ([view], [], [view], [view], [], 1, [], Bill(text, (bill,), NOW, is_emulated=False))
    home = Home(text, Notices.MENTION, *theirs, {"C1": 9.0}, ["C1"])
    blocks = home_view(home, now=NOW, emulated=False, said=None)["blocks"]
    assert_slack_takes(Content(text="Home", blocks=blocks))


@SLOW
@given(st.lists(any_event(ev.RunEvent) | any_event(cl.ClusterEvent), max_size=60), any_run())
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
    assert_slack_takes(answers.run_logs(make_run(pods={}).run, tails, with_file=True, now=NOW))


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202emoc.b \u2066c\u2069 \u200fd", "amoc.b c d"),  # directions
        ("a\u200bb\u200d\ufeffc\u2060 \u00add", "abc d"),  # without width
        ("a\x00b\x07\x1b[31mc\nd\u2028e", "ab[31mc d e"),
        ("<!channel> <@U1> <https://x|y> &lt;", None),  # its signs are counted below
        ("https://evil.example @here #general", "https://evil.example @here #general"),
        ("*b* _i_ ~s~ `c`", "\u2217b* \u02cdi_ \u223cs~ 'c'"),
        ("*\u200bb* :\u200bx:", "\u2217b* \u2236x:"),
        ("``\u200b` c", "''' c"),
        ("> said", "\u203a said"),
        ("\x00>>> said", "\u203a said"),
        (":white_check_mark: done :+1:", "\u2236white_check_mark: done \u2236+1:"),
        # These are no formats, and stay as they can be copied.
        ("file_system_gib=2*3 ~/x 10:20:30", "file_system_gib=2*3 ~/x 10:20:30"),
        ("ghcr.io/x:latest: not found", "ghcr.io/x:latest: not found"),
    ],
)
def test_each_sign_that_slack_or_a_reader_would_follow_is_disarmed(text, shown):
    escaped = mrkdwn.escape(text)

    assert shown in (None, escaped)
    assert not re.search(r"[<>`]|(?<![a-z0-9])([*_~])\S.*\1", escaped)
    inline, block = mrkdwn.code(text)[1:-1], mrkdwn.code_block([text])[4:-4]
    assert not re.search("[<>`]", inline)
    assert not re.search("[<>]|```", block)
    assert inline.isprintable()
    assert block.isprintable()
    assert ("b*" in inline) is ("b*" in text)  # code is copied


def test_foreign_text_turns_no_direction_and_becomes_no_link():
    run = in_phase(ev.RunPhase.FAILED, reason="see \u202emoc.live\x00 https://evil.example @here")

    card = run_card(run, now=NOW)

    assert "see moc.live https://evil.example" in seen(card)
    texts = [
        block["text"] for block in card.blocks if block["type"] == "section" and "text" in block
    ]
    assert all(text["verbatim"] for text in texts)


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


@pytest.mark.parametrize(
    ("write", "value", "written"),
    [
        (mrkdwn.sparkline, [1.0, 1.0, 1.0], "\u2584\u2584\u2584"),
        (mrkdwn.sparkline, [3.0, 2.0, 1.0], "\u2588\u2585\u2581"),
        (mrkdwn.sparkline, [5.0], ""),
        (mrkdwn.sparkline, [float("nan"), 2.0, 1.0], "\u2588\u2581"),
        (mrkdwn.sparkline, [1.7e308, -1.7e308], "\u2588\u2581"),
        (lambda most: len(mrkdwn.sparkline([*range(96)], width=most)), 24, 24),
        *(
            (lambda part: mrkdwn.progress_bar(part).count("\u2588"), part, full)
            for part, full in ((0, 0), (0.999, 23), (1, 24), (7, 24), (-1, 0))
        ),
        *((mrkdwn.duration, seconds, text) for seconds, text in DURATIONS),
        *((partial(counted, noun="node"), number, text) for number, text in NODES),
        *((mrkdwn.money, usd, text) for usd, text in MONEY),
    ],
)
def test_figure_is_written_as_a_person_reads_it(write, value, written):
    assert write(value) == written


THERE = Finding(check="images", severity=Severity.INFO, message="the relay image is there")
LACKS = Finding(
    check="vcpu-quota",
    severity=Severity.ERROR,
    message='"P instances" allows 0 vCPUs',
    remedy="ask for 384",
)


def test_answer_has_what_lacks_first_and_its_remedy() -> None:
    content = preflight_findings([("the deployment", [THERE, LACKS]), ("/train x", [])])

    assert content.text == "preflight: 1 thing lacking"
    (section,) = content.blocks[1:]
    lines = section["text"]["text"].splitlines()
    assert lines[0] == "*the deployment*"
    assert lines[1].endswith('`vcpu-quota` "P instances" allows 0 vCPUs; ask for 384')
    assert lines[2].endswith("`images` the relay image is there")


def test_answer_says_that_nothing_is_lacking() -> None:
    assert preflight_findings([("the deployment", [THERE])]).text == "preflight: nothing is lacking"
    unasked = preflight_findings([("the deployment", [THERE, unanswered("quota", "no answer")])])
    assert unasked.text == "preflight: nothing is lacking, 1 question without an answer"
