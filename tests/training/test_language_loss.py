"""The chunked cross-entropy: value and gradient against torch's own, memory, and its traps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from data_sets import language_training, pack_ids
from hub_lone import lone_task, small
from torch.nn import functional
from transformers import GPT2Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from stationmaster.domain.planning.recipe_lookup import get_recipe
from training.data.packed import PackedSource, apart
from training.models.cross_entropy import sum_cross_entropy
from training.models.language import LanguageTask
from training.task import IGNORED_LABEL, Batch

# 300 x 4096 values are read in five parts, the last one shorter.
_ROWS, _VOCABULARY = 299, 4096


END = 63
GPT2 = GPT2Config(
    n_layer=2, n_embd=32, n_head=4, n_positions=128, vocab_size=64,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits = 4.0 * torch.randn(_ROWS, _VOCABULARY, generator=generator)
    targets = torch.randint(0, _VOCABULARY, (_ROWS,), generator=generator)
    targets[::7] = IGNORED_LABEL
    logits[3, targets[3]] = 60.0  # so sure that the gradient nearly cancels
    return logits, targets


def reference(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.double().requires_grad_()
    loss = functional.cross_entropy(logits, targets, ignore_index=IGNORED_LABEL, reduction="sum")
    (loss / 7.0).backward()
    assert logits.grad is not None
    return loss.detach(), logits.grad


def ours(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    overwrite: bool = True,
    compile_backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = logits.clone().requires_grad_()
    loss = sum_cross_entropy(
        leaf * 1.0, targets, overwrite=overwrite, compile_backend=compile_backend
    )
    (loss / 7.0).backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("overwrite", [True, False])
def test_sum_cross_entropy_equals_torchs(overwrite: bool) -> None:
    logits, targets = sample()

    loss, gradient = ours(logits, targets, overwrite=overwrite)

    expected_loss, expected_gradient = reference(logits, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-7)
    assert torch.equal(gradient[::7], torch.zeros_like(gradient[::7]))


def test_sum_cross_entropy_bfloat16_rounds_only_its_result() -> None:
    logits, targets = sample()
    logits = logits.bfloat16()

    loss, gradient = ours(logits, targets)

    expected_loss, expected_gradient = reference(logits.float(), targets)
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=2**-8, atol=1e-7)


# The compiler's own imports use what torch has deprecated.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_sum_cross_entropy_compiled_equals_the_plain_one(backend: str) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor on a CPU needs g++")
    logits, targets = sample()
    logits = logits.bfloat16()

    loss, gradient = ours(logits, targets, compile_backend=backend)

    plain_loss, plain_gradient = ours(logits, targets)
    torch.testing.assert_close(loss, plain_loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, plain_gradient, rtol=2**-7, atol=1e-6)


def test_sum_cross_entropy_without_any_target_is_zero() -> None:
    logits, targets = sample()

    loss, gradient = ours(logits, torch.full_like(targets, IGNORED_LABEL))

    assert loss.item() == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("overwrite", [True, False])
def test_sum_cross_entropy_takes_the_memory_of_the_logits_only_where_it_may(
    overwrite: bool,
) -> None:
    logits, targets = sample()
    logits.requires_grad_()
    product = logits * 1.0

    sum_cross_entropy(product, targets, overwrite=overwrite).backward()

    assert torch.equal(product.detach(), logits.grad if overwrite else logits.detach())


def test_sum_cross_entropy_overwriting_what_autograd_needs_is_refused() -> None:
    logits, targets = sample()
    logits.requires_grad_()

    loss = sum_cross_entropy(torch.tanh(logits), targets, overwrite=True)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_sum_cross_entropy_evaluation_leaves_the_logits() -> None:
    logits, targets = sample()
    before = logits.clone()

    with torch.no_grad():
        loss = sum_cross_entropy(logits, targets, overwrite=True)

    assert not loss.requires_grad
    assert torch.equal(logits, before)


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
