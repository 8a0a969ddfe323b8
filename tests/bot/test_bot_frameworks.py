"""Recipes of other frameworks as they are typed in a channel, through the Lambda handler."""

from __future__ import annotations

import pytest
from bot_world import seen

from stationmaster.domain.run.events import RunPhase

WORDS = "megatron-llama3-8b nodes=2"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/stationmaster/megatron:1"


@pytest.fixture
def with_image(settings, monkeypatch):
    """A deployment that has built Megatron-LM's image."""
    monkeypatch.setenv("STATIONMASTER_MEGATRON_IMAGE", IMAGE)


def test_deployment_without_the_image_starts_nothing_and_says_what_to_set(person, services):
    answer = person.type(WORDS)

    assert 'this deployment has no image of it: add \\"megatron\\" to more_images' in seen(answer)
    assert services.runs.list_recent() == []


def test_plan_shows_what_it_would_take_and_that_the_image_is_missing(person):
    text = seen(person.type(f"plan {WORDS}"))

    assert "this deployment has no image of it" in text
    assert "tokens/s" in text


@pytest.mark.parametrize(
    ("recipe", "variable"),
    [
        ("megatron-llama3-8b", "STATIONMASTER_MEGATRON_IMAGE"),
        ("torchtitan-llama3.1-8b", "STATIONMASTER_TORCHTITAN_IMAGE"),
    ],
)
def test_deployment_with_the_image_starts_it(
    person, services, settings, monkeypatch, recipe, variable
):
    monkeypatch.setenv(variable, IMAGE)

    answer = person.type(f"{recipe} nodes=2")

    (run,) = services.runs.list_recent()
    assert run.phase is RunPhase.REQUESTED
    assert run.estimated_cost_usd > 0
    assert "no image" not in seen(answer)


def test_where_machines_are_emulated_nothing_is_started(person, services, with_image, monkeypatch):
    monkeypatch.setenv("STATIONMASTER_MEGATRON_IMAGE", "")
    monkeypatch.setenv("STATIONMASTER_EMULATED_SPEED", "720")

    answer = person.type(WORDS)

    assert "runs Megatron-LM in an image on GPUs, and local mode has neither" in seen(answer)
    assert services.runs.list_recent() == []


def test_weights_are_refused_where_no_image_converts_them(
    person, services, with_image, monkeypatch
):
    weights = "weights=meta-llama/Llama-3.1-8B"

    answer = person.type(f"{WORDS} {weights}")

    assert (
        'converted by Megatron-Bridge, and this deployment has no image of it: add \\"nemo\\"'
        in (seen(answer))
    )
    assert services.runs.list_recent() == []
    monkeypatch.setenv("STATIONMASTER_NEMO_IMAGE", IMAGE)
    person.type(f"{WORDS} {weights}")
    assert len(services.runs.list_recent()) == 1
