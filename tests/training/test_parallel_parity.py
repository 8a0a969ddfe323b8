"""Any number of ranks, any sharding, any split of the batch: the same losses and gradients.

Gradient norms are compared too: Adam and the clip hide a wrong scale of gradients from the loss.
All of it is gloo on CPUs in float32: NCCL, GPUs and bfloat16 are not run here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from parallel_runs import (
    STEPS,
    NumberedSamples,
    Result,
    Run,
    results_in,
    train_here,
    train_on_ranks,
)
from torch import nn

from training.config import Launch
from training.models.architectures import build_model
from training.models.initialisation import initialise
from training.parallel import joined_ranks
from training.schedule import learning_rate

Once = Callable[[str, Callable[[Path], None]], Path]

# Steps of most runs on several ranks: the second already shows gradients that are not the same.
FEW: Final = "6"

SHORT: Final = {"steps": FEW}
ACCUMULATED: Final = {"micro_batch_size": "2"}
EACH: Final = {"micro_batch_size": "1"}
UNEVEN: Final = {"global_batch_size": "5"}
FULL: Final = {"activation_checkpointing": "full"}
SELECTIVE: Final = {"activation_checkpointing": "selective"}
COMPILED: Final = {"compile": "true"}
SGD: Final = {"optimizer": "sgd", "learning_rate": "0.1"}
DOCUMENTS: Final = {"document_mask": "true"}
DDP: Final = {"parallelism": "ddp"}
HYBRID: Final = {"parallelism": "hybrid"}
SPLIT: Final = {"tensor_parallel": "2"} | SHORT
CONTEXT: Final = {"context_parallel": "2"} | SHORT
SHARED: Final = {"expert_parallel": "2"} | SHORT

ALONE: Final = Run()
MIXTRAL: Final = Run(recipe="mixtral-8x7b")
# Mistral, and an embedding that is not tied to the head.
MATHSTRAL: Final = Run(recipe="mathstral-7b", keys=SHORT)
# Three experts do not divide among two ranks: these shard another dimension.
THREE_EXPERTS: Final = Run(recipe="mixtral-8x7b", model={"experts": 3}, keys=SHORT)


def of(run: Run, *keys: Mapping[str, str], **fields: Any) -> Run:
    """Another run, with more keys."""
    together = dict(run.keys)
    for more in keys:
        together.update(more)
    return replace(run, keys=together, **fields)


LARGE: Final = {"as_large_model": True}
# Each run on two ranks, and the run of a lone rank whose first steps it must equal. What only adds
# a way of saving memory or time to another run stands beside one or two others of its kind.
ON_TWO_RANKS: Final = {
    "fsdp": (ALONE, ALONE),
    "fsdp, accumulated, exchanging every time": (of(ALONE, ACCUMULATED, SHORT, **LARGE), ALONE),
    "fsdp, uneven batch": (of(ALONE, UNEVEN, SHORT), of(ALONE, UNEVEN, SHORT)),
    "fsdp, full checkpointing": (of(ALONE, FULL, SHORT), ALONE),
    "fsdp, selective checkpointing, compiled": (of(ALONE, SELECTIVE, COMPILED, SHORT), ALONE),
    "ddp": (of(ALONE, DDP), ALONE),
    "ddp, accumulated, full checkpointing, compiled": (
        of(ALONE, DDP, ACCUMULATED, FULL, COMPILED, SHORT),
        ALONE,
    ),
    "hybrid, two nodes": (of(ALONE, HYBRID), ALONE),
    "tensor parallel": (of(ALONE, SPLIT), ALONE),
    "tensor parallel, mathstral, accumulated, selective checkpointing": (
        of(MATHSTRAL, SPLIT, ACCUMULATED, SELECTIVE),
        MATHSTRAL,
    ),
    "context parallel": (of(ALONE, CONTEXT), ALONE),
    "context parallel, documents kept apart": (
        of(ALONE, CONTEXT, DOCUMENTS),
        of(ALONE, DOCUMENTS, SHORT),
    ),
    "context parallel, mixtral, selective checkpointing, compiled": (
        of(MIXTRAL, CONTEXT, SELECTIVE, COMPILED),
        MIXTRAL,
    ),
    "mixtral, experts that do not divide": (THREE_EXPERTS, THREE_EXPERTS),
    "shared experts": (of(MIXTRAL, SHARED), MIXTRAL),
    "sgd, shared experts": (of(MIXTRAL, SHARED, SGD), of(MIXTRAL, SHORT, SGD)),
    "shared experts, accumulated, full checkpointing, compiled": (
        of(MIXTRAL, SHARED, ACCUMULATED, FULL, COMPILED),
        MIXTRAL,
    ),
    "shared experts, uneven batch, selective checkpointing, exchanging every time": (
        of(MIXTRAL, SHARED, UNEVEN, ACCUMULATED, SELECTIVE, **LARGE),
        of(MIXTRAL, UNEVEN, SHORT),
    ),
}
ON_FOUR_RANKS: Final = {
    "tensor parallel, hybrid, accumulated, exchanging every time": of(
        ALONE, SPLIT, HYBRID, EACH, local_world_size=2, **LARGE
    ),
    "context and tensor parallel": of(ALONE, SPLIT, CONTEXT),
    "context parallel over two nodes, hybrid, exchanging every time": of(
        ALONE, CONTEXT, {"context_parallel": "4"}, HYBRID, local_world_size=2, **LARGE
    ),
    "shared experts, one for each rank, accumulated, exchanging every time": of(
        MIXTRAL, SHARED, {"expert_parallel": "4"}, EACH, **LARGE
    ),
    "shared experts and sequences, selective checkpointing": of(
        MIXTRAL, SHARED, CONTEXT, SELECTIVE
    ),
    "shared experts, hybrid, fsdp over pairs of a node": of(
        MIXTRAL, SHARED, HYBRID, local_world_size=4
    ),
}


# Two steps; each rank has four samples a step, in one micro-batch or in four.
COUNTED: Final = {
    f"{parallelism} {size} {large}": Run(
        keys={"parallelism": parallelism, "steps": "2", "micro_batch_size": str(size)},
        as_large_model=large,
        count_operations=True,
    )
    for parallelism in ("full", "hybrid", "ddp")
    for large in (False, True)
    for size in (4, 1)
}


@pytest.fixture(scope="module")
def on_two_ranks(once: Once) -> dict[str, Result]:
    runs = {name: run for name, (run, _) in ON_TWO_RANKS.items()} | COUNTED
    return results_in(once("two-ranks", partial(train_on_ranks, runs, world_size=2)))


@pytest.fixture(scope="module")
def on_four_ranks(once: Once) -> dict[str, Result]:
    return results_in(once("four-ranks", partial(train_on_ranks, ON_FOUR_RANKS, world_size=4)))


_known: dict[str, Result] = {}


def alone(run: Run) -> Result:
    """A lone rank's run; most are asked for more than once."""
    return _known.get(repr(run)) or _known.setdefault(repr(run), train_here(run))


