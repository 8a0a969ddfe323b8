"""Proof, when a run starts, that a model of the hub is trained as transformers computes it.

Rank 0 does it before anything is sharded. The model's own configuration, made small, goes through
what the run will do: published weights are written, loaded, learned from, recomputed, kept apart by
documents where that is asked for, and exported; losses and gradients are compared with those of
transformers alone. It takes seconds on a CPU, in fp32, whatever the family, so there is no table of
families that work, which each release of transformers would date. A family of which no small model
can be made is refused. GPU kernels, bf16 and sharding are not part of the proof.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn import functional
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.errors import BadParameter, StationmasterError
from training.blocks import prepare_blocks
from training.data.packed import apart
from training.export import TRANSFORMERS_ERRORS, write_model
from training.manifest import checkpoint_path
from training.models.hub import describe_model, model_config
from training.models.language import LanguageTask
from training.models.tiny_config import VOCABULARY, WAYS, tiny_config
from training.parallel import Ranks
from training.task import Batch, BatchSource

_MOST_PARAMETERS: Final = 200_000_000
_SEED: Final = 11
_END: Final = 2
# The lengths of documents in each of two sequences, longer together than a small sliding window.
_DOCUMENTS: Final = ((11, 5, 17), (7, 15, 11))
# Sums differ by less, and in another order by less than the second; what is wrong, by more.
_SAME_SUMS: Final = 1e-4
_OTHER_ORDER: Final = 1e-3
Gradients = Mapping[str, Tensor]

logger = logging.getLogger(__name__)


def prove(recipe: Recipe, *, source: BatchSource, ranks: Ranks, cache_dir: Path) -> None:
    """Try the recipe's family small, the way the run will go; nothing for shapes of the catalogue.

    Raises:
        BadParameter: what is learned, recomputed, masked or exported is not what it should be.
    """
    if getattr(recipe.model, "family", "") != "hub":
        return
    began = time.perf_counter()
    with _aside(), TemporaryDirectory(prefix="stationmaster-proof-") as name:
        directory = Path(name)
        expected = _publish(recipe, directory / "published", cache_dir=cache_dir)
        assert isinstance(recipe.training, LanguageTraining)
        weights = {"weights": str(directory / "published")}
        small = recipe.model_copy(update={"training": recipe.training.model_copy(update=weights)})
        lone = replace(
            ranks, rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"),
            tensor_parallel=1, context_parallel=1, context_group=None,
        )  # fmt: skip
        try:
            task = LanguageTask(small, source, ranks=lone, cache_dir=cache_dir)
            task.initialise(device=lone.device)
            _compare(task, expected, directory, lone)
        except TRANSFORMERS_ERRORS as exc:
            raise _failed(
                recipe, f"it fails with {_in_short(exc)}; use other keys or another model"
            ) from exc
        except StationmasterError as exc:
            raise _failed(recipe, str(exc)) from exc
    logger.info("%s is proven by a small model in %.1f s", recipe.name, time.perf_counter() - began)


def _publish(recipe: Recipe, directory: Path, *, cache_dir: Path) -> Gradients:
    """Write the smallest weights of the family that can be tried; what transformers learns of them.

    Raises:
        BadParameter: there are none.
    """
    config, problems = model_config(recipe, cache_dir=cache_dir), []
    for way in WAYS:
        try:
            _write_weights(tiny_config(config, way), directory)
            return _learn_plainly(_read(directory), _batch())
        except TRANSFORMERS_ERRORS as exc:
            problems.append(_in_short(exc))
    raise _failed(
        recipe,
        f"transformers builds none that could be compared ({problems[0]}); use another model",
    )


def _write_weights(config: PretrainedConfig, directory: Path) -> None:
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(config)
    if (size := sum(parameter.numel() for parameter in shape.parameters())) > _MOST_PARAMETERS:
        raise ValueError(f"the smallest that was found has {size} parameters")
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # nothing may pass for an initial value
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    model.save_pretrained(directory)


def _read(directory: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model.eval()


def _compare(task: LanguageTask, expected: Gradients, directory: Path, ranks: Ranks) -> None:
    """Compare each part of what the run will do, by the gradients that come out of it."""
    training, batch = task.training, _batch()
    _check(_learn(task, batch), expected, "what is learned is not what transformers computes; use "
           "another model")  # fmt: skip
    if training.document_mask:
        documents = [_batch_of(document) for row in _rows() for document in row]
        batch = apart(batch, end_id=_END)
        _check(_learn(task, batch), _learn(task, *documents), "documents that share a sequence see "
               "each other in spite of document_mask=true; leave it out", _OTHER_ORDER)  # fmt: skip
    _export(task, directory, ranks)
    again = _learn_plainly(_read(directory / "model"), _batch())
    _check(again, expected, "the exported model computes something else; use another model")
    mode = training.activation_checkpointing
    if mode == "off":
        return
    plain = _learn(task, batch)
    eager = training.model_copy(update={"compile": False})
    prepare_blocks(task.blocks, eager, compile_backend="eager")
    advice = f"activation_checkpointing={mode}; use {'full or ' * (mode == 'selective')}off"
    try:
        again = _learn(task, batch)
    except TRANSFORMERS_ERRORS as exc:
        raise BadParameter(f"it fails with {advice} ({_in_short(exc)})") from exc
    _check(again, plain, f"gradients are others with {advice}")


def _export(task: LanguageTask, directory: Path, ranks: Ranks) -> None:
    """Export a checkpoint of the small model, as the run would."""
    run = directory / "run"
    describe_model(run, model=task.model, tokenizer=None, ranks=ranks)
    state = {"model": get_model_state_dict(task.model)}
    save(state, checkpoint_id=checkpoint_path(run, 1), no_dist=True)
    write_model(run, 1, output_dir=directory / "model")


def _check(
    ours: Gradients, theirs: Gradients, sentence: str, tolerance: float = _SAME_SUMS
) -> None:
    whole = float(torch.stack([one.norm() for one in theirs.values()]).norm())
    for name in sorted(theirs.keys() | ours.keys()):
        if name not in ours or name not in theirs:
            raise BadParameter(f"{sentence} ({name} has no gradient)")
        size = float(theirs[name].norm()) + 0.01 * whole
        difference = float((ours[name] - theirs[name]).norm()) / size
        if not difference <= tolerance:
            raise BadParameter(f"{sentence} ({name} by {difference:.2g})")


def _learn(task: LanguageTask, *batches: Batch) -> Gradients:
    task.model.zero_grad()
    for batch in batches:
        task.forward(task.model, batch).loss_sum.backward()
    return _gradients(task.model)


def _learn_plainly(model: PreTrainedModel, batch: Batch) -> Gradients:
    logits = model(input_ids=batch.inputs, use_cache=False).logits
    functional.cross_entropy(
        logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="sum"
    ).backward()
    gradients = _gradients(model)
    if not all(bool(gradient.isfinite().all()) for gradient in gradients.values()):
        raise ValueError("gradients of the small model are not finite")
    return gradients


def _gradients(model: PreTrainedModel) -> Gradients:
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _rows() -> list[list[Tensor]]:
    """Make documents, each with its end; the same on every call."""
    drawn = torch.Generator().manual_seed(_SEED)
    end = torch.tensor([_END])
    return [
        [torch.cat([torch.randint(_END + 1, VOCABULARY, (n,), generator=drawn), end]) for n in row]
        for row in _DOCUMENTS
    ]


def _batch_of(*rows: Tensor) -> Batch:
    tokens = torch.stack(rows)
    return Batch(inputs=tokens[:, :-1], targets=tokens[:, 1:])


def _batch() -> Batch:
    return _batch_of(*(torch.cat(row) for row in _rows()))


def _failed(recipe: Recipe, why: str) -> BadParameter:
    return BadParameter(f"{recipe.name}, tried as a small model on this machine: {why}")


def _in_short(exc: Exception) -> str:
    return f"{type(exc).__name__}: {' '.join(str(exc).split())[:200]}"


@contextmanager
def _aside() -> Iterator[None]:
    """Leave the run's random numbers alone, silence transformers, and take one core.

    Threads would cost such small products more than they save, above all beside other ranks.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(_SEED)
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        torch.set_num_threads(threads)
