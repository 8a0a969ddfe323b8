"""The model that a run leaves, which answers as the trainer's own does, and texts of it."""

from __future__ import annotations

import json
import logging
import math
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import train_on_ranks
from trainer_runs import Workspace, of_kind, parse_lines, train_here, trainer_here
from transformers import AutoModelForImageClassification

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.checkpoints import DESCRIPTION
from stationmaster.domain.progress_lines import EvaluatedLine, Sample
from stationmaster.domain.results import TrainerFacts, checkpoint_directory
from training.build import code_hash
from training.config import parse_config
from training.export import export
from training.final_model import PROMPT_TOKENS, generate, prompts_of
from training.model_card import model_card
from training.parallel import joined_ranks
from training.task import IGNORED_LABEL, Batch
from training.trainer import Trainer

KEYS = ("steps=2", "warmup_steps=1", "schedule=constant")


def test_image_classifier_answers_as_the_trainers_own(tmp_path: Path) -> None:
    words = ["resnet50", "preset=smoke", "steps=1", "warmup_steps=0"]
    cache = {"STATIONMASTER_CACHE_DIR": str(tmp_path / "cache")}
    config = parse_config([*words, "--output-dir", str(tmp_path / "out")], cache)
    with joined_ranks(config.launch) as ranks, redirect_stdout(StringIO()):
        trainer = trainer_here(config, ranks)
        trainer.train()
    ours: Any = trainer.model.eval()

    theirs = AutoModelForImageClassification.from_pretrained(tmp_path / "out" / "model").eval()

    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        ours_said = ours(pixel_values=pixels).logits
        assert torch.allclose(theirs(pixel_values=pixels).logits, ours_said, atol=1e-6)
    assert "pipeline_tag: image-classification" in (tmp_path / "out/model/README.md").read_text()


def test_sharded_model_is_the_checkpoints_own(workspace: Workspace, tmp_path: Path) -> None:
    lines = train_on_ranks(workspace, *KEYS, "parallelism=full", num_ranks=2)

    exported = export(workspace.output_dir, output_dir=tmp_path / "hf")
    written = workspace.output_dir / "model"
    assert of_kind(lines, "finished")[0]["model_path"] == str(written)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (written / name).read_bytes() == (exported / name).read_bytes()
    card = (written / "README.md").read_text()
    assert "Trained by Stationmaster with the recipe `tiny-llama`, from new weights." in card
    assert 'AutoModelForCausalLM.from_pretrained("THIS_DIRECTORY")' in card
    assert (written / "README.md").stat().st_mode & 0o444 == 0o444
    assert written.stat().st_mode & 0o555 == 0o555


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, text_dir: Path, cache_dir: Path) -> Workspace:
    """A run at its end."""
    workspace = Workspace(tmp_path_factory.mktemp("ended") / "out", cache_dir, text_dir)
    train_here(workspace, *KEYS, "--samples=3")
    return workspace


def test_model_of_an_ended_run_is_kept_written_again_where_it_is_lost_and_replaced_by_more_steps(
    ended: Workspace, tmp_path: Path
) -> None:
    run = ended.copy(tmp_path / "out")
    weights = run.output_dir / "model" / "model.safetensors"
    first = (weights.stat().st_ino, weights.read_bytes())
    (run.output_dir / ".model-killed").mkdir()

    train_here(run, *KEYS)
    again = (weights.stat().st_ino, weights.read_bytes())
    shutil.rmtree(weights.parent)
    lines = train_here(run, *KEYS)
    written_again = weights.read_bytes()
    train_here(run, *KEYS, "steps=3")

    note = json.loads((run.output_dir / "model" / "stationmaster.json").read_text())
    assert again == first
    assert [line["kind"] for line in lines] == ["started", "resumed", "finished"]
    assert written_again == first[1]
    assert weights.read_bytes() != first[1]
    assert note["step"] == 3
    assert note["checkpoint"].endswith("/step-00000003")
    assert not list(run.output_dir.glob(".model-*"))


def test_checkpoint_of_a_result_is_exported_as_a_runs_own(ended: Workspace, tmp_path: Path) -> None:
    (configuration,) = (ended.output_dir / "checkpoints").iterdir()
    saved = tmp_path / "result" / checkpoint_directory(2)
    shutil.copytree(configuration / "step-00000002", saved)
    shutil.copytree(configuration / DESCRIPTION, saved.with_name(DESCRIPTION))

    exported = export(saved.parent, output_dir=tmp_path / "hf")

    written = ended.output_dir / "model" / "model.safetensors"
    assert (exported / "model.safetensors").read_bytes() == written.read_bytes()


def test_facts_say_versions_sources_seed_and_data(ended: Workspace, tmp_path: Path) -> None:
    facts = TrainerFacts.model_validate_json((ended.output_dir / "facts.json").read_bytes())

    assert facts.seed == 1234
    assert facts.data.startswith(f"{ended.text_dir} (")
    assert facts.versions["torch"].startswith("2.")
    source = tmp_path / "training" / "a.py"
    source.parent.mkdir()
    hashes = {facts.versions["code"]}
    for text in ("one = 1\n", "one = 2\n"):
        source.write_text(text)
        hashes.add(code_hash(tmp_path))
    source.rename(source.with_name("b.py"))
    assert len({*hashes, code_hash(tmp_path)}) == 4


