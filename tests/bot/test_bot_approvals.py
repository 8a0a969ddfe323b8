"""A run above the channel's limits waits for somebody else, and starts once, or not at all."""

from __future__ import annotations

import json
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from bot_world import (
    CHANNEL,
    REGION,
    USER,
    Clock,
    ClusterStory,
    Killed,
    Person,
    Story,
    TableStream,
    seen,
    started_clusters,
    started_workflows,
    tell,
)
from recording_slack import RecordingSlack

from bot import lambda_handler
from bot.actions import ActionId, DecisionButton
from bot.notifier import Notifier
from stationmaster.aws.workflows import Workflows
from stationmaster.cli import approve as terminal
from stationmaster.commands.approving import find_asking
from stationmaster.domain.approvals import EXPIRES_AFTER, REMINDED_AFTER
from stationmaster.domain.catalogue import instances
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.ids import ClusterId
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
        self.about = ""

    def ask(self, text: str = COMMAND) -> Run:
        """Ask for a run that has to be approved."""
        assert "waits for an approval" in seen(self.person.type(text))
        self.tells()
        return self.run

    @property
    def run(self) -> Run:
        (run,) = self.services.runs.list_recent(limit=1)
        return run

    @property
    def shown(self) -> str:
        """The fingerprint of what the newest card shows."""
        found: Any = find_asking(self.services, self.about or self.run.run_id)
        return str(found.approval.wish.fingerprint)

    def decide(self, action: ActionId, user: str, shown: str = "") -> str:
        about = self.about or self.run.run_id
        value = DecisionButton(about=about, shown=shown or self.shown).model_dump_json()
        self.person.press(action, value, user=user)
        self.tells()
        return self.slack.responses[-1].seen

    def approve(self, user: str, shown: str = "") -> str:
        return self.decide(ActionId.APPROVE, user, shown)

    @property
    def clusters_started(self) -> list[str]:
        return started_clusters(self.services.settings)

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
    assert '"approve"' not in desk.slack.card.seen


def test_no_one_decides_about_a_run_of_their_own(desk: Desk) -> None:
    desk.ask()

    for action in (ActionId.APPROVE, ActionId.REJECT):
        assert "somebody else decides about a run that you have asked for" in desk.decide(
            action, USER
        )

    assert desk.run.phase is RunPhase.AWAITING_APPROVAL
    assert desk.started == []


def test_rejected_run_never_starts_and_says_by_whom(desk: Desk) -> None:
    desk.ask()

    assert "is rejected and not started" in desk.decide(ActionId.REJECT, LEAD)

    assert desk.run.phase is RunPhase.STOPPED
    assert f"rejected by {LEAD}" in desk.run.reason
    assert "waits for no approval any more" in desk.approve(OTHER_LEAD)
    assert desk.started == []


def test_second_and_late_clicks_change_nothing(desk: Desk) -> None:
    run = desk.ask()
    desk.approve(LEAD)

    for user in (LEAD, OTHER_LEAD):
        assert "waits for no approval any more" in desk.approve(user)
    assert "waits for no approval any more" in desk.decide(ActionId.REJECT, OTHER_LEAD)

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
    assert '"approve"' not in desk.slack.card.seen
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


CHANGES = [
    "cluster create lab ttl=5h",
    "cluster extend team-a 8h",
    "cluster resize team-a nodes=16",
]
CLUSTER_LIMITS = {"keep_hours": 4, "usd_per_hour": 5}


@pytest.fixture
def lab(desk: Desk, cluster: ClusterStory, words: str) -> str:
    """The id of a cluster of which `words` asked for more than the limits; nothing was done."""
    cluster.begin(keep_for=timedelta(hours=2), user_id=OPERATOR)
    cluster.become_ready()
    before = desk.services.cluster_states.load(cluster.cluster_id)
    assert "waits for an approval" in seen(desk.person.type(words))
    desk.tells()
    (newest, *_) = desk.services.cluster_states.list_newest()
    desk.about = newest.cluster_id
    after = desk.services.cluster_states.load(cluster.cluster_id)
    assert (after.spec, after.keep_until, after.passes) == (before.spec, before.keep_until, 1)
    assert desk.clusters_started == []
    return newest.cluster_id


