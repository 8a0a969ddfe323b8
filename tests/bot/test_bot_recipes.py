"""Custom images and commands, other frameworks, and models of the hub, typed in a channel."""

from __future__ import annotations

import json
from collections.abc import Iterator

import boto3
import pytest
from bot_world import CHANNEL, REGION, Person, seen, started_workflows

from bot.blocks.card import run_card
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.answering_server import QWEN_CONFIG, AnsweringServer, answering_server

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
    assert "in all open: its command decides" in text
    assert "its memory, duration and cost are not known" in text


def test_plan_of_a_command_shows_no_figure_that_nobody_knows(person, allowed):
    answer = person.type("plan llama2-7b nodes=2 command='torchrun x.py'")

    text = seen(answer)
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

    text = json.dumps(card.blocks, ensure_ascii=False)
    assert "&lt;!channel&gt;" in text
    assert "<!channel>" not in text
    assert "<http://evil" not in text


WORDS = "megatron-llama3-8b nodes=2"
FRAMEWORK_IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/stationmaster/megatron:1"


@pytest.fixture
def with_image(settings, monkeypatch):
    """A deployment that has built Megatron-LM's image."""
    monkeypatch.setenv("STATIONMASTER_MEGATRON_IMAGE", FRAMEWORK_IMAGE)


def test_deployment_without_the_image_starts_nothing_and_says_what_to_set(person, services):
    for words in (WORDS, f"plan {WORDS}"):
        said = seen(person.type(words))
        assert 'this deployment has no image of it: add \\"megatron\\" to more_images' in said
    assert "tokens/s" in said
    assert services.runs.list_recent() == []


@pytest.mark.parametrize(
    ("recipe", "variable"),
    [
        ("megatron-llama3-8b", "STATIONMASTER_MEGATRON_IMAGE"),
        ("nemo-llama3-8b", "STATIONMASTER_NEMO2_IMAGE"),
        ("torchtitan-llama3.1-8b", "STATIONMASTER_TORCHTITAN_IMAGE"),
    ],
)
def test_deployment_with_the_image_starts_it(
    person, services, settings, monkeypatch, recipe, variable
):
    monkeypatch.setenv(variable, FRAMEWORK_IMAGE)

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
    monkeypatch.setenv("STATIONMASTER_NEMO_IMAGE", FRAMEWORK_IMAGE)
    person.type(f"{WORDS} {weights}")
    assert len(services.runs.list_recent()) == 1


ANSWERS = {
    "/api/models/org/model": {"safetensors": {"total": 494032768}},
    "/org/model/resolve/main/config.json": QWEN_CONFIG,
}


@pytest.fixture
def hub(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringServer]:
    """A hub that knows org/model, and the secret with the token that it is asked with."""
    boto3.client("secretsmanager", REGION).create_secret(
        Name="huggingface", SecretString=json.dumps({"token": "hf_reader"})
    )
    monkeypatch.setenv("STATIONMASTER_HUGGING_FACE_SECRET_ID", "huggingface")
    with answering_server() as server:
        server.say((404, {}))
        server.of_paths = {path: (200, answer) for path, answer in ANSWERS.items()}
        monkeypatch.setenv("STATIONMASTER_HUB_URL", server.url)
        yield server


def test_a_hub_model_is_looked_up_once_and_travels_with_the_run(
    person: Person, services: Services, settings: Settings, hub: AnsweringServer
) -> None:
    answer = person.type("hf:org/model nodes=1 steps=20")

    assert answer["answer"]["response_type"] == "ephemeral"
    (run,) = services.runs.list_recent()
    assert started_workflows(settings) == [run.run_id]
    assert run.request.recipe == "hf:org/model"
    assert run.request.model is not None
    assert (run.request.model.layers, run.request.model.num_parameters) == (24, 494_032_768)
    assert sorted(path for _, path, _ in hub.requests) == sorted(ANSWERS)
    assert {headers["Authorization"] for *_, headers in hub.requests} == {"Bearer hf_reader"}
