"""The trained model in the output directory, as Hugging Face's libraries read it.

Rank 0 writes it when the last step is taken and its checkpoint complete, from that checkpoint with
`training.export`; the others wait, so that no pod is done before the model is there. It needs 4
bytes a parameter of host memory on rank 0.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.progress_lines import EvaluatedLine, Sample
from stationmaster.domain.results import MODEL, SAMPLES_FILE
from training.agreement import from_rank_0
from training.export import write_model
from training.manifest import checkpoint_path
from training.model_card import CARD, NOTE, model_card
from training.parallel import Ranks
from training.samples import MOST_PARAMETERS, generate, prompts_of
from training.task import Batch

logger = logging.getLogger(__name__)


class FinalModel:
    """Writes the model of one run configuration. All ranks make theirs, and call it together."""

    def __init__(
        self, output_dir: Path, *, checkpoints: Path, recipe: Recipe, ranks: Ranks
    ) -> None:
        """`checkpoints` is the directory of this configuration's checkpoints."""
        self._directory = output_dir / MODEL
        self._checkpoints = checkpoints
        self._recipe = recipe
        self._ranks = ranks

    def write(
        self, step: int, *, loss_nats: float | None, evaluation: EvaluatedLine | None
    ) -> Path:
        """Write the weights of the complete checkpoint of `step`; return where they are.

        A repetition does nothing. `loss_nats` is of the last step, None when an earlier start took
        it.

        Raises:
            OSError: the storage fails, on every rank.
            BadParameter: the checkpoint is not of this model.
        """
        card = partial(model_card, self._recipe, loss_nats=loss_nats, evaluation=evaluation)
        from_rank_0(lambda: self._write(step, card()), self._ranks)
        return self._directory

    def sample(self, batches: Sequence[Batch], *, number: int) -> list[Sample]:
        """Let a written language model continue texts of a step; nothing for other models.

        Samples that fail do not make the model worse: the log says why.
        """
        return from_rank_0(lambda: self._sample(batches, number), self._ranks)

    def _sample(self, batches: Sequence[Batch], number: int) -> list[Sample]:
        model = self._recipe.model
        if not isinstance(model, LanguageModel) or model.num_parameters > MOST_PARAMETERS:
            return []
        try:
            samples = generate(self._directory, prompts_of(batches, number=number))
            lines = "".join(f"{each.model_dump_json()}\n" for each in samples)
            self._directory.with_name(SAMPLES_FILE).write_text(lines, encoding="utf-8")
        except (OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as exc:
            logger.warning("no samples were generated: %s", exc)
            return []
        return samples

    def _write(self, step: int, card: str) -> None:
        path = checkpoint_path(self._checkpoints, step)
        note = json.dumps({"step": step, "checkpoint": f"{path.parent.name}/{path.name}"}) + "\n"
        try:
            if (self._directory / NOTE).read_text(encoding="utf-8") == note:
                return
        except FileNotFoundError:
            pass
        write_model(
            self._checkpoints,
            step,
            output_dir=self._directory,
            texts={CARD: card, NOTE: note},
        )
