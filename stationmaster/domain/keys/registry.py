"""Every module of keys, and what all of them amount to: read and checked, and typed again."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.keys import (
    backup_every,
    budget,
    capacity,
    eks_cluster,
    file_system,
    job_options,
    kept_cluster,
    machines,
    own_code,
    push_to,
    restarts,
    resume_from,
    run_name,
    track,
    validate,
)
from stationmaster.domain.keys.key import Family, Part, Start, Typed

FAMILIES: Final = (
    machines.FAMILY,
    capacity.FAMILY,
    kept_cluster.FAMILY,
    validate.FAMILY,
    eks_cluster.FAMILY,
    file_system.FAMILY,
    resume_from.FAMILY,
    backup_every.FAMILY,
    push_to.FAMILY,
    track.FAMILY,
    own_code.FAMILY,
    job_options.FAMILY,
    restarts.FAMILY,
    budget.FAMILY,
    run_name.FAMILY,
)
"""In the order of help texts."""
NOTED: Final = (
    job_options.FAMILY,
    restarts.FAMILY,
    budget.FAMILY,
    validate.FAMILY,
    capacity.FAMILY,
    own_code.FAMILY,
    eks_cluster.FAMILY,
    file_system.FAMILY,
    resume_from.FAMILY,
    push_to.FAMILY,
    backup_every.FAMILY,
    kept_cluster.FAMILY,
)
"""In the order of their notes in a plan."""


class Options(
    machines.Option,
    capacity.Option,
    kept_cluster.Option,
    validate.Option,
    eks_cluster.Option,
    file_system.Option,
    resume_from.Option,
    backup_every.Option,
    push_to.Option,
    track.Option,
    own_code.Option,
    job_options.Option,
    restarts.Option,
    budget.Option,
    run_name.Option,
):
    """What a person said of a run besides its recipe and the recipe's own keys."""

    def fit(self, recipe: Recipe) -> Recipe:
        """Return the recipe with this file system, and with as many processes on each node."""
        recipe = super().fit(recipe)
        if not self.processes_per_node or self.program:
            return recipe
        return recipe.model_copy(update={"nproc_per_node": self.processes_per_node})


def read_options(
    typed: Typed, recipe: Recipe, *, families: tuple[Family, ...] = FAMILIES
) -> tuple[Start, Options]:
    """Read the keys of `families`, and hold their rules.

    Raises:
        UserError: one sentence that names the value and what was expected.
    """
    in_turn = sorted(families, key=lambda family: min(key.turn for key in family.keys))
    parts = [dict(family.read(typed)) for family in in_turn]
    options = Options(**{field: value for part in parts for field, value in part.items()})
    start = Start(**vars(typed), options=options, recipe=recipe, fit=options.fit)
    for family in families:
        family.refuse(start)
    return start, options


def typed_options(options: Part) -> dict[str, str]:
    """Write the options as they can be typed, without those that were not."""
    typed = {key.name: key.typed(options) for family in FAMILIES for key in family.keys}
    return {name: value for name, value in typed.items() if value}


def placed(spec: ClusterSpec, options: Options) -> ClusterSpec:
    """Return the cluster with its machines from where the options say."""
    where = {
        "eks_name": options.eks_name,
        "reservation": options.reservation,
        "is_spot": options.is_spot,
    }
    return spec.model_copy(update=where)
