"""Plans of what is typed."""

from __future__ import annotations

from collections.abc import Mapping

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.plan import Plan, plan_recipe
from stationmaster.domain.planning.recipe_lookup import get_recipe


def make_plan(
    recipe_name: str,
    *,
    nodes: int | None = None,
    min_nodes: int | None = None,
    instance_type: str | None = None,
    overrides: Mapping[str, str] | None = None,
    model: LanguageModel | None = None,
) -> Plan:
    """Plan a request, as typed; see `plan_recipe`, and `get_recipe` for `model`.

    Raises:
        UserError: an unknown recipe, instance or key, or a value that cannot work at all.
    """
    recipe = get_recipe(recipe_name, model).with_overrides(overrides or {})
    return plan_recipe(recipe, nodes=nodes, min_nodes=min_nodes, instance_type=instance_type)


def lay(recipe: str, *, instance: str = "p5.48xlarge", nodes: int = 2, **keys: object) -> Layout:
    """Lay a recipe of the catalogue out on nodes, with keys as they would be typed."""
    typed = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in keys.items()
    }
    changed = get_recipe(recipe).with_overrides(typed)
    return Layout(recipe=changed, instance=get_instance(instance), nodes=nodes)
