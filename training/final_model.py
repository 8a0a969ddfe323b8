"""The trained model in the output directory, as Hugging Face's libraries read it.

Rank 0 writes it when the last step is taken and its checkpoint complete, from that checkpoint with
`training.export`; the others wait, so that no pod is done before the model is there. It needs 4
bytes a parameter of host memory on rank 0. The texts for people to read at the end are made of its
directory, on the CPU, as whoever uses it will read it: the GPUs are full of the training state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.progress_lines import EvaluatedLine, Sample
from stationmaster.domain.results import MODEL, SAMPLES_FILE
from training.agreement import from_rank_0
from training.export import write_model
from training.manifest import checkpoint_path
from training.model_card import CARD, NOTE, model_card
from training.parallel import Ranks
from training.task import IGNORED_LABEL, Batch

logger = logging.getLogger(__name__)


# Where every token is learned, a text begins with this many.
PROMPT_TOKENS: Final = 12
MAX_PROMPT_TOKENS: Final = 256
NEW_TOKENS: Final = 40
_MAX_TIME_S: Final = 60.0
# In float32 a larger one takes minutes of reading, while all GPUs wait.
MOST_PARAMETERS: Final = 10_000_000_000


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


def prompts_of(batches: Sequence[Batch], *, number: int) -> list[list[int]]:
    """Return the beginnings of a step's sequences, up to the first response that is learned."""
    prompts: list[list[int]] = []
    for batch in batches:
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
            learned = (targets != IGNORED_LABEL).nonzero()
            if len(learned) and len(prompts) < number:
                length = int(learned[0]) + 1
                length = PROMPT_TOKENS if length == 1 else min(length, MAX_PROMPT_TOKENS)
                prompts.append(inputs[:length].tolist())
    return prompts


def generate(model_directory: Path, prompts: Sequence[Sequence[int]]) -> list[Sample]:
    """Let the model write after each prompt; the same for the same model and prompts.

    Raises:
        OSError, ValueError: the directory has no model, or no tokenizer.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    if not prompts:
        return []
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    model = AutoModelForCausalLM.from_pretrained(model_directory).eval()
    end = tokenizer.eos_token_id
    padding = end if end is not None else 0
    how = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        max_time=_MAX_TIME_S,
        do_sample=True,
        temperature=0.8,
        top_k=50,
        eos_token_id=end,
        pad_token_id=padding,
    )
    # All at once: each begins where the longest one ends.
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), padding)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(list(prompt))
        mask[row, longest - len(prompt) :] = 1
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        written = model.generate(ids, attention_mask=mask, generation_config=how)
    return [
        Sample(
            prompt=tokenizer.decode(list(prompt)),
            text=tokenizer.decode(written[row, longest:], skip_special_tokens=True),
        )
        for row, prompt in enumerate(prompts)
    ]
