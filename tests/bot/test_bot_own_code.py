"""image= and command= as they are typed in a channel, through the shipped Lambda handler."""

from __future__ import annotations

import json

import pytest
from bot_world import CHANNEL, seen

from bot.blocks.card import run_card
from stationmaster.domain.run.view import RunView
from stationmaster.local.slack.blocks import check_blocks

REGISTRY = "registry.example.com/team"
IMAGE = f"{REGISTRY}/trainer:1.0"


@pytest.fixture
def allowed(settings, monkeypatch):
    """A deployment that lets this channel bring code."""
    monkeypatch.setenv("STATIONMASTER_IMAGE_REGISTRIES", f"other.example.org,{REGISTRY}/")
    monkeypatch.setenv("STATIONMASTER_IMAGE_CHANNELS", f"C0OTHER,{CHANNEL}")


def test_image_and_command_are_in_the_request_of_the_run(person, services, allowed):
    answer = person.type(
        f"tiny-llama nodes=2 image={IMAGE} command=\u201ctorchrun \u2018a b.py\u2019\u201d"
    )

    (run,) = services.runs.list_recent()
    assert (run.request.image, run.request.program) == (IMAGE, ("torchrun", "a b.py"))
    assert run.estimated_cost_usd == 0
    text = seen(answer)
    assert "in all up to its command" in text
    assert "its memory, duration and cost are not known" in text


def test_channel_that_is_not_allowed_starts_nothing(person, services, allowed):
    answer = person.type(f"tiny-llama image={IMAGE}", channel_id="C0ELSE")

    assert "is not allowed in this channel: add C0ELSE to image_channels" in seen(answer)
    assert services.runs.list_recent() == []


def test_plan_of_a_command_shows_no_figure_that_nobody_knows(person, allowed):
    answer = person.type("plan llama2-7b nodes=2 command='torchrun x.py'")

    text = seen(answer)
    check_blocks(answer["answer"]["blocks"])
    assert "Plan: a command on 2" in text
    assert "an hour" in text
    assert not any(word in text for word in ("fits", "Throughput", "Duration", "GiB on each"))
    assert "/train llama2-7b nodes=2 command='torchrun x.py'" in text


def test_path_that_no_file_system_has_is_refused_for_a_command_too(person, services, allowed):
    answer = person.type("resnet50 instance=p4d.24xlarge command=true dataset=/fsx/mine")

    assert "file_system=" in seen(answer)
    assert services.runs.list_recent() == []
    person.type("tiny-llama command=true dataset=/data/in/the/image")
    assert [run.request.dataset for run in services.runs.list_recent()] == ["/data/in/the/image"]


def test_what_was_typed_is_harmless_on_the_card(person, services, clock, allowed):
    person.type(
        "tiny-llama command='echo <!channel> <http://evil.example.com|click> `x` *b* & "
        f"{'y' * 900}'"
    )

    (run,) = services.runs.list_recent()
    card = run_card(RunView(run), now=clock.now())

    check_blocks(card.blocks)
    text = json.dumps(card.blocks, ensure_ascii=False)
    assert "&lt;!channel&gt;" in text
    assert "<!channel>" not in text
    assert "<http://evil" not in text