@pytest.mark.parametrize("limits", [CLUSTER_LIMITS])
@pytest.mark.parametrize("words", CHANGES)
def test_change_of_a_cluster_is_made_once_when_somebody_else_agrees(
    desk: Desk, lab: str, words: str
) -> None:
    card = desk.slack.card.seen
    assert ("and $5.00 may be spent" in card) or ("and 4h is allowed" in card)
    assert words in card
    assert "this cluster needs an approval" in desk.thread
    assert "somebody else decides" in desk.approve(USER)

    assert "is approved" in desk.approve(LEAD)
    assert "waits for no approval any more" in desk.approve(OTHER_LEAD)

    cluster = desk.services.cluster_states.load(ClusterId(lab))
    assert cluster.keep_until is not None
    hours = {"create": 5, "extend": 10, "resize": 2}[words.split()[1]]
    assert abs(cluster.keep_until - datetime.now(UTC) - timedelta(hours=hours)) < timedelta(
        minutes=2
    )
    assert cluster.spec.nodes == (16 if hours == 2 else cluster.spec.nodes)
    assert len(desk.clusters_started) == (0 if hours == 10 else 1)
    assert f"approved by <@{LEAD}>" in desk.slack.card.seen
    audit = [(each.user_id, each.about) for each in desk.services.audit.newest_first(CHANNEL)]
    assert (LEAD, lab) in audit


@pytest.mark.parametrize("limits", [CLUSTER_LIMITS])
@pytest.mark.parametrize("words", CHANGES)
@pytest.mark.parametrize("decided", ["reject", "expire"])
def test_change_of_a_cluster_that_is_not_approved_is_never_made(
    desk: Desk, lab: str, words: str, decided: str, clock: Clock
) -> None:
    before = desk.services.cluster_states.load(ClusterId(lab))

    if decided == "reject":
        assert "is rejected and not made or changed" in desk.decide(ActionId.REJECT, LEAD)
    for _ in range(2 if decided == "expire" else 0):
        clock.advance(REMINDED_AFTER.total_seconds())
        reap(desk.services)
        desk.tells()
        assert desk.thread.count("it still waits for an approval") == 1

    assert "waits for no approval any more" in desk.approve(OTHER_LEAD)
    after = desk.services.cluster_states.load(ClusterId(lab))
    assert after.spec == before.spec
    assert after.is_going_away is ("create" in words)
    assert desk.clusters_started == []


