"""The command that was meant by one that is refused: it works when it is pasted."""

from __future__ import annotations

from collections.abc import Sequence

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.parameters import key_typed, read_start
from stationmaster.domain.commands.translating import number_meant, translate
from stationmaster.domain.datasets import read_shared_path
from stationmaster.domain.errors import UserError
from stationmaster.domain.keys.file_system import FILE_SYSTEM
from stationmaster.domain.keys.names import START_KEYS, key_meant, key_names
from stationmaster.domain.keys.questions import Questions
from stationmaster.domain.spelling import typed_word


def corrected(recipe: Recipe, pairs: Sequence[str], *, prefix: str, ask: Questions) -> str:
    """Return a command that works and is as near as possible to what was typed.

    Each word is kept if the command is accepted with it, else replaced by its nearest valid form,
    and left out as the last resort. Where a value had to be chosen or a word left out it is a plan,
    which costs nothing: without budget=5, or with other machines, a start could cost more than was
    typed.
    """

    def stands(words: Sequence[str]) -> bool:
        try:
            read_start(recipe.name, words, recipe, ask)
        except UserError:
            return False
        return True

    translation = translate(recipe, pairs)
    pairs = translation.words
    spelled = [_candidates(word, recipe, None)[1:2] for word in pairs[:20]]
    together = [each for words in spelled for each in words]
    as_typed = "plan " if translation.is_chosen else prefix
    if len(together) == len(pairs) and stands(together):
        return " ".join([f"/train {as_typed}{recipe.name}", *map(typed_word, together)])
    kept: list[str] = []
    # The preset first, then the cluster: they decide what else stands, and what a run costs.
    ordered = sorted(pairs[:20], key=_weight)
    is_as_typed = len(pairs) == len(ordered)
    cluster: Cluster | None = None
    for word in ordered:
        *spellings, default = _candidates(word, recipe, cluster)
        found = next((each for each in spellings if stands([*kept, each])), None)
        if _lies_nowhere(word, kept):
            found, default = None, ""
        is_as_typed = is_as_typed and found is not None
        if found is None and default and stands([*kept, default]):
            found = default
        kept += [found] if found else []
        if found and found.startswith("on="):
            cluster = ask.find_cluster(found.removeprefix("on="))
    words = map(typed_word, kept)
    return " ".join([f"/train {as_typed if is_as_typed else 'plan '}{recipe.name}", *words])


def _lies_nowhere(word: str, kept: Sequence[str]) -> bool:
    """Say whether a word names data on a file system that is new and empty."""
    key, _, value = word.partition("=")
    if key != "dataset" or read_shared_path(value) is None:
        return False
    return not any(each.startswith((f"{FILE_SYSTEM.name}=fs-", "on=")) for each in kept)


def _weight(word: str) -> int:
    """Return a word's turn, after what it needs: a checkpoint fits or not by all keys but steps."""
    key, _, value = word.partition("=")
    if key == "steps" and value.startswith("+"):
        return 5
    return START_KEYS[key].turn if key in START_KEYS else 3


def _candidates(word: str, recipe: Recipe, cluster: Cluster | None) -> list[str]:
    """Return the word, another spelling of it, and its key with the default; "" without one."""
    name, _, value = word.partition("=")
    close = key_meant(key_typed(name), key_names(recipe))
    if close is None:
        return [""]
    key = START_KEYS.get(close)
    spelled = key.respelled(value) if key is not None else number_meant(close, value)
    spellings = [word, f"{close}={value}", f"{close}={spelled}"]
    if key is None:
        return [*spellings, f"{close}={getattr(recipe.training, close)}"]
    if key.usual is None:
        return [*spellings, ""]
    return [*spellings, f"{close}={key.usual(value, recipe, cluster)}"]
