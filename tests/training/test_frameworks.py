"""Models made of what other frameworks have saved: transformers loads them; they answer alike."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data_sets import word_tokenizer
from framework_checkpoints import (
    SHAPE,
    MegatronSave,
    save_as_torchtitan,
    tiny,
    trained_llama,
)
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter, save
from torch.distributed.checkpoint.metadata import Metadata
from transformers import AutoModelForCausalLM, AutoTokenizer

from stationmaster.domain.catalogue.hub import language_model_from_config
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.errors import BadParameter, PermanentError
from training.frameworks import __main__ as program
from training.frameworks import published
from training.frameworks.megatron import TRACKER, TorchDistCheckpoint
from training.model_card import NOTE

TOKENS = torch.arange(24).reshape(2, 12)
MEGATRON, TITAN = "megatron-llama3-8b", "torchtitan-llama3.1-8b"
PACKED = {"dataset": "packed:c4"}

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


@pytest.fixture(scope="module")
def llama() -> Any:
    return trained_llama()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["<|end_of_text|>", "all", "aboard"]
    made = word_tokenizer(tmp_path_factory.mktemp("tokenizer"), words, special=words[:1])
    return made.parent


@pytest.fixture(name="export")
def exporting(tmp_path: Path, tokenizer: Path) -> Callable[..., Path]:
    """Make the model of the run in the test's directory."""

    def export(recipe: str = MEGATRON, **keys: str) -> Path:
        keys = keys or (PACKED if recipe == MEGATRON else {})
        return program.export(
            tiny(recipe, **keys),
            output_dir=tmp_path,
            tokenizer=str(tokenizer),
            loss_nats=2.25,
            cache_dir=tmp_path / "cache",
        )

    return export


def checkpoints_of(run: Path) -> Path:
    directory = run / "output" / "checkpoints"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS, use_cache=False).logits  # type: ignore[no-any-return]


def differing(one: LanguageModel, other: LanguageModel) -> set[str]:
    """The fields in which two shapes are not the same."""
    theirs = other.model_dump()
    return {name for name, value in one.model_dump().items() if value != theirs[name]}


@pytest.mark.parametrize("together", [True, False], ids=["stacked", "layer-by-layer"])
def test_model_of_megatrons_checkpoint_answers_as_trained_bit_by_bit(
    llama: Any, export: Callable[..., Path], tmp_path: Path, together: bool
) -> None:
    MegatronSave(llama.state_dict(), together=together).write(checkpoints_of(tmp_path))

    made = export(MEGATRON, **PACKED, weights="meta-llama/Llama-3.1-8B", steps="20")

    loaded, report = AutoModelForCausalLM.from_pretrained(
        made, dtype="auto", output_loading_info=True
    )
    assert not any(report.values()), report
    assert loaded.dtype == torch.float32
    assert torch.equal(logits_of(loaded), logits_of(llama))
    assert AutoTokenizer.from_pretrained(made)("all aboard").input_ids == [1, 2]
    config = json.loads((made / "config.json").read_text())
    theirs = language_model_from_config(SHAPE.repository, config)
    assert differing(theirs, SHAPE) == {"family", "own_head_dim"}
    assert (made / "generation_config.json").is_file()
    card = (made / "README.md").read_text()
    assert "Trained by Stationmaster and Megatron-LM with the recipe `megatron-llama3-8b`" in card
    assert "from the weights of `meta-llama/Llama-3.1-8B`" in card
    assert "- made of the checkpoint of step 20\n" in card
    assert "- data: `packed:c4`\n" in card
    assert "2.2500 nats" in card
    assert "Weights are float32, as the framework has saved them." in card


def test_model_of_nemos_newest_whole_checkpoint_answers_as_trained(
    llama: Any, export: Callable[..., Path], tmp_path: Path
) -> None:
    made_up, checkpoints = MegatronSave(llama.state_dict()), checkpoints_of(tmp_path)
    made_up.write(tmp_path / "unused")
    newest = checkpoints / "reduced_train_loss=2.2500-step=19-last"
    writer = FileSystemWriter(newest / "weights", single_file_per_rank=False)
    named = {f"module.{key}": value for key, value in made_up.saved.items()}
    save(named, storage_writer=writer, no_dist=True)
    (checkpoints / "reduced_train_loss=2.1000-step=29-last").mkdir()
    (checkpoints / "reduced_train_loss=2.1000-step=29-last-unfinished").touch()

    made = export("nemo-llama3-8b", **PACKED)

    loaded = AutoModelForCausalLM.from_pretrained(made, dtype="auto")
    assert torch.equal(logits_of(loaded), logits_of(llama))
    assert "- made of the checkpoint of step 20\n" in (made / "README.md").read_text()


