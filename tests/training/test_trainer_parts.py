"""The trainer's pure parts: schedule, configuration, fingerprint, progress lines."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.progress_lines import FinishedLine, ProgressLine
from tests.support.patience import PATIENCE_S
from training.config import decisive, fingerprint, parse_config
from training.manifest import differences
from training.progress import ProgressWriter, take_attempt
from training.schedule import learning_rate

HALVED = {"schedule": "step", "decay_every": 30, "decay_factor": 0.5}


@pytest.mark.parametrize(
    ("keys", "step", "expected"),
    [
        *[({}, step, rate) for step, rate in ((1, 0.1), (10, 1.0), (55, 0.55), (100, 0.1))],
        ({}, 200, 0.1),
        ({"warmup_steps": 100}, 100, 1.0),
        *[({"schedule": "linear"}, step, rate) for step, rate in ((10, 1.0), (64, 0.46))],
        *[(HALVED, step, rate) for step, rate in ((5, 0.5), (30, 1.0), (31, 0.5), (91, 0.125))],
        ({"schedule": "constant"}, 99, 1.0),
    ],
)
def test_learning_rate_warms_up_and_follows_the_schedule(
    keys: dict[str, object], step: int, expected: float
) -> None:
    usual = {"steps": 100, "warmup_steps": 10, "learning_rate": 1.0, "min_learning_rate": 0.1}
    training = get_recipe("tiny-llama").training.model_copy(update=usual | keys)

    assert learning_rate(step, training) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("override", "same"),
    [
        ({"steps": "120", "log_every": "7", "checkpoint_every": "3"}, True),
        ({"parallelism": "ddp", "micro_batch_size": "2", "compile": "true"}, True),
        ({"learning_rate": "1e-3"}, False),
        ({"global_batch_size": "8"}, False),
        ({"eval_every": "5", "eval_samples": "4"}, False),  # held-out samples are not trained on
    ],
)
def test_fingerprint_changes_with_what_decides_the_weights(
    override: dict[str, str], same: bool
) -> None:
    recipe = get_recipe("tiny-llama")

    changed = fingerprint(recipe.with_overrides(override), data_identity="a")

    assert (changed == fingerprint(recipe, data_identity="a")) is same


@pytest.mark.parametrize(
    ("keys", "counts"),
    [
        ({}, True),
        ({"schedule": "constant"}, False),
        ({"learning_rate": "1e-3", "min_learning_rate": "1e-3"}, False),
    ],
)
def test_decisive_counts_the_steps_where_the_rate_falls_to_the_last_one(
    keys: dict[str, str], counts: bool
) -> None:
    tiny = get_recipe("tiny-llama")
    recipe = tiny.with_overrides({"steps": "100", **keys})
    longer = tiny.with_overrides({"steps": "120", **keys})

    there, here = (decisive(one, data_identity="a") for one in (recipe, longer))

    expected = ["steps is 100 there and 120 here"] if counts else []
    assert differences(there, here) == expected
    assert fingerprint(recipe, data_identity="a") == fingerprint(longer, data_identity="a")


def test_fingerprint_of_a_default_run_is_the_same_as_ever() -> None:
    # With another one, nobody finds the checkpoints of a run that has begun. A key that is added
    # belongs into `_ADDED_LATER`.
    tiny = get_recipe("tiny-llama")
    wider = tiny.model_copy(update={"model": tiny.model.model_copy(update={"ffn_size": 512})})

    assert fingerprint(tiny, data_identity="a") == "1cf43f958ab0"
    assert fingerprint(tiny, data_identity="b") != "1cf43f958ab0"
    assert fingerprint(wider, data_identity="a") != "1cf43f958ab0"


@pytest.mark.parametrize(
    ("words", "environ", "sentence"),
    [
        (["fast"], {}, '"fast" is not a key=value pair'),
        ([], {"STATIONMASTER_RUN_ID": "../x"}, "STATIONMASTER_RUN_ID"),
    ],
)
def test_parse_config_names_what_it_does_not_accept(
    tmp_path: Path, words: list[str], environ: dict[str, str], sentence: str
) -> None:
    with pytest.raises(BadParameter, match=sentence):
        parse_config(["tiny-llama", *words, "--output-dir", str(tmp_path)], environ)


def test_parse_config_help_explains_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse_config(["--help"], {})

    text = capsys.readouterr().out
    assert [key for key in get_recipe("tiny-llama").keys if f"  {key} " not in text] == []


def test_progress_writer_line_follows_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    writer = ProgressWriter(run_id="r-1", rank=0, attempt=2)

    writer.emit(ProgressLine(step=1, total_steps=1, loss_nats=math.nan, mfu=None))
    writer.emit(FinishedLine(step=1))

    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert list(first)[:5] == ["stationmaster", "kind", "run_id", "seq", "at"]
    assert (first["stationmaster"], first["kind"], first["run_id"]) == (1, "progress", "r-1")
    assert (first["seq"], second["seq"]) == (2_000_000_000, 2_000_000_001)
    assert (first["loss_nats"], first["mfu"]) == ("NaN", None)
    assert first["at"].endswith("+00:00")


def test_take_attempt_counts_starts_of_a_run(tmp_path: Path) -> None:
    taken = [take_attempt(tmp_path, run_id=run, rank=0) for run in ("a", "a", "b", "a")]

    assert taken == [0, 1, 0, 2]


def test_leave_in_time_ends_a_process_that_hangs_after_all_is_saved() -> None:
    hanging = (
        "import threading, training.elastic as elastic; elastic._LEAVING_S = 0.1; "
        "elastic.leave_in_time(143); threading.Event().wait()"
    )

    finished = subprocess.run([sys.executable, "-c", hanging], timeout=PATIENCE_S, check=False)

    assert finished.returncode == 143
