"""Write a checkpoint of the trainer in the published form of Hugging Face.

    python -m training.export OUTPUT_DIR --output-dir DIR

OUTPUT_DIR is what a run was given as --output-dir, or one run's directory in its checkpoints/. The
newest complete checkpoint is read, by one process, without torchrun and for any number of ranks
that wrote it, in host memory of 4 bytes a parameter. DIR, which must not exist, then holds
config.json, generation_config.json, the tokenizer and safetensors in files of at most 5 GB:
AutoModelForCausalLM.from_pretrained(DIR) reads it, and so does a recipe with weights=DIR.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from stationmaster.domain.checkpoints import DESCRIPTION, Manifest
from stationmaster.domain.errors import BadParameter, PermanentError, StationmasterError
from stationmaster.domain.full_disk import full_disk
from training.data.tokenizers import copy_tokenizer
from training.files import whole_directory
from training.manifest import (
    checkpoint_path,
    complete_steps,
    first_damage,
    read_manifest,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_MAX_FILE: Final = "5GB"

TRANSFORMERS_ERRORS: Final = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError,
    RuntimeError, StrictDataclassError, TypeError, ValueError,
)  # fmt: skip
"""The errors of transformers' code where a configuration does not fit it."""

logger = logging.getLogger("training.export")


def main(argv: Sequence[str]) -> int:
    """Export, and turn an error into one sentence and exit code 1."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    arguments = _parser().parse_args(argv)
    try:
        written = export(arguments.checkpoints, output_dir=arguments.output_dir)
    except (StationmasterError, OSError) as error:
        sys.stderr.write(f"{full_disk(error, directory=arguments.output_dir) or error}\n")
        return 1
    sys.stdout.write(f"{written}\n")
    return 0


def export(checkpoints: Path, *, output_dir: Path) -> Path:
    """Write the newest complete checkpoint to `output_dir`; all of it or nothing.

    Raises:
        BadParameter: there is no complete checkpoint, or `output_dir` exists.
    """
    run = _run_directory(checkpoints)
    if output_dir.exists():
        raise BadParameter(
            f"--output-dir {output_dir} exists; give a directory that does not, so that nothing is "
            "overwritten"
        )
    write_model(run, _newest_step(run), output_dir=output_dir)
    return output_dir


def write_model(
    run: Path, step: int, *, output_dir: Path, texts: Mapping[str, str] | None = None
) -> None:
    """Write the weights of one complete checkpoint; all of it or nothing.

    What `output_dir` held before is replaced. The checkpoint's files are not checked again.

    Args:
        run: the directory of the run's checkpoints.
        step: of a complete checkpoint.
        output_dir: where to write.
        texts: further files, by name.

    Raises:
        BadParameter: the checkpoint lacks a weight that the model needs.
        PermanentError: the disk is full, or the file system does not take the weights.
    """
    logger.info("reading step %d of %s", step, run)
    model, state = _read(run, step)
    with whole_directory(output_dir) as building:
        try:
            model.save_pretrained(building, state_dict=state, max_shard_size=_MAX_FILE)
        except SafetensorError as exc:
            full = full_disk(exc, directory=output_dir)
            raise full or PermanentError(f"the model cannot be written: {exc}") from exc
        if (tokenizer := run / DESCRIPTION / "tokenizer.json").exists():
            copy_tokenizer(tokenizer, building)
        if (generation := run / DESCRIPTION / "generation_config.json").exists():
            shutil.copyfile(generation, building / generation.name)
        for name, text in (texts or {}).items():
            (building / name).write_text(text, encoding="utf-8")


def described_model(directory: Path) -> PreTrainedModel:
    """Build the model, without memory, that a description beside checkpoints is of.

    Raises:
        BadParameter: transformers does not build it from its config.json.
    """
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
        # The class that the description names, so that image classifiers are exported like language
        # models.
        architecture = getattr(transformers, config.architectures[0])
        with torch.device("meta"):
            model: PreTrainedModel = architecture(config)
    except TRANSFORMERS_ERRORS as exc:
        reason = " ".join(str(exc).split())[:300]
        raise BadParameter(
            f"{directory / 'config.json'} cannot be exported: transformers does not build it "
            f"({type(exc).__name__}: {reason}); use the tokenizer that the model was published "
            "with, or another model"
        ) from exc
    return model


def _run_directory(path: Path) -> Path:
    """Find the directory with one run's checkpoints, from it or from the run's output."""
    inside = path / "checkpoints"
    runs = sorted(found.parent for found in inside.glob(f"*/{DESCRIPTION}"))
    if (path / DESCRIPTION).is_dir():
        return path
    if len(runs) == 1:
        return runs[0]
    if runs:
        names = ", ".join(run.name for run in runs)
        raise BadParameter(
            f"{inside} holds checkpoints of {len(runs)} configurations: {names}; give the "
            "directory of one of them"
        )
    raise BadParameter(
        f"{path} holds no checkpoints that can be exported; expected the --output-dir of a run "
        "that has begun, or a directory in its checkpoints/"
    )


def _newest_step(run: Path) -> int:
    """Return the newest complete step whose files are as written."""
    complete = complete_steps(run)
    if not complete:
        raise BadParameter(f"{run} has no complete checkpoint yet; let the run save one first")
    damage = ""
    for candidate in sorted(complete, reverse=True):
        path = checkpoint_path(run, candidate)
        manifest = read_manifest(path)
        if not isinstance(manifest, Manifest):
            continue  # removed by the run's retention meanwhile
        try:
            damage = first_damage(path, manifest, names=manifest.files, cached=True)
        except OSError as exc:
            damage = str(exc)
        if not damage:
            return candidate
        logger.warning("step %d is passed over: %s", candidate, damage)
    raise BadParameter(f"{run} has no undamaged checkpoint to export; {damage}")


def _read(run: Path, step: int) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """Read the model, without memory, and its state dict, tied weights being one tensor."""
    import torch
    from torch.distributed.checkpoint.state_dict_loader import load

    from training.stored_index import INDEX, PlainPlanner, StoredReader, read_index

    model = described_model(run / DESCRIPTION)
    model.to(torch.float32)  # save_pretrained states the type in config.json
    path = checkpoint_path(run, step)
    stored = read_index(path / INDEX).state_dict_metadata
    wanted: dict[int, Tensor] = {}
    to_read: dict[str, Tensor] = {}
    expected = model.state_dict(keep_vars=True)
    for name, tensor in expected.items():
        if f"model.{name}" in stored and id(tensor) not in wanted:
            to_read[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
            wanted[id(tensor)] = to_read[name]
    absent = [name for name, tensor in expected.items() if id(tensor) not in wanted]
    if absent:
        raise BadParameter(f"{path} lacks {absent[0]}, which {type(model).__name__} needs")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as intended
        load(
            {"model": to_read},
            storage_reader=StoredReader(path),
            planner=PlainPlanner(),
            no_dist=True,
        )
    return model, {name: wanted[id(tensor)] for name, tensor in expected.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.export",
        description="Write a checkpoint of the trainer in the published form of Hugging Face.",
    )
    parser.add_argument(
        "checkpoints",
        metavar="OUTPUT_DIR",
        type=Path,
        help="the --output-dir of a run, or one directory in its checkpoints/",
    )
    parser.add_argument(
        "--output-dir", type=Path, required=True, metavar="DIR", help="where to write; must be new"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
