"""The run's cluster as checks and plugins look at it."""

from __future__ import annotations

from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run.aggregate import Run
from stationmaster.inspection import LiveCluster
from stationmaster.services import Services


def live_cluster(services: Services, run: Run) -> LiveCluster:
    """The cluster that the run has for itself.

    Raises:
        UserError: the recipe, the instance type or an override is not (or no longer) known.
    """
    request = run.request
    recipe = get_recipe(request.recipe, request.model).with_overrides(request.overrides)
    spec = spec_for(recipe, nodes=request.nodes, instance_type=request.instance_type)
    return LiveCluster(services, run.run_id, spec)