def test_model_of_torchtitans_last_save_answers_as_its_numbers_do(
    llama: Any, export: Callable[..., Path], tmp_path: Path
) -> None:
    saved = save_as_torchtitan(llama.state_dict(), checkpoints_of(tmp_path))
    assert (saved / "sharded").is_dir()
    (checkpoints_of(tmp_path) / "step-10").mkdir()  # one that training resumes from

    made = export(TITAN)

    loaded, report = AutoModelForCausalLM.from_pretrained(
        made, dtype="auto", output_loading_info=True
    )
    with torch.no_grad():
        for parameter in (rounded := trained_llama()).parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    assert not any(report.values()), report
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(logits_of(loaded.float()), logits_of(rounded))
    assert AutoTokenizer.from_pretrained(made)("all aboard").input_ids == [1, 2]


def test_model_is_divided_into_files_that_transformers_puts_together(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = llama.state_dict()
    monkeypatch.setattr(published, "MAX_FILE_BYTES", 20_000)

    class Whole:
        def read(self, name: str) -> Tensor:
            return weights[name]  # type: ignore[no-any-return]

    published.write_published(
        SHAPE,
        Whole(),
        output_dir=tmp_path / "model",
        tokenizer=None,
        texts=lambda dtype: {"README.md": dtype},
    )

    files = sorted((tmp_path / "model").glob("*.safetensors"))
    assert len(files) > 2
    assert all(sum(t.nbytes for t in load_file(path).values()) <= 20_000 for path in files)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert torch.equal(logits_of(loaded), logits_of(llama))


def test_second_start_leaves_the_model_and_a_newer_checkpoint_replaces_it(
    llama: Any, export: Callable[..., Path], tmp_path: Path
) -> None:
    directory = checkpoints_of(tmp_path)
    first = MegatronSave(llama.state_dict()).write(directory)
    weights = export() / "model.safetensors"
    before = weights.stat().st_ino
    shutil.rmtree(first)  # it is not read again

    assert export() / "model.safetensors" == weights
    assert weights.stat().st_ino == before

    newer = {name: tensor * 2 for name, tensor in llama.state_dict().items()}
    MegatronSave(newer).write(directory, iteration=40)
    export()

    assert torch.equal(
        load_file(weights)["model.norm.weight"], llama.state_dict()["model.norm.weight"] * 2
    )


def test_file_system_that_is_full_is_named_and_keeps_nothing_of_the_model(
    llama: Any, tokenizer: Path, tmp_path: Path
) -> None:
    """A limit on the size of files ends a write as a full file system does."""
    MegatronSave(llama.state_dict()).write(checkpoints_of(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(PermanentError, match=r"the model cannot be written: .*too large"):
            program.export(
                tiny(MEGATRON, **PACKED),
                output_dir=tmp_path,
                tokenizer=str(tokenizer),
                cache_dir=tmp_path / "cache",
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["output"]


def test_model_is_of_the_newest_checkpoint_that_is_whole(
    llama: Any, export: Callable[..., Path], tmp_path: Path
) -> None:
    """A run that was restarted has left a save that its end cut off; its tokens are random ones."""
    newest = MegatronSave(llama.state_dict()).write(checkpoints_of(tmp_path))
    newer = {name: tensor * 2 for name, tensor in llama.state_dict().items()}
    cut_off = MegatronSave(newer).write(checkpoints_of(tmp_path), iteration=40)
    (cut_off / ".metadata").unlink()  # written last, as the tracker's number is
    (checkpoints_of(tmp_path) / TRACKER).write_text("20")

    made = export(MEGATRON, dataset="mock")

    norm = load_file(made / "model.safetensors")["model.norm.weight"]
    assert torch.equal(norm, llama.state_dict()["model.norm.weight"])
    assert newest.name in (made / NOTE).read_text()
    assert not (made / "tokenizer.json").exists()
    assert "comes without a tokenizer" in (made / "README.md").read_text()
    assert "AutoTokenizer" not in (made / "README.md").read_text()


def whole(_saved: Path) -> None:
    """Nothing is wrong with the files."""


def cut_files(saved: Path) -> None:
    for path in saved.glob("*.distcp"):
        os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("own", "damage", "words"),
    [
        ({"norm": None}, whole, r"expected a tensor decoder\.final_layernorm.*has none"),
        ({"norm": torch.ones(64)}, whole, r"of shape \(32,\), it has one of shape \(64,\)"),
        (
            {"norm": torch.full((32,), torch.nan)},
            whole,
            "model.norm.weight has numbers that are no",
        ),
        (
            {},
            lambda saved: max(saved.glob("*.distcp")).unlink(),
            r"iter_0000020 has no __0_\d+\.distcp, which its index names",
        ),
        ({}, cut_files, "the file is damaged or cut off"),
        ({}, lambda saved: (saved / ".metadata").unlink(), "has no .metadata: it is no checkpoint"),
        (
            {},
            lambda saved: os.truncate(saved / ".metadata", 200),
            "is not an index of a checkpoint",
        ),
        (
            {},
            lambda saved: (saved.parent / TRACKER).write_text("release"),
            'says "release", expected the number of an iteration',
        ),
    ],
    ids=[
        *("no norm", "another width", "not finite", "file gone", "files cut", "index gone"),
        *("index cut", "tracker of a release"),
    ],
)
def test_checkpoint_of_megatron_that_is_not_whole_leaves_no_model(
    llama: Any,
    export: Callable[..., Path],
    tmp_path: Path,
    own: dict[str, Any],
    damage: Callable[[Path], object],
    words: str,
) -> None:
    damage(MegatronSave(llama.state_dict(), **own).write(checkpoints_of(tmp_path)))

    with pytest.raises(BadParameter, match=words):
        export()

    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["output"]


def without_a_weight(saved: Path) -> None:
    index = saved / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    del listed["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(listed))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without_a_weight, "another model: it has no model.norm.weight"),
        (
            lambda saved: next(saved.glob("model*.safetensors")).unlink(),
            r"has no model.*\.safetensors, which its index names",
        ),
        (
            lambda saved: os.truncate(next(saved.glob("model*.safetensors")), 1000),
            "it is damaged or cut off",
        ),
        (
            lambda saved: (saved / "model.safetensors.index.json").unlink(),
            "torchtitan writes it with its last step",
        ),
    ],
    ids=["no weight", "file gone", "file cut", "index gone"],
)
def test_last_save_of_torchtitan_that_is_not_whole_leaves_no_model(
    llama: Any,
    export: Callable[..., Path],
    tmp_path: Path,
    damage: Callable[[Path], object],
    words: str,
) -> None:
    damage(save_as_torchtitan(llama.state_dict(), checkpoints_of(tmp_path)))

    with pytest.raises(BadParameter, match=words):
        export(TITAN)

    assert not (tmp_path / "model").exists()


_OF_METADATA = b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n"


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (_OF_METADATA + b"(N}X\x05\x00\x00\x00movedK\x01stb.", "it changes Metadata"),
        (_OF_METADATA + b")\x81(N}X\x05\x00\x00\x00movedK\x01stb.", "it changes Metadata"),
        (_OF_METADATA + b")\x81.", "not an index"),
        (
            b"\x80\x02cbuiltins\ngetattr\nctorch.distributed.checkpoint.planner\nWriteItemType\n"
            b"X\x04\x00\x00\x00NONE\x86R.",
            "NONE",
        ),
        (b"\x80\x04\x8e" + (2**62).to_bytes(8, "little"), "MemoryError"),
        (b"\x80\x02K\x01K\x01s.", "not an index"),
    ],
    ids=["class", "slots", "nothing", "member", "memory", "item of a number"],
)
def test_index_that_no_writer_makes_is_one_sentence(
    tmp_path: Path, index: bytes, words: str
) -> None:
    (tmp_path / ".metadata").write_bytes(index)

    with pytest.raises(BadParameter, match="is not an index of a checkpoint") as caught:
        TorchDistCheckpoint(tmp_path)

    assert words in str(caught.value)
    assert not hasattr(Metadata, "moved")