def assert_same(actual: Result, expected: Result) -> None:
    num_steps = len(actual.losses)
    assert num_steps >= int(FEW)
    assert actual.losses == pytest.approx(expected.losses[:num_steps], abs=1e-5)
    assert actual.gradient_norms == pytest.approx(expected.gradient_norms[:num_steps], rel=1e-4)


def test_lone_rank_learns_what_a_bare_loop_learns() -> None:
    result = alone(Run())

    assert result.losses == pytest.approx(_bare_losses(Run()), abs=1e-5)
    assert result.losses[-1] < result.losses[0] - 1.0


def _bare_losses(run: Run) -> list[float]:
    """PyTorch and transformers, and nothing of the trainer but the schedule and first weights."""
    recipe = run.config({}).recipe
    training = recipe.training
    model = build_model(recipe.model)
    initialise(model, seed=training.seed, device=torch.device("cpu"))
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim >= 2]},
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        weight_decay=training.weight_decay,
        betas=(training.beta1, training.beta2),
    )
    with joined_ranks(Launch(rank=0, local_rank=0, world_size=1, elastic=False)) as ranks:
        source = NumberedSamples(recipe, ranks)
    losses = []
    for step in range(STEPS):
        (batch,) = source.micro_batches(step * training.global_batch_size)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step + 1, training)
        logits = model(input_ids=batch.inputs).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.grad_clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ON_TWO_RANKS)
def test_two_ranks_give_a_lone_ranks_losses(on_two_ranks: dict[str, Result], name: str) -> None:
    _, reference = ON_TWO_RANKS[name]

    assert_same(on_two_ranks[name], alone(reference))


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("fsdp", 0.5),
        ("ddp", 1.0),
        ("hybrid, two nodes", 1.0),
        ("mixtral, experts that do not divide", 0.5),
        ("tensor parallel", 0.5),
        ("context parallel", 0.5),
        ("shared experts", 0.5),
    ],
)
def test_ranks_hold_equal_shares(on_two_ranks: dict[str, Result], name: str, share: float) -> None:
    assert on_two_ranks[name].share == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("name", ON_FOUR_RANKS)
def test_four_ranks_give_a_lone_ranks_losses(on_four_ranks: dict[str, Result], name: str) -> None:
    recipe = ON_FOUR_RANKS[name].recipe
    assert_same(on_four_ranks[name], alone(MIXTRAL if recipe == MIXTRAL.recipe else Run()))


def exchanges(results: dict[str, Result], parallelism: str, *, large: bool) -> list[Counter[str]]:
    """Of one micro-batch, and of four."""
    names = (f"{parallelism} {size} {large}" for size in (4, 1))
    return [Counter(results[name].collectives) for name in names]


@pytest.mark.parametrize("parallelism", ["full", "ddp", "hybrid"])
def test_four_micro_batches_exchange_gradients_as_often_as_one(
    on_two_ranks: dict[str, Result], parallelism: str
) -> None:
    one, four = exchanges(on_two_ranks, parallelism, large=False)

    assert one["allreduce_"] or one["_reduce_scatter_base_"]
    assert four == one


def test_large_model_exchanges_within_the_shards_each_time(
    on_two_ranks: dict[str, Result],
) -> None:
    # Two steps, three blocks and the root; gathered again in backward but for the last block.
    one, four = exchanges(on_two_ranks, "full", large=True)

    assert (one["_reduce_scatter_base_"], four["_reduce_scatter_base_"]) == (8, 32)
    assert (one["_allgather_base_"], four["_allgather_base_"]) == (12, 48)


def test_large_hybrid_model_exchanges_over_the_copies_once_a_step(
    on_two_ranks: dict[str, Result],
) -> None:
    one, four = exchanges(on_two_ranks, "hybrid", large=True)

    assert four["allreduce_"] == one["allreduce_"]
