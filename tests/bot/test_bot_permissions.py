"""Who may do what, through every surface: each command of the table and each button."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from bot_world import (
    BOT,
    CHANNEL,
    REGION,
    USER,
    ClusterStory,
    Person,
    Story,
    seen,
)
from pydantic import BaseModel
from recording_slack import RecordingSlack, Refusal

from bot.actions import (
    IN_HOME,
    OPENS_FORM,
    ActionId,
    ClusterButton,
    CommandButton,
    DecisionButton,
    RunButton,
)
from stationmaster.cli.audit import print_chain
from stationmaster.domain.audit import Entry, broken_at
from stationmaster.domain.commands.table import START, TYPED_SUBCOMMANDS
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.services import Services

VIEWER, OPERATOR, LEAD, STRANGER = "U0VIEWER", "U0OTHER", "U0LEAD", "U0STRANGER"
RULES = {"viewers": [VIEWER], "operators": [USER, OPERATOR], "approvers": ["S0LEADS"]}
CHANGES = [each.example for each in (START, *TYPED_SUBCOMMANDS) if each.changes]
LOOKS = [*(each.example for each in TYPED_SUBCOMMANDS if not each.changes), "stop all"]
LOOKING = (
    *(ActionId.SHOW_LOGS, ActionId.LINK_RESULTS, ActionId.REPORT_RUN),
    *(ActionId.PLAN_COMMAND, ActionId.SHOW_STATUS, *OPENS_FORM),
)


@pytest.fixture(autouse=True)
def rules(set_rules: Any, slack: RecordingSlack) -> Path:
    slack.groups["S0LEADS"] = [LEAD]
    return set_rules(RULES)


def press(
    person: Person,
    slack: RecordingSlack,
    action: ActionId,
    story: Story,
    user: str,
    about: str = "",
) -> str:
    """Press a button of the story's run, or of a kept cluster; returns what the person reads."""
    value: BaseModel = RunButton(run_id=RunId(story.run_id))
    match action:
        case ActionId.APPROVE | ActionId.REJECT:
            value = DecisionButton(about=about or story.run_id, shown="")
        case ActionId.EXTEND_CLUSTER | ActionId.DELETE_CLUSTER:
            value = ClusterButton(cluster_id=ClusterId("team-a-0123abcd"))
        case ActionId.TYPE_COMMAND | ActionId.RESUME_COMMAND | ActionId.EDIT_COMMAND:
            value = CommandButton(text="tiny-llama")
        case ActionId.PLAN_COMMAND:
            value = CommandButton(text="plan tiny-llama")
    before = len(slack.responses)
    person.press(action, value.model_dump_json(), user=user)
    said = "".join(each.seen for each in slack.responses[before:])
    if not isinstance(value, CommandButton) and action not in OPENS_FORM:
        person.press_in_home({"action_id": action, "value": value.model_dump_json()}, user=user)
        in_home = json.dumps(slack.of("views.publish")[-1].arguments["view"])
        assert ("you may not" in in_home) is ("you may not" in said)
    return said


def stored() -> list[Any]:
    """What the table has, but for the audit."""
    items = boto3.client("dynamodb", REGION).scan(TableName="runs")["Items"]
    return [each for each in items if not each["PK"]["S"].startswith("AUDIT#")]


@pytest.mark.parametrize("text", CHANGES)
@pytest.mark.parametrize("user", [VIEWER, STRANGER])
def test_no_command_changes_anything_for_who_has_not_the_role(
    person: Person, story: Story, cluster: ClusterStory, user: str, text: str
) -> None:
    story.begin()
    cluster.begin()
    before = stored()
    text = {"stop": f"stop {story.run_id}"}.get(text, text.replace("last", story.run_id))

    answer = seen(person.type(text, user_id=user))

    if "you may not" not in answer:
        # It names what does not exist here; who may do it would hear the same.
        assert answer == seen(person.type(text))
        assert not text.startswith("cluster delete")  # about which nothing is asked either
    assert stored() == before


@pytest.mark.parametrize("text", CHANGES)
def test_no_message_changes_anything_for_who_has_not_the_role(
    person: Person, slack: RecordingSlack, story: Story, cluster: ClusterStory, text: str
) -> None:
    story.begin()
    cluster.begin()
    before = stored()
    person.write(f"<@{BOT}> {text}", user=STRANGER)

    assert "you may not look here" in slack.of("chat.postEphemeral")[-1].seen
    claims = [each for each in stored() if each["PK"]["S"].startswith("DELIVERY#message/")]
    assert [each for each in stored() if each not in claims] == before


