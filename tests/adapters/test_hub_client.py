"""The product's own questions to the Hugging Face hub, against the answers that the hub gives.

Paths, statuses, the header X-Error-Code and the redirect of config.json are those of the real hub.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from stationmaster.cli.main import main
from stationmaster.domain.datasets import C4, HubSource, Listing, Preparation
from stationmaster.domain.errors import BadParameter, NotPossibleNow
from stationmaster.hub import Hub
from stationmaster.settings import HubAccess, Settings
from tests.support.answering_server import QWEN_CONFIG, Answer, answering_server

PAGE = {"id": "org/model", "safetensors": {"parameters": {"BF16": 494032768}, "total": 494032768}}
TOKEN = "hf_secret"

Answers = dict[str, Answer]


def ok(body: Any) -> Answer:
    return 200, body


def error(status: int, code: str) -> Answer:
    return status, {"error": "no"}, {"X-Error-Code": code}


PAGE_PATH, CONFIG_PATH = "/api/models/org/model", "/org/model/resolve/main/config.json"


@contextmanager
def hub_with(answers: Answers) -> Iterator[str]:
    with answering_server() as server:
        server.of_paths = answers
        server.say(error(404, "RepoNotFound"))
        yield server.url


def ask(url: str, *, token: str = "", timeout_s: float = 10.0) -> Any:
    return Hub(url, token=SecretStr(token), timeout_s=timeout_s).look_up("org/model")


def test_a_model_has_the_shape_of_its_config_and_the_size_that_the_hub_counted() -> None:
    with hub_with({PAGE_PATH: ok(PAGE), CONFIG_PATH: ok(QWEN_CONFIG)}) as url:
        model = ask(url)

    assert (model.repository, model.layers, model.kv_heads) == ("org/model", 24, 2)
    assert model.num_parameters == 494_032_768


def test_a_model_that_the_hub_has_not_counted_is_counted_by_its_shape() -> None:
    with hub_with({PAGE_PATH: ok({"id": "org/model"}), CONFIG_PATH: ok(QWEN_CONFIG)}) as url:
        model = ask(url)

    assert model.num_parameters == pytest.approx(494_032_768, rel=0.01)


@pytest.mark.parametrize(
    ("answers", "kind", "sentence"),
    [
        ({}, BadParameter, "org/model is not on the Hugging Face hub, or private"),
        (
            {PAGE_PATH: error(401, "RepoNotFound"), CONFIG_PATH: error(401, "RepoNotFound")},
            BadParameter,
            "not on the Hugging Face hub, or private",
        ),
        (
            {PAGE_PATH: ok(PAGE), CONFIG_PATH: error(401, "GatedRepo")},
            BadParameter,
            "is gated: accept its licence at .*/org/model and set HF_TOKEN",
        ),
        (
            {PAGE_PATH: ok(PAGE), CONFIG_PATH: error(404, "EntryNotFound")},
            BadParameter,
            r"has no config\.json",
        ),
        (
            {PAGE_PATH: ok(PAGE), CONFIG_PATH: ok({"architectures": ["ViTModel"]})},
            BadParameter,
            r"is not a causal language model .*ViTModel",
        ),
        (
            {PAGE_PATH: error(503, ""), CONFIG_PATH: ok(QWEN_CONFIG)},
            NotPossibleNow,
            r"cannot be asked about org/model \(HTTP 503",
        ),
        (
            {PAGE_PATH: ok(PAGE), CONFIG_PATH: (200, "<html>")},
            NotPossibleNow,
            "config.json is not JSON",
        ),
        (
            {PAGE_PATH: ok(PAGE), CONFIG_PATH: ok([QWEN_CONFIG])},
            NotPossibleNow,
            "is not a JSON object",
        ),
    ],
)
def test_every_refusal_of_the_hub_is_one_sentence(
    answers: Answers, kind: type[Exception], sentence: str
) -> None:
    with hub_with(answers) as url, pytest.raises(kind, match=sentence) as refused:
        ask(url)

    assert "\n" not in str(refused.value)


def test_a_hub_that_does_not_listen_is_named() -> None:
    with hub_with({}) as url:
        pass

    with pytest.raises(NotPossibleNow, match=f"the Hugging Face hub at {url} cannot be asked"):
        ask(url)


def test_a_hub_that_does_not_answer_costs_no_more_than_the_time_given() -> None:
    with answering_server() as server:
        server.say(ok({}))
        server.may_answer.clear()
        with pytest.raises(NotPossibleNow, match=r"no answer in 0\.2 s"):
            ask(server.url, timeout_s=0.2)
        server.may_answer.set()


def test_the_token_goes_to_the_hub_and_not_where_it_redirects() -> None:
    with answering_server() as other, answering_server() as hub:
        other.say(ok(QWEN_CONFIG))
        cached = "/api/resolve-cache/config.json"
        hub.of_paths = {
            PAGE_PATH: ok(PAGE),
            CONFIG_PATH: (307, "", {"Location": cached}),
            cached: (302, "", {"Location": f"{other.url}/elsewhere"}),
        }
        model = ask(hub.url, token=TOKEN)

    assert model.layers == 24
    asked = [*hub.requests, *other.requests]
    assert {path: headers.get("Authorization") for _, path, headers in asked} == {
        PAGE_PATH: f"Bearer {TOKEN}",
        CONFIG_PATH: f"Bearer {TOKEN}",
        cached: f"Bearer {TOKEN}",
        "/elsewhere": None,
    }


def test_the_command_line_plans_a_hub_model_and_says_when_it_cannot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub_with({PAGE_PATH: ok(PAGE), CONFIG_PATH: ok(QWEN_CONFIG)}) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        planned = main(["plan", "hf:org/model", "nodes=2", "--json"])
        plan = json.loads(capsys.readouterr().out)
        rendered = main(["render", "hf:org/model"])
        manifest = capsys.readouterr().out
    unreachable = main(["plan", "hf:org/model"])
    sentence = capsys.readouterr().err

    assert (planned, rendered, unreachable) == (0, 0, 2)
    assert (plan["recipe"], plan["nodes"], plan["fits"]) == ("hf:org/model", 2, True)
    assert "- hf:org/model\n" in manifest
    assert "cannot be asked about org/model" in sentence
    assert "Traceback" not in sentence


def test_where_the_hub_is_comes_from_the_usual_variables() -> None:
    access = HubAccess.from_environment({"HF_ENDPOINT": "https://mirror", "HF_TOKEN": TOKEN})
    deployed = {"STATIONMASTER_TABLE_NAME": "t", "STATIONMASTER_BUS_NAME": "b", "AWS_REGION": "r"}

    assert (access.url, access.token.get_secret_value()) == ("https://mirror", TOKEN)
    assert TOKEN not in repr(access)
    assert HubAccess.from_environment({}).url == "https://huggingface.co"
    settings = Settings.from_environment(deployed | {"HF_ENDPOINT": "https://mirror"})
    assert settings.hub_url == "https://mirror"
    assert Settings.from_environment(deployed).hub_url == "https://huggingface.co"


def measured(page: Any, source: HubSource) -> Listing:
    with hub_with({"/api/datasets/org/texts?blobs=true": ok(page)}) as url:
        return Hub(url, token=SecretStr(""), timeout_s=10.0).measure(source, "pretraining")


FILES = [
    {"rfilename": "README.md", "size": 7},
    {"rfilename": "en/a.json.gz", "size": 100},
    {"rfilename": "de/b.parquet", "size": 10},
    {"rfilename": "de/c.jsonl", "size": 1},
]


@pytest.mark.parametrize(
    ("config", "files", "num_bytes", "prepared"),
    [("", 3, 111, 331), ("de", 2, 11, 31), ("en", 1, 100, 300), ("elsewhere", 3, 111, 331)],
)
def test_a_data_set_has_the_sizes_of_its_files_of_rows(
    config: str, files: int, num_bytes: int, prepared: int
) -> None:
    found = measured({"siblings": FILES}, HubSource("org/texts", config))

    assert (found.num_objects, found.num_bytes, found.prepared_bytes) == (
        files,
        num_bytes,
        prepared,
    )
    assert (found.preparation, found.is_stored) == (Preparation.TOKENS, False)


@pytest.mark.parametrize(
    ("page", "error", "said"),
    [
        ({"siblings": FILES[:1]}, BadParameter, r'"packed:hub:org/texts" has no files of rows'),
        ({}, NotPossibleNow, "its page lists no files"),
        ({"siblings": [{"rfilename": "a.csv"}]}, NotPossibleNow, "its page gives no sizes"),
    ],
)
def test_a_data_set_that_cannot_be_measured_is_one_sentence(
    page: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        measured(page, HubSource("org/texts"))


def test_a_data_set_that_is_missing_is_refused_and_c4_is_known() -> None:
    with hub_with({}) as url:
        hub = Hub(url, token=SecretStr(""), timeout_s=10.0)
        with pytest.raises(BadParameter, match="org/texts is not on the Hugging Face hub"):
            hub.measure(HubSource("org/texts"), "pretraining")
        found = hub.measure(C4, "pretraining")

    assert found.num_objects == 1024
    assert found.num_bytes == pytest.approx(305e9, rel=1e-6)
    assert found.prepared_bytes == 624e9
