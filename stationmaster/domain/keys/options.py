"""All keys together: read and checked, typed again, and handed to a cluster."""

from __future__ import annotations

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.keys.key import Family, Part, Start, Typed
from stationmaster.domain.keys.registry import KEYS, Options


def read_options(
    typed: Typed, recipe: Recipe, *, families: tuple[Family, ...] = KEYS
) -> tuple[Start, Options]:
    """Read the keys of `families`, and hold their rules.

    Raises:
        UserError: one sentence that names the value and what was expected.
    """
    in_turn = sorted(families, key=lambda family: min(key.turn for key in family.KEYS))
    parts = [dict(family.read(typed)) for family in in_turn]
    options = Options(**{field: value for part in parts for field, value in part.items()})
    start = Start(**vars(typed), options=options, recipe=recipe, fit=options.fit)
    for family in families:
        family.refuse(start)
    return start, options


def typed_options(options: Part) -> dict[str, str]:
    """Write the options as they can be typed, without those that were not."""
    typed = {key: value for family in KEYS for key, value in family.typed(options).items()}
    return {key: value for key, value in typed.items() if value is not None}


def placed(spec: ClusterSpec, options: Options) -> ClusterSpec:
    """Return the cluster with its machines from where the options say."""
    where = {
        "eks_name": options.eks_name,
        "reservation": options.reservation,
        "is_spot": options.is_spot,
    }
    return spec.model_copy(update=where)