@pytest.mark.parametrize("action", [each for each in ActionId if each not in (*LOOKING, *IN_HOME)])
def test_no_button_changes_anything_for_who_has_not_the_role(
    person: Person, slack: RecordingSlack, story: Story, cluster: ClusterStory, action: ActionId
) -> None:
    story.begin()
    cluster.begin()
    before = stored()

    said = press(person, slack, action, story, VIEWER)

    assert "you may not" in said
    assert stored() == before


@pytest.mark.parametrize("action", [ActionId.APPROVE, ActionId.REJECT])
def test_nobody_without_the_role_decides_about_a_cluster(
    person: Person, slack: RecordingSlack, story: Story, cluster: ClusterStory, action: ActionId
) -> None:
    cluster.begin()
    before = stored()

    for user in (VIEWER, OPERATOR, STRANGER):
        said = press(person, slack, action, story, user, about=cluster.cluster_id)
        assert "you may not" in said

    assert stored() == before


@pytest.mark.parametrize("text", LOOKS)
def test_whoever_has_no_role_sees_nothing_and_a_viewer_does(person: Person, text: str) -> None:
    assert "you may not" not in seen(person.type(text, user_id=VIEWER))
    assert "you may not look here" in seen(person.type(text, user_id=STRANGER))


@pytest.mark.parametrize("action", LOOKING)
def test_buttons_that_show_something_are_for_viewers(
    person: Person, slack: RecordingSlack, story: Story, action: ActionId
) -> None:
    story.begin()

    assert "you may not look here" in press(person, slack, action, story, STRANGER)
    assert "you may not" not in press(person, slack, action, story, VIEWER)


@pytest.mark.parametrize(
    ("user", "said"), [(VIEWER, "you may not start runs"), (STRANGER, "you may not look")]
)
def test_form_asks_for_the_role_at_every_step(
    person: Person, slack: RecordingSlack, user: str, said: str
) -> None:
    entered, who = {"recipe": "tiny-llama"}, {"id": user, "name": "somebody"}
    person.type("")
    view = slack.of("views.open")[-1].arguments["view"]

    person.in_form("block_actions", view, entered, user=who)
    planned = slack.of("views.update")[-1].arguments["view"]
    assert ("fits" in json.dumps(planned)) is (user == VIEWER)
    assert said in json.dumps(person.in_form("view_submission", planned, entered, user=who))
    assert stored() == []
    before = len(slack.of("views.open"))
    assert ("look" in seen(person.type("", user_id=user))) is (user == STRANGER)
    assert len(slack.of("views.open")) - before == (user == VIEWER)


def test_another_ones_run_is_stopped_by_approvers_only(
    person: Person, slack: RecordingSlack, story: Story, services: Services
) -> None:
    story.begin()

    refused = seen(person.type(f"stop {story.run_id}", user_id=OPERATOR))
    by_button = press(person, slack, ActionId.STOP_RUN, story, OPERATOR)

    for said in (refused, by_button):
        assert "you may not stop this run here, which" in said
        assert "takes the role approver, and this channel gives it to <!subteam^S0LEADS>" in said
    assert not services.runs.load(story.run_id).is_stopping
    assert "is being stopped" in press(person, slack, ActionId.STOP_RUN, story, LEAD)
    assert services.runs.load(story.run_id).stop_requested_by == LEAD


def test_nobody_is_let_in_by_a_group_of_which_slack_does_not_say_who_is_in_it(
    person: Person, slack: RecordingSlack, story: Story, services: Services
) -> None:
    story.begin()
    slack.refuse("usergroups.users.list", Refusal(error="missing_scope"))

    said = seen(person.type(f"stop {story.run_id}", user_id=LEAD))

    assert "who is in the user group S0LEADS" in said
    assert "install the app again with the scope usergroups:read" in said
    assert not services.runs.load(story.run_id).is_stopping


def test_slack_is_asked_once_in_five_minutes_who_is_in_a_group(
    person: Person, slack: RecordingSlack, story: Story
) -> None:
    story.begin()
    said = [seen(person.type(f"stop {story.run_id}", user_id=OPERATOR)) for _ in range(3)]

    assert [each for each in said if "takes the role approver" not in each] == []
    assert len(slack.of("usergroups.users.list")) == 1