def test_classes_of_megatron_in_an_index_are_not_needed(tmp_path: Path) -> None:
    """Before core 0.15, optimizers left one there."""
    of_megatron = (
        b"cmegatron.core.dist_checkpointing.strategies.torch\nMCoreMetadata\n)\x81}(X\x01\x00"
        b"\x00\x00aK\x01ub"
    )
    index = pickle.dumps(Metadata({}, planner_data=12345, storage_data={}), protocol=2)
    assert index.count(b"M90") == 1
    (tmp_path / ".metadata").write_bytes(index.replace(b"M90", of_megatron))

    assert TorchDistCheckpoint(tmp_path).shape("decoder.final_layernorm.weight") is None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([MEGATRON], 3, "has no latest_checkpointed_iteration.txt: no checkpoint was saved"),
        ([TITAN], 3, "has no step-N/model.safetensors.index.json"),
        (["tiny-llama"], 2, "python -m training.export"),
        ([MEGATRON, "steps"], 2, '"steps" is not a key=value pair'),
        ([MEGATRON, "steps=none"], 2, "steps"),
    ],
)
def test_program_says_in_one_sentence_why_there_is_no_model(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = program.main(
        [*words, "--output-dir", str(tmp_path)],
        {"STATIONMASTER_CACHE_DIR": str(tmp_path / "cache")},
    )

    assert ended == code
    (line,) = capsys.readouterr().out.splitlines()
    assert said in line
