"""/train hf:ORG/MODEL through the shipped handler: the hub is asked once, when it is typed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest
from bot_world import REGION, Person, started_workflows

from stationmaster.services import Services
from stationmaster.settings import Settings

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
}
ANSWERS = {
    "/api/models/org/model": {"safetensors": {"total": 494032768}},
    "/org/model/resolve/main/config.json": CONFIG,
}


class Hub:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []


@pytest.fixture
def hub(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that knows org/model, and the secret with the token that it is asked with."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(200 if self.path in ANSWERS else 404)
            self.end_headers()
            self.wfile.write(json.dumps(ANSWERS.get(self.path, {})).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    boto3.client("secretsmanager", REGION).create_secret(
        Name="huggingface", SecretString=json.dumps({"token": "hf_reader"})
    )
    monkeypatch.setenv("STATIONMASTER_HUB_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("STATIONMASTER_HUGGING_FACE_SECRET_ID", "huggingface")
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_hub_model_is_looked_up_once_and_travels_with_the_run(
    person: Person, services: Services, settings: Settings, hub: Hub
) -> None:
    answer = person.type("hf:org/model nodes=1 steps=20")

    assert answer["answer"]["response_type"] == "ephemeral"
    (run,) = services.runs.list_recent()
    assert started_workflows(settings) == [run.run_id]
    assert run.request.recipe == "hf:org/model"
    assert run.request.model is not None
    assert (run.request.model.layers, run.request.model.num_parameters) == (24, 494_032_768)
    assert sorted(hub.asked) == [(path, "Bearer hf_reader") for path in sorted(ANSWERS)]


def test_an_unknown_model_is_one_sentence_and_starts_nothing(
    person: Person, services: Services, hub: Hub
) -> None:
    answer = person.type("plan hf:org/none")

    assert "org/none is not on the Hugging Face hub" in json.dumps(answer["answer"])
    assert services.runs.list_recent() == []
