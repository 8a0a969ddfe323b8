"""From `dataset=` to a rank's batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from data_sets import number_tokenizer, numbered, write_rows

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.datasets import STREAM_PREFIX
from stationmaster.domain.errors import BadParameter, NotPossibleNow
from stationmaster.domain.planning.requirements import BUILT_IN_DATASETS, SHAPES_CLASSES
from tests.support.patience import PATIENCE_S
from training.config import TrainerConfig, parse_config
from training.data import corpus, docstrings, image_lists
from training.data.packed import PackedSource
from training.data.shards import PackedData
from training.data.sources import open_source, prepare_source
from training.data.streaming import StreamingSource
from training.pack import main as pack


def config(cache: Path, dataset: str, *keys: str, recipe: str = "tiny-llama") -> TrainerConfig:
    arguments = [recipe, f"dataset={dataset}", "sequence_length=32", *keys]
    return parse_config(
        [*arguments, "--output-dir", str(cache)], {"STATIONMASTER_CACHE_DIR": str(cache)}
    )


def packed(prepared_config: TrainerConfig) -> PackedData:
    data = prepare_source(prepared_config).data
    assert isinstance(data, PackedData)
    return data


def test_prepare_source_changed_text_gives_other_tokens(tmp_path: Path) -> None:
    text = tmp_path / "text" / "a.txt"
    text.parent.mkdir()
    text.write_text("before " * 50)
    before = packed(config(tmp_path / "cache", str(text.parent)))
    text.write_text("behind " * 50)  # as long, and the same ids with its own tokenizer

    after = packed(config(tmp_path / "cache", str(text.parent)))

    assert after.manifest.sha256 != before.manifest.sha256


def test_prepare_source_concurrent_processes_build_once(text_dir: Path, tmp_path: Path) -> None:
    program = (
        "import os, sys; from training.config import parse_config; "
        "from training.data.sources import prepare_source; "
        "data = prepare_source(parse_config(sys.argv[1:], os.environ)).data; "
        "assert 'torch' not in sys.modules; "
        "print(data.manifest.sha256, data.paths[0].stat().st_ino)"
    )
    arguments = ["tiny-llama", f"dataset={text_dir}", "--output-dir", str(tmp_path)]
    environ = {**os.environ, "STATIONMASTER_CACHE_DIR": str(tmp_path / "cache")}

    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=PATIENCE_S)[0] for process in started]

    assert len(set(answers)) == 1
    assert answers[0].strip()


def test_source_of_every_pretraining_smoke_preset_gives_its_step(tmp_path: Path) -> None:
    own = [recipe for recipe in CATALOGUE.values() if recipe.uses_own_trainer]
    names = [recipe.name for recipe in own if recipe.task == "pretraining"]

    for name in names:
        arguments = [name, "preset=smoke", "--output-dir", str(tmp_path)]
        smoke = parse_config(arguments, {"STATIONMASTER_CACHE_DIR": str(tmp_path)})
        source = open_source(prepare_source(smoke), smoke, rank=1, world_size=2)
        batches = [*source.micro_batches(4), *source.evaluation_batches()]

        assert isinstance(smoke.recipe.model, LanguageModel)
        assert {tuple(batch.inputs.shape) for batch in batches} == {(2, 64)}
        assert max(int(batch.inputs.max()) for batch in batches) < smoke.recipe.model.vocab_size
    # One data set for all: they ask for the same vocabulary.
    assert len(list((tmp_path / "datasets").iterdir())) == 1


def test_a_packed_directory_is_read_with_its_own_tokenizer(tmp_path: Path) -> None:
    environ = {"STATIONMASTER_CACHE_DIR": str(tmp_path / "cache")}
    write_rows(tmp_path / "text" / "a.jsonl", [numbered(n, length=50) for n in range(1, 20)])
    number_tokenizer(tmp_path / "numbers", vocab_size=3000)
    directory = tmp_path / "packed"
    arguments = [str(tmp_path / "text"), "--output-dir", str(directory), "--workers", "1"]
    assert pack([*arguments, "--tokenizer", str(tmp_path / "numbers")], environ) == 0
    wanted = config(tmp_path / "cache", str(directory), "eval_samples=3", "seed=5")

    prepared = prepare_source(wanted)
    source = open_source(prepared, wanted, rank=0, world_size=1)

    assert isinstance(source, PackedSource)
    assert prepared.tokenizer == directory / "tokenizer.json"
    assert source.facts() == {"dataset_tokens": 19 * 51, "dataset_samples": 968 // 32 - 3}
    with pytest.raises(BadParameter, match=r"a tokenizer of 3000 entries, .* vocabulary is 2048"):
        prepare_source(config(tmp_path, str(directory), "preset=smoke"))


def test_a_packing_that_is_not_at_its_end_is_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "packing.json").write_text("{}")

    with pytest.raises(
        NotPossibleNow, match=r"is not packed to its end; run the same python -m tr"
    ):
        prepare_source(config(tmp_path, str(tmp_path / "packed")))


def test_a_streamed_directory_is_a_stream(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rows(tmp_path / "text" / f"{name}.jsonl", ["some words to learn"] * 30)
    wanted = config(tmp_path, f"stream:{tmp_path / 'text'}", "eval_samples=2")

    prepared = prepare_source(wanted)
    source = open_source(prepared, wanted, rank=0, world_size=1)

    assert isinstance(source, StreamingSource)
    assert source.facts()["dataset_files"] == 1
    (batch,) = source.micro_batches(0)
    assert batch.inputs.shape == (16, 32)


def test_a_stream_without_anything_to_evaluate_on_is_refused_before_training(
    tmp_path: Path,
) -> None:
    write_rows(tmp_path / "text" / "a.jsonl", ["some words to learn"] * 30)

    with pytest.raises(BadParameter, match="is one file and has none to evaluate on"):
        prepare_source(config(tmp_path, f"stream:{tmp_path / 'text'}", "eval_samples=2"))


def test_more_text_than_is_prepared_at_a_start_names_the_other_ways(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    with (tmp_path / "text" / "a.jsonl").open("wb") as file:
        file.write(b'{"text": "x"}\n' * 400)
        file.truncate(3 * 2**30)  # takes no space

    with pytest.raises(
        BadParameter, match=r"has 3\.0 GiB .* -m training\.pack .* dataset=stream:/"
    ):
        prepare_source(config(tmp_path, str(tmp_path / "text")))


def test_plans_know_exactly_the_data_sets_that_the_trainer_brings(tmp_path: Path) -> None:
    assert set(BUILT_IN_DATASETS["pretraining"]) == {corpus.PYTHON_CODE, *corpus.SHORT_NAMES}
    assert BUILT_IN_DATASETS["finetuning"] == (docstrings.NAME,)
    assert BUILT_IN_DATASETS["image-classification"] == (image_lists.SHAPES,)
    assert corpus.STREAM_PREFIX == STREAM_PREFIX
    image_lists.draw_shapes(tmp_path)
    assert len(list((tmp_path / "train").iterdir())) == SHAPES_CLASSES
