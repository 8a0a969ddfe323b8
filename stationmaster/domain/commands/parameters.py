"""Reads, checks and plans the key=value words after a recipe; it knows nothing of subcommands.

What chat clients do to quotes and dashes is undone first.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.recipes import PRESET, Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining, steps_over
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.datasets import Listing, Preparation
from stationmaster.domain.errors import BadCommand
from stationmaster.domain.keys import capacity, file_system, kept_cluster, resume_from
from stationmaster.domain.keys.eks_cluster import plan_of_guest
from stationmaster.domain.keys.key import Start, Typed
from stationmaster.domain.keys.names import (
    START_KEYS,
    refuse_mistyped_keys,
)
from stationmaster.domain.keys.questions import Questions
from stationmaster.domain.keys.registry import NOTED, Options, read_options
from stationmaster.domain.planning.cost import NODES_BACK_S, NodeSource, Shared
from stationmaster.domain.planning.plan import Plan, plan_of_program, plan_recipe

# Images by the number of classes. Source: ILSVRC 2012; what the trainer draws as `shapes`.
_IMAGES: Final = {1000: 1_281_167, 4: 256}
_BYTES_A_TOKEN: Final = 4  # assumed of English and of code, whatever the tokenizer
# Composers turn "..." into curly quotes and -- into dashes; pasting brings no-break spaces.
_TYPOGRAPHY: Final = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201a": "'",
        "\u201b": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u201e": '"',
        "\u201f": '"',
        "\u2010": "-",
        "\u2011": "-",
        "\u2012": "-",
        "\u2013": "-",
        "\u2014": "--",
        "\u2212": "-",
        "\u00a0": " ",
        "\u2007": " ",
        "\u202f": " ",
        "\u200b": "",
        "\ufeff": "",
    }
)


def read_start(
    name: str,
    words: Sequence[str],
    recipe: Recipe,
    ask: Questions,
    *,
    model: LanguageModel | None = None,
    listing: Listing | None = None,
) -> StartRun:
    """Read, check and plan the words after a recipe.

    `listing` is what S3 says of the data set, where that has been asked.

    Raises:
        UserError: one sentence that names the value and what was expected.
    """
    values = read_pairs(words)
    refuse_mistyped_keys(recipe, values)
    own = {key: value for key, value in values.items() if key == PRESET or key not in START_KEYS}
    # By the preset where one is typed; the plan refuses unknown ones.
    preset = {key: value for key, value in values.items() if key == PRESET}
    max_nodes = recipe.with_overrides(preset).max_nodes
    typed = Typed(words=values, overrides=own, max_nodes=max_nodes, ask=ask)
    start, options = read_options(typed, recipe)
    plan = _plan(start, options, listing)
    settled = {
        "instance_type": capacity.instance_of(start),
        "reservation": capacity.planned(start, plan),
    }
    return StartRun(
        name,
        options.model_copy(update=settled),
        typed.overrides,
        model,
        resolved=start.resolved,
        plan=plan,
    )


def _source(cluster: Cluster) -> NodeSource:
    """Return where the nodes of a kept cluster come from; others pay for those of theirs."""
    return NodeSource(is_prepaid=bool(cluster.spec.eks_name))


def _plan(start: Start, options: Options, listing: Listing | None) -> Plan:
    """Plan what the start would create and cost, by all of its recipe's rules; keys add notes."""
    counted, note = with_assumed_steps(start.resolved, listing)
    recipe, cluster = resume_from.planned(start, counted), kept_cluster.cluster_of(start)
    most, least = options.nodes, options.min_nodes
    if cluster is not None:
        # At most its nodes, and its machines.
        most = min(most or recipe.default_nodes, cluster.spec.nodes)
        least = least if least != most else None
        recipe = kept_cluster.fitted(recipe, cluster)
    plan = plan_recipe(
        recipe,
        nodes=most,
        min_nodes=least,
        instance_type=cluster.spec.instance_type if cluster else capacity.instance_of(start),
        shared=Shared(label=cluster.label, nodes=cluster.spec.nodes) if cluster else None,
        listing=listing,
        restored_bytes=resume_from.restored_bytes(start),
        trains=not options.program,
        source=_source(cluster) if cluster else capacity.source_of(start),
    )
    if cluster is None:
        file_system.refuse_no_room(start, plan)
    plan = plan_of_program(plan) if options.program else plan
    plan = plan_of_guest(plan, options.eks_name) if options.eks_name else plan
    if cluster is not None and cluster.spec.eks_name:
        plan = plan.model_copy(update={"price_per_hour_usd": 0.0, "estimated_cost_usd": 0.0})
    if cluster is not None and cluster.sleeps_since is not None:  # it pays from its lease on
        first, whole_s = plan.time_to_first_step_s, plan.estimated_duration_s
        later = {"time_to_first_step_s": first + NODES_BACK_S}
        plan = plan.model_copy(update=later | {"estimated_duration_s": whole_s + NODES_BACK_S})
    notes = [note] if note and not options.program else []
    notes += [said for family in NOTED for said in family.note(start, plan)]
    return plan.model_copy(update={"warnings": [*notes, *plan.warnings]})


