"""Between events, cards of what is live are refreshed within their budget, and tokens renewed."""

from __future__ import annotations

import json
import time
from typing import Any

import boto3
import pytest
from bot_world import BOT_TOKEN, REGION, SIGNING_SECRET, Story
from recording_slack import RecordingSlack, Refusal

from bot import notifier_handler
from bot.notifier_handler import handler
from stationmaster.aws.cluster_store import ClusterStore
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev


class CountedClusters(ClusterStore):
    """Remembers which clusters were read."""

    def __init__(self) -> None:
        super().__init__("runs", boto3.client("dynamodb", REGION))
        self.reads: list[str] = []

    def find_each(self, owners):
        wanted = [*owners]
        self.reads += wanted
        return super().find_each(wanted)


@pytest.fixture
def reads(services) -> list[str]:
    services.cluster_states = CountedClusters()
    return services.cluster_states.reads


def tear_down(story: Story) -> None:
    story.phases(ev.RunPhase.FAILED, reason="no capacity")
    story.tear_down()
    story.happen(cl.TeardownCompleted, cost_usd=0.4)


def test_batch_reads_the_cluster_of_a_run_once(tells, story, reads):
    story.begin()
    story.happen(cl.ResourceRequested, kind=ResourceKind.CLUSTER, name="c", price_per_hour_usd=36.0)

    tells()

    assert reads == [story.run_id]


def test_refresh_reads_a_cluster_once_and_those_that_are_over_not_again(
    tells, notifier, services, clock, reads, slack
):
    over, live = (Story(services, clock, run_id=f"tiny-llama-{name}") for name in ("over", "live"))
    for story in (over, live):
        story.begin()
    tear_down(over)
    tells()
    reads.clear()

    notifier.refresh()
    first = sorted(reads)
    reads.clear()
    clock.advance(5)
    notifier.refresh()

    assert first == [live.run_id, over.run_id]
    assert reads == [live.run_id]


def test_run_that_is_over_is_looked_at_for_a_day(tells, notifier, stream, story, slack, clock):
    story.begin()
    tells()
    tear_down(story)
    stream.next_batch()  # not delivered

    clock.advance(24 * 3600)
    notifier.refresh()

    assert slack.of("chat.update") == []


def test_live_card_is_drawn_anew_without_any_event(tells, notifier, story, slack, clock):
    story.begin()
    story.phases(ev.RunPhase.PROVISIONING)
    story.happen(cl.ResourceRequested, kind=ResourceKind.CLUSTER, name="c", price_per_hour_usd=36.0)
    tells()

    clock.advance(60)
    notifier.refresh()

    (edit,) = slack.of("chat.update")
    assert "$0.60" in edit.seen
    assert f"updated <!date^{int(clock.monotonic())}^{{time_secs}}|at 09:01:00 UTC>" in edit.seen


@pytest.mark.parametrize(
    ("happens", "after_s", "edits"),
    [
        (lambda story: None, 5, 0),  # it was just posted
        (tear_down, 3_600, 0),
        (lambda story: (story.phases(ev.RunPhase.FAILED), story.tear_down()), 60, 1),
    ],
    ids=["just-posted", "over", "in-teardown"],
)
def test_card_is_drawn_again_while_something_is_live(
    tells, notifier, story, slack, clock, happens, after_s, edits
):
    story.begin()
    happens(story)
    tells()
    attempts = len(slack.attempts)

    clock.advance(after_s)
    notifier.refresh()

    assert len(slack.of("chat.update")) == len(slack.attempts) - attempts == edits


def test_batch_that_was_given_up_is_made_good_by_the_next_refresh(
    tells, notifier, stream, story, slack, clock
):
    story.reach_running()
    tells()
    story.phases(ev.RunPhase.FAILED, reason="out of memory")
    story.tear_down()
    story.happen(cl.TeardownCompleted, cost_usd=0.42)
    stream.next_batch()  # set aside after an hour without Slack

    clock.advance(3_600)
    notifier.refresh()
    notifier.refresh()

    assert "out of memory" in slack.card.seen
    said = [call.seen for call in slack.thread]
    assert sum("*run failed*" in text for text in said) == 1
    assert sum("Nothing billable is left" in text for text in said) == 1


def test_shipped_handler_refreshes_on_a_scheduled_event(
    settings, stream, story, slack: RecordingSlack
):
    story.begin()
    stream.next_batch()  # not delivered

    notifier_handler.handler({}, None)

    assert [story.run_id in card.seen for card in slack.cards] == [True]


OLD = {"bot_token": BOT_TOKEN, "signing_secret": SIGNING_SECRET, "refresh_token": "xoxe-1"}
APP = {"client_id": "1.2", "client_secret": "c", "app_token": "xapp-1"}


def tick(**secret: Any) -> dict[str, Any]:
    """Let a minute come with this secret; return it as it is then."""
    client = boto3.client("secretsmanager", REGION)
    if secret:
        client.put_secret_value(SecretId="slack", SecretString=json.dumps(secret))
    handler({}, None)
    return dict(json.loads(client.get_secret_value(SecretId="slack")["SecretString"]))


def test_token_that_ends_soon_is_rotated_once_and_the_rest_of_the_secret_stays(settings, slack):
    teams = {"T0SECOND": {"bot_token": "xoxb-b", "refresh_token": "xoxe-b"}}
    kept = tick(**OLD, **APP, teams=teams)
    again = tick()

    # A second may end between the two.
    ends, other = (each["expires_at"] for each in (kept, kept["teams"]["T0SECOND"]))
    assert time.time() + 40_000 < ends <= other
    changed = {"bot_token": "xoxb-2", "refresh_token": "xoxe-2", "expires_at": ends}
    teams = {"T0SECOND": changed | {"expires_at": other}}
    assert kept == again == OLD | APP | changed | {"teams": teams}
    used = [call.arguments["refresh_token"] for call in slack.of("oauth.v2.access")]
    assert used == ["xoxe-1", "xoxe-b"]


def test_token_that_another_process_has_rotated_is_not_rotated_again(settings, slack):
    slack.refuse("oauth.v2.access", Refusal(error="internal_error"))
    tick(**OLD, **APP)

    tick(**OLD, **APP, expires_at=int(time.time()) + 43_000)

    assert slack.attempts.count("oauth.v2.access") == 1


@pytest.mark.parametrize("app", [APP, {}])
def test_token_that_slack_does_not_rotate_is_tried_again_and_stays(settings, slack, app, caplog):
    slack.refuse("oauth.v2.access", Refusal(error="invalid_refresh_token"))

    assert tick(**OLD, **app) == OLD | app
    assert "bot token is not rotated" in caplog.messages
    assert tick(**OLD, **APP)["bot_token"] == "xoxb-2" or not app
