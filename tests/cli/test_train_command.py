"""`stationmaster train`, `stationmaster mcp` and their client: exit codes, waiting, failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import stationmaster
from stationmaster.cli.main import main
from stationmaster.client import Client
from stationmaster.domain.errors import TransientError

REPORT = {
    "run_id": "tiny-llama-1",
    "channel_id": "C0TRAIN",
    "status": "requested",
    "is_over": False,
    "is_new": True,
    "price_per_hour_usd": 1.5,
    "estimated_cost_usd": 0.75,
    "cost_usd": 0.0,
}
OVER = {"is_over": True, "result": {"uri": "s3://b/runs/x/", "num_files": 2, "num_bytes": 9}}
SUCCEEDED = REPORT | OVER | {"status": "succeeded"}
FAILING: dict[str, Any] = {"failed": "reference 1", "is_transient": True}


@pytest.fixture
def paused() -> list[float]:
    return []


@pytest.fixture
def client(bot: Any, paused: list[float]) -> Client:
    return stationmaster.Client("east", channel="C0TRAIN", function="worker", sleep=paused.append)


@pytest.fixture
def train(bot: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr("stationmaster.cli.train.bot_function", lambda _: ("east", "worker"))
    monkeypatch.setattr("stationmaster.client._FIRST_LOOK_S", 0.01)

    def run(*words: str) -> int:
        return main(["train", *words, "--channel", "C0TRAIN", "--deployment", "east"])

    return run


@pytest.mark.parametrize(
    ("answers", "flags", "code"),
    [
        ([REPORT], [], 0),
        ([REPORT, REPORT, REPORT | {"cost_usd": 1}, SUCCEEDED], ["--wait"], 0),
        ([REPORT, REPORT | OVER | {"status": "failed", "reason": "out of memory"}], ["--wait"], 1),
        ([REPORT | {"awaits_approval": True}], ["--wait"], 3),
        ([REPORT | {"awaits_approval": True}], [], 3),
        ([{"refused": "no such recipe", "suggestion": "/train tiny-llama"}], ["--wait"], 2),
        ([{"failed": "reference 1"}], [], 1),
        ([{"statusCode": 401}], [], 1),
    ],
)
def test_exit_code_says_what_became_of_the_run(
    train: Callable[..., int],
    bot: Any,
    answers: list[Any],
    flags: list[str],
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = bot(*answers)

    assert train("/train tiny-llama nodes=2", "--json", *flags) == code
    shown = capsys.readouterr()
    assert asked[0]["text"] == "tiny-llama nodes=2"
    assert "Traceback" not in shown.err
    assert shown.err.count("tiny-llama-1 requested") <= 1
    if code in (0, 3):
        assert json.loads(shown.out)["run_id"] == "tiny-llama-1"
    if code == 2:
        assert "try: stationmaster train tiny-llama --channel C0TRAIN --dep" in shown.err


@pytest.mark.parametrize(
    ("said", "pasted"),
    [
        ("rerun last steps=9", "try: stationmaster train 'rerun last steps=9' --channel"),
        ("plan tiny-llama", "try: stationmaster plan tiny-llama\n"),
        ("list", ""),
    ],
)
def test_suggestion_is_what_can_be_typed_here(
    train: Callable[..., int], bot: Any, said: str, pasted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bot({"refused": "no", "suggestion": f"/train {said}"})

    assert train("tiny-llama") == 2
    shown = capsys.readouterr().err
    assert (pasted or "stationmaster: no\n") in shown
    assert ("try" in shown) == bool(pasted)


def test_start_is_tried_again_under_the_same_id(
    client: Client, bot: Any, paused: list[float]
) -> None:
    asked = bot(None, FAILING, REPORT)

    assert client.start("tiny-llama").run_id == "tiny-llama-1"
    assert len({each["request_id"] for each in asked}) == 1
    assert (len(asked), paused) == (3, [1.0, 3.0])


def test_wait_looks_less_often_and_outlasts_failures_for_a_time(
    client: Client, bot: Any, paused: list[float]
) -> None:
    bot(*[REPORT] * 9, *[FAILING] * 8, SUCCEEDED)
    seen: list[str] = []

    report = client.wait("tiny-llama-1", on_change=lambda each: seen.append(each.status))

    assert report.status == "succeeded"
    assert seen == ["requested", "succeeded"]
    assert paused[:3] == [2.0, 3.0, 4.5]
    assert max(paused) == 30.0
    bot(REPORT)
    with pytest.raises(TransientError, match="has not ended within 1 s"):
        client.wait("tiny-llama-1", timeout_s=1)
    bot(FAILING)
    with pytest.raises(TransientError, match="reference 1"):
        client.wait("tiny-llama-1")


def test_mistakes_are_sentences(
    train: Callable[..., int],
    bot: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bot(REPORT)
    monkeypatch.setattr("stationmaster.cli.train.bot_function", lambda _: ("east", "east-bot"))

    assert main(["train", "tiny-llama", "--channel", "#general", "--deployment", "east"]) == 2
    assert train("tiny-\udcff") == 2
    assert train("tiny-llama") == 2
    shown = capsys.readouterr().err
    assert '"#general" was given' in shown
    assert "this cannot be asked (text: " in shown
    assert 'there is no deployment "east" in us-west-2' in shown


LOOKS = {"recipes", "plan", "list", "status", "logs", "compare", "diff", "cost", "audit"}


def converse(say: Callable[[Any], Any], *, allow_start: bool = False) -> Any:
    """Return what an assistant gets of the tools of one channel."""
    # Imported here: every worker collects this file, and one of them runs it.
    from mcp.client import Client as Assistant

    from stationmaster.cli.mcp_server import make_server

    client = Client("east", channel="C0TRAIN", function="worker", via="mcp")

    async def answer() -> Any:
        async with Assistant(make_server(client, allow_start=allow_start)) as assistant:
            return await say(assistant)

    return anyio.run(answer)


def test_only_what_reads_is_a_tool_unless_starts_are_allowed(bot: Any) -> None:
    looks = converse(lambda each: each.list_tools()).tools
    every = converse(lambda each: each.list_tools(), allow_start=True).tools
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
