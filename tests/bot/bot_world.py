"""Who and what the bot's tests are about: a clock, a person, a run's story, the table's stream."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import boto3
from recording_slack import RecordingSlack
from slack_sdk import WebClient

from bot import lambda_handler
from bot.notifier import Notifier
from bot.outbox import Outbox
from bot.stream import read_batch
from stationmaster.aws.delivery_store import Delivery, DeliveryStore
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.spec import spec_for, spec_for_any
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import attempt_id, first_assignment
from stationmaster.domain.run.request import Placement
from stationmaster.local.slack.blocks import check_blocks
from stationmaster.local.slack.server import LocalSlack
from stationmaster.local.slack_app import app_config
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.factories import make_request, make_requested
from tests.support.slack_models import refused_by_models

REGION = "us-east-1"
SIGNING_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
BOT_TOKEN = "xoxb-for-tests"
CHANNEL = "C0TRAINING"
USER = "U0OPERATOR"
TEAM = "T0TEAM"
BOT = "U0BOT"


class Clock:
    """A clock that moves only when the test moves it, or when somebody sleeps by it."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 2, 9, 0, tzinfo=UTC)
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


def new_notifier(services: Services, slack: RecordingSlack, clock: Clock) -> Notifier:
    """The notifier of a function that has just started."""
    outbox = Outbox(
        WebClient(
            token=services.secrets.slack().bot_token.get_secret_value(), base_url=slack.api_url
        ),
        reload_token=services.secrets.reload_bot_token,
        sleep=clock.sleep,
    )
    return Notifier(services, outbox, sleep=clock.sleep)


def started_workflows(settings: Settings) -> list[str]:
    """Names of the executions of the train state machine."""
    return _executions(settings.train_state_machine_arn)


def started_clusters(settings: Settings) -> list[str]:
    """Names of the executions of the cluster state machine."""
    return _executions(settings.cluster_state_machine_arn)


def _executions(state_machine_arn: str) -> list[str]:
    client = boto3.client("stepfunctions", REGION)
    found = client.list_executions(stateMachineArn=state_machine_arn)
    return [execution["name"] for execution in found["executions"]]


def seen(answer: dict[str, Any]) -> str:
    """The blocks of an answer to a command."""
    blocks = answer["answer"].get("blocks", [])
    assert check_blocks(blocks) + refused_by_models(blocks) == []
    return json.dumps(blocks, ensure_ascii=False)


def tell(notifier: Notifier, stream: TableStream) -> None:
    """Hand the notifier what was written since the last time."""
    notifier.notify(read_batch(stream.next_batch()))


class Killed(BaseException):
    """What a function that Lambda kills never gets to handle."""


class DyingStore(DeliveryStore):
    """A memory whose function is killed when it is to keep something of the given kind."""

    dies_at = ""

    def save(self, delivery: Delivery, **more: object) -> Delivery:
        if self.dies_at == "card" and delivery.card_ts is not None:
            raise Killed
        return super().save(delivery, **more)

    def confirm(self, owner: str, keys: list[str], **more: object) -> None:
        if self.dies_at == "confirm" and keys:
            raise Killed
        super().confirm(owner, keys, **more)


APP_TOKEN = "xapp-for-tests"
SECRET = {"bot_token": BOT_TOKEN, "signing_secret": SIGNING_SECRET, "app_token": APP_TOKEN}


def new_workspace(port: int = 0) -> LocalSlack:
    slack = LocalSlack(
        host_port=port,
        app=app_config(),
        **SECRET,
        delivery_url="http://127.0.0.1:9/nobody-listens",
        answer_within_s=600,
    )
    slack.start()
    return slack


def keep_secret(secret: dict[str, str]) -> None:
    client = boto3.client("secretsmanager", REGION)
    client.put_secret_value(SecretId="slack", SecretString=json.dumps(secret))


