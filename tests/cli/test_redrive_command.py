"""`stationmaster redrive` on an account whose functions failed: what it lists, sends and leaves."""

# fixtures are imported by name
from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stationmaster.aws import dead_letters
from stationmaster.aws.table import table_definition
from stationmaster.cli.main import main
from stationmaster.domain.bus import RELAY_BATCH_DETAIL_TYPE
from stationmaster.domain.run import events as ev
from stationmaster.local.aws import DeploymentSpec, FunctionSpec, InProcessRuntime, LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.aws_fixtures import HANDLER, Script, until
from tests.support.factories import (
    DEPLOYMENT_KEY,
    RUN_ID,
    START,
    make_event,
    make_requested,
    signed,
)

DEPLOYMENT = "prod"
COMMAND = ["redrive", "--deployment", DEPLOYMENT, "--json"]
QUEUES = ("prod-dead-letters", "prod-bot-dead-letters")


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """A deployment of the shipped recorder and a scripted notifier."""
    endpoint = LocalAws(
        state_dir=tmp_path_factory.mktemp("aws"),
        invoker=InProcessRuntime(),
        handlers=["lambdas.recorder.handler", HANDLER],
    )
    with endpoint:
        endpoint.client("dynamodb").create_table(**table_definition("runs"))
        endpoint.client("secretsmanager").create_secret(
            Name="relay", SecretString=json.dumps({"key": DEPLOYMENT_KEY})
        )
        settings = Settings(
            region=endpoint.region, table_name="runs", bus_name="b", relay_secret_id="relay"
        )
        endpoint.deploy(
            DeploymentSpec(
                queues=QUEUES,
                functions=[
                    FunctionSpec(
                        name="prod-recorder",
                        handler="lambdas.recorder.handler",
                        environment=settings.to_environment() | endpoint.environment(),
                        on_failure=QUEUES[0],
                    ),
                    FunctionSpec(name="prod-notifier", handler=HANDLER),
                ],
            )
        )
        yield endpoint


