"""Weights converted for Megatron in the NeMo image: once, whole or not at all.

Megatron-Bridge is not installed here: a function that writes what it would stands in for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from stationmaster.domain.datasets import MANIFEST_FILE, Preparation, data_id
from stationmaster.domain.exit_codes import EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.staged_data import (
    StagedLine,
    StagingLine,
    read_data_manifest,
    read_staging_line,
)
from tests.training.hub_stand_in import HubStandIn, Repository, hub_stand_in

SCRIPT = Path(__file__).parents[2] / "container" / "nemo" / "convert_weights.py"
spec = spec_from_file_location("convert_weights", SCRIPT)
assert spec is not None
assert spec.loader is not None
convert_weights = module_from_spec(spec)
sys.modules["convert_weights"] = convert_weights
spec.loader.exec_module(convert_weights)

MODEL = "org/model"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    published = tmp_path / "published"
    published.mkdir()
    for name, size in {"config.json": 2, "model.safetensors": 1000, "tokenizer.json": 2}.items():
        (published / name).write_bytes(b"w" * size)
    (published / "pytorch_model.bin").write_bytes(b"pickled")
    with hub_stand_in() as hub:
        hub.models[MODEL] = Repository(published)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


class Converter:
    """Writes a checkpoint in Megatron's form; or fails half way, or leaves a part of one."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.fails = False
        self.forgets = ""

    def __call__(self, weights: Path, checkpoint: Path) -> None:
        self.seen = sorted(path.name for path in weights.iterdir() if path.is_file())
        step = checkpoint / "iter_0000000"
        step.mkdir(parents=True)
        (step / "__0_0.distcp").write_bytes((weights / "model.safetensors").read_bytes())
        if self.fails:
            raise convert_weights.NotDone("Megatron-Bridge ended with exit code 1")
        for path in (step / ".metadata", checkpoint / "latest_checkpointed_iteration.txt"):
            if path.name != self.forgets:
                path.write_text("0")


@pytest.fixture
def converter() -> Converter:
    return Converter()


def run(data: Path, converter: Converter, **more: Any) -> int:
    words = [MODEL, "--data-directory", str(data), "--run-id", "run-1"]
    code: int = convert_weights.main(words, convert=converter, **more)
    return code


def end(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_weights_are_converted_once(
    tmp_path: Path, hub: HubStandIn, converter: Converter, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"

    code = run(data, converter)

    line = read_staging_line(end(capsys))
    assert code == 0
    assert isinstance(line, StagedLine)
    commit = hub.models[MODEL].commit
    settings: dict[str, str | int] = dict(convert_weights.SETTINGS)
    name = data_id(f"hub:{MODEL}", commit, Preparation.NONE, settings)
    assert (line.data_id, line.root, line.num_files) == (name, f"{name}/files", 3)
    assert (data / line.root / "latest_checkpointed_iteration.txt").read_text() == "0"
    assert converter.seen == ["config.json", "model.safetensors", "tokenizer.json"]
    manifest = read_data_manifest((data / name / MANIFEST_FILE).read_bytes(), path="m")
    assert (manifest.source_version, manifest.num_bytes) == (commit, line.num_bytes)
    assert not (data / name / "partial").exists()
    converter.fails = True
    assert run(data, converter) == 0
    again = read_staging_line(end(capsys))
    assert isinstance(again, StagedLine)
    assert again.was_there


def test_conversion_that_failed_half_way_is_begun_anew(
    tmp_path: Path, hub: HubStandIn, converter: Converter, capsys: pytest.CaptureFixture[str]
) -> None:
    converter.fails = True

    code = run(tmp_path / "data", converter)

    assert (code, end(capsys)) == (EXIT_NOT_DONE, "Megatron-Bridge ended with exit code 1")
    assert not list((tmp_path / "data").glob("*/files"))
    converter.fails = False
    assert run(tmp_path / "data", converter) == 0


@pytest.mark.parametrize("forgotten", [".metadata", "latest_checkpointed_iteration.txt"])
def test_checkpoint_without_all_of_its_parts_is_none(
    tmp_path: Path,
    hub: HubStandIn,
    converter: Converter,
    capsys: pytest.CaptureFixture[str],
    forgotten: str,
) -> None:
    converter.forgets = forgotten

    code = run(tmp_path / "data", converter)

    assert code == EXIT_NOT_DONE
    assert "left no whole checkpoint" in end(capsys)
    assert not list((tmp_path / "data").glob("*/files"))


def test_file_that_was_lost_is_made_again(
    tmp_path: Path, hub: HubStandIn, converter: Converter, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "data", converter)
    (lost,) = (tmp_path / "data").glob("*/files/iter_0000000/*.distcp")
    lost.write_bytes(b"")

    assert run(tmp_path / "data", converter) == 0

    assert lost.stat().st_size == 1000
    line = read_staging_line(end(capsys))
    assert isinstance(line, StagedLine)
    assert not line.was_there


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("gated", "org/model is gated: accept its licence"),
        ("gone", "org/model is not on the Hugging Face hub"),
        ("pickled", r"org/model has no model*.safetensors"),
        ("full", "twice while they are converted, and it has 0.0 GB free"),
    ],
)
def test_what_no_other_try_changes_is_refused(
    tmp_path: Path,
    hub: HubStandIn,
    converter: Converter,
    capsys: pytest.CaptureFixture[str],
    change: str,
    said: str,
) -> None:
    more: dict[str, Any] = {}
    match change:
        case "gated":
            hub.models[MODEL].gated = True
        case "gone":
            del hub.models[MODEL]
        case "pickled":
            (tmp_path / "published" / "model.safetensors").unlink()
        case "full":
            more["free_bytes"] = lambda path: 1999

    code = run(tmp_path / "data", converter, **more)

    assert code == EXIT_REFUSED
    assert said in end(capsys)


def test_progress_is_printed_while_it_converts(
    tmp_path: Path,
    hub: HubStandIn,
    converter: Converter,
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed: list[str] = []

    def convert(weights: Path, checkpoint: Path) -> None:
        while not printed:
            printed.extend(capsys.readouterr().out.splitlines())
        converter(weights, checkpoint)

    words = [MODEL, "--data-directory", str(tmp_path / "data"), "--run-id", "run-1"]
    assert convert_weights.main(words, convert=convert, report_every_s=0.01) == 0

    line = read_staging_line(printed[-1])
    assert isinstance(line, StagingLine)
    assert (line.run_id, line.total_bytes) == ("run-1", 2000)
    assert json.loads(printed[-1])["staged_bytes"] <= 2000