@dataclass
class Person:
    """Types commands and presses buttons the way Slack delivers it: signed, form-encoded."""

    slack: RecordingSlack
    secret: str = SIGNING_SECRET
    age_s: int = 0
    team: str = TEAM
    triggers: int = field(default=0)

    def type(self, text: str, *, trigger_id: str | None = None, **more: str) -> dict[str, Any]:
        """Deliver `/train TEXT`; the parsed answer is under "answer"."""
        self.triggers += 1
        fields = {
            "team_id": self.team,
            "channel_id": CHANNEL,
            "user_id": USER,
            "command": "/train",
            "text": text,
            "trigger_id": trigger_id or f"trigger-{self.triggers}",
            "response_url": f"{self.slack.url}/response/1",
            **more,
        }
        return self._deliver(urlencode(fields))

    def press(
        self, action_id: str, value: str, *, channel: str = CHANNEL, user: str = USER, **more: Any
    ) -> dict[str, Any]:
        """Deliver a click on a button of a card."""
        payload = {
            "type": "block_actions",
            "team": {"id": self.team},
            "user": {"id": user, "team_id": self.team},
            "channel": {"id": channel},
            "container": {"type": "message", "message_ts": "1000.1", "channel_id": channel},
            "trigger_id": "trigger-click",
            "response_url": f"{self.slack.url}/response/2",
            "actions": [
                {
                    "type": "button",
                    "action_id": action_id,
                    "block_id": "run_actions",
                    "value": value,
                    "action_ts": "1.0",
                }
            ],
            **more,
        }
        return self._deliver(urlencode({"payload": json.dumps(payload)}))

    def write(
        self, text: str, *, event_id: str | None = None, bots: tuple[str, ...] = (BOT,), **more: Any
    ) -> dict[str, Any]:
        """Deliver a message that mentions the app; one in a D... channel is for it alone."""
        self.triggers += 1
        event = {
            "type": "message" if more.get("channel", "").startswith("D") else "app_mention",
            "channel": CHANNEL,
            "user": USER,
            "text": text,
            "ts": f"2000.{self.triggers:06d}",
            **more,
        }
        of = [{"team_id": self.team, "user_id": each, "is_bot": True} for each in bots]
        event_id = event_id or f"Ev{self.triggers}"
        return self.deliver_event(event, event_id=event_id, authorizations=of)

    def open_home(self, user: str = USER) -> dict[str, Any]:
        """Deliver that somebody looks at the app's Home."""
        event = {"type": "app_home_opened", "user": user, "channel": "D0HOME", "tab": "home"}
        return self.deliver_event(
            event, authorizations=[{"team_id": self.team, "user_id": "U0APP"}]
        )

    def deliver_event(self, event: dict[str, Any], **more: Any) -> dict[str, Any]:
        body = {"type": "event_callback", "team_id": self.team, "event_id": "Ev1", "event": event}
        return self._deliver(json.dumps(body | more))

    def press_in_home(self, element: dict[str, Any], *, user: str = USER) -> dict[str, Any]:
        """Press a button of Home."""
        action = {"type": "button", "block_id": "b", **element}
        payload = {
            "type": "block_actions",
            "team": {"id": self.team},
            "user": {"id": user},
            "view": {"type": "home", "id": "V1", "hash": "1.a"},
            "trigger_id": "trigger-home",
            "actions": [action],
        }
        return self._deliver(urlencode({"payload": json.dumps(payload)}))

    def in_form(self, *arguments: Any, **more: Any) -> Any:
        """Change a field of a form, or send it; the parsed answer."""
        return self.deliver_form(*arguments, **more)["answer"]

    def deliver_form(
        self, kind: str, view: dict[str, Any], entered: dict[str, str], **more: Any
    ) -> dict[str, Any]:
        """Deliver what Slack makes of the form that was opened."""
        values = {}
        for block in view["blocks"]:
            if block["type"] == "input":
                value = entered.get(block["block_id"])
                fields = {
                    "static_select": {"selected_option": {"value": value} if value else None},
                    "conversations_select": {"selected_conversation": value},
                }
                field = fields.get(block["element"]["type"], {"value": value})
                values[block["block_id"]] = {block["element"]["action_id"]: field}
        payload = {
            "type": kind,
            "team": {"id": self.team},
            "user": {"id": USER, "name": "operator"},
            "view": {"id": "V1", "hash": "1.a", **view, "state": {"values": values}},
            **more,
        }
        if kind == "block_actions":
            action = {"type": "static_select", "action_id": "form_field", "block_id": "recipe"}
            payload["actions"] = [action]
        return self._deliver(urlencode({"payload": json.dumps(payload)}))

    def event(self, body: bytes) -> dict[str, Any]:
        """The signed request as API Gateway hands it to the function: form bodies in base64."""
        timestamp = str(int(time.time()) - self.age_s)
        return {
            "version": "2.0",
            "routeKey": "POST /slack/events",
            "rawPath": "/slack/events",
            "headers": {
                "content-type": "application/x-www-form-urlencoded",
                "x-slack-request-timestamp": timestamp,
                "x-slack-signature": signature(self.secret, timestamp, body),
            },
            "requestContext": {"http": {"method": "POST", "path": "/slack/events"}},
            "body": base64.b64encode(body).decode(),
            "isBase64Encoded": True,
        }

    def _deliver(self, body: str) -> dict[str, Any]:
        answer = lambda_handler.handler(self.event(body.encode()), None)
        text = answer["body"]
        answer["answer"] = json.loads(text) if text.startswith("{") else {}
        return answer


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """The value of X-Slack-Signature."""
    signed = b"v0:" + timestamp.encode() + b":" + body
    return "v0=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


