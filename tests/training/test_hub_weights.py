"""Published weights into our models: bit by bit, sharded or not, or one sentence why not.

The repositories are written by transformers' save_pretrained. One start of two gloo ranks
checks every architecture at once, because a start costs seconds.
"""

from __future__ import annotations

import json
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked_ranks import results, start_ranks
from hub_lone import NoData, build_lone, lone_ranks, smoke_recipe
from hub_stand_in import HubStandIn, Repository
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
)

from stationmaster.domain.catalogue.hub import language_model_from_config
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.errors import BadParameter, PermanentError
from training.models.hub import load_weights
from training.models.language import LanguageTask
from training.parallel import Ranks
from training.repositories import (
    fetch_repository,
    prepare_weights,
    read_config,
    weights_directory,
)
from training.sharding import parallelise

PARALLELISMS = ("full", "ddp")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories `llama`, `tied`, `mixtral` of the smoke shapes, and `gpt2`."""
    root = tmp_path_factory.mktemp("published")
    torch.manual_seed(20)
    for name, recipe in (
        ("llama", "llama2-7b"),
        ("tied", "llama3.2-1b"),
        ("mixtral", "mixtral-8x7b"),
    ):
        model = build_lone(smoke_recipe(recipe), root)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))  # not as a run draws them
        if name == "tied":
            model.to(torch.bfloat16)
        # Two files and an index, as large models have.
        size = "800KB" if name == "llama" else "1GB"
        model.save_pretrained(root / name, max_shard_size=size)
    GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=512, n_positions=64)
    ).save_pretrained(root / "gpt2")
    return root


def recipes(published: Path) -> dict[str, Recipe]:
    gpt2 = language_model_from_config("stand-in/gpt2", read_config(published / "gpt2"))
    hub_like = smoke_recipe("llama2-7b", weights=str(published / "gpt2"))
    return {
        "llama": smoke_recipe("llama2-7b", weights=str(published / "llama")),
        "tied": smoke_recipe("llama3.2-1b", weights=str(published / "tied")),
        "mixtral": smoke_recipe("mixtral-8x7b", weights=str(published / "mixtral")),
        "gpt2": hub_like.model_copy(update={"name": "hf:stand-in/gpt2", "model": gpt2}),
    }


def differing_tensors(task: LanguageTask, directory: Path) -> list[str]:
    """Names of the tensors that are not what transformers reads from the directory."""
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).state_dict()
    ours = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in task.model.state_dict().items()
    }
    assert ours.keys() == theirs.keys()
    return [name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])]


def load_everything(rank: int, world_size: int, published: Path, out: Path) -> None:
    """One rank: every architecture in every parallelism, and a failure of rank 0 alone."""
    store = dist.FileStore(str(out / "store"), world_size)  # no rank serves it, none dies with it
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(minutes=30)
    )
    ranks = Ranks(
        rank=rank,
        world_size=world_size,
        local_world_size=world_size,
        device=torch.device("cpu"),
        checkpoint_group=dist.group.WORLD,
    )
    report: dict[str, Any] = {}
    for name, recipe in recipes(published).items():
        for parallelism in PARALLELISMS:
            chosen = recipe.with_overrides({"parallelism": parallelism})
            task = LanguageTask(chosen, NoData(), ranks=ranks, cache_dir=out)
            parallelise(
                task.model,
                task.blocks,
                training=chosen.training,
                ranks=ranks,
                initialise=lambda task=task: task.initialise(device=ranks.device),
            )
            report[f"{name} {parallelism}"] = {
                "sharded": any(isinstance(p, DTensor) for p in task.model.parameters()),
                "differing": differing_tensors(task, published / name),
            }
    missing = smoke_recipe("llama2-7b", weights=str(published / "nothing"))
    try:
        load_weights(task.model, missing, cache_dir=out, ranks=ranks)
    except BadParameter as error:
        report["refusal"] = str(error)
    (out / f"{rank}.json").write_text(json.dumps(report))
    store.set(f"done-{rank}", "")
    store.wait([f"done-{other}" for other in range(world_size)])
    # Not through Python's shutdown: gloo's threads may abort when a peer's sockets close first.
    os._exit(0)


@pytest.fixture(scope="module")
def two_ranks(published: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two gloo ranks saw."""
    out = tmp_path_factory.mktemp("two-ranks")
    results(start_ranks(load_everything, 2, published, out, world_size=2))
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("parallelism", PARALLELISMS)
@pytest.mark.parametrize("name", ["llama", "tied", "mixtral", "gpt2"])
def test_two_ranks_hold_exactly_the_published_weights(
    two_ranks: list[dict[str, Any]], name: str, parallelism: str
) -> None:
    seen = [report[f"{name} {parallelism}"] for report in two_ranks]

    assert seen == [{"sharded": parallelism == "full", "differing": []}] * 2


