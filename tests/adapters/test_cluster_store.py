"""The cluster store: the same rules as for runs, and what follows from a lease that is released."""

from datetime import UTC, datetime
from itertools import count

import pytest

from stationmaster.aws.cluster_store import ClusterStore
from stationmaster.aws.table import table_definition
from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe

NOW = datetime(2026, 11, 20, 18, 0, tzinfo=UTC)
CLUSTER_ID = "tiny-llama-0a1b2c3d"
RUN_ID = "tiny-llama-0a1b2c3d"
TABLES = (f"c{number}" for number in count())


@pytest.fixture
def store(aws):
    client = aws.client("dynamodb")
    name = next(TABLES)
    client.create_table(**table_definition(name))
    return ClusterStore(name, client)


def event(event_class, event_id, **fields):
    return event_class(event_id=event_id, cluster_id=CLUSTER_ID, at=NOW, **fields)


def create(store):
    spec = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="m5.2xlarge")
    return store.create(
        event(ev.ClusterRequested, "requested", spec=spec, run_id=RUN_ID),
        event(ev.LeaseGranted, "lease", run_id=RUN_ID, nodes=2),
    )


def test_create_twice_creates_one_cluster_with_its_lease(store):
    first, created = create(store)
    again, created_again = create(store)

    assert (created, created_again) == (True, False)
    assert first == again == store.load(CLUSTER_ID)
    assert [lease.run_id for lease in first.open_leases] == [RUN_ID]
    recorded = [event.type for event in store.events(CLUSTER_ID)]
    assert recorded == ["cluster.requested", "lease.granted"]


def test_release_of_the_last_lease_drains_the_cluster_in_the_same_write(store):
    create(store)

    cluster = store.record(CLUSTER_ID, [event(ev.LeaseReleased, "released", run_id=RUN_ID)])

    assert (cluster.phase, cluster.version) == (ClusterPhase.DRAINING, 2)
    assert store.events(CLUSTER_ID)[-1].phase is ClusterPhase.DRAINING


def test_list_of_open_clusters_leaves_out_what_is_released(store):
    create(store)
    assert [cluster.cluster_id for cluster in store.list_open()] == [CLUSTER_ID]

    store.record(
        CLUSTER_ID,
        [
            event(ev.LeaseReleased, "released", run_id=RUN_ID),
            event(ev.TeardownStarted, "started"),
            event(ev.TeardownCompleted, "completed", cost_usd=0.5),
        ],
    )

    assert store.list_open() == []