@pytest.mark.parametrize(
    ("recipe", "weights", "said"),
    [
        ("llama2-7b", "random", "from new weights"),
        ("llama2-7b-finetune", "meta-llama/Llama-2-7b-hf", "base_model: meta-llama/Llama-2-7b-hf"),
        ("llama2-7b-finetune", "/fsx/weights", "from the weights of `/fsx/weights`"),
        ("llama2-7b-finetune", "sample", "which nobody has trained"),
        ("llama2-7b", "/fsx/runs/r/restored/model", "the trained model of an earlier run"),
    ],
)
def test_card_says_where_the_first_weights_came_from(recipe: str, weights: str, said: str) -> None:
    chosen = CATALOGUE[recipe].with_overrides({"weights": weights})
    evaluation = EvaluatedLine(step=1, loss_nats=2.5, perplexity=12.1825)

    card = model_card(chosen, loss_nats=2.25, evaluation=evaluation)

    assert said in card
    assert ("base_model" in card) == (weights == "meta-llama/Llama-2-7b-hf")
    assert "- training loss of the last step: 2.2500 nats" in card
    assert "- perplexity on held-out data: 12.1825" in card


def test_prompt_ends_where_what_is_learned_begins_and_no_more_are_taken_than_asked_for() -> None:
    rows = torch.arange(40).expand(4, -1)
    targets = rows.clone()
    targets[0] = IGNORED_LABEL  # it fills a gap
    targets[1, :17] = IGNORED_LABEL  # up to the response
    batch = Batch(inputs=rows, targets=targets)

    prompts = prompts_of([batch, batch], number=3)

    assert prompts == [list(range(length)) for length in (18, PROMPT_TOKENS, PROMPT_TOKENS)]


def test_trained_model_continues_texts_of_its_data(ended: Workspace) -> None:
    (finished,) = of_kind(parse_lines((ended.output_dir / "metrics.jsonl").read_text()), "finished")
    samples = [Sample.model_validate(each) for each in finished["samples"]]
    written = (ended.output_dir / "samples.jsonl").read_text().splitlines()
    assert [Sample.model_validate_json(line) for line in written] == samples
    texts = " ".join(path.read_text() for path in ended.text_dir.glob("*.txt"))
    assert len(samples) == 3
    assert all(each.prompt.strip() and each.prompt.strip() in texts for each in samples)
    assert all(each.text for each in samples)

    model = ended.output_dir / "model"
    assert generate(model, [[5, 6, 7], [8]]) == generate(model, [[5, 6, 7], [8]])


def test_model_whose_samples_fail_is_finished_without_them(
    ended: Workspace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = ended.copy(tmp_path / "out")
    (run.output_dir / "samples.jsonl").unlink()
    (run.output_dir / "samples.jsonl").mkdir()

    with caplog.at_level(logging.WARNING):
        lines = train_here(run, *KEYS, "steps=3", "--samples=3")

    (finished,) = of_kind(lines, "finished")
    assert finished["samples"] == []
    assert any("no samples were generated" in one.getMessage() for one in caplog.records)
    assert json.loads((run.output_dir / "model/stationmaster.json").read_text())["step"] == 3


def test_model_is_of_the_best_checkpoint_which_a_restart_keeps_until_a_better_one(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = {3: 3.0, 4: math.nan, 6: 4.0, 8: 3.5, 9: 2.0}

    def judge(trainer: Trainer) -> None:
        found = EvaluatedLine(step=trainer._position.step, loss_nats=judged[trainer._position.step])
        trainer._evaluation = found
        trainer._progress.emit(found)
        trainer._keep_if_best(found)

    monkeypatch.setattr(Trainer, "_evaluate", judge)
    keys = (*KEYS[1:], "save_best=loss", "eval_samples=2", "--keep-checkpoints=1")

    first = train_here(workspace, *keys, "eval_every=3", "checkpoint_every=2", "steps=4")
    note = json.loads((workspace.output_dir / "model" / "stationmaster.json").read_text())
    after = set(workspace.checkpoints())
    second = train_here(workspace, *keys, "eval_every=2", "checkpoint_every=2", "steps=8")
    kept = set(workspace.checkpoints())
    third = train_here(workspace, *keys, "eval_every=9", "checkpoint_every=5", "steps=9")

    # Step 3 is saved because it is the best so far, and nothing else asks for it.
    assert (first[-1]["best_step"], note["step"]) == (3, 3)
    assert (after, kept, set(workspace.checkpoints())) == ({3, 4}, {3, 8}, {9})
    assert [line["step"] for line in of_kind(second, "evaluated")] == [4, 6, 8]
    assert (second[-1]["best_step"], third[-1]["best_step"]) == (3, 9)
    assert "loss on held-out data: 2.0000" in (workspace.output_dir / "model/README.md").read_text()