def test_malformed_rules_let_nobody_do_anything(
    person: Person, services: Services, rules: Path
) -> None:
    rules.write_text('{"channels": {"C0TRAINING": {"operator": ["U0"]}}}')

    assert "could not be carried out" in seen(person.type("tiny-llama"))
    assert services.runs.list_recent() == []


def test_audit_has_what_was_done_and_what_was_refused_in_one_chain(
    person: Person, story: Story, services: Services
) -> None:
    story.begin()
    person.type("tiny-llama", user_name="operator")
    person.type(f"stop {story.run_id}", user_id=OPERATOR)
    person.type("recipes", user_id=STRANGER)
    for _ in range(2):  # does not fit, and is delivered again
        person.type("llama2-7b nodes=1 instance=g5.12xlarge", trigger_id="same")

    *_, first = entries = [*services.audit.newest_first(CHANNEL)]
    assert (first.user_id, first.user_name, first.act, first.words, first.refused) == (
        *(USER, "operator", "start runs", "/train tiny-llama", ""),
    )
    assert [(each.user_id, each.act, bool(each.refused)) for each in entries[::-1]] == [
        (USER, "start runs", False),
        (OPERATOR, "stop this run", True),
        (STRANGER, "look", True),
        (USER, "start runs", False),
        (USER, "start runs", True),
    ]
    assert broken_at(entries[::-1]) is None


def test_entries_that_are_written_at_the_same_time_follow_each_other(
    services: Services, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    person.type("tiny-llama")
    entry = next(services.audit.newest_first(CHANNEL))
    other = Services(services.settings, now=services.now)

    def like(seq: int, before: str) -> Entry:
        return entry.model_copy(update={"seq": seq, "before": before})

    def make(seq: int, before: str) -> Entry:
        if seq == 2:  # another one is faster
            other.audit.append(CHANNEL, like)
        return like(seq, before)

    assert services.audit.append(CHANNEL, make).seq == 3
    assert broken_at([*services.audit.newest_first(CHANNEL)][::-1]) is None


def test_audit_is_found_by_run_by_person_and_by_time(
    person: Person, services: Services, story: Story
) -> None:
    story.begin()
    person.type("tiny-llama", user_name="first.one")
    (run,) = (each for each in services.runs.list_recent() if each.run_id != story.run_id)
    person.type(f"stop {run.run_id} now")
    person.type(f"stop {story.run_id}", user_id=OPERATOR, user_name="other")

    def found(words: str) -> tuple[int, int]:
        shown = seen(person.type(f"audit {words}"))
        return shown.count("start runs"), shown.count("stop this run")

    assert found("") == (1, 3)  # one of them in the reason of a refusal
    assert found(run.run_id) == (1, 1)
    assert found("@other since=1h") == (0, 2)
    assert found(f"<@{USER}|first.one>") == (1, 1)
    assert found("@nobody") == (0, 0)
    assert "since=1h since=2h" in seen(person.type("audit since=1h since=2h"))


def test_export_of_the_audit_says_whether_its_chain_is_whole(
    person: Person, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    person.type("tiny-llama")
    person.type("stop now")
    entry = next(services.audit.newest_first(CHANNEL))

    assert export(services, capsys) == (0, 2)
    changed = entry.model_copy(update={"user_id": LEAD, "before": "0" * 64})
    boto3.client("dynamodb", REGION).update_item(
        TableName="runs",
        Key={"PK": {"S": f"AUDIT#{CHANNEL}"}, "SK": {"S": f"ENTRY#{entry.seq:012}"}},
        UpdateExpression="SET body = :body",
        ExpressionAttributeValues={":body": {"S": changed.model_dump_json()}},
    )
    assert export(services, capsys) == (1, 2)


def export(services: Services, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """Export the audit; returns the exit code and the number of lines."""
    code = print_chain(services, CHANNEL)
    return code, len([json.loads(line) for line in capsys.readouterr().out.splitlines()])


def test_help_says_whether_roles_decide_who_may_do_what(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "roles decide who may do what" in seen(person.type("help"))
    assert "everybody here may do everything" in seen(person.type("help", channel_id="C0OTHER"))
