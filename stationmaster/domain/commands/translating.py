"""Words of a start as other tools write them: flags, numbers of GPUs, families of machines. Pure.

`--nodes 4`, `spot=true`, `H100:8`, `gpus=8` and `instance=p5` become KEY=VALUE words. Nothing here
is accepted as it was typed: the answer is one sentence, with the command that was meant.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Final

from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.instances import GPUS, InstanceType
from stationmaster.domain.catalogue.recipes import PRESET, Recipe
from stationmaster.domain.commands.parameters import key_typed, shorten
from stationmaster.domain.errors import BadCommand, UserError
from stationmaster.domain.keys.capacity import CAPACITY
from stationmaster.domain.keys.machines import INSTANCE, NODES
from stationmaster.domain.keys.names import key_meant, key_names
from stationmaster.domain.planning.plan import plan_recipe
from stationmaster.domain.sizes import counted

_SHORT: Final = re.compile(r"-[nN]([0-9]{1,9})?")
# Slurm, SkyPilot, torchrun and others.
_GPU_KEYS: Final = ("gpus", "gpu", "num_gpus", "ngpus", "n_gpus", "accelerators", "gres")
_GPU_NAMES: Final = {name.lower(): name for name in GPUS} | {"a10": "A10G"}
_SPOT: Final = {
    **dict.fromkeys(("", "true", "yes", "1", "on"), "spot"),
    **dict.fromkeys(("false", "no", "0", "off"), "on-demand"),
}
# A sign means that many more; see resume_from.
_NUMBER: Final = re.compile(
    r"(\+?)([0-9]{1,3}(?:,[0-9]{3}){1,3}|[0-9]{1,12}(?:\.[0-9]{1,6})?)([kKmM]?)"
)
_MOST_WORDS: Final = 20
_MOST_NAMED: Final = 6
_MOST_SAID: Final = 320


@dataclass(frozen=True)
class Translation:
    """What the words of a start amount to in this grammar."""

    words: tuple[str, ...]
    said: tuple[str, ...] = ()
    """What was written otherwise, a phrase each."""
    is_chosen: bool = False
    """Whether machines were chosen that were not typed."""

    def refuse(self) -> None:
        """Refuse words of other tools.

        Raises:
            BadCommand: naming what was typed and what to write.
        """
        if self.said:
            raise BadCommand("; ".join(self.said[:3]))


def joined(words: Sequence[str], keys: Collection[str]) -> list[tuple[str, str]]:
    """Return each word beside what it means; a flag and its value, or `key = value`, are one."""
    pairs: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        short = _SHORT.fullmatch(word)
        name = NODES.name if short else _name(word, keys)
        taken = [word]
        value = short[1] if short else word.partition("=")[2] if "=" in word else None
        if name and not value:
            taken += _value(rest)
            value = taken[-1] if len(taken) > 1 else value
            del rest[: len(taken) - 1]
        meant = word
        if name == "spot" and (value or "").lower() in _SPOT:
            meant = f"{CAPACITY.name}={_SPOT[(value or '').lower()]}"
        elif name and value and (short or len(taken) > 1):
            meant = f"{key_meant(name, keys) or name}={value}"
        pairs.append((" ".join(taken), meant))
    return pairs


def translate(recipe: Recipe, words: Sequence[str]) -> Translation:
    """Write the words of a start in this grammar; those that are right stay as they are."""
    pairs = joined(words[:_MOST_WORDS], key_names(recipe))
    said: list[str] = []
    meant: list[str] = []
    is_chosen = False
    for typed, word in pairs:
        asked = _machines_meant(word)
        if asked is None:
            meant.append(word)
            said += [f'write {shorten(word, 60)} for "{shorten(typed, 60)}"'] * (word != typed)
            continue
        others = [each for _, each in pairs if each is not word]
        chosen = _machines(recipe, others, *asked)
        meant += chosen
        said.append(_said(recipe, typed, chosen, asked[0]))
        is_chosen = True
    return Translation((*meant, *words[_MOST_WORDS:]), _in_one_answer(said), is_chosen)


def _in_one_answer(said: Sequence[str]) -> tuple[str, ...]:
    """Return the first that one sentence has room for, each once; there is room for one always."""
    different = list(dict.fromkeys(said))
    lengths = accumulate(map(len, different))
    return tuple(
        each
        for number, (each, length) in enumerate(zip(different, lengths, strict=True))
        if not number or length <= _MOST_SAID
    )


def _said(recipe: Recipe, typed: str, chosen: list[str], instances: list[InstanceType]) -> str:
    """Say what to write for machines that were named otherwise, and what there is."""
    names = [
        f"{each.name} ({counted(each.num_gpus, 'GPU')})" if each.num_gpus else each.name
        for each in instances
    ]
    named = f"; there is {', '.join(names)}" if len(names) <= _MOST_NAMED else ""
    shown = f'"{shorten(typed, 40)}"'
    if chosen:
        return f"write {' '.join(chosen)} for {shown}{named}"
    return (
        f"no machines for {shown} can train {recipe.name} with the other words{named}; "
        f"{NODES.name}= and {INSTANCE.name}= say which machines"
    )


def number_meant(key: str, value: str) -> str:
    """Write 10k, 1.5M and 10,000 as whole numbers; anything else in small letters.

    K and M are powers of ten, but of the length of a sequence, where 8k is 8,192.
    """
    found = _NUMBER.fullmatch(value)
    if found is None:
        return value.lower()
    thousand = 1024 if key == "sequence_length" else 1000
    size = Decimal(found[2].replace(",", "")) * thousand ** " km".index((found[3] or " ").lower())
    return f"{found[1]}{int(size)}" if size == int(size) else value.lower()


def _name(word: str, keys: Collection[str]) -> str | None:
    """Return the key that a word begins, if a value may follow it; also one that does not exist."""
    name, equals, value = word.partition("=")
    known = key_typed(name)
    if equals:
        return known if known == "spot" or not value else None
    is_key = known == "spot" or known in _GPU_KEYS or key_meant(known, keys) is not None
    return known if known and (word.startswith("--") or is_key) else None


def _value(rest: Sequence[str]) -> list[str]:
    """Return the words that are the value of the key before them, with the sign between."""
    found = list(rest[: 2 if rest[:1] == ["="] else 1])
    is_value = bool(found) and found[-1] != "=" and not found[-1].startswith("-")
    return found if is_value and "=" not in found[-1] else []


def _machines_meant(word: str) -> tuple[list[InstanceType], int | None] | None:
    """Read gpus=8, H100:8, 8xH100, instance=p5: the machines that may be meant, and all their GPUs.

    None for a word that is about something else, or names a machine.
    """
    key, equals, value = word.lower().partition("=")
    key = key_typed(key)
    if key in (INSTANCE.name, *INSTANCE.meanings):
        found = _family(value)
        return (found, None) if found else None
    if equals and key not in _GPU_KEYS:
        return None
    parts = [each for each in re.split("[:x*]", value if equals else key) if each != "gpu"]
    kinds = [_GPU_NAMES[each] for each in parts if each in _GPU_NAMES]
    numbers = [int(each) for each in parts if re.fullmatch("[0-9]{1,4}", each)]
    is_read = len(kinds) + len(numbers) == len(parts) and len(kinds) <= 1 and len(numbers) <= 1
    if not is_read or not (kinds or (equals and numbers)):
        return None
    machines = [each for each in INSTANCES.values() if each.gpu_figures is not None]
    of_kind = [each for each in machines if not kinds or each.gpu == kinds[0]]
    return of_kind, numbers[0] if numbers else None


def _family(value: str) -> list[InstanceType]:
    """List the machines of a family, p5 or h100; none for a whole name."""
    if len(value) < 2 or "." in value:
        return []
    kind = _GPU_NAMES.get(value)
    if kind is not None:
        return [each for each in INSTANCES.values() if each.gpu == kind]
    exact = [each for name, each in INSTANCES.items() if name.startswith(f"{value}.")]
    return exact or [each for name, each in INSTANCES.items() if name.startswith(value)]


def _machines(
    recipe: Recipe, others: Sequence[str], instances: Iterable[InstanceType], count: int | None
) -> list[str]:
    """Choose the machines on which the recipe fits: its usual ones, or the fewest.

    Returns:
        The words that are not typed already; none where no machines come to `count` GPUs.
    """
    pairs = (each.partition("=") for each in others if "=" in each)
    typed = {key_typed(key): value for key, _, value in pairs}
    sized = _sized(recipe, typed)
    found = []
    for instance in instances:
        words = {INSTANCE.name: instance.name}
        if count is not None:
            nodes, left = divmod(count, instance.num_gpus)
            if left or not 1 <= nodes <= sized.max_nodes:
                continue
            words = {NODES.name: str(nodes), **words}
        if any(typed.get(key, value) != value for key, value in words.items()):
            continue
        number = (typed | words).get(NODES.name, "")
        in_range = re.fullmatch("[0-9]{1,4}", number) and 1 <= int(number) <= sized.max_nodes
        try:
            plan = plan_recipe(
                sized, nodes=int(number) if in_range else None, instance_type=instance.name
            )
        except UserError:
            continue
        is_usual = instance.name == sized.default_instance
        found.append((not plan.fits, not is_usual, plan.nodes, plan.estimated_cost_usd, words))
    best = min(found, key=lambda each: each[:-1])[-1] if found else {}
    return [f"{key}={value}" for key, value in best.items() if key not in typed]


def _sized(recipe: Recipe, typed: dict[str, str]) -> Recipe:
    """Return the recipe with its own keys applied, where they are right."""
    fields = type(recipe.training).model_fields
    try:
        return recipe.with_overrides(
            {key: value for key, value in typed.items() if key == PRESET or key in fields}
        )
    except UserError:
        return recipe