@pytest.fixture
def services(aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """What the product sees of that account; nothing is left in it after a test."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dead_letters.DeadLetterQueue, "receive", _without_waiting)
    made = Services(Settings(region=aws.region, table_name="runs", bus_name="b"))
    made.runs.create(
        make_requested(RUN_ID), dedup_key="k", dedup_until=START + timedelta(seconds=1)
    )
    Script()  # forgets what functions of other tests got
    yield made
    for name in QUEUES:
        queue = dead_letters.DeadLetterQueue(name, aws.client("sqs"))
        for letter in queue.receive():
            queue.delete(letter)
    for entry in made.set_aside.list():
        made.set_aside.delete(entry.item_id)


_receive = dead_letters.DeadLetterQueue.receive


def _without_waiting(self: Any, *, wait_s: int = 2) -> Any:
    return _receive(self, wait_s=0)


def _url(aws: LocalAws, name: str) -> str:
    return str(aws.client("sqs").get_queue_url(QueueName=name)["QueueUrl"])


def relay_batch(*events: Any, run_id: str = RUN_ID) -> dict[str, Any]:
    detail = {"run_id": run_id, "batch_id": "b", "at": START.isoformat(), "events": [*events]}
    return {
        "source": "stationmaster",
        "detail-type": RELAY_BATCH_DETAIL_TYPE,
        "detail": signed(detail),
    }


def restart(event_id: str, **more: Any) -> dict[str, Any]:
    event = make_event(ev.WorkersRestarting, event_id=event_id, run_id=RUN_ID, pod="p", reason="r")
    return {**event.model_dump(mode="json"), **more}


def send(aws: LocalAws, body: Any, *, queue: str = QUEUES[0], **attributes: str) -> None:
    """A dead letter, as AWS puts it into a queue."""
    aws.client("sqs").send_message(
        QueueUrl=_url(aws, queue),
        MessageBody=body if isinstance(body, str) else json.dumps(body),
        MessageAttributes={
            name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
        },
    )


def lambda_letter(aws: LocalAws, function: str, payload: Any) -> dict[str, Any]:
    arn = f"{aws.function_arn(function)}:$LATEST"
    return {
        "version": "1.0",
        "requestContext": {"functionArn": arn, "condition": "RetriesExhausted"},
        "requestPayload": payload,
        "responsePayload": {"errorMessage": "no answer of DynamoDB"},
    }


def run(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, list[dict[str, Any]]]:
    code = main([*COMMAND, *more])
    # Functions log in this process here, and only here.
    lines = capsys.readouterr().out.splitlines()
    return code, json.loads("\n".join(line for line in lines if not line.startswith('{"level"')))


def test_event_that_the_recorder_failed_with_is_recorded_and_gone(
    aws: LocalAws, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    send(aws, lambda_letter(aws, "prod-recorder", relay_batch(restart("w1"))))

    looked = run(capsys, "--dry-run")
    before = services.runs.load(RUN_ID).num_restarts
    sent = run(capsys)
    again = run(capsys)

    (line,) = looked[1]
    assert (line["outcome"], line["function"]) == ("waits", "prod-recorder")
    assert line["what"] == f"Relay Batch of {RUN_ID}"
    assert "no answer of DynamoDB" in line["reason"]
    assert services.runs.load(RUN_ID).num_restarts == before + 1
    assert [one["outcome"] for one in sent[1]] == ["sent again"]
    assert (looked[0], sent[0], again) == (0, 0, (0, []))


def test_letter_that_is_sent_twice_counts_once_also_as_the_event_of_a_rule(
    aws: LocalAws, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    before = services.runs.load(RUN_ID).num_restarts
    batch = relay_batch(restart("w2"))
    send(aws, lambda_letter(aws, "prod-recorder", batch))
    target = aws.function_arn("prod-recorder")
    send(aws, batch, TARGET_ARN=target, RULE_ARN="arn:rule", ERROR_MESSAGE="not allowed")

    _, sent = run(capsys)

    assert [one["outcome"] for one in sent] == ["sent again"] * 2
    assert services.runs.load(RUN_ID).num_restarts == before + 1


def test_what_was_set_aside_stays_until_it_can_be_read(
    aws: LocalAws, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    for run_id, outcome in (("tiny-llama-later", "failed again"), (RUN_ID, "sent again")):
        for entry in [*services.set_aside.list()]:
            services.set_aside.delete(entry.item_id)
        batch = json.dumps(relay_batch(restart("w4"), run_id=run_id))
        services.set_aside.put(function="recorder", what="w", reason="r", payload=batch, now=START)

        code, lines = run(capsys)

        assert (code, [one["outcome"] for one in lines]) == (outcome == "failed again", [outcome])
    assert [*services.set_aside.list()] == []


def test_letter_that_fails_again_and_one_that_nobody_understands_stay(
    aws: LocalAws, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    send(aws, lambda_letter(aws, "prod-notifier", {"Records": []}))
    for text in ("hello", "[]", '{"requestContext": 3}', '{"requestContext": {}}'):
        send(aws, text, queue=QUEUES[1])
    Script().fail("prod-notifier", times=1)

    code, lines = run(capsys)
    _, left = run(capsys, "--dry-run")

    outcomes = sorted(one["outcome"] for one in lines)
    assert (code, outcomes) == (1, ["failed again", *["not understood"] * 4])
    assert "no capacity" in next(one["error"] for one in lines if one["error"])
    assert len(left) == 5


def test_records_of_the_stream_are_read_and_sent_to_the_notifier(
    aws: LocalAws, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script()
    script.fail("prod-notifier", times=1)
    aws.client("dynamodb").create_table(**{**table_definition("small"), "TableName": "small"})
    arn = aws.client("dynamodb").describe_table(TableName="small")["Table"]["LatestStreamArn"]
    aws.client("lambda").create_event_source_mapping(
        EventSourceArn=arn,
        FunctionName="prod-notifier",
        StartingPosition="TRIM_HORIZON",
        MaximumRetryAttempts=0,
        DestinationConfig={
            "OnFailure": {"Destination": f"arn:aws:sqs:{aws.region}:123456789012:{QUEUES[1]}"}
        },
    )
    aws.client("dynamodb").put_item(
        TableName="small", Item={"PK": {"S": "RUN#x"}, "SK": {"S": "STATE"}}
    )
    until(lambda: script.received("prod-notifier") and aws.settle())

    code, (line,) = run(capsys)

    (_, sent) = script.received("prod-notifier")
    assert (code, line["outcome"]) == (0, "sent again")
    assert sent["Records"][0]["dynamodb"]["Keys"]["PK"] == {"S": "RUN#x"}


def test_records_that_the_stream_has_no_more_are_forgotten(
    aws: LocalAws, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    arn = aws.client("dynamodb").describe_table(TableName="runs")["Table"]["LatestStreamArn"]
    shard = aws.client("dynamodbstreams").describe_stream(StreamArn=arn)["StreamDescription"]
    letter = lambda_letter(aws, "prod-notifier", None) | {
        "DDBStreamBatchInfo": {
            "streamArn": arn,
            "shardId": shard["Shards"][0]["ShardId"],
            "startSequenceNumber": "9" * 24,
            "endSequenceNumber": "9" * 24,
        }
    }
    send(aws, letter, queue=QUEUES[1])

    code, (line,) = run(capsys)

    assert (code, line["outcome"]) == (0, "expired")
    assert run(capsys) == (0, [])


def test_table_of_letters_names_what_waits(
    aws: LocalAws, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    send(aws, lambda_letter(aws, "prod-recorder", relay_batch()))

    code = main(["redrive", "--deployment", DEPLOYMENT, "--dry-run"])

    text = capsys.readouterr().out
    assert code == 0
    assert "prod-recorder" in text
    assert f"Relay Batch of {RUN_ID}" in text


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--deployment", "nowhere"], 1, "there is no function nowhere-recorder"),
        (["--state-dir", "/nowhere"], 2, "no local mode runs in /nowhere"),
    ],
)
def test_account_without_the_deployment_is_named(
    services: Services,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    sentence: str,
) -> None:
    assert main(["redrive", *words]) == code
    assert sentence in capsys.readouterr().err


def test_local_mode_is_found_by_its_state_directory(
    aws: LocalAws,
    services: Services,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aws.deploy(
        DeploymentSpec(queues=["stationmaster-dead-letters", "stationmaster-bot-dead-letters"])
    )
    for name, variables in (
        ("aws.env", aws.environment()),
        ("settings.env", services.settings.to_environment()),
    ):
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)  # taken back after the test
        lines = [f"export {variable}={value}\n" for variable, value in variables.items()]
        (tmp_path / name).write_text("".join(lines))

    code = main(["redrive", "--state-dir", str(tmp_path)])

    assert (code, capsys.readouterr().out) == (0, "no dead letters\n")
