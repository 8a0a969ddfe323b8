"""A few texts that a trained language model continues, for people to read at its end.

The model is read from its directory, on the CPU, as whoever uses it will read it: the ranks' GPUs
are full of the training state.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from stationmaster.domain.progress_lines import Sample
from training.task import IGNORED_LABEL, Batch

# Where every token is learned, a text begins with this many.
PROMPT_TOKENS: Final = 12
MAX_PROMPT_TOKENS: Final = 256
NEW_TOKENS: Final = 40
_MAX_TIME_S: Final = 60.0
# In float32 a larger one takes minutes of reading, while all GPUs wait.
MOST_PARAMETERS: Final = 10_000_000_000

logger = logging.getLogger(__name__)


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
