"""Any number of ranks, any sharding, any split of the batch: the same losses and gradients.

Gradient norms are compared too: Adam and the clip hide a wrong scale of gradients from the loss.
All of it is gloo on CPUs in float32: NCCL, GPUs and bfloat16 are not run here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

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

from tests.chaos.points import some_of, sweep_seed
from training.config import Launch
from training.models.architectures import build_model
from training.models.initialisation import initialise
from training.parallel import joined_ranks
from training.schedule import learning_rate

Once = Callable[[str, Callable[[Path], None]], Path]

# Steps of most runs on several ranks: the second already shows gradients that are not the same.
FEW: Final = "6"

ACCUMULATED: Final = {"micro_batch_size": "2"}
UNEVEN: Final = {"global_batch_size": "5"}
MIXTRAL: Final = Run(recipe="mixtral-8x7b")
# Three experts do not divide among two ranks: these shard another dimension.
THREE_EXPERTS: Final = Run(recipe="mixtral-8x7b", model={"experts": 3}, keys={"steps": FEW})

SHORT: Final = {"steps": FEW}
DDP: Final = {"parallelism": "ddp"}
SPLIT: Final = {"tensor_parallel": "2", "steps": FEW}
CONTEXT: Final = {"context_parallel": "2", "steps": FEW}
DOCUMENTS: Final = {"document_mask": "true", "steps": FEW}
SHARED: Final = {"expert_parallel": "2", "steps": FEW}
SGD: Final = {"optimizer": "sgd", "learning_rate": "0.1"}
# Mistral, and an embedding that is not tied to the head.
MATHSTRAL: Final = Run(recipe="mathstral-7b", keys=SHORT)

# Each run on two ranks, and the run of a lone rank whose first steps it must equal.
ON_TWO_RANKS: Final = {
    "fsdp": (Run(), Run()),
    "fsdp, accumulated": (Run(keys=ACCUMULATED), Run()),
    "fsdp, accumulated, exchanging every time": (
        Run(keys=ACCUMULATED | SHORT, as_large_model=True),
        Run(),
    ),
    "fsdp, uneven batch": (Run(keys=UNEVEN | SHORT), Run(keys=UNEVEN | SHORT)),
    "fsdp, full checkpointing": (Run(keys={"activation_checkpointing": "full"} | SHORT), Run()),
    "fsdp, selective checkpointing, compiled": (
        Run(keys={"activation_checkpointing": "selective", "compile": "true"} | SHORT),
        Run(),
    ),
    "ddp": (Run(keys=DDP), Run()),
    "ddp, accumulated": (Run(keys=DDP | ACCUMULATED), Run()),
    "ddp, uneven batch": (Run(keys=DDP | UNEVEN | SHORT), Run(keys=UNEVEN | SHORT)),
    "ddp, full checkpointing, compiled": (
        Run(keys=DDP | {"activation_checkpointing": "full", "compile": "true"} | SHORT),
        Run(),
    ),
    "hybrid, two nodes": (Run(keys={"parallelism": "hybrid"}), Run()),
    "hybrid, two nodes, accumulated, exchanging every time": (
        Run(keys={"parallelism": "hybrid"} | ACCUMULATED | SHORT, as_large_model=True),
        Run(),
    ),
    "tensor parallel": (Run(keys=SPLIT), Run()),
    "tensor parallel, accumulated, full checkpointing": (
        Run(keys=SPLIT | ACCUMULATED | {"activation_checkpointing": "full"}),
        Run(),
    ),
    "tensor parallel, mathstral, selective checkpointing": (
        replace(MATHSTRAL, keys=SPLIT | {"activation_checkpointing": "selective"}),
        MATHSTRAL,
    ),
    "context parallel": (Run(keys=CONTEXT), Run()),
    "context parallel, accumulated, full checkpointing": (
        Run(keys=CONTEXT | ACCUMULATED | {"activation_checkpointing": "full"}),
        Run(),
    ),
    "context parallel, mathstral, selective checkpointing": (
        replace(MATHSTRAL, keys=CONTEXT | {"activation_checkpointing": "selective"}),
        MATHSTRAL,
    ),
    "context parallel, selective checkpointing, compiled": (
        Run(keys=CONTEXT | {"activation_checkpointing": "selective", "compile": "true"}),
        Run(),
    ),
    "context parallel, documents kept apart": (Run(keys=CONTEXT | DOCUMENTS), Run(keys=DOCUMENTS)),
    "context parallel, mixtral": (replace(MIXTRAL, keys=CONTEXT), MIXTRAL),
    "context parallel, mixtral, compiled": (
        replace(MIXTRAL, keys=CONTEXT | {"compile": "true"}),
        MIXTRAL,
    ),
    "mixtral, fsdp": (MIXTRAL, MIXTRAL),
    "mixtral, fsdp, accumulated": (
        Run(recipe="mixtral-8x7b", keys=ACCUMULATED | SHORT),
        MIXTRAL,
    ),
    "mixtral, experts that do not divide": (THREE_EXPERTS, THREE_EXPERTS),
    "shared experts": (replace(MIXTRAL, keys=SHARED), MIXTRAL),
    "sgd, shared experts": (
        replace(MIXTRAL, keys=SHARED | SGD),
        replace(MIXTRAL, keys=SHORT | SGD),
    ),
    "shared experts, accumulated, full checkpointing, compiled": (
        replace(
            MIXTRAL,
            keys=SHARED | ACCUMULATED | {"activation_checkpointing": "full", "compile": "true"},
        ),
        MIXTRAL,
    ),
    "shared experts, uneven batch, selective checkpointing, compiled, exchanging every time": (
        replace(
            MIXTRAL,
            keys=SHARED
            | UNEVEN
            | ACCUMULATED
            | {"activation_checkpointing": "selective", "compile": "true"},
            as_large_model=True,
        ),
        replace(MIXTRAL, keys=UNEVEN | SHORT),
    ),
}
ON_FOUR_RANKS: Final = {
    "tensor parallel, fsdp over pairs": Run(keys=SPLIT),
    "tensor parallel, hybrid, accumulated, exchanging every time": Run(
        keys=SPLIT | {"parallelism": "hybrid", "micro_batch_size": "1"},
        local_world_size=2,
        as_large_model=True,
    ),
    "tensor parallel, hybrid, one node": Run(
        keys=SPLIT | {"parallelism": "hybrid"}, local_world_size=4
    ),
    "context parallel, fsdp over pairs": Run(keys=CONTEXT),
    "context and tensor parallel": Run(keys=SPLIT | CONTEXT),
    "context parallel over two nodes, hybrid, exchanging every time": Run(
        keys=CONTEXT | {"context_parallel": "4", "parallelism": "hybrid", "micro_batch_size": "4"},
        local_world_size=2,
        as_large_model=True,
    ),
    "shared experts, fsdp over pairs": replace(MIXTRAL, keys=SHARED),
    "shared experts, one for each rank, accumulated, exchanging every time": replace(
        MIXTRAL,
        keys=SHARED | {"expert_parallel": "4", "micro_batch_size": "1"},
        as_large_model=True,
    ),
    "shared experts and sequences, selective checkpointing": replace(
        MIXTRAL, keys=SHARED | CONTEXT | {"activation_checkpointing": "selective"}
    ),
    "shared experts, hybrid": replace(
        MIXTRAL, keys=SHARED | {"parallelism": "hybrid"}, local_world_size=2
    ),
    "shared experts, hybrid, fsdp over pairs of a node": replace(
        MIXTRAL, keys=SHARED | {"parallelism": "hybrid"}, local_world_size=4
    ),
    "hybrid, two nodes of two": Run(keys={"parallelism": "hybrid"}, local_world_size=2),
    "hybrid, accumulated, exchanging within a node every time": Run(
        keys={"parallelism": "hybrid", "micro_batch_size": "1"} | SHORT,
        local_world_size=2,
        as_large_model=True,
    ),
}

# Costly, and what they combine is also run by itself.
COMBINED: Final = ("accumulated", "compiled", "exchanging", "selective")


def sampled(runs: Iterable[str]) -> list[str]:
    """All but two thirds of those that combine, which the seed of the sweeps chooses."""
    combined = [name for name in runs if any(word in name for word in COMBINED)]
    chosen = some_of(combined, sweep_seed(), one_in=3)
    return [name for name in runs if name not in combined or name in chosen]


TWO_SAMPLED = sampled(ON_TWO_RANKS)
FOUR_SAMPLED = some_of(sampled(ON_FOUR_RANKS), sweep_seed(), one_in=2)


def counted(parallelism: str, *, micro_batch_size: int, as_large_model: bool) -> Run:
    """Two steps; each rank has four samples a step."""
    return Run(
        keys={
            "parallelism": parallelism,
            "steps": "2",
            "micro_batch_size": str(micro_batch_size),
        },
        as_large_model=as_large_model,
        count_operations=True,
    )


COUNTED: Final = {
    f"{parallelism} {size} {large}": counted(
        parallelism, micro_batch_size=size, as_large_model=large
    )
    for parallelism, large in (
        ("full", False),
        ("full", True),
        ("hybrid", False),
        ("hybrid", True),
        ("ddp", False),
    )
    for size in (4, 1)
}


@pytest.fixture(scope="module")
def on_two_ranks(once: Once) -> dict[str, Result]:
    runs = {name: ON_TWO_RANKS[name][0] for name in TWO_SAMPLED} | COUNTED
    return results_in(once("two-ranks", partial(train_on_ranks, runs, world_size=2)))


@pytest.fixture(scope="module")
def on_four_ranks(once: Once) -> dict[str, Result]:
    runs = {name: ON_FOUR_RANKS[name] for name in FOUR_SAMPLED}
    return results_in(once("four-ranks", partial(train_on_ranks, runs, world_size=4)))


_known: dict[str, Result] = {}


def alone(run: Run) -> Result:
    """A lone rank's run; most are asked for more than once."""
    key = repr(run)
    if key not in _known:
        _known[key] = train_here(run)
    return _known[key]


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


