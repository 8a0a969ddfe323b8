"""What the channel says of nodes that come late, go early, or have a price of their own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from run_blocks import NOW, event, in_phase, make_run, running, seen

from bot.blocks.card import card_milestone, run_card
from bot.blocks.receipt import run_receipt
from bot.blocks.thread import thread_message
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.spec import Reservation, Window
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.view import RunView

BLOCK = Reservation(
    reservation_id="cr-0123456789abcdef0",
    zone="us-west-2b",
    window=Window(starts_at=NOW, ends_at=NOW + timedelta(days=2)),
)
WAITS = "capacity block cr-1 starts at 2026-01-05 11:30 UTC, nothing is made before"
LEAVES = "stopped because capacity block cr-1 ends at 2026-01-07 11:30 UTC"


def with_nodes(view: RunView, **spec: object) -> RunView:
    assert view.cluster is not None
    changed = view.cluster.spec.model_copy(update=spec)
    return replace(view, cluster=view.cluster.model_copy(update={"spec": changed}))


def test_card_and_thread_of_a_run_that_waits_for_its_block_say_until_when():
    waiting = in_phase(ev.RunPhase.QUEUED, reason=WAITS)
    entered = event(ev.PhaseChanged, 0, phase=ev.RunPhase.QUEUED, reason=WAITS)

    assert WAITS in seen(run_card(waiting, now=NOW))
    assert WAITS in thread_message([entered], waiting).text


def test_card_of_a_job_that_kueue_holds_shows_it_at_the_job_and_not_at_the_nodes():
    why = "Kueue has not admitted the job to queue night yet: 2 more CPUs needed"
    held = in_phase(
        ev.RunPhase.PROVISIONING,
        ev.RunPhase.VALIDATING,
        ev.RunPhase.SUBMITTING,
        ev.RunPhase.QUEUED,
        reason=why,
    )

    card = seen(run_card(held, now=NOW))

    assert why in card
    assert "queued" in card
    assert "Submitting the job" in card
    assert "ait for nodes" not in card
    assert "aiting for nodes" not in card


def test_run_that_leaves_its_block_is_warned_stopped_and_says_why():
    warning = event(ev.CapacityEnding, 0, reason="AWS takes the nodes back")
    stop = event(ev.StopRequested, 1, user_id="", why=LEAVES)
    stopping = running(stop_requested_by="", stop_why=LEAVES)
    stopped = in_phase(ev.RunPhase.STOPPED, stop_requested_by="", stop_why=LEAVES)

    text = thread_message([warning, stop], stopping).text

    assert text.splitlines() == [
        "\u26a0\ufe0f AWS takes the nodes back",
        f"\U0001f6d1 the run is {LEAVES}",
    ]
    card = seen(run_card(stopping, now=NOW))
    assert f"Being {LEAVES}" in card
    assert "stopping" in card
    assert "Stop this run?" not in card
    assert card_milestone(stopping) != card_milestone(running())
    assert LEAVES in seen(run_card(stopped, now=NOW))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"reservation": BLOCK}, "were paid for when it was bought, and are not in this bill"),
        ({"is_spot": True}, "counted at their price on demand, the most that they can cost"),
    ],
)
def test_receipt_says_what_its_price_of_the_nodes_is(spec: dict[str, object], said: str):
    done = make_run(teardown=TeardownStatus.COMPLETED)

    assert said in seen(run_receipt(with_nodes(done, **spec), now=NOW))
    assert said not in seen(run_receipt(done, now=NOW))


@pytest.mark.parametrize(
    ("step", "said"),
    [(None, "from its last checkpoint once"), (1200, "from its last checkpoint, step 1,200, once")],
)
def test_thread_says_that_aws_takes_a_spot_node_back_and_from_where_the_run_goes_on(step, said):
    notice = event(ev.NodeTakenBack, 0, node="ip-10-0-1-7.ec2.internal")

    text = thread_message([notice], running(last_checkpoint_step=step)).text

    assert "spot node `ip-10-0-1-7.ec2.internal` is being taken back by AWS" in text
    assert said in text