def test_a_failure_on_rank_0_is_the_same_sentence_everywhere(
    two_ranks: list[dict[str, Any]],
) -> None:
    sentences = {report["refusal"] for report in two_ranks}

    assert len(sentences) == 1
    assert "is not a directory on this machine" in sentences.pop()


def test_a_repository_is_downloaded_once_and_needs_no_hub_afterwards(
    hub: HubStandIn, published: Path, tmp_path: Path
) -> None:
    hub.models["stand-in/llama"] = Repository(published / "llama")
    recipe = smoke_recipe("llama2-7b", weights="stand-in/llama")

    prepare_weights(recipe, cache_dir=tmp_path)
    hub.requests.clear()
    del hub.models["stand-in/llama"]
    prepare_weights(recipe, cache_dir=tmp_path)

    assert hub.requests == []
    found = {
        path.name for path in weights_directory("stand-in/llama", cache_dir=tmp_path).iterdir()
    }
    assert {"config.json", "model.safetensors.index.json"} <= found
    assert sum(name.startswith("model-0") for name in found) >= 2


def test_only_what_is_read_is_downloaded(hub: HubStandIn, tmp_path: Path) -> None:
    read = {"config.json", "model.safetensors"}
    unwanted = {"consolidated.safetensors", "pytorch_model.bin", "modeling.py"}
    files = dict.fromkeys(read | unwanted, b"{}")
    hub.models["stand-in/gpt2"] = Repository(commits={"a" * 40: files})

    directory = fetch_repository("stand-in/gpt2", cache_dir=tmp_path / "cache", files="weights")

    assert {path.name for path in directory.iterdir()} == read


def test_a_gated_repository_is_read_with_a_token_only(
    hub: HubStandIn, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.models["stand-in/gated"] = Repository(published / "gpt2", gated=True)

    with pytest.raises(BadParameter, match=r"is gated: accept its licence at .* set HF_TOKEN"):
        fetch_repository("stand-in/gated", cache_dir=tmp_path, files="weights")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    directory = fetch_repository("stand-in/gated", cache_dir=tmp_path, files="weights")

    assert (directory / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("repository", "sentence"),
    [
        ("stand-in/none", r"stand-in/none is not on the Hugging Face hub"),
        ("stand-in/pickled", r"no model\*\.safetensors; only safetensors are read"),
    ],
)
def test_a_repository_that_is_not_there_or_pickled_is_refused(
    hub: HubStandIn, tmp_path: Path, repository: str, sentence: str
) -> None:
    files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    hub.models["stand-in/pickled"] = Repository(commits={"a" * 40: files})

    with pytest.raises(BadParameter, match=sentence):
        fetch_repository(repository, cache_dir=tmp_path, files="weights")


def test_a_hub_that_does_not_answer_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")

        with pytest.raises(PermanentError, match=r"the Hugging Face hub did not deliver a/b \("):
            fetch_repository("a/b", cache_dir=tmp_path, files="config")


def test_weights_that_are_nowhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match=r'weights="/no/such/place" is not a directory'):
        prepare_weights(smoke_recipe("llama2-7b", weights="/no/such/place"), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("recipe", "weights", "sentence"),
    [
        (
            *("llama2-7b", "tied"),
            "of another model: kv_heads 2 instead of 4, rope_scaling factor .* instead of None, "
            "rope_theta 500000 instead of 10000, tied_embeddings True instead of False; give",
        ),
        ("mathstral-7b", "llama", "model_type llama instead of mistral"),
    ],
)
def test_weights_of_another_model_are_refused_by_the_differing_fields(
    published: Path, tmp_path: Path, recipe: str, weights: str, sentence: str
) -> None:
    chosen = smoke_recipe(recipe, weights=str(published / weights))

    with pytest.raises(BadParameter, match=sentence):
        prepare_weights(chosen, cache_dir=tmp_path)


def test_a_checkpoint_without_a_tensor_is_refused(published: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(published / "mixtral", broken)
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    recipe = smoke_recipe("mixtral-8x7b", weights=str(broken))

    with pytest.raises(BadParameter, match=r"lack 1 of the model's tensors, e\.g\. model\.norm"):
        load_weights(build_lone(recipe, tmp_path), recipe, cache_dir=tmp_path, ranks=lone_ranks())


def test_sample_weights_are_the_same_for_all_and_not_the_random_ones(tmp_path: Path) -> None:
    recipe = smoke_recipe("llama2-7b-finetune")
    models = [build_lone(recipe, tmp_path) for _ in range(2)]
    untouched = {name: value.clone() for name, value in models[0].state_dict().items()}

    for model, cache in zip(models, (tmp_path / "one", tmp_path / "two"), strict=True):
        load_weights(model, recipe, cache_dir=cache, ranks=lone_ranks())

    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], untouched["lm_head.weight"])
    assert list((tmp_path / "one" / "samples").glob("llama-*/model.safetensors"))
