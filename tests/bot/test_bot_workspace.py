"""Commands, clicks and cards in a workspace that enforces what Slack does with its channels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from bot_world import Clock, Story, TableStream, new_notifier, tell

from bot.notifier import Notifier
from bot.socket_mode import connected
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.local.slack.records import (
    OPERATOR_ID,
    PRIVATE_CHANNEL_ID,
    TRAINING_CHANNEL_ID,
    Message,
)
from stationmaster.local.slack.server import LocalSlack
from stationmaster.services import Services

HERE, DIRECT = TRAINING_CHANNEL_ID, f"D{OPERATOR_ID[1:]}"


@dataclass
class Office:
    """The bot over a socket, its notifier, and a person before a client of Slack."""

    slack: LocalSlack
    bot: Services
    notifier: Notifier
    stream: TableStream
    clock: Clock

    def type(self, text: str, channel: str = HERE) -> str:
        result = self.slack.type_command(text, channel=channel)
        self.clock.advance(60)
        return result.error or self.whispered

    @property
    def whispered(self) -> str:
        return json.dumps(self.slack.ephemerals()[-1].blocks, ensure_ascii=False)

    @property
    def run(self) -> Run:
        (run,) = self.bot.runs.list_recent()
        return run

    def happen(self, *phases: RunPhase) -> None:
        """The run goes on, and the notifier hears of it."""
        had = len(self.bot.runs.events(self.run.run_id))
        Story(self.bot, self.clock, self.run.run_id, count=had).phases(*phases)
        self.clock.advance(10)
        tell(self.notifier, self.stream)

    def cards(self, channel: str) -> list[Message]:
        return [
            each for each in self.slack.messages(channel) if self.run.run_id in str(each.blocks)
        ]


@pytest.fixture
def office(
    bot: Services, workspace: LocalSlack, stream: TableStream, clock: Clock
) -> Iterator[Office]:
    services = Services(bot.settings, now=clock.now)
    with connected(services):
        notifier = new_notifier(services, workspace, clock)
        yield Office(workspace, services, notifier, stream, clock)


@pytest.mark.parametrize(
    ("typed", "channel", "code"),
    [
        ("/archive", HERE, "is_inactive"),
        ("/remove @stationmaster", HERE, "not_in_channel"),
        ("/remove @stationmaster", PRIVATE_CHANNEL_ID, "channel_not_found"),
    ],
)
def test_run_whose_channel_is_archived_or_left_is_followed_where_its_person_is(
    office: Office, typed: str, channel: str, code: str
) -> None:
    office.type("/invite @stationmaster", channel)
    office.type("/train tiny-llama", channel)
    office.type(typed, channel)

    office.happen(RunPhase.PROVISIONING)
    office.type("/invite @stationmaster", channel)
    office.happen(RunPhase.VALIDATING)

    (card,) = office.cards(DIRECT)
    (old,) = office.cards(channel)
    assert "requested" in old.text
    assert f"<#{channel}> takes no posts" in str(card.blocks)
    assert code in str(card.blocks)
    assert "validating" in card.text
    office.slack.click(message_ts=card.ts, channel=DIRECT, action_id="stop_run")
    assert office.run.stop_requested_by == OPERATOR_ID
    office.happen(RunPhase.FAILED)
    *_, failed, receipt = (each.text for each in office.slack.thread(DIRECT, card.ts))
    assert ("run failed" in failed, "nothing billable is left" in receipt) == (True, True)


def test_run_of_a_direct_conversation_has_its_card_there(office: Office) -> None:
    assert "is on its way" in office.type("/train tiny-llama", DIRECT)

    office.happen(RunPhase.PROVISIONING)

    assert len(office.cards(DIRECT)) == 1
    assert office.run.run_id in office.type("/train list", DIRECT)
    assert office.cards(HERE) == []


def test_member_of_another_organization_looks_and_changes_nothing(office: Office) -> None:
    people = office.slack._endpoint.workspace
    people.users["U0GUEST"] = replace(people.users[OPERATOR_ID], id="U0GUEST", team_id="T0OTHER")
    people.set_member(HERE, "U0GUEST", is_member=True)
    office.type("/train tiny-llama")
    (card,) = office.cards(HERE)
    click = {"message_ts": card.ts, "channel": HERE, "action_id": "stop_run"}

    office.slack.click(**click, user="U0GUEST")
    assert "you are of another organization than this app" in office.whispered
    office.slack.say("@Stationmaster tiny-llama seed=3", user="U0GUEST")
    assert "you may not start runs here" in office.whispered
    office.slack.say("@Stationmaster status", user="U0GUEST", thread_ts=card.ts, deliveries=2)
    assert office.run.run_id in office.whispered
    (status,) = (each for each in office.slack.ephemerals() if each.thread_ts == card.ts)
    assert status.ephemeral_to == "U0GUEST"
    assert not office.run.is_stopping
    assert office.slack.click(**click, user=OPERATOR_ID).error is None
    assert office.run.is_stopping


def test_renamed_person_is_found_by_either_name_with_all_that_they_did(office: Office) -> None:
    office.type("/train tiny-llama")
    people = office.slack._endpoint.workspace.users
    people[OPERATOR_ID] = replace(people[OPERATOR_ID], name="married")
    office.type("/train tiny-llama seed=2")

    for name in ("operator", "married"):
        shown = office.type(f"/train audit @{name}")
        assert shown.count("start runs") == 2
        assert "2 runs" in office.type(f"/train cost @{name} 2026-01")
