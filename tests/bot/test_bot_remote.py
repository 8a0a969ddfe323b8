"""Programs ask the bot function itself: the same card, rules and audit as for a typed command."""

from __future__ import annotations

import json
import uuid
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any, get_args

import boto3
import pytest
from bot_world import CHANNEL, REGION, Clock, Person, Story, seen, started_workflows
from recording_slack import RecordingSlack

from bot import lambda_handler
from bot.actions import ActionId, DecisionButton
from stationmaster.aws.proofs import sign
from stationmaster.cli.approve import approve
from stationmaster.domain.bus import LogTail
from stationmaster.domain.errors import NotPermitted
from stationmaster.domain.remote import FIELD, Ask
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.artifacts_world import save_run

CI, OTHER = (f"arn:aws:iam::123456789012:role/{name}" for name in ("ci", "other"))
LEAD = "U0LEAD"


@pytest.fixture
def rules(set_rules: Any) -> None:
    """CI may start small runs in the channel, and others may look."""
    its = {"viewers": [OTHER], "operators": [CI], "approvers": [LEAD], "approval": {"usd": 1}}
    set_rules(its)


class Program:
    """A job of CI that has assumed a role."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)

    def become(self, role: str) -> None:
        made = boto3.client("sts", REGION).assume_role(RoleArn=role, RoleSessionName="GitHub-77")
        for name in ("AccessKeyId", "SecretAccessKey", "SessionToken"):
            variable = "".join(f"_{each}" if each.isupper() else each for each in name).upper()
            self._monkeypatch.setenv(f"AWS{variable}", made["Credentials"][name])
        boto3.setup_default_session()

    def payload(self, kind: str, **fields: str) -> dict[str, Any]:
        ask = json.dumps({"kind": kind, "channel_id": CHANNEL, **fields})
        proof = sign(ask, deployment="stationmaster").model_dump()
        return {FIELD: {"ask": ask, "proof": proof}}

    def ask(self, kind: str, **fields: str) -> dict[str, Any]:
        return dict(lambda_handler.handler(self.payload(kind, **fields), None))

    def start(self, text: str, request_id: str = "") -> dict[str, Any]:
        return self.ask("start", text=text, request_id=request_id or uuid.uuid4().hex)


@pytest.fixture
def program(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Program:
    made = Program(monkeypatch)
    made.become(CI)
    return made


def test_start_has_the_card_and_the_audit_of_a_typed_command(
    program: Program,
    person: Person,
    services: Services,
    settings: Settings,
    slack: RecordingSlack,
) -> None:
    answer = program.start("tiny-llama nodes=2")["value"]

    run = services.runs.load(answer["run_id"])
    assert (answer["status"], answer["is_new"], answer["is_over"]) == ("requested", True, False)
    assert (run.request.user_id, run.request.command) == (CI, "/train tiny-llama nodes=2")
    assert started_workflows(settings) == [run.run_id]
    assert run.run_id in slack.card.seen
    assert "by `role/ci`" in seen(person.type("list"))
    (entry,) = services.audit.newest_first(CHANNEL)
    assert (entry.user_id, entry.user_name, entry.via) == (CI, "GitHub-77", "cli")


def test_request_that_is_delivered_again_is_the_same_run(
    program: Program, services: Services, settings: Settings
) -> None:
    # Other words, because the same ones are the same run for half a minute anyway.
    texts = ("tiny-llama", "tiny-llama steps=50")
    first, again = (program.start(text, "ab" * 16)["value"] for text in texts)

    assert (first["is_new"], again["is_new"]) == (True, False)
    assert started_workflows(settings) == [first["run_id"]]


def test_plan_status_and_results_are_answered_and_change_nothing(
    program: Program, story: Story, services: Services
) -> None:
    story.begin()
    story.phases(RunPhase.FAILED, reason="out of memory")

    assert program.ask("plan", text="llama2-7b nodes=4")["value"]["nodes"] == 4
    status = program.ask("status", run_id=story.run_id)["value"]
    assert (status["status"], status["is_over"], status["reason"]) == (
        *("failed", True, "out of memory"),
    )
    assert "has saved no result" in program.ask("results", run_id=story.run_id)["refused"]
    assert "no run is called" in program.ask("status", run_id="none")["refused"]
    assert len(services.runs.list_recent()) == 1


def test_questions_are_answered_in_text_and_post_nothing(
    program: Program, story: Story, services: Services
) -> None:
    story.begin()
    tail = LogTail(pod="worker-0", at=services.now(), lines=[f"line {n}" for n in range(40)])
    services.runs.save_log_tails(story.run_id, [tail])
    texts = ("recipes", "list", f"logs {story.run_id}", "cost", "audit")

    said = {text: program.ask("look", text=text)["value"]["text"] for text in texts}

    assert "llama2-7b" in said["recipes"]
    assert story.run_id in said["list"]
    assert "line 39" in said[texts[2]]
    assert "in the run's thread" not in said[texts[2]]
    items = boto3.client("dynamodb", REGION).scan(TableName="runs")["Items"]
    assert [each["PK"]["S"] for each in items if each["PK"]["S"].startswith("LOG_FILE")] == []
    for text in ("tiny-llama", f"stop {story.run_id}", "stop all", "cluster delete a"):
        assert program.ask("look", text=text)["refused"] != ""
    assert [run.stop_requested_by for run in services.runs.list_recent()] == [None]


def test_run_is_stopped_by_its_own_role_as_an_assistant(
    program: Program, rules: None, services: Services
) -> None:
    run_id = program.start("tiny-llama nodes=1 name=books")["value"]["run_id"]

    assert program.ask("stop", run_id="books", via="mcp")["value"]["run_id"] == run_id
    assert services.runs.load(run_id).stop_requested_by == CI
    newest = next(iter(services.audit.newest_first(CHANNEL)))
    assert (newest.user_id, newest.via, newest.act) == (CI, "mcp", "stop this run")


def test_results_of_a_run_that_is_called_by_its_name_have_its_addresses(
    program: Program, services: Services, clock: Clock, bucket: Any
) -> None:
    clock.at = datetime.now(UTC)  # by which the handler goes
    story = Story(services, clock, program.start("tiny-llama name=books")["value"]["run_id"])
    story.lease()
    story.reach_running()
    story.happen(ev.TrainingStarted, total_steps=9)
    story.phases(RunPhase.SAVING)
    made = save_run(bucket, story.run_id, {"metrics.jsonl": b"{}", "model/config.json": b"{}"})
    story.happen(ev.ResultsSaved, num_files=2, **made.recorded)

    results = program.ask("results", run_id="books")["value"]

    assert (results["run_id"], results["result"]["num_files"]) == (story.run_id, 2)
    paths = ["manifest.json", "metrics.jsonl", "model/config.json"]
    assert list(results["links"]) == paths
    assert all(f"/runs/{story.run_id}/{each}?" in results["links"][each] for each in paths)


def test_role_that_the_channel_does_not_list_does_not_start_or_look(
    program: Program, rules: None, story: Story, services: Services
) -> None:
    story.begin()
    asks = {"plan": {"text": "tiny-llama"}, "status": {"run_id": story.run_id}}

    assert [program.ask(kind, **asks[kind])["refused"] for kind in asks] == ["", ""]
    program.become(OTHER)
    assert [program.ask(kind, **asks[kind])["refused"] for kind in asks] == ["", ""]
    assert "you may not start runs here" in program.start("tiny-llama nodes=1")["refused"]
    assert "you may not stop" in program.ask("stop", run_id=story.run_id)["refused"]
    program.become(CI.replace("123456789012", "999999999999"))
    asks |= {
        **dict.fromkeys(("results", "stop"), asks["status"]),
        "start": {"text": "tiny-llama", "request_id": "0" * 32},
        "look": {"text": "list"},
    }
    assert set(asks) == set(get_args(Ask.model_fields["kind"].annotation))
    for kind, fields in asks.items():
        assert "you may not look here" in program.ask(kind, **fields)["refused"]
    assert len(services.runs.list_recent()) == 1


def test_start_above_the_limits_waits_for_somebody_else(
    program: Program,
    rules: None,
    person: Person,
    services: Services,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stationmaster.cli.approve.bot_settings", lambda _: settings)
    first, second = (program.start(f"tiny-llama steps={n}")["value"] for n in (90_000, 91_000))

    assert (first["awaits_approval"], first["approvers"]) == (True, [LEAD])
    program.become(CI)  # in another session
    with pytest.raises(NotPermitted, match="somebody else decides"):
        approve(Namespace(name=first["run_id"]))
    assert started_workflows(settings) == []
    program.become(OTHER)
    assert approve(Namespace(name=first["run_id"])) == 0
    asked = services.runs.load(second["run_id"]).approval
    assert asked is not None
    shown = asked.wish.fingerprint
    value = DecisionButton(about=second["run_id"], shown=shown).model_dump_json()
    person.press(ActionId.APPROVE, value, user=LEAD)
    assert set(started_workflows(settings)) == {first["run_id"], second["run_id"]}


@pytest.mark.parametrize("text", ["", "help", "stop", "plan tiny-llama", "lama", "tiny-llama x"])
def test_what_starts_no_run_is_refused_in_a_sentence(
    program: Program, services: Services, text: str
) -> None:
    assert program.start(text)["refused"] != ""
    assert services.runs.list_recent() == []


def test_payload_of_another_shape_is_refused_with_the_field(
    program: Program, person: Person
) -> None:
    good = program.payload("plan", text="tiny-llama")[FIELD]
    proof = good["proof"]
    less = proof["authorization"].replace(";x-stationmaster-deployment", "")
    s3 = proof["authorization"].replace("/sts/", "/s3/")

    def refused(**other: Any) -> str:
        return str(lambda_handler.handler({FIELD: good | other}, None)["refused"])

    event = person.event(b"command=/train&text=tiny-llama")
    for payload in (None, event, {"ask": event}):
        answer = lambda_handler.handler({FIELD: payload}, None)
        assert "statusCode" not in answer
        assert answer["refused"].startswith("the bot of version")
    for changed in (less, s3, "Bearer x", proof["authorization"] + "\n"):
        assert "(proof.authorization: " in refused(proof=proof | {"authorization": changed})
    assert "(proof.url: Extra inputs" in refused(proof=proof | {"url": "https://example.com"})
    for ask in ("{}", "[", '{"kind": "delete"}', '{"kind": "plan", "text": "\\ud800"}'):
        assert "does not understand this" in refused(ask=ask)
    assert "(ask: " in refused(ask="\ud800")
    for channel in ("#general", "D0DIRECT", "C0 OTHER", "*"):
        ask = program.payload("plan", text="tiny-llama", channel_id=channel)[FIELD]["ask"]
        assert "channel_id: " in refused(ask=ask)


def test_request_through_api_gateway_is_never_taken_for_a_program(
    program: Program, person: Person, services: Services
) -> None:
    body = json.dumps(program.payload("start", text="tiny-llama", request_id="0" * 32))
    signed = person.event(body.encode())
    unsigned = signed | {"headers": {}, "body": body, "isBase64Encoded": False}
    mixed = unsigned | json.loads(body)

    answers = [lambda_handler.handler(each, None) for each in (signed, unsigned, mixed)]

    assert [each["statusCode"] for each in answers] == [400, 401, 401]
    assert services.runs.list_recent() == []
