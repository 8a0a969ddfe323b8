"""The README.md of a trained model, and the names of what lies beside its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stationmaster.domain.catalogue.framework_training import (
    MOCK,
    FrameworkTraining,
    MegatronTraining,
)
from stationmaster.domain.catalogue.hub import is_repository
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import FRAMEWORK_NAMES, Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.progress_lines import EvaluatedLine
from stationmaster.domain.restoring import model_directory
from training.repositories import RANDOM, SAMPLE

NOTE: Final = "stationmaster.json"
"""A file that names the checkpoint of which the model was made, so that it is made once."""
CARD: Final = "README.md"
_CLASSES: Final = {
    "text-generation": "AutoModelForCausalLM",
    "image-classification": "AutoModelForImageClassification",
}


def model_card(
    recipe: Recipe,
    *,
    loss_nats: float | None,
    evaluation: EvaluatedLine | None,
    dtype: str = "float32",
    step: int | None = None,
) -> str:
    """Write the README.md of a trained model: what it is, what it has learned from, how to load it.

    `step` is that of the checkpoint that it was made of, where a framework has written that.
    """
    training = recipe.training
    is_language = isinstance(recipe.model, LanguageModel)
    pipeline = "text-generation" if is_language else "image-classification"
    head = ["library_name: transformers", f"pipeline_tag: {pipeline}"]
    start = "from new weights"
    weights = getattr(training, "weights", RANDOM)
    if weights == SAMPLE:
        start = "from seeded sample weights, which nobody has trained"
    elif weights != RANDOM:
        start = f"from the weights of `{weights}`"
        if weights.endswith(f"/{model_directory()}"):
            start = "from the trained model of an earlier run"
        if is_repository(weights) and not Path(weights).is_dir():
            head.append(f"base_model: {weights}")
    with_framework = "" if recipe.uses_own_trainer else f" and {FRAMEWORK_NAMES[recipe.framework]}"
    facts = [
        f"Trained by Stationmaster{with_framework} with the recipe `{recipe.name}`, {start}.",
        "",
        f"- data: `{training.dataset}`",
        f"- steps: {training.steps:,}, of {training.global_batch_size:,} samples each",
    ]
    if step is not None:
        facts.append(f"- made of the checkpoint of step {step:,}")
    if isinstance(training, LanguageTraining | FrameworkTraining):
        facts.append(f"- sequence length: {training.sequence_length:,} tokens")
    facts.append(f"- seed: {training.seed}")
    if loss_nats is not None:
        facts.append(f"- training loss of the last step: {loss_nats:.4f} nats")
    if evaluation is not None:
        facts.append(f"- loss on held-out data: {evaluation.loss_nats:.4f} nats")
        for name in ("perplexity", "top1", "top5"):
            figure = getattr(evaluation, name)
            if figure is not None:
                facts.append(f"- {name} on held-out data: {figure:.4f}")
    loader = _CLASSES[pipeline]
    loading = [f"from transformers import {loader}", ""]
    if is_language:
        loading = [
            f"from transformers import {loader}, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("THIS_DIRECTORY")',
        ]
    is_mock = isinstance(training, MegatronTraining) and training.dataset == MOCK
    if is_mock:
        facts.append("- it has learned from random tokens, and comes without a tokenizer")
        loading = [f"from transformers import {loader}", ""]
    loading.append(f'model = {loader}.from_pretrained("THIS_DIRECTORY")')
    was = "as they were trained" if recipe.uses_own_trainer else "as the framework has saved them"
    lines = [
        *("---", *head, "---", "", f"# {recipe.name}", "", *facts, "", "## How to load it", ""),
        *("```python", *loading, "```", ""),
        f"Weights are {dtype}, {was}.",
    ]
    return "\n".join(lines) + "\n"
