"""Three runs on one kept cluster: two side by side, the third in the queue, and its end by itself.

Real are the state machines, the handlers, the account, the cluster, its pods and the clock.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.domain.cluster.shares import shares
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.parts.leftovers import find_left
from tests.chaos.world import World, run_id_of

# Machines are emulated and people's time is not: real seconds, over before the runs end.
TTL_S = 10
# For so long the last run keeps the cluster.
KEEP_S = 4


def test_runs_share_a_cluster_side_by_side_and_in_turn_and_it_goes_when_its_time_is_over(
    world: World,
) -> None:
    services = world.services
    first, second, third = runs = [run_id_of(f"shared: {name}") for name in "abc"]

    lab = world.create_cluster("shared", ttl_s=TTL_S)
    on = {"cluster_id": lab.cluster_id}
    world.request("shared: a", plan="waits", nodes=2, **on)
    world.request("shared: b", plan="waits", nodes=2, **on)
    world.until_awaiting(first)
    world.until_awaiting(second)
    world.request("shared: c", nodes=4, keep_s=KEEP_S, **on)
    world.until(lambda: services.runs.load(third).phase is RunPhase.QUEUED, "the third waits")

    kubernetes = services.kubernetes(lab.cluster_id)
    pods = kubernetes.pods(labels={LABEL_ROLE: "training"})
    assert len({pod.node for pod in pods}) == len(pods) == 4, "a node for each pod"
    world.let_end(second)
    world.until_left(second)
    assert services.runs.load(third).phase is RunPhase.QUEUED, "two free nodes are too few"
    assert kubernetes.pods(labels={LABEL_RUN_ID: second}) == []
    world.let_end(first)
    gone = world.until_gone(lab.cluster_id)

    for run_id in runs:
        run = services.runs.load(run_id)
        assert (run.phase, run.reason) == (RunPhase.SUCCEEDED, "")
        assert run.progress is not None
        assert run.progress.step == 2
    assert "provisioning" not in services.runs.load(third).phase_names
    assert (gone.billable_left, find_left(services, gone.cluster_id)) == ([], [])
    assert gone.keep_until == gone.leases[third].released_at + timedelta(seconds=KEEP_S)
    seen = {event.type for event in services.cluster_states.events(gone.cluster_id)}
    assert {"cluster.keep_ending", "cluster.keep_ended"} <= seen
    bill = shares(gone, services.now())
    assert bill.total == pytest.approx(gone.cost_usd(services.now()), rel=1e-4)
    assert min(bill.runs[run_id] for run_id in runs) > 0
    assert world.aws.client("scheduler").list_schedules()["Schedules"] == []