class TableStream:
    """The stream of the table, read as Lambda's event source mapping reads it."""

    def __init__(self, table_name: str) -> None:
        # moto does not serve the endpoints that botocore derives from the stream's ARN.
        self._client = boto3.client(
            "dynamodbstreams",
            REGION,
            endpoint_url=f"https://streams.dynamodb.{REGION}.amazonaws.com",
        )
        arn = self._client.list_streams(TableName=table_name)["Streams"][0]["StreamArn"]
        shard = self._client.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"][0]
        self._iterator = self._client.get_shard_iterator(
            StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]

    def next_batch(self) -> dict[str, Any]:
        answer = self._client.get_records(ShardIterator=self._iterator, Limit=1000)
        self._iterator = answer["NextShardIterator"]
        for record in answer["Records"]:  # Lambda gives seconds
            written = record["dynamodb"]["ApproximateCreationDateTime"]
            record["dynamodb"]["ApproximateCreationDateTime"] = written.timestamp()
        return {"Records": answer["Records"]}


@dataclass
class ClusterStory:
    """Makes things happen to one kept cluster, through the same store as the product."""

    services: Services
    clock: Clock
    cluster_id: str = "team-a-0123abcd"
    name: str = "team-a"
    nodes: int = 4
    count: int = 0

    def begin(self, *, keep_for: timedelta = timedelta(hours=8), user_id: str = USER) -> Cluster:
        self.count += 1
        requested = cl.ClusterRequested(
            event_id=cl.cluster_event_id(self.cluster_id, "requested"),
            cluster_id=self.cluster_id,
            at=self.clock.now(),
            spec=spec_for_any(get_instance("m5.2xlarge"), nodes=self.nodes, file_system_gib=1200),
            name=self.name,
            requester=cl.Requester(team_id=TEAM, channel_id=CHANNEL, user_id=user_id),
            keep_until=self.clock.now() + keep_for,
        )
        cluster, _ = self.services.cluster_states.create(requested)
        return cluster

    def happen(self, kind: type[Any], /, **values: Any) -> Cluster:
        """Record one event."""
        self.count += 1
        event = kind(
            event_id=cl.cluster_event_id(self.cluster_id, kind.__name__, self.count),
            cluster_id=self.cluster_id,
            at=self.clock.now(),
            **values,
        )
        return self.services.cluster_states.record(self.cluster_id, [event])

    def phases(self, *phases: cl.ClusterPhase, reason: str = "") -> Cluster:
        for phase in phases:
            cluster = self.happen(cl.ClusterPhaseChanged, phase=phase, reason=reason)
        return cluster

    def become_ready(self) -> Cluster:
        """It begins unless it has, and costs 36 USD an hour, of which nothing is emulated."""
        if self.count == 0:
            self.begin()
        self.phases(cl.ClusterPhase.PROVISIONING)
        made = {"kind": ResourceKind.CLUSTER, "name": "control plane"}
        self.happen(cl.ResourceRequested, **made, price_per_hour_usd=36.0)
        self.happen(cl.ResourceCreated, **made)
        return self.phases(cl.ClusterPhase.VALIDATING, cl.ClusterPhase.READY)

    def use(self, run_id: str, *, nodes: int = 2, min_nodes: int | None = None) -> Run:
        """A run that was typed with `on=` asks for nodes, and gets them or waits."""
        request = make_request(
            nodes=nodes,
            min_nodes=min_nodes,
            command=f"/train tiny-llama on={self.name}",
            team_id=TEAM,
            channel_id=CHANNEL,
            user_id=USER,
            cluster_id=self.cluster_id,
        )
        requested = make_requested(run_id, at=self.clock.now(), request=request)
        self.services.runs.create(
            requested, dedup_key=run_id, dedup_until=self.clock.now() + timedelta(seconds=30)
        )
        began = ev.AttemptStarted(
            event_id=ev.run_event_id(run_id, "attempt"),
            run_id=run_id,
            at=self.clock.now(),
            **dict(first_assignment(run_id, request)),
        )
        run = self.services.runs.record(run_id, [began])
        cluster = self.happen(cl.LeaseRequested, run_id=run_id, nodes=nodes, min_nodes=min_nodes)
        if cluster.queue:
            run = self._story(run_id).phases(ev.RunPhase.QUEUED)
        return run

    def train(self, run_id: str) -> Run:
        return self._story(run_id).phases(ev.RunPhase.SUBMITTING, ev.RunPhase.RUNNING)

    def leave(self, run_id: str) -> Run:
        """A run succeeds and releases its lease."""
        run = self._story(run_id).phases(ev.RunPhase.SUCCEEDED)
        self.happen(cl.LeaseReleased, run_id=run_id)
        return run

    def _story(self, run_id: str) -> Story:
        had = len(self.services.runs.events(run_id))
        return Story(self.services, self.clock, run_id, count=had)


