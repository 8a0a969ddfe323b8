"""python -m training.frameworks RECIPE [KEY=VALUE ...] --output-dir DIR

Makes a model that transformers loads of what a run of another framework has saved: the newest
checkpoint below DIR/output/checkpoints becomes DIR/model, with its configuration, tokenizer and
model card. RECIPE and its keys are those that the run was started with. No checkpoint is changed,
and DIR/model appears when it is whole; it may be killed and started again, and a model that was
made of the newest checkpoint is left as it is. No GPU is needed, and host memory of about 8 GB.
HF_ENDPOINT and HF_TOKEN are honoured. Where it fails, the last line is one sentence.

Exit codes: 0 made, 1 not made but worth another try, 2 a bad setting, 3 the checkpoint cannot be
read as a model, or its tokenizer may not be had.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stationmaster.domain.catalogue.framework_training import (
    MOCK,
    FrameworkTraining,
    MegatronTraining,
    TitanTraining,
)
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.checkpoints import DIRECTORY
from stationmaster.domain.errors import BadParameter, StationmasterError, UserError
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.full_disk import full_disk
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.results import MODEL, OUTPUT
from training.config import cache_dir_from
from training.data.tokenizers import prepare_tokenizer
from training.frameworks import megatron, torchtitan
from training.frameworks.published import Weights, write_published
from training.model_card import CARD, NOTE, model_card
from training.repositories import fetch_repository


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Make the model, and turn every ending into a last line and an exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    arguments = _parser().parse_args(argv)
    try:
        recipe = _recipe(arguments.recipe, arguments.overrides)
    except UserError as error:
        return _fail(error, EXIT_MISUNDERSTOOD)
    try:
        made = export(
            recipe,
            output_dir=arguments.output_dir,
            tokenizer=arguments.tokenizer,
            loss_nats=arguments.loss,
            cache_dir=cache_dir_from(environ),
        )
    except UserError as error:
        return _fail(error, EXIT_REFUSED)
    except (StationmasterError, OSError) as error:
        return _fail(full_disk(error) or error, EXIT_NOT_DONE)
    sys.stdout.write(f"{made}\n")
    return 0


def export(
    recipe: Recipe,
    *,
    output_dir: Path,
    tokenizer: str | None = None,
    loss_nats: float | None = None,
    cache_dir: Path,
) -> Path:
    """Make the model of the newest checkpoint, and return its place.

    Args:
        recipe: of a framework, as the run was started with it.
        output_dir: of the run.
        tokenizer: where the one that the data was made with is; None for what the recipe names.
        loss_nats: of the last step, for the model card.
        cache_dir: where a tokenizer of the hub is kept.

    Raises:
        UserError: there is no such checkpoint, it is damaged or of another model, or the tokenizer
            may not be had.
        PermanentError: the hub does not answer.
        OSError: the file system does not answer, or is full.
    """
    model, checkpoints = recipe.model, output_dir / OUTPUT / DIRECTORY
    assert isinstance(model, LanguageModel)
    is_titan = isinstance(recipe.training, TitanTraining)
    newest = torchtitan.newest_model if is_titan else megatron.newest_checkpoint
    step, path = newest(checkpoints)
    target = output_dir / MODEL
    note = json.dumps({"step": step, "checkpoint": path.relative_to(output_dir).as_posix()}) + "\n"
    try:
        if (target / NOTE).read_text(encoding="utf-8") == note:
            return target
    except FileNotFoundError:
        pass
    weights: Weights = (
        torchtitan.TitanWeights(path) if is_titan else megatron.MegatronWeights(path, model)
    )

    def texts(dtype: str) -> dict[str, str]:
        card = model_card(recipe, loss_nats=loss_nats, evaluation=None, dtype=dtype, step=step)
        return {CARD: card, NOTE: note}

    write_published(
        model,
        weights,
        output_dir=target,
        tokenizer=_tokenizer(recipe, tokenizer, cache_dir=cache_dir),
        texts=texts,
    )
    return target


def _tokenizer(recipe: Recipe, given: str | None, *, cache_dir: Path) -> Path | None:
    """Find the tokenizer.json that the run's data was made with; None where there was none."""
    training, model = recipe.training, recipe.model
    assert isinstance(model, LanguageModel)
    if isinstance(training, MegatronTraining) and training.dataset == MOCK:
        return None
    named = given if given is not None else str(training.tokenizer)  # type: ignore[union-attr]
    if isinstance(training, TitanTraining) and given is None:
        repository, commit = training.tokenizer_parts
        named = str(
            fetch_repository(repository, cache_dir=cache_dir, files="tokenizer", revision=commit)
        )
    return prepare_tokenizer(
        named, vocab_size=model.vocab_size, cache_dir=cache_dir, texts=lambda: ()
    ).path


def _recipe(name: str, words: Sequence[str]) -> Recipe:
    recipe = get_recipe(name)
    if not isinstance(recipe.training, FrameworkTraining):
        raise BadParameter(
            f"recipe {recipe.name} is trained by the product's own trainer, whose checkpoints "
            "python -m training.export reads"
        )
    pairs = [word.partition("=") for word in words]
    wrong = [word for word, (_, equals, _) in zip(words, pairs, strict=True) if not equals]
    if wrong:
        raise BadParameter(f'"{wrong[0]}" is not a key=value pair; write e.g. steps=100')
    return recipe.with_overrides({key: value for key, _, value in pairs})


def _fail(error: Exception, code: int) -> int:
    sys.stdout.write(" ".join(str(error).split()) + "\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.frameworks",
        description="Make a model that transformers loads of another framework's checkpoint.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="the recipe of the run")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="the keys of the run")
    parser.add_argument("--output-dir", type=Path, required=True, help="of the run")
    parser.add_argument("--tokenizer", help="where it is, if not where the recipe says")
    parser.add_argument("--loss", type=float, help="of the last step, for the model card")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
