"""A checkpoint of the trainer, out into the published form and back in again."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from data_sets import word_tokenizer
from hub_lone import build_lone, lone_ranks, smoke_recipe
from tokenizers import Tokenizer
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import AutoModelForCausalLM, AutoTokenizer

from stationmaster.domain.checkpoints import Manifest, StoredFile
from stationmaster.domain.errors import BadParameter
from training.export import export, main
from training.manifest import checkpoint_path, write_manifest
from training.models.hub import describe_model

FAMILIES = {"llama": "llama2-7b", "tied": "llama3.2-1b", "mixtral": "mixtral-8x7b"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["<|endoftext|>", "all", "aboard"]
    return word_tokenizer(tmp_path_factory.mktemp("tokenizer"), words, special=words[:1])


def save_checkpoint(
    output_dir: Path,
    *,
    model: Any,
    step: int,
    tokenizer: Path | None,
    published: Path | None = None,
) -> Path:
    """What a run of the trainer leaves behind, as far as an export looks at it."""
    run = output_dir / "checkpoints" / "recipe-0123456789ab"
    path = checkpoint_path(run, step)
    path.mkdir(parents=True)
    with pytest.warns(UserWarning, match="save in a single process"):
        save({"model": get_model_state_dict(model)}, checkpoint_id=path, no_dist=True)
    files = {
        file.name: StoredFile(
            size_bytes=file.stat().st_size,
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
            rank=0,
        )
        for file in path.iterdir()
    }
    manifest = Manifest(step=step, world_size=1, verified=True, configuration={}, files=files)
    write_manifest(path, manifest)
    describe_model(run, model=model, tokenizer=tokenizer, ranks=lone_ranks(), published=published)
    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_model_answers_as_the_trained_one_bit_by_bit(
    family: str, tokenizer: Path, tmp_path: Path
) -> None:
    trained = build_lone(smoke_recipe(FAMILIES[family]), tmp_path)
    save_checkpoint(tmp_path / "out", model=trained, step=7, tokenizer=tokenizer)

    written = export(tmp_path / "out", output_dir=tmp_path / "hf")

    reread = AutoModelForCausalLM.from_pretrained(written, dtype="auto")
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        # The same attention kernel: the trainer has its own entry to it, which changes no bit.
        theirs = reread(input_ids=tokens).logits
        ours = trained(input_ids=tokens, use_cache=False).logits
    assert reread.dtype == torch.float32
    assert torch.equal(ours, theirs)


def test_an_exported_model_has_all_special_tokens_of_its_tokenizer(
    tokenizer: Path, tmp_path: Path
) -> None:
    """As Qwen's chat models have it: <|endoftext|> is there, and does not end a text."""
    own = tmp_path / "own"
    own.mkdir()
    told = Tokenizer.from_file(str(tokenizer))
    told.add_special_tokens(["<|im_end|>"])
    told.save(str(own / "tokenizer.json"))
    end = {"__type": "AddedToken", "content": "<|im_end|>", "special": True}
    named = {"eos_token": end, "pad_token": "<|endoftext|>"}
    (own / "tokenizer_config.json").write_text(json.dumps(named))
    (own / "chat_template.jinja").write_text("{{ messages }}")
    trained = build_lone(smoke_recipe("llama2-7b"), tmp_path)
    save_checkpoint(tmp_path / "out", model=trained, step=1, tokenizer=own / "tokenizer.json")

    written = export(tmp_path / "out", output_dir=tmp_path / "hf")

    text = AutoTokenizer.from_pretrained(written)
    assert text("all aboard").input_ids == [1, 2]
    assert (text.eos_token, text.pad_token, text.bos_token) == ("<|im_end|>", "<|endoftext|>", None)
    assert text.chat_template == "{{ messages }}"
    config = AutoModelForCausalLM.from_pretrained(written).config
    ids = (config.eos_token_id, config.pad_token_id, config.bos_token_id)
    assert ids == (text.eos_token_id, text.pad_token_id, None)


@pytest.mark.parametrize(("own", "ends"), [([7, 0], [7, 0]), ([7, 8], 0)])
def test_an_export_generates_as_the_published_model(
    own: list[int], ends: int | list[int], tokenizer: Path, tmp_path: Path
) -> None:
    """All its end tokens and its padding stay, unless the data's tokenizer has another end."""
    published = tmp_path / "published"
    published.mkdir()
    special = {"bos_token_id": 5, "eos_token_id": own, "pad_token_id": 6}
    (published / "config.json").write_text(json.dumps(special | {"model_type": "llama"}))
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    (published / "generation_config.json").write_text(json.dumps(special | sampling))
    trained = build_lone(smoke_recipe("llama2-7b"), tmp_path)
    run = save_checkpoint(
        tmp_path / "out", model=trained, step=1, tokenizer=tokenizer, published=published
    )

    written = export(run, output_dir=tmp_path / "hf")

    reread = AutoModelForCausalLM.from_pretrained(written)
    generation = reread.generation_config
    assert generation.eos_token_id == reread.config.eos_token_id == ends
    assert generation.pad_token_id == reread.config.pad_token_id == (6 if 0 in own else None)
    assert (generation.temperature, generation.top_p) == (0.6, 0.9)


def test_the_newest_undamaged_step_is_taken(tokenizer: Path, tmp_path: Path) -> None:
    trained = build_lone(smoke_recipe("llama2-7b"), tmp_path)
    for step in (1, 2, 3, 4):
        with torch.no_grad():
            trained.model.norm.weight.fill_(step)
        run = save_checkpoint(tmp_path / "out", model=trained, step=step, tokenizer=tokenizer)
    (run / "step-00000004" / "complete.json").unlink()
    data = next((run / "step-00000003").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1] + b"?")

    written = export(run, output_dir=tmp_path / "hf")

    reread = AutoModelForCausalLM.from_pretrained(written, dtype="auto")
    assert reread.model.norm.weight.unique().tolist() == [2.0]
    for step in (1, 2):
        shutil.rmtree(run / f"step-{step:08d}")
    with pytest.raises(BadParameter, match=r"step-00000003.* is not what was written"):
        export(run, output_dir=tmp_path / "second")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]


def test_nothing_is_overwritten_and_nothing_is_guessed(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = build_lone(smoke_recipe("llama2-7b"), tmp_path)
    run = save_checkpoint(tmp_path / "out", model=trained, step=1, tokenizer=tokenizer)
    shutil.copytree(run, run.with_name("recipe-ba9876543210"))
    (tmp_path / "taken").mkdir()

    attempts = [
        ([str(tmp_path / "nowhere")], "holds no checkpoints that can be exported"),
        ([str(tmp_path / "out")], "recipe-0123456789ab, recipe-ba9876543210"),
        ([str(run), "--output-dir", str(tmp_path / "taken")], "exists"),
    ]
    for arguments, sentence in attempts:
        code = main(["--output-dir", str(tmp_path / "hf"), *arguments])
        error = capsys.readouterr().err
        assert code == 1
        assert sentence in error
        assert "Traceback" not in error
