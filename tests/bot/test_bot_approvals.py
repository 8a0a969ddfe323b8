"""A run above the channel's limits waits for somebody else, and starts once, or not at all."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bot_world import (
    CHANNEL,
    USER,
    Clock,
    ClusterStory,
    Person,
    TableStream,
    seen,
    started_workflows,
    tell,
)
from recording_slack import RecordingSlack

from bot import lambda_handler
from bot.actions import ActionId, RunButton
from bot.notifier import Notifier
from stationmaster.domain.approvals import EXPIRES_AFTER, REMINDED_AFTER
from stationmaster.domain.catalogue import instances
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from stationmaster.steps.reap import reap

LEAD, OTHER_LEAD, OPERATOR = "U0LEAD", "U0OTHERLEAD", "U0OTHER"
LIMITS: dict[str, Any] = {"usd_per_hour": 0.5}
COMMAND = "tiny-llama nodes=2 steps=60"


@pytest.fixture
def limits() -> dict[str, Any]:
    return dict(LIMITS)


@pytest.fixture(autouse=True)
def rules(set_rules: Any, slack: RecordingSlack, limits: dict[str, Any]) -> Path:
    slack.groups["S0LEADS"] = [OTHER_LEAD]
    its = {"approvers": [LEAD, "S0LEADS", USER], "approval": limits}
    path: Path = set_rules(its)
    return path


class Desk:
    """The bot and the notifier, and what people decide."""

    def __init__(
        self, person: Person, services: Services, slack: RecordingSlack, tells: Any
    ) -> None:
        self.person, self.services, self.slack, self.tells = person, services, slack, tells

    def ask(self, text: str = COMMAND) -> Run:
        """Ask for a run that has to be approved."""
        assert "waits for an approval" in seen(self.person.type(text))
        self.tells()
        return self.run

    @property
    def run(self) -> Run:
        (run,) = self.services.runs.list_recent(limit=1)
        return run

    def decide(self, action: ActionId, user: str) -> str:
        value = RunButton(run_id=self.run.run_id).model_dump_json()
        self.person.press(action, value, user=user)
        self.tells()
        return self.slack.responses[-1].seen

    def approve(self, user: str) -> str:
        return self.decide(ActionId.APPROVE_RUN, user)

    @property
    def started(self) -> list[str]:
        return started_workflows(self.services.settings)

    @property
    def thread(self) -> str:
        return "\n".join(call.seen for call in self.slack.thread)


@pytest.fixture
def desk(
    person: Person,
    services: Services,
    slack: RecordingSlack,
    notifier: Notifier,
    stream: TableStream,
    clock: Clock,
) -> Desk:
    clock.at = datetime.now(UTC)  # by which the handler goes

    def tells() -> None:
        clock.advance(10)
        tell(notifier, stream)

    return Desk(person, services, slack, tells)


def test_nothing_starts_before_somebody_else_agrees(desk: Desk) -> None:
    run = desk.ask()

    assert run.phase is RunPhase.AWAITING_APPROVAL
    assert desk.started == []
    card = desk.slack.card.seen
    assert "an hour, and $0.50 may be spent" in card
    assert COMMAND in card
    assert f"<@{LEAD}> or <!subteam^S0LEADS>" in card
    assert f"this run needs an approval, see its card <@{USER}>" in desk.thread

    assert "is approved and starts" in desk.approve(OTHER_LEAD)

    assert desk.started == [run.run_id]
    assert f"approved by <@{OTHER_LEAD}>" in desk.slack.card.seen
    assert '"approve_run"' not in desk.slack.card.seen


def test_no_one_decides_about_a_run_of_their_own_or_without_the_role(desk: Desk) -> None:
    desk.ask()

    for action in (ActionId.APPROVE_RUN, ActionId.REJECT_RUN):
        assert "somebody else decides about a run that you have asked for" in desk.decide(
            action, USER
        )
        assert "takes the role approver" in desk.decide(action, OPERATOR)

    assert desk.run.phase is RunPhase.AWAITING_APPROVAL
    assert desk.started == []


def test_rejected_run_never_starts_and_says_by_whom(desk: Desk) -> None:
    desk.ask()

    assert "is rejected and not started" in desk.decide(ActionId.REJECT_RUN, LEAD)

    assert desk.run.phase is RunPhase.STOPPED
    assert f"rejected by {LEAD}" in desk.run.reason
    assert "waits for no approval any more" in desk.approve(OTHER_LEAD)
    assert desk.started == []


def test_second_and_late_clicks_change_nothing(desk: Desk) -> None:
    run = desk.ask()
    desk.approve(LEAD)

    for user in (LEAD, OTHER_LEAD):
        assert "waits for no approval any more" in desk.approve(user)
    assert "waits for no approval any more" in desk.decide(ActionId.REJECT_RUN, OTHER_LEAD)

    assert desk.started == [run.run_id]


def test_run_that_nobody_approves_reminds_once_and_ends(desk: Desk, clock: Clock) -> None:
    desk.ask()

    for _ in range(2):
        clock.advance(REMINDED_AFTER.total_seconds())
        reap(desk.services)
        desk.tells()
        assert desk.thread.count("it still waits for an approval") == 1

    assert EXPIRES_AFTER == 2 * REMINDED_AFTER
    assert desk.run.phase is RunPhase.STOPPED
    assert "nobody approved it within 2h" in desk.run.reason
    assert "waits for no approval any more" in desk.approve(LEAD)
    assert desk.started == []


def test_click_of_an_approver_whose_function_died_is_finished_by_the_reaper(
    desk: Desk, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = desk.ask()
    with monkeypatch.context() as patch:
        patch.setattr("stationmaster.aws.workflows.Workflows.start_train", lambda *_: None)
        desk.approve(LEAD)
    assert desk.started == []

    clock.advance(timedelta(minutes=10).total_seconds())
    reap(desk.services)

    assert desk.started == [run.run_id]


def test_person_who_asked_withdraws_it(desk: Desk) -> None:
    run = desk.ask()

    asked = seen(desk.person.type(f"stop {run.run_id}"))
    assert "nothing was made for it yet" in asked
    desk.person.type(f"stop {run.run_id} now")

    assert desk.run.phase is RunPhase.STOPPED
    assert "waits for no approval any more" in desk.approve(LEAD)
    assert desk.started == []


@pytest.mark.parametrize("limits", [LIMITS | {"approvals": 2}])
def test_two_approvers_have_to_agree_where_two_are_asked_for(desk: Desk) -> None:
    run = desk.ask()

    for _ in range(2):
        assert f"approved by <@{LEAD}>, 1 more needed" in desk.approve(LEAD)
    assert desk.started == []
    desk.approve(OTHER_LEAD)

    assert desk.started == [run.run_id]
    assert f"approved by <@{LEAD}>, <@{OTHER_LEAD}>" in desk.slack.card.seen


@pytest.mark.parametrize("limits", [LIMITS | {"iam_above_usd": 0.001}])
def test_click_does_not_approve_what_only_an_identity_of_iam_may(desk: Desk) -> None:
    run = desk.ask()

    said = desk.approve(LEAD)

    assert f"stationmaster approve {run.run_id} --deployment stationmaster" in said
    assert '"approve_run"' not in desk.slack.card.seen
    assert desk.started == []


@pytest.mark.parametrize(
    ("limits", "asks"),
    [
        ({}, False),
        ({"usd_per_hour": 1_000}, False),
        ({"usd": 0.001}, True),
        ({"keep_hours": 1}, True),
        ({"instance_types": ["m5.2xlarge"]}, True),
        ({"gpus": 1}, False),
    ],
)
def test_each_limit_asks_by_itself(desk: Desk, limits: dict[str, Any], asks: bool) -> None:
    desk.person.type(f"{COMMAND} keep=2h")

    assert desk.run.awaits_approval is asks
    assert bool(desk.started) is not asks


@pytest.mark.parametrize("limits", [{"keep_hours": 4, "usd_per_hour": 5}])
@pytest.mark.parametrize(
    "words",
    ["cluster create lab ttl=5h", "cluster extend team-a 8h", "cluster resize team-a nodes=16"],
)
def test_cluster_above_the_limits_is_for_approvers_only(
    desk: Desk, cluster: ClusterStory, clock: Clock, words: str
) -> None:
    clock.at = datetime.now(UTC)
    cluster.begin(keep_for=timedelta(hours=2), user_id=OPERATOR)
    cluster.become_ready()

    within = seen(desk.person.type("cluster create lab-2 ttl=3h", user_id=OPERATOR))
    refused = seen(desk.person.type(words, user_id=OPERATOR))

    assert "takes the role" not in within
    assert "takes the role approver here" in refused
    assert "to type this command" in refused
    assert "takes the role approver here" not in seen(desk.person.type(words, user_id=LEAD))


def test_approval_looks_at_the_limits_of_the_month_again(desk: Desk, rules: Path) -> None:
    desk.ask()
    written = json.loads(rules.read_text())
    written["channels"][CHANNEL]["together"] = {"usd_a_month": 0.01}
    rules.write_text(json.dumps(written))
    lambda_handler._endpoint.cache_clear()  # which has read them

    assert "this channel spends at most $0.01 a month" in desk.approve(LEAD)

    assert desk.started == []


def test_price_that_goes_up_and_back_is_asked_for_each_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = desk.ask()
    machine = instances.CATALOGUE["m5.2xlarge"]
    dearer = machine.model_copy(update={"price_per_hour_usd": 3 * machine.price_per_hour_usd})

    for now in (dearer, machine, dearer):
        monkeypatch.setitem(instances.CATALOGUE, machine.name, now)
        assert "would buy something else by now" in desk.approve(LEAD)

    assert desk.started == []
    assert desk.run.price_per_hour_usd > run.price_per_hour_usd
    assert "and asks again" in desk.thread
    assert "is approved and starts" in desk.approve(LEAD)
    assert desk.started == [run.run_id]