@pytest.mark.parametrize(
    "keys",
    [ACCUMULATED, {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}],
    ids=["accumulated", "full checkpointing", "selective checkpointing"],
)
def test_lone_rank_gives_the_same_losses_however_a_step_is_computed(keys: dict[str, str]) -> None:
    assert_same(alone(Run(keys=keys)), alone(Run()))


@pytest.mark.parametrize("name", TWO_SAMPLED)
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


def test_checkpointing_changes_no_bit(on_two_ranks: dict[str, Result]) -> None:
    again = on_two_ranks["fsdp, full checkpointing"].losses

    assert again == on_two_ranks["fsdp"].losses[: len(again)]


@pytest.mark.parametrize("name", FOUR_SAMPLED)
def test_four_ranks_give_a_lone_ranks_losses(on_four_ranks: dict[str, Result], name: str) -> None:
    recipe = ON_FOUR_RANKS[name].recipe
    assert_same(on_four_ranks[name], alone(MIXTRAL if recipe == MIXTRAL.recipe else Run()))


def exchanges(
    results: dict[str, Result], parallelism: str, *, size: int, large: bool
) -> Counter[str]:
    return Counter(results[f"{parallelism} {size} {large}"].collectives)


@pytest.mark.parametrize("parallelism", ["full", "ddp", "hybrid"])
def test_four_micro_batches_exchange_gradients_as_often_as_one(
    on_two_ranks: dict[str, Result], parallelism: str
) -> None:
    one = exchanges(on_two_ranks, parallelism, size=4, large=False)
    four = exchanges(on_two_ranks, parallelism, size=1, large=False)

    assert one["allreduce_"] or one["_reduce_scatter_base_"]
    assert four == one


def test_large_model_exchanges_within_the_shards_each_time(
    on_two_ranks: dict[str, Result],
) -> None:
    # Two steps, three blocks and the root; gathered again in backward but for the last block.
    one = exchanges(on_two_ranks, "full", size=4, large=True)
    four = exchanges(on_two_ranks, "full", size=1, large=True)

    assert (one["_reduce_scatter_base_"], four["_reduce_scatter_base_"]) == (8, 32)
    assert (one["_allgather_base_"], four["_allgather_base_"]) == (12, 48)


def test_large_hybrid_model_exchanges_over_the_copies_once_a_step(
    on_two_ranks: dict[str, Result],
) -> None:
    one = exchanges(on_two_ranks, "hybrid", size=4, large=True)
    four = exchanges(on_two_ranks, "hybrid", size=1, large=True)

    assert four["allreduce_"] == one["allreduce_"]
