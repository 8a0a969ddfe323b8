"""Whole runs that begin with published weights: train, export, and train on from the export."""

from __future__ import annotations

import json
import signal
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import HubStandIn, Repository
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from trainer_runs import parse_lines
from transformers import GPT2Config, GPT2LMHeadModel

from training.__main__ import main
from training.export import export

HUB_MODEL = "hf:stand-in/gpt2"


@pytest.fixture(autouse=True)
def _gpt2(tmp_path: Path, hub: HubStandIn) -> None:
    """The hub has stand-in/gpt2, an architecture that the catalogue does not have."""
    source = tmp_path / "gpt2"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["a station, a platform"],
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=300, n_positions=64,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(source)
    tokenizer.save(str(source / "tokenizer.json"))
    hub.models["stand-in/gpt2"] = Repository(source)


def train(tmp_path: Path, name: str, *words: str) -> list[dict[str, Any]]:
    """Train in this process and return the progress lines, or that of a failure."""
    arguments = [name, "preset=smoke", *words]
    before = signal.getsignal(signal.SIGTERM)
    with redirect_stdout(StringIO()) as out:
        main(arguments, {"STATIONMASTER_CACHE_DIR": str(tmp_path / "cache")})
    signal.signal(signal.SIGTERM, before)
    return parse_lines(out.getvalue())


def last_evaluation(lines: list[dict[str, Any]]) -> float:
    losses: list[float] = [line["loss_nats"] for line in lines if line["kind"] == "evaluated"]
    return losses[-1]


@pytest.fixture
def instructions(tmp_path: Path) -> Path:
    path = tmp_path / "instructions.jsonl"
    rows = [
        {"prompt": f"Which platform for {n}?", "response": f"Platform {n % 5}."} for n in range(80)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", [HUB_MODEL, "llama2-7b-finetune"])
def test_training_goes_on_from_an_export_where_it_ended(
    name: str, tmp_path: Path, text_dir: Path, instructions: Path
) -> None:
    data = f"dataset={text_dir if name == HUB_MODEL else instructions}"
    keys = [data, "sequence_length=32", "eval_every=2", "learning_rate=0.01"]

    first = train(tmp_path, name, *keys, "steps=4", "--output-dir", str(tmp_path / "first"))
    exported = export(tmp_path / "first", output_dir=tmp_path / "hf")
    still = [data, "sequence_length=32", "eval_every=1", "learning_rate=1e-12", "steps=1"]
    second = train(
        tmp_path,
        name,
        *still,
        "min_learning_rate=0",
        f"weights={exported}",
        "--output-dir",
        str(tmp_path / "second"),
    )

    assert [line["kind"] for line in first][-1] == "finished"
    losses = [line["loss_nats"] for line in first if line["kind"] == "evaluated"]
    assert losses[-1] < losses[0]
    assert last_evaluation(second) == pytest.approx(last_evaluation(first), abs=1e-6)
    assert second[0]["num_parameters"] == first[0]["num_parameters"]
