"""Documents that share a sequence, kept apart: the same losses and gradients as one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from data_sets import language_training, pack_ids
from hub_lone import lone_task, small
from transformers import GPT2Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from stationmaster.domain.planning.recipe_lookup import get_recipe
from training.data.packed import PackedSource, apart
from training.models.language import LanguageTask
from training.task import IGNORED_LABEL, Batch

END = 63
GPT2 = GPT2Config(
    n_layer=2, n_embd=32, n_head=4, n_positions=128, vocab_size=64,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip


def task_of(family: str, tmp_path: Path) -> LanguageTask:
    tiny = get_recipe("tiny-llama").with_overrides({"document_mask": "true"})
    experts = {"experts": 4, "experts_per_token": 2} if family == "mixtral" else {}
    shape = small("mixtral" if experts else "llama", **experts)
    task = lone_task(tiny.model_copy(update={"model": shape}), tmp_path)
    if family == "gpt2":  # one that transformers builds by itself
        torch.manual_seed(1)
        task.model = AutoModelForCausalLM.from_config(GPT2)
        task._shape = task._shape.model_copy(update={"family": "hub"})
    return task


def document(length: int, *, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randint(0, END, (length,), generator=generator), torch.tensor([END])])


def batch_of(*documents: torch.Tensor, masked: bool) -> Batch:
    """All of them in one sequence."""
    row = torch.cat(documents).unsqueeze(0)
    batch = Batch(inputs=row[:, :-1], targets=row[:, 1:])
    return apart(batch, end_id=END if masked else None)


def learn(task: LanguageTask, *batches: Batch) -> tuple[float, torch.Tensor]:
    """The sum of their losses, and the gradients of it."""
    task.model.zero_grad()
    total = 0.0
    for batch in batches:
        forward = task.forward(task.model, batch)
        forward.loss_sum.backward()
        total += float(forward.reported_sum)
    gradients = [p.grad.flatten() for p in task.model.parameters() if p.grad is not None]
    return total, torch.cat(gradients)


@pytest.mark.parametrize("family", ["llama", "mixtral", "gpt2"])
def test_documents_of_a_sequence_are_learned_as_if_alone(tmp_path: Path, family: str) -> None:
    task = task_of(family, tmp_path)
    documents = [document(length, seed=length) for length in (11, 5, 17)]

    packed = learn(task, batch_of(*documents, masked=True))
    alone = learn(task, *(batch_of(one, masked=False) for one in documents))
    mixed = learn(task, batch_of(*documents, masked=False))

    assert packed[0] == pytest.approx(alone[0], rel=1e-5)
    torch.testing.assert_close(packed[1], alone[1], rtol=1e-4, atol=1e-5)
    assert mixed[0] != pytest.approx(alone[0], rel=1e-3)


def test_places_begin_anew_after_an_end_and_the_next_beginning_is_no_target() -> None:
    batch = apart(
        Batch(
            inputs=torch.tensor([[4, END, 5, 6, END], [END, END, 7, 8, 9]]),
            targets=torch.tensor([[END, 5, 6, END, 7], [END, 7, 8, 9, 1]]),
        ),
        end_id=END,
    )

    assert batch.positions is not None
    assert batch.positions.tolist() == [[0, 1, 0, 1, 2], [0, 0, 0, 1, 2]]
    no = IGNORED_LABEL
    assert batch.targets.tolist() == [[END, no, 6, END, no], [no, no, 8, 9, 1]]


@pytest.mark.parametrize("is_asked", [False, True])
def test_packed_source_gives_places_only_when_asked(tmp_path: Path, is_asked: bool) -> None:
    data = pack_ids(tmp_path / "packed", [n % 8 for n in range(33)], shard_tokens=100, end_id=7)
    sizes = language_training(
        sequence_length=16, global_batch_size=1, micro_batch_size=1, eval_samples=1
    )
    asked = sizes.model_copy(update={"document_mask": is_asked})
    source = PackedSource(data, asked, rank=0, world_size=1)

    for batch in (*source.micro_batches(0), *source.evaluation_batches()):
        if not is_asked:
            assert batch.positions is None
            assert batch.count_targets() == 16
        else:
            assert batch.positions is not None
            assert batch.positions.tolist() == [[*range(8), *range(8)]]
            assert batch.count_targets() == 14
