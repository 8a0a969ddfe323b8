"""Slack delivers at least once: however often and in which order, a launch is one run."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from bot_world import BOT_TOKEN, SIGNING_SECRET, Clock, Person, new_notifier, seen
from recording_slack import RecordingSlack

from bot import lambda_handler
from bot.stream import read_batch
from stationmaster.aws.table import table_definition
from stationmaster.local.aws import DeploymentSpec, LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings

ENDS = json.dumps({"StartAt": "Done", "States": {"Done": {"Type": "Pass", "End": True}}})
NEW, KNOWN = "is on its way", "nothing new was started"


@pytest.fixture
def deployed(
    aws: LocalAws, slack: RecordingSlack, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Services]:
    """The bot's function on the local endpoint, which takes calls of many at once."""
    secret = json.dumps({"bot_token": BOT_TOKEN, "signing_secret": SIGNING_SECRET})
    name = f"runs-{random.random()}"
    aws.deploy(
        DeploymentSpec(
            tables=[table_definition(name)], secrets={name: secret}, state_machines={"train": ENDS}
        )
    )
    settings = Settings(
        region=aws.region,
        table_name=name,
        bus_name="bus",
        train_state_machine_arn=aws.state_machine_arn("train"),
        slack_secret_id=name,
        slack_api_url=slack.api_url,
    )
    for name, value in (aws.environment() | settings.to_environment()).items():
        monkeypatch.setenv(name, value)
    lambda_handler._endpoint.cache_clear()
    yield Services(settings)
    lambda_handler._endpoint.cache_clear()


@pytest.mark.parametrize(("launches", "deliveries"), [(4, 40), (20, 1_000)])
def test_duplicate_and_interleaved_deliveries_of_a_launch_start_one_run(
    deployed: Services, slack: RecordingSlack, clock: Clock, launches: int, deliveries: int
) -> None:
    person = Person(slack)
    asked = [number % launches for number in range(deliveries)]
    places = {f"C0LAUNCH{number // 5}" for number in asked}
    random.Random(0).shuffle(asked)

    def deliver(number: int) -> str:
        place = {"channel_id": f"C0LAUNCH{number // 5}", "trigger_id": f"trigger-of-{number}"}
        return seen(person.type(f"tiny-llama seed={number}", **place))

    with ThreadPoolExecutor(12) as functions:
        answers = [*functions.map(deliver, asked)]

    # A card for which there was no room comes later, and its run begins with it.
    items = deployed.client("dynamodb").scan(TableName=deployed.settings.table_name)["Items"]
    keys = ("PK", "SK")
    changes = [{"Keys": {key: item[key] for key in keys}, "NewImage": item} for item in items]
    records = [{"eventName": "INSERT", "dynamodb": change} for change in changes]
    clock.at = datetime.now(UTC) + timedelta(seconds=20)
    later = Services(deployed.settings, now=clock.now)
    new_notifier(later, slack, clock).notify(read_batch({"Records": records}))

    assert Counter((NEW in each, KNOWN in each) for each in answers) == {
        (True, False): launches,
        (False, True): deliveries - launches,
    }
    runs = deployed.runs.list_recent(limit=launches + 1)
    arn = deployed.settings.train_state_machine_arn
    started = deployed.client("stepfunctions").list_executions(stateMachineArn=arn)["executions"]
    assert len({run.request.overrides["seed"] for run in runs}) == len(runs) == launches
    names = Counter(each["name"] for each in started)
    assert [names[run.run_id] for run in runs] == [1] * launches
    assert len(slack.cards) == launches
    audited = [entry for c in places for entry in deployed.audit.newest_first(c)]
    assert {entry.about for entry in audited} == {run.run_id for run in runs}
    assert len(audited) == launches


def test_answer_to_a_start_takes_one_conditional_write_of_the_run_and_one_start(
    deployed: Services, slack: RecordingSlack, aws: LocalAws
) -> None:
    person = Person(slack)
    person.type("tiny-llama seed=1", channel_id="C0WARM")
    aws.forget_calls()

    assert NEW in seen(person.type("tiny-llama seed=2"))

    calls = Counter(operation for _, operation in aws.calls)
    assert (calls["TransactWriteItems"], calls["StartExecution"]) == (1, 1)
    # Besides: the audit, the channel's budget of posts, and where the card is; and, each read once,
    # the budget of the channel's month and whether starts are taken.
    assert calls["PutItem"] == 3
    assert sum(calls.values()) <= 12