@dataclass
class Story:
    """Makes things happen to one run, through the same store as the product."""

    services: Services
    clock: Clock
    run_id: str = "tiny-llama-0123abcd"
    count: int = 0

    def begin(self, **request_: Any) -> Run:
        about = {"team_id": TEAM, "channel_id": CHANNEL, "user_id": USER}
        request = make_request(**({"command": "/train tiny-llama"} | about | request_))
        requested = make_requested(
            self.run_id,
            at=self.clock.now(),
            request=request,
            price_per_hour_usd=1.1,
            estimated_cost_usd=0.55,
        )
        run, _ = self.services.runs.create(
            requested, dedup_key=self.run_id, dedup_until=self.clock.now() + timedelta(seconds=30)
        )
        return self.lease() if run.attempt is None else run

    def happen(self, kind: type[Any], /, **values: Any) -> Run:
        """Record one event."""
        self.count += 1
        about = self._about(kind.__name__, self.count)
        if "cluster_id" in kind.model_fields and "attempt_id" not in kind.model_fields:
            about["cluster_id"] = about.pop("run_id")
            self.services.cluster_states.record(self.run_id, [kind(**about, **values)])
            return self.services.runs.load(self.run_id)
        return self.services.runs.record(self.run_id, [kind(**about, **values)])

    def lease(self) -> Run:
        """The run leases a cluster of its own."""
        placement = Placement(nodes=2, instance_type="m5.2xlarge")
        about = {"cluster_id": self.run_id, "at": self.clock.now()}
        spec = spec_for(get_recipe("tiny-llama"), **placement.model_dump())
        self.services.cluster_states.create(
            cl.ClusterRequested(event_id="requested", spec=spec, run_id=self.run_id, **about),
            cl.LeaseGranted(event_id="lease", run_id=self.run_id, nodes=2, **about),
        )
        return self.happen(
            ev.AttemptStarted,
            attempt_id=attempt_id(self.run_id, 1),
            cluster_id=self.run_id,
            placement=placement,
            job=self.run_id,
            rendezvous_id=self.run_id,
        )

    def tear_down(self) -> Run:
        """The run releases its lease, and the teardown begins."""
        if self.services.cluster_states.load(self.run_id).open_leases:
            released = cl.LeaseReleased(
                event_id="released",
                cluster_id=self.run_id,
                at=self.clock.now(),
                run_id=self.run_id,
            )
            self.services.cluster_states.record(self.run_id, [released])
        return self.happen(cl.TeardownStarted)

    def phases(self, *phases: ev.RunPhase, reason: str = "") -> Run:
        for phase in phases:
            run = self.happen(ev.PhaseChanged, phase=phase, reason=reason)
        return run

    def reach_running(self) -> Run:
        """It begins unless it has, and trains."""
        if self.count == 0:
            self.begin()
        return self.phases(
            ev.RunPhase.PROVISIONING,
            ev.RunPhase.VALIDATING,
            ev.RunPhase.SUBMITTING,
            ev.RunPhase.RUNNING,
        )

    def progress(self, step: int, *, total_steps: int = 60) -> Run:
        return self.happen(
            ev.ProgressReported,
            seq=self.count,
            step=step,
            total_steps=total_steps,
            loss_nats=8.0 - step / 20,
            tokens_per_s=2048.0,
            step_time_s=0.5,
        )

    def _about(self, *parts: object) -> dict[str, Any]:
        return {
            "event_id": ev.run_event_id(self.run_id, *parts),
            "run_id": self.run_id,
            "at": self.clock.now(),
        }