@pytest.mark.parametrize("limits", [CLUSTER_LIMITS | {"approvals": 2}])
@pytest.mark.parametrize("words", CHANGES[1:])
def test_change_of_a_cluster_waits_for_two_and_for_its_price(
    desk: Desk, lab: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.approve(LEAD)
    machine = instances.CATALOGUE["m5.2xlarge"]
    dearer = machine.model_copy(update={"price_per_hour_usd": 3 * machine.price_per_hour_usd})
    old = desk.shown
    monkeypatch.setitem(instances.CATALOGUE, machine.name, dearer)

    assert "would buy something else by now" in desk.approve(OTHER_LEAD)
    assert "the button was of an older plan" in desk.approve(OTHER_LEAD, shown=old)
    assert f"approved by <@{OTHER_LEAD}>, 1 more needed" in desk.approve(OTHER_LEAD)
    assert desk.services.cluster_states.load(ClusterId(lab)).awaits_approval
    assert "is approved" in desk.approve(LEAD)


@pytest.mark.parametrize("limits", [{"usd": 1}])
def test_larger_budget_is_asked_for_on_the_card_of_the_run_that_trains(
    desk: Desk, story: Story
) -> None:
    story.reach_running()

    assert "waits for an approval" in seen(desk.person.type(f"budget {story.run_id} usd=3"))
    desk.tells()

    card = desk.slack.card.seen
    for shown in ("none \u2192 $3.00", "so far", "$1.10 an hour", "Approve", "Reject"):
        assert shown in card
    assert f"this budget of $3.00 needs an approval, see its card <@{USER}>" in desk.thread
    assert "is approved and holds from then on" in desk.approve(LEAD)
    assert f"approved by <@{LEAD}> (budget of $3.00)" in desk.slack.card.seen
    assert '"approve"' not in desk.slack.card.seen
    assert "its budget is $3.00 from now on" in desk.thread
    assert desk.run.phase is RunPhase.RUNNING


def test_approval_looks_at_the_limits_of_the_month_again(desk: Desk, rules: Path) -> None:
    desk.ask()
    limit_the_month(rules)

    assert "this channel spends at most $0.01 a month" in desk.approve(LEAD)

    assert desk.started == []


@pytest.mark.parametrize("limits", [CLUSTER_LIMITS])
@pytest.mark.parametrize("words", CHANGES)
def test_approval_of_a_change_looks_at_the_limits_again(
    desk: Desk, lab: str, words: str, rules: Path
) -> None:
    before = desk.services.cluster_states.load(ClusterId(lab))
    limit_the_month(rules)

    assert "this channel spends at most $0.01 a month" in desk.approve(LEAD)

    after = desk.services.cluster_states.load(ClusterId(lab))
    assert (after.spec, after.keep_until, after.passes) == (before.spec, before.keep_until, 1)
    assert after.awaits_approval
    assert desk.clusters_started == []


def limit_the_month(rules: Path) -> None:
    """Let the channel spend less a month than what waits costs."""
    written = json.loads(rules.read_text())
    written["channels"][CHANNEL]["together"] = {"usd_a_month": 0.01}
    rules.write_text(json.dumps(written))
    lambda_handler._endpoint.cache_clear()  # which has read them


@pytest.mark.parametrize("limits", [CLUSTER_LIMITS])
@pytest.mark.parametrize("words", CHANGES)
@pytest.mark.parametrize("killed_at", ["deciding.begin_approved", "deciding.follow_up"])
def test_approved_change_whose_approver_was_killed_is_made_once_by_the_reaper(
    desk: Desk, lab: str, words: str, killed_at: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the execution that it had started was lost."""
    before = desk.services.cluster_states.load(ClusterId(lab))
    with monkeypatch.context() as patch:
        patch.setattr(Workflows, "start_cluster", lambda *_, **__: None)
        patch.setattr(f"stationmaster.{killed_at}", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            desk.approve(LEAD)
    assert desk.clusters_started == []

    clock.advance(timedelta(minutes=10).total_seconds())
    for _ in range(2):
        reap(desk.services)

    assert_made_once(desk, words, before)


@pytest.mark.parametrize("limits", [CLUSTER_LIMITS | {"iam_above_usd": 1}])
@pytest.mark.parametrize("words", CHANGES)
def test_identity_of_iam_approves_a_change_from_a_terminal_and_no_click_does(
    desk: Desk, lab: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setattr(terminal, "bot_settings", lambda _: desk.services.settings)
    named = Namespace(name=words.split()[2])
    before = desk.services.cluster_states.load(ClusterId(lab))

    assert f"stationmaster approve {lab} --deployment stationmaster" in desk.approve(LEAD)
    assert desk.services.cluster_states.load(ClusterId(lab)).awaits_approval
    assert terminal.approve(named) == 0

    assert_made_once(desk, words, before)
    (approval, *_) = desk.services.audit.newest_first(CHANNEL)
    assert (approval.user_id[:8], approval.via, approval.about) == ("arn:aws:", "iam", lab)
    with pytest.raises(NotPossibleNow, match="waits for no approval any more"):
        terminal.approve(named)


def assert_made_once(desk: Desk, words: str, before: Cluster) -> None:
    after = desk.services.cluster_states.load(before.cluster_id)
    assert after.spec.nodes == (16 if "resize" in words else before.spec.nodes)
    if "extend" in words:
        assert after.keep_until == (before.keep_until or before.requested_at) + timedelta(hours=8)
    assert len(desk.clusters_started) == (0 if "extend" in words else 1)


def test_price_that_goes_up_and_back_is_asked_for_each_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = desk.ask()
    machine = instances.CATALOGUE["m5.2xlarge"]
    dearer = machine.model_copy(update={"price_per_hour_usd": 3 * machine.price_per_hour_usd})

    old = desk.shown
    for now in (dearer, machine, dearer):
        monkeypatch.setitem(instances.CATALOGUE, machine.name, now)
        assert "would buy something else by now" in desk.approve(LEAD)

    assert "the button was of an older plan" in desk.approve(LEAD, shown=old)
    assert desk.started == []
    assert desk.run.price_per_hour_usd > run.price_per_hour_usd
    assert "and asks again" in desk.thread
    assert "is approved and starts" in desk.approve(LEAD)
    assert desk.started == [run.run_id]
