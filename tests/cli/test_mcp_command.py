"""`stationmaster mcp`, as an assistant sees it: the SDK's own client, in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from mcp.client import Client as Assistant

from stationmaster.cli.mcp_server import make_server
from stationmaster.client import Client

LOOKS = {"recipes", "plan", "list", "status", "logs", "compare", "diff", "cost", "audit"}
REPORT = {
    "run_id": "tiny-llama-1",
    "channel_id": "C0TRAIN",
    "status": "running",
    "is_over": False,
    "price_per_hour_usd": 1.5,
    "estimated_cost_usd": 0.75,
    "cost_usd": 0.0,
}


def converse(say: Callable[[Assistant], Any], *, allow_start: bool = False) -> Any:
    """Return what an assistant gets of the tools of one channel."""
    client = Client("east", channel="C0TRAIN", function="worker", via="mcp")

    async def answer() -> Any:
        async with Assistant(make_server(client, allow_start=allow_start)) as assistant:
            return await say(assistant)

    return anyio.run(answer)


def test_only_what_reads_is_a_tool_unless_starts_are_allowed(bot: Any) -> None:
    looks = converse(Assistant.list_tools).tools
    every = converse(Assistant.list_tools, allow_start=True).tools
    more = {each.name: each.annotations for each in every}

    assert {each.name for each in looks} == LOOKS
    assert all(each.annotations.read_only_hint and each.description for each in looks)
    assert more.keys() - LOOKS == {"start", "resume", "rerun", "stop"}
    assert [name for name, hints in more.items() if hints.destructive_hint] == ["stop"]


@pytest.mark.parametrize(
    ("name", "arguments", "asked"),
    [
        ("recipes", {}, ("look", "recipes")),
        ("logs", {"run": "books"}, ("look", "logs books")),
        ("compare", {"runs": "a b"}, ("look", "compare a b")),
        ("diff", {"run": "a", "other": "b"}, ("look", "diff a b")),
        ("cost", {}, ("look", "cost")),
        ("audit", {"about": "since=7d"}, ("look", "audit since=7d")),
        ("status", {"run": "a"}, ("status", "a")),
        ("start", {"command": "/train tiny-llama"}, ("start", "tiny-llama")),
        ("resume", {"run": "a", "changes": "steps=+9"}, ("start", "resume a steps=+9")),
        ("rerun", {"run": "a"}, ("start", "rerun a")),
        ("stop", {"run": "a"}, ("stop", "a")),
    ],
)
def test_tool_asks_the_bot_for_the_command_and_returns_its_answer(
    bot: Any, name: str, arguments: dict[str, str], asked: tuple[str, str]
) -> None:
    asks = bot({"text": "as in the channel"} if asked[0] == "look" else REPORT)

    result = converse(lambda each: each.call_tool(name, arguments), allow_start=True)

    assert not result.is_error
    text = result.content[0].text
    assert "as in the channel" in text or '"run_id": "tiny-llama-1"' in text
    (ask,) = asks
    assert (ask["kind"], ask["text"] or ask["run_id"], ask["via"]) == (*asked, "mcp")


def test_refusal_reaches_the_assistant_with_what_to_do(bot: Any) -> None:
    bot({"refused": "no recipe is called lama", "suggestion": "/train plan tiny-llama"})

    refused = converse(lambda each: each.call_tool("plan", {"command": "lama"}))
    unknown = converse(lambda each: each.call_tool("start", {"command": "tiny-llama"}))

    assert (refused.is_error, unknown.is_error) == (True, True)
    assert refused.content[0].text.endswith("no recipe is called lama; try /train plan tiny-llama")
