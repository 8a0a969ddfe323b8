"""The trainer's pure parts: schedule, fingerprint, progress lines, FLOP count, model shapes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Literal

import pytest
import torch

from stationmaster.domain.catalogue import CATALOGUE, get_recipe
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.models import LanguageModel
from stationmaster.domain.training_config import TrainingConfig
from training.checkpoint import complete_steps, mark_complete
from training.config import fingerprint, parse_config
from training.models.language import build_model, initialise
from training.progress import ProgressWriter, take_attempt
from training.schedule import learning_rate
from training.throughput import flops_per_token

CPU = torch.device("cpu")


def schedule(*, warmup_steps: int) -> TrainingConfig:
    recipe = get_recipe("tiny-llama")
    return recipe.training.model_copy(
        update={
            "steps": 100,
            "warmup_steps": warmup_steps,
            "learning_rate": 1.0,
            "min_learning_rate": 0.1,
        }
    )


@pytest.mark.parametrize(
    ("step", "expected"), [(1, 0.1), (5, 0.5), (10, 1.0), (55, 0.55), (100, 0.1), (200, 0.1)]
)
def test_learning_rate_warms_up_then_follows_the_cosine(step: int, expected: float) -> None:
    rate = learning_rate(step, schedule(warmup_steps=10))

    assert rate == pytest.approx(expected)


@pytest.mark.parametrize(("warmup_steps", "step", "expected"), [(0, 100, 0.1), (100, 100, 1.0)])
def test_learning_rate_all_or_no_warmup_is_defined(
    warmup_steps: int, step: int, expected: float
) -> None:
    assert learning_rate(step, schedule(warmup_steps=warmup_steps)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("override", "same"),
    [
        ({"steps": "120"}, True),
        ({"log_every": "7"}, True),
        ({"checkpoint_every": "3"}, True),
        ({"learning_rate": "1e-3"}, False),
        ({"global_batch_size": "8"}, False),
        ({"seed": "9"}, False),
    ],
)
def test_fingerprint_changes_with_what_decides_the_weights(
    override: dict[str, str], same: bool
) -> None:
    recipe = get_recipe("tiny-llama")

    changed = fingerprint(recipe.with_overrides(override), tokens_sha256="a")

    assert (changed == fingerprint(recipe, tokens_sha256="a")) is same


def test_fingerprint_other_tokens_or_model_differ() -> None:
    tiny = get_recipe("tiny-llama")
    wider = tiny.model_copy(update={"model": tiny.model.model_copy(update={"ffn_size": 512})})

    names = {
        fingerprint(tiny, tokens_sha256="a"),
        fingerprint(tiny, tokens_sha256="b"),
        fingerprint(wider, tokens_sha256="a"),
    }

    assert len(names) == 3


def test_parse_config_word_without_equals_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match='"fast" is not a key=value pair'):
        parse_config(["tiny-llama", "fast", "--output-dir", str(tmp_path)], {})


def test_parse_config_run_id_with_a_slash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="STATIONMASTER_RUN_ID"):
        parse_config(
            ["tiny-llama", "--output-dir", str(tmp_path)], {"STATIONMASTER_RUN_ID": "../x"}
        )


def test_parse_config_help_explains_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse_config(["--help"], {})

    text = capsys.readouterr().out
    assert [key for key in get_recipe("tiny-llama").keys if f"  {key} " not in text] == []


def test_progress_writer_line_follows_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    writer = ProgressWriter(run_id="r-1", rank=0, attempt=2)

    writer.emit("progress", step=1, loss_nats=math.nan, mfu=None)
    writer.emit("finished", step=1)

    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert list(first)[:5] == ["stationmaster", "kind", "run_id", "seq", "at"]
    assert (first["stationmaster"], first["kind"], first["run_id"]) == (1, "progress", "r-1")
    assert (first["seq"], second["seq"]) == (2_000_000_000, 2_000_000_001)
    assert first["loss_nats"] is None
    assert first["at"].endswith("+00:00")


def test_progress_writer_other_rank_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressWriter(run_id="r-1", rank=1).emit("progress", step=1)

    assert capsys.readouterr().out == ""


def test_take_attempt_counts_starts_of_a_run(tmp_path: Path) -> None:
    taken = [take_attempt(tmp_path, run_id=run, rank=0) for run in ("a", "a", "b", "a")]

    assert taken == [0, 1, 0, 2]


def test_flops_per_token_llama_8b_matches_the_published_convention() -> None:
    llama31_8b = LanguageModel(
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        ffn_size=14336,
        vocab_size=128256,
        context_length=131072,
        rope_theta=5e5,
    )

    assert flops_per_token(llama31_8b, sequence_length=8192) == pytest.approx(57.91e9, rel=1e-4)


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_build_model_has_the_recipes_parameter_count(name: str) -> None:
    shape = CATALOGUE[name].model

    model = build_model(shape, device=CPU)

    assert sum(parameter.numel() for parameter in model.parameters()) == shape.num_parameters


def test_initialise_fills_weights_and_rotary_tables_for_real() -> None:
    shape = get_recipe("tiny-llama").model
    model = build_model(shape, device=CPU)

    initialise(model, seed=1, device=CPU)

    wavelengths = 1.0 / 10_000.0 ** (torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, wavelengths)
    head = model.lm_head.weight.detach()
    assert float(head.std()) == pytest.approx(0.02, rel=0.02)
    assert torch.equal(model.model.norm.weight, torch.ones(shape.hidden_size))
    assert not torch.equal(head, model.model.embed_tokens.weight)
    assert not [name for name, tensor in model.state_dict().items() if tensor.is_meta]


def test_initialise_same_seed_gives_the_same_weights() -> None:
    shape = get_recipe("tiny-llama").model
    weights = []
    for seed in (1, 1, 2):
        model = build_model(shape, device=CPU)
        initialise(model, seed=seed, device=CPU)
        weights.append(model.lm_head.weight)

    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_initialise_tied_embeddings_stay_one_parameter() -> None:
    shape = get_recipe("tiny-llama").model.model_copy(update={"tied_embeddings": True})
    model = build_model(shape, device=CPU)

    initialise(model, seed=1, device=CPU)

    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("damage", ["no marker", "torn marker", "missing file", "short file"])
def test_complete_steps_damaged_checkpoint_does_not_count(
    tmp_path: Path, damage: Literal["no marker", "torn marker", "missing file", "short file"]
) -> None:
    for step in (5, 10):
        path = tmp_path / f"step-{step:08d}"
        path.mkdir()
        (path / "__0_0.distcp").write_bytes(b"weights")
        assert mark_complete(path, step=step) == 7
    newest = tmp_path / "step-00000010"

    match damage:
        case "no marker":
            (newest / "complete.json").unlink()
        case "torn marker":
            (newest / "complete.json").write_text('{"step": 10, "fi')
        case "missing file":
            (newest / "__0_0.distcp").unlink()
        case "short file":
            (newest / "__0_0.distcp").write_bytes(b"wei")

    assert complete_steps(tmp_path) == {5}
