"""An AWS account in memory with the product's table, secret and state machine, and a Slack that
records; the shipped handlers run against both unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from bot_world import (
    BOT_TOKEN,
    CHANNEL,
    REGION,
    SECRET,
    SIGNING_SECRET,
    Clock,
    ClusterStory,
    DyingStore,
    Person,
    Story,
    TableStream,
    keep_secret,
    new_notifier,
    new_workspace,
    tell,
)
from moto import mock_aws
from recording_slack import RecordingSlack

from bot import lambda_handler, notifier_handler
from bot.notifier import Notifier
from stationmaster.aws.table import table_definition
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.events import RunPhase
from stationmaster.local.slack.server import LocalSlack
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.artifacts_world import BUCKET
from tests.support.aws_fixtures import aws
from tests.support.factories import DEPLOYMENT_KEY

__all__ = ["aws"]  # fixtures


@pytest.fixture
def slack() -> Iterator[RecordingSlack]:
    server = RecordingSlack()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings(slack: RecordingSlack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of a deployment that exists in an in-memory account; also in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        boto3.client("dynamodb", REGION).create_table(**table_definition("runs"))
        boto3.client("secretsmanager", REGION).create_secret(
            Name="slack",
            SecretString=json.dumps({"bot_token": BOT_TOKEN, "signing_secret": SIGNING_SECRET}),
        )
        boto3.client("secretsmanager", REGION).create_secret(
            Name="relay", SecretString=json.dumps({"key": DEPLOYMENT_KEY})
        )
        boto3.client("events", REGION).create_event_bus(Name="bus")
        machines = {
            name: boto3.client("stepfunctions", REGION).create_state_machine(
                name=name,
                definition=json.dumps(
                    {"StartAt": "Done", "States": {"Done": {"Type": "Pass", "End": True}}}
                ),
                roleArn="arn:aws:iam::123456789012:role/workflow",
            )["stateMachineArn"]
            for name in ("train", "cluster")
        }
        made = Settings(
            region=REGION,
            table_name="runs",
            bus_name="bus",
            train_state_machine_arn=machines["train"],
            cluster_state_machine_arn=machines["cluster"],
            schedule_group="default",
            keep_clock_function_arn="arn:aws:lambda:us-west-2:123456789012:function:keep-clock",
            scheduler_role_arn="arn:aws:iam::123456789012:role/scheduler",
            slack_secret_id="slack",
            relay_secret_id="relay",
            slack_api_url=slack.api_url,
            file_systems=("*",),
            reservations=("*",),
        )
        for name, value in made.to_environment().items():
            monkeypatch.setenv(name, value)
        lambda_handler._endpoint.cache_clear()
        lambda_handler._desk.cache_clear()
        notifier_handler._notifier.cache_clear()
        yield made
        lambda_handler._endpoint.cache_clear()
        lambda_handler._desk.cache_clear()
        notifier_handler._notifier.cache_clear()


@pytest.fixture
def services(settings: Settings, clock: Clock) -> Services:
    return Services(settings, now=clock.now)


@pytest.fixture
def stream(settings: Settings) -> TableStream:
    return TableStream(settings.table_name)


@pytest.fixture
def notifier(services: Services, slack: RecordingSlack, clock: Clock) -> Notifier:
    return new_notifier(services, slack, clock)


@pytest.fixture
def tells(notifier: Notifier, stream: TableStream) -> Callable[[], None]:
    """Hand the notifier what was written since the last time."""
    return lambda: tell(notifier, stream)


@pytest.fixture
def person(slack: RecordingSlack, settings: Settings) -> Person:
    return Person(slack)


@pytest.fixture
def story(services: Services, clock: Clock) -> Story:
    return Story(services, clock)


@pytest.fixture
def cluster(services: Services, clock: Clock) -> ClusterStory:
    return ClusterStory(services, clock)


@pytest.fixture
def dying(services: Services) -> DyingStore:
    store = DyingStore(services.settings.table_name, boto3.client("dynamodb", REGION))
    services.deliveries = store
    return store


@pytest.fixture
def bucket(services: Services, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The deployment keeps results."""
    monkeypatch.setenv("STATIONMASTER_ARTIFACTS_BUCKET", BUCKET)
    s3 = boto3.client("s3", REGION)
    s3.create_bucket(Bucket=BUCKET)
    return s3


@pytest.fixture
def ended(story: Story) -> RunId:
    """A run of the channel that has failed."""
    story.begin()
    story.phases(RunPhase.FAILED, reason="out of memory")
    return RunId(story.run_id)


@pytest.fixture
def workspace() -> Iterator[LocalSlack]:
    slack = new_workspace()
    yield slack
    slack.stop()


@pytest.fixture
def bot(services: Services, workspace: LocalSlack) -> Services:
    """What the bot is made of, in the local workspace."""
    keep_secret(SECRET)
    changed = services.settings.model_copy(update={"slack_api_url": workspace.api_url})
    return Services(changed)


@pytest.fixture
def set_rules(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Give a channel rules; returns the file with the rules of all."""

    def setting(its: dict[str, Any], channel: str = CHANNEL) -> Path:
        path = tmp_path / "rules.json"
        path.write_text(json.dumps({"channels": {channel: its}}))
        monkeypatch.setenv("STATIONMASTER_RULES_FILE", str(path))
        return path

    return setting
