"""The plan's memory against torch's own trackers, on the trainer's models and its sharding.

Tensors are fake where a model is more than a toy: they have shapes and no memory. The processes of
other ranks are fake as well: their collectives return at once with whatever was in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from hub_lone import lone_ranks
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.planning import memory
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.memory import Memory, memory_of
from stationmaster.domain.planning.recipe_lookup import get_recipe
from training import sharding
from training.models import cross_entropy
from training.models.architectures import build_model
from training.models.context_parallel import share_sequences
from training.models.cross_entropy import sum_cross_entropy
from training.models.language import _mask_of, find_blocks
from training.parallel import Ranks
from training.sharding import ParallelModel, parallelise

SHAPE = {"layers": 2, "hidden_size": 1024, "heads": 8, "kv_heads": 2, "ffn_size": 2816}
SHAPE |= {"vocab_size": 2048, "context_length": 4096}
# Large enough in tokens that activations, and not gradients, decide when the peak is.
BATCH = {"global_batch_size": 8, "micro_batch_size": 8, "sequence_length": 2048}
PIECE_VALUES = 1 << 21  # of the loss, in fp32
# Blocks enough that what each keeps outweighs what one of them needs in backward.
DEEP = {"layers": 5}
EXPERTS = DEEP | {"experts": 4, "experts_per_token": 2}


def lay(
    shape: dict[str, int], *, nodes: int = 1, processes_per_node: int = 1, **training: object
) -> Layout:
    """A small model of a family, on CPU nodes so that every process is one rank of our choice."""
    recipe = get_recipe("mixtral-8x7b" if shape.get("experts") else "llama2-7b")
    usual = {"compile": False, "activation_checkpointing": "off", "context_parallel": 1}
    keys = usual | BATCH | training
    return Layout(
        recipe=recipe.model_copy(
            update={
                "model": recipe.model.model_copy(update=SHAPE | shape),
                "training": recipe.training.model_copy(update=keys),
                "needs_gpu": False,
                "nproc_per_node": processes_per_node,
            }
        ),
        instance=get_instance("m5.2xlarge"),
        nodes=nodes,
    )


def ranks_of(layout: Layout) -> Ranks:
    per_node = layout.processes_per_node
    return replace(lone_ranks(), world_size=layout.processes, local_world_size=per_node)


def spread(layout: Layout, **how: str) -> tuple[nn.Module, Sequence[nn.Module], ParallelModel]:
    """The model of a layout, its blocks, and how its ranks run it."""
    model = build_model(layout.recipe.model)
    blocks = find_blocks(model, name="small")
    parallel = parallelise(
        model,
        blocks,
        training=layout.recipe.training,
        ranks=ranks_of(layout),
        initialise=lambda: model.to_empty(device="cpu"),
        **how,
    )
    return model, blocks, parallel


class Traced(NamedTuple):
    """Bytes, as MemTracker tells them apart: after a step, and what comes and goes at the peak."""

    parameters: int
    gradients: int
    optimizer: int
    working: int


def give_memory(model: nn.Module) -> None:
    """Fake memory for what is on the meta device; `to_empty` cannot swap fake tensors."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                module._parameters[name] = nn.Parameter(empty)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")


