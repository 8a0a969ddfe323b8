"""Where an attempt runs, once its cluster is ready: on the nodes that were leased for it."""

from __future__ import annotations

from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import NodesLeased
from stationmaster.jobs.live_run import attempt_of
from stationmaster.services import Services


def place_attempt(services: Services, run: Run) -> Run:
    """Place the run's attempt on as many nodes as it leases; written where they are fewer.

    Every step that may be the first on a ready cluster calls it. A run on a fixed number of nodes
    leases what it wished for.
    """
    if run.request.min_nodes is None:
        return run
    attempt = attempt_of(run)
    cluster = services.cluster_states.load(attempt.cluster_id)
    nodes = next((each.nodes for each in cluster.open_leases if each.run_id == run.run_id), None)
    if nodes is None or nodes == attempt.placement.nodes:
        return run
    price = cluster.spec.price_per_hour_usd
    share = nodes / cluster.spec.nodes if run.request.cluster_id is not None else 1
    event = NodesLeased(
        **services.run_stamp(run.run_id, "nodes.leased", attempt.attempt_id, nodes),
        attempt_id=attempt.attempt_id,
        nodes=nodes,
        price_per_hour_usd=round(price * share, 2),
    )
    return services.runs.record(run.run_id, [event])