def split_words(text: str) -> list[str]:
    """Return the words of a text, split as a shell does.

    Raises:
        BadCommand: a quote is not closed.
    """
    try:
        return shlex.split(text.translate(_TYPOGRAPHY))
    except ValueError as exc:
        raise BadCommand(
            f"a quote is opened and not closed in: {shorten(text)}; close it or leave it out"
        ) from exc


def read_pairs(words: Sequence[str]) -> dict[str, str]:
    """Read key=value words, whatever the keys.

    Raises:
        BadCommand: a word is no pair, or a key is there twice.
    """
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key_typed(key)
        if not equals or not key:
            raise BadCommand(f'expected key=value, got "{shorten(word)}"')
        if not value:
            raise BadCommand(f"{shorten(key)}= has no value; write {shorten(key)}=VALUE")
        if key in values:
            raise BadCommand(f"{shorten(key)} is given twice; keep one")
        values[key] = value
    return values


def key_typed(typed: str) -> str:
    return typed.lstrip("-").lower().replace("-", "_")


def shorten(text: str, limit: int = 80) -> str:
    """Repeat no more of what was typed than a sentence bears."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def with_assumed_steps(recipe: Recipe, listing: Listing | None) -> tuple[Recipe, str]:
    """Return the recipe with the steps that its epochs are, and a note that says what was assumed.

    `listing` is what S3 or the hub says of its data, where that was asked.
    """
    if not recipe.counts_epochs:
        return recipe, ""
    training, (samples, what) = recipe.own_training, _assumed(recipe, listing)
    typed, told = f"epochs={training.epochs}", "the trainer counts them once it has the data"
    if not samples:
        return recipe, (
            f"{typed}: nobody knows yet how many steps that are, so duration and cost are those of "
            f"{training.steps:,} steps; {told}"
        )
    steps = steps_over(training, samples)
    known = {"steps": steps, "warmup_steps": min(training.warmup_steps, steps)}
    recipe = recipe.model_copy(update={"training": training.model_copy(update=known)})
    return recipe, f"{typed} of {what} are {steps:,} steps; {told}"


def _assumed(recipe: Recipe, listing: Listing | None) -> tuple[int, str]:
    """Return the samples of an epoch and where the number is from; 0 where nothing says so."""
    training, model = recipe.own_training, recipe.model
    if isinstance(model, ImageModel):
        if listing is not None and not listing.prepared_bytes:
            return listing.expected_objects, f"at most {listing.expected_objects:,} images"
        images = _IMAGES.get(model.num_classes, 0)
        return images, f"{images:,} images"
    if listing is None or not isinstance(training, LanguageTraining):
        return 0, ""
    tokens = listing.prepared_bytes // _BYTES_A_TOKEN
    if listing.preparation is Preparation.NONE:  # packed before, in as many bytes as ids need
        tokens = listing.expected_bytes // (2 if model.vocab_size <= 2**16 else 4)
    samples = max(1, tokens // training.sequence_length)
    return samples, f"about {tokens:,} tokens, by the size of the data,"