@contextmanager
def kept_for_backward(leave_out: Callable[[torch.Tensor], bool]) -> Iterator[dict[int, int]]:
    """Collect the bytes of each storage that is kept for backward inside."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if not leave_out(tensor):
            kept[storage._cdata] = storage.nbytes()
            all_of_them.append(tensor)
        return tensor

    all_of_them: list[torch.Tensor] = []  # or another one gets the place of one that is gone
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def bytes_by_kind(tracker: MemTracker, moment: str) -> dict[str, int]:
    (snapshot,) = tracker.get_tracker_snapshot(moment).values()
    return {str(getattr(kind, "name", kind)): size for kind, size in snapshot.items()}


def trace(layout: Layout) -> Traced:
    """One step of a lone rank on fake tensors.

    FSDP's cast weights are stood in for by weights that are bf16 from the start.
    """
    training = layout.recipe.training
    cast_by_fsdp = layout.is_wrapped and layout.compute == "bf16"
    alone = training.model_copy(
        update={"parallelism": "ddp", "precision": "fp32" if cast_by_fsdp else layout.compute}
    )
    torch.set_default_dtype(torch.bfloat16 if cast_by_fsdp else torch.float32)
    try:
        model = build_model(layout.recipe.model)
        with FakeTensorMode():
            parallelise(
                model,
                find_blocks(model, name="small"),
                training=alone,
                ranks=replace(ranks_of(layout), world_size=1),
                initialise=lambda: give_memory(model),
            )
            optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
            tracker = MemTracker()
            tracker.track_external(model, optimizer)
            if layout.context_parallel > 1:
                share_sequences(model, dist.group.WORLD)  # type: ignore[arg-type]  # of the fixture
            length = training.sequence_length // layout.context_parallel
            tokens = torch.zeros(layout.rows, length, dtype=torch.long)
            with tracker:
                kept_apart = documents_of(layout) if training.document_mask else {}
                logits = model(input_ids=tokens, use_cache=False, **kept_apart).logits.flatten(0, 1)
                loss = sum_cross_entropy(logits, tokens.flatten(), overwrite=True)
                del logits
                loss.backward()
                peak = bytes_by_kind(tracker, "peak")
                optimizer.step()
                after = bytes_by_kind(tracker, "current")
    finally:
        torch.set_default_dtype(torch.float32)
    return Traced(after["PARAM"], after["GRAD"], after["OPT"], peak["ACT"] + peak["TEMP"])


def documents_of(layout: Layout) -> dict[str, torch.Tensor]:
    length = layout.recipe.training.sequence_length
    places = torch.zeros(layout.rows, length, dtype=torch.long)
    own = slice(length // layout.context_parallel)
    return {"position_ids": places[:, own], "attention_mask": _mask_of(places, own)}


def reckoned_working(layout: Layout) -> float:
    """Without what the loss works with on a GPU: its pieces are of 8 MiB here."""
    reckoned = memory_of(layout)
    tokens = layout.recipe.training.sequence_length // layout.context_parallel
    values = layout.rows * tokens * SHAPE["vocab_size"]
    cast = reckoned.gathered if not layout.is_wrapped else 0.0
    return reckoned.activations + layout.compute_bytes * values + cast


@pytest.mark.parametrize(
    ("mode", "shape", "parallelism", "document_mask"),
    [
        ("off", {}, "full", True),
        ("selective", DEEP, "full", False),
        ("full", DEEP, "full", True),
        ("off", {}, "ddp", False),  # autocast
        ("selective", EXPERTS, "full", True),
    ],
)
def test_states_activations_and_logits_are_what_a_trace_finds(
    monkeypatch, mode, shape, parallelism, document_mask
):
    # A tracker looks at every operation, and three of four were the loss's: larger pieces.
    monkeypatch.setattr(cross_entropy, "_CPU_VALUES", PIECE_VALUES)
    layout = lay(
        shape,
        precision="bf16",
        activation_checkpointing=mode,
        parallelism=parallelism,
        document_mask=document_mask,
    )
    traced, reckoned = trace(layout), memory_of(layout)

    # Weights stand in for those that FSDP has cast to bf16: half of their size.
    part = 0.5 if parallelism == "full" else 1.0
    assert traced.parameters == part * reckoned.weights
    assert traced.gradients == part * reckoned.gradients
    # AdamW also counts its steps, in four bytes a tensor.
    assert traced.optimizer == pytest.approx(part * reckoned.optimizer, rel=1e-5)
    assert reckoned_working(layout) == pytest.approx(traced.working, rel=0.08)


@pytest.fixture
def ranks_that_are_not_there(request: pytest.FixtureRequest) -> Iterator[None]:
    """This process as the first of some."""
    dist.init_process_group("fake", rank=0, world_size=request.param, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("ranks_that_are_not_there")
@pytest.mark.parametrize("ranks_that_are_not_there", [2], indirect=True)
def test_gathered_keys_are_what_a_trace_finds(monkeypatch):
    # With a mask: without one, the kernel that GPUs have keeps less than that of CPUs.
    monkeypatch.setattr(cross_entropy, "_CPU_VALUES", PIECE_VALUES)
    split = {"context_parallel": 2, "document_mask": True}
    layout = lay({}, processes_per_node=2, precision="bf16", **split)

    assert reckoned_working(layout) == pytest.approx(trace(layout).working, rel=0.08)


# Torch warns of what its own compiler does.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_a_compiled_block_keeps_what_the_partitioner_saves():
    # The partitioner of inductor without its code generation, which takes a C++ compiler.
    layout = lay(
        {"hidden_size": 256, "ffn_size": 704, "heads": 4, "kv_heads": 1, "layers": 2},
        parallelism="ddp",
        precision="bf16",
        compile=True,
        global_batch_size=1,
        micro_batch_size=1,
        sequence_length=512,
    )
    model, blocks, _ = spread(layout, compile_backend="aot_eager_decomp_partition")
    weights = {parameter.shape for parameter in model.parameters()}
    weights |= {shape[::-1] for shape in weights}

    hidden = torch.zeros(1, 512, 256, requires_grad=True)
    rotary = (torch.zeros(1, 512, 64), torch.zeros(1, 512, 64))
    with (
        torch.autocast("cpu", torch.bfloat16),
        kept_for_backward(lambda tensor: tensor.shape in weights) as kept,
    ):
        blocks[0](hidden * 1.0, position_embeddings=rotary)

    e = layout.compute_bytes
    reckoned = memory._kept_by_block(
        layout.recipe.model, compiled=True, e=e, stream=4, masked=0, busiest=1.0
    )
    assert reckoned * 512 == pytest.approx(sum(kept.values()), rel=0.1)


@pytest.mark.usefixtures("ranks_that_are_not_there")
@pytest.mark.parametrize("ranks_that_are_not_there", [16], indirect=True)
def test_gathered_blocks_are_what_fsdp_holds(monkeypatch: pytest.MonkeyPatch):
    # Exchanged in each micro-batch, as models of real size are.
    for module in (memory, sharding):
        monkeypatch.setattr(module, "defers_gradient_exchange", lambda *_: False)
    layout = lay(
        {"hidden_size": 512, "ffn_size": 2048, "layers": 4, "vocab_size": 4000},
        nodes=2,
        processes_per_node=8,
        precision="bf16",
        activation_checkpointing="full",
        global_batch_size=16,
        micro_batch_size=1,
        sequence_length=64,
    )
    model, _, parallel = spread(layout)
    tracker = FSDPMemTracker(model)  # type: ignore[arg-type]  # fully_shard has made it one
    tracker.track_inputs(())
    tokens = torch.zeros(1, 64, dtype=torch.long)
    with tracker, parallel.micro_batch(last=True):
        logits = model(input_ids=tokens, use_cache=False).logits.flatten(0, 1)
        sum_cross_entropy(logits, tokens.flatten(), overwrite=True).backward()
    peak = bytes_by_kind(tracker, "peak")
    reckoned: Memory = memory_of(layout)

    gathered = sum(
        peak[kind]
        for kind in ("UNSHARDED_PARAM", "UNSHARDED_GRAD", "ALL_GATHER", "REDUCE_SCATTER", "TEMP")
    )
    assert peak["SHARDED_PARAM"] == pytest.approx(reckoned.weights, rel=0.01)
    assert reckoned.gathered == pytest.approx(gathered, rel=0.15)


def test_loss_works_with_two_pieces_of_the_logits():
    assert memory._LOSS_WORKING_BYTES == 2 * 4 * cross_entropy._GPU_VALUES


@pytest.mark.parametrize("name", ["resnet50", "efficientnet-b7"])
@pytest.mark.parametrize("preset", [{}, {"preset": "smoke"}], ids=["full", "smoke"])
def test_images_keep_what_a_trace_finds(name, preset):
    from training.models.image import build_model as build_image_model

    recipe = get_recipe(name).with_overrides(preset)
    size = recipe.training.image_size
    model = build_image_model(recipe.model, image_size=size)
    with FakeTensorMode():
        give_memory(model)
        own = {tensor.untyped_storage()._cdata for tensor in model.state_dict().values()}
        with kept_for_backward(lambda tensor: tensor.untyped_storage()._cdata in own) as kept:
            model.train()(pixel_values=torch.zeros(2, 3, size, size))
    elements = sum(kept.values()) / 4 / 2

    assert recipe.model.kept_elements_per_pixel * size**2 == pytest.approx(elements, rel=0.1)
