"""Runs and clusters on DynamoDB's semantics: facts count once, writers do not overwrite others.

On the local endpoint, because moto by itself runs two transactions at the same time through each
other: its check and its write are apart.
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count

import pytest

from stationmaster.aws import table
from stationmaster.aws.cluster_store import ClusterStore
from stationmaster.aws.run_store import RunStore
from stationmaster.aws.table import table_definition
from stationmaster.domain.bus import LogTail
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.errors import IllegalTransition, NotStorable, RunNotFound, WriteConflict
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Wait
from stationmaster.domain.run.events import RunPhase
from tests.support.factories import CLUSTER_ID, RUN_ID, make_request, make_requested
from tests.support.factories import START as NOW

TABLES = (f"t{number}" for number in count())


@pytest.fixture
def new_table(aws):
    """Its name, and a client."""
    client = aws.client("dynamodb")
    name = next(TABLES)
    client.create_table(**table_definition(name))
    return name, client


@pytest.fixture
def store(new_table):
    return RunStore(*new_table)


@pytest.fixture
def clusters(new_table):
    return ClusterStore(*new_table)


def create(store, run_id=RUN_ID, *, words="same words", at=NOW, channel_id="C1"):
    requested = make_requested(run_id, at=at, request=make_request(channel_id=channel_id))
    return store.create(requested, dedup_key=words, dedup_until=at + timedelta(seconds=30))


def phase(value, *, event_id=None):
    return ev.PhaseChanged(
        event_id=event_id or f"phase-{value}", run_id=RUN_ID, at=NOW, phase=value
    )


def progress(seq):
    return ev.ProgressReported(
        event_id=f"p{seq}", run_id=RUN_ID, at=NOW, seq=seq, step=seq, total_steps=500, loss_nats=1.0
    )


def test_create_of_the_same_request_twice_creates_one_run(store):
    first, created = create(store)
    again, created_again = create(store, words="other words")

    assert (created, created_again) == (True, False)
    assert first.run_id == again.run_id


def test_create_of_the_same_words_within_the_window_gives_the_first_run(store):
    create(store)

    soon, created_soon = create(store, "tiny-llama-ffffffff", at=NOW + timedelta(seconds=29))
    later, created_later = create(store, "tiny-llama-eeeeeeee", at=NOW + timedelta(seconds=31))

    assert (soon.run_id, created_soon) == (RUN_ID, False)
    assert (later.run_id, created_later) == ("tiny-llama-eeeeeeee", True)


def test_load_of_an_unknown_run_names_it(store):
    with pytest.raises(RunNotFound, match="no-such-run"):
        store.load("no-such-run")


def test_record_of_the_same_events_twice_changes_nothing(store):
    create(store)
    restart = ev.WorkersRestarting(event_id="w1", run_id=RUN_ID, at=NOW, pod="p", reason="r")

    once = store.record(RUN_ID, [restart])
    twice = store.record(RUN_ID, [restart, restart])

    assert once.num_restarts == twice.num_restarts == 1
    assert twice.version == once.version
    assert [event.type for event in store.events(RUN_ID)] == ["run.requested", "workers.restarting"]


def test_record_of_more_events_than_a_transaction_takes_keeps_all_in_order(store):
    create(store)

    run = store.record(RUN_ID, [progress(seq) for seq in range(1, 251)])

    assert run.progress.seq == 250
    recorded = [e.seq for e in store.events(RUN_ID) if e.type == "progress.reported"]
    assert recorded == list(range(1, 251))


def test_record_by_writers_at_the_same_time_loses_none(store):
    create(store)

    def write(seq):
        # Its callers try again, as it says: one writer may lose to the others many times.
        while True:
            try:
                return store.record(RUN_ID, [progress(seq)])
            except WriteConflict:
                continue

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(1, 13)))

    recorded = {e.seq for e in store.events(RUN_ID) if e.type == "progress.reported"}
    assert recorded == set(range(1, 13))
    assert store.load(RUN_ID).version == 13


def test_record_writes_what_follows_from_an_event_as_an_event_of_its_own(store):
    create(store)
    for value in (
        RunPhase.PROVISIONING,
        RunPhase.VALIDATING,
        RunPhase.SUBMITTING,
        RunPhase.RUNNING,
    ):
        store.record(RUN_ID, [phase(value)])

    run = store.record(
        RUN_ID,
        [ev.WorkersRestarting(event_id="w1", run_id=RUN_ID, at=NOW, pod="p", reason="lost")],
    )

    assert run.phase is RunPhase.RECOVERING
    assert store.events(RUN_ID)[-1].phase is RunPhase.RECOVERING


def test_record_of_a_phase_that_cannot_follow_raises_and_writes_nothing(store):
    create(store)

    with pytest.raises(IllegalTransition, match="cannot become running"):
        store.record(RUN_ID, [phase(RunPhase.RUNNING)])

    assert store.load(RUN_ID).version == 1


def test_run_that_outgrew_half_of_its_item_takes_only_what_ends_it(store):
    run, _ = create(store)
    large = run.model_copy(update={"phase": RunPhase.RUNNING, "not_pushed": "x" * 250_000})
    store._client.update_item(
        TableName=store._table,
        Key=table.state("RUN", RUN_ID).attributes,
        UpdateExpression="SET body = :body",
        ExpressionAttributeValues={":body": {"S": large.model_dump_json()}},
    )

    with pytest.raises(NotStorable, match=r"run tiny-llama-\S+ has 25\d{4} bytes; its item takes"):
        store.record(RUN_ID, [progress(1)])
    store.record(RUN_ID, [phase(RunPhase.SAVING)])
    ended = store.record(RUN_ID, [phase(RunPhase.FAILED)])

    assert (ended.phase, ended.progress) == (RunPhase.FAILED, None)


def test_what_could_not_be_read_again_is_not_written(store):
    requested = make_requested().model_copy(update={"estimated_cost_usd": float("inf")})

    with pytest.raises(NotStorable, match=r"could not be read again: .*estimated_cost_usd"):
        store.create(requested, dedup_key="w", dedup_until=NOW + timedelta(seconds=30))

    assert store.find(RUN_ID) is None


def test_lists_know_channels_and_what_is_still_open(store):
    create(store)
    create(store, "tiny-llama-ffffffff", words="b", at=NOW + timedelta(minutes=1), channel_id="C2")
    store.record(RUN_ID, [phase(RunPhase.FAILED)])

    assert [run.run_id for run in store.list_recent()] == ["tiny-llama-ffffffff", RUN_ID]
    assert [run.run_id for run in store.list_recent(channel_id="C1")] == [RUN_ID]
    assert [run.run_id for run in store.list_open()] == ["tiny-llama-ffffffff"]


def test_log_tails_keep_the_newest_of_each_pod(store):
    create(store)
    newer = LogTail(pod="w-0", at=NOW + timedelta(seconds=1), lines=["new"])
    older = LogTail(pod="w-0", at=NOW, lines=["old"])

    store.save_log_tails(RUN_ID, [newer])
    store.save_log_tails(RUN_ID, [older, LogTail(pod="w-1", at=NOW, lines=["x"])])

    assert [(tail.pod, tail.lines) for tail in store.log_tails(RUN_ID)] == [
        ("w-0", ["new"]),
        ("w-1", ["x"]),
    ]


def test_task_token_is_kept_beside_the_run_and_in_no_event(store):
    create(store)
    assert store.load_task_token(RUN_ID, Wait.JOB) is None

    store.save_task_token(RUN_ID, Wait.JOB, "secret-token")

    assert store.load_task_token(RUN_ID, Wait.JOB) == "secret-token"
    assert store.load_task_token(RUN_ID, Wait.CLUSTER) is None
    assert "secret-token" not in store.load(RUN_ID).model_dump_json()
    assert all("secret-token" not in event.model_dump_json() for event in store.events(RUN_ID))


def cluster_event(event_class, event_id, **fields):
    return event_class(event_id=event_id, cluster_id=CLUSTER_ID, at=NOW, **fields)


def create_cluster(clusters):
    spec = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="m5.2xlarge")
    return clusters.create(
        cluster_event(cl.ClusterRequested, "requested", spec=spec, run_id=RUN_ID),
        cluster_event(cl.LeaseGranted, "lease", run_id=RUN_ID, nodes=2),
    )


def test_create_twice_creates_one_cluster_with_its_lease(clusters):
    first, created = create_cluster(clusters)
    again, created_again = create_cluster(clusters)

    assert (created, created_again) == (True, False)
    assert first == again == clusters.load(CLUSTER_ID)
    assert [lease.run_id for lease in first.open_leases] == [RUN_ID]
    recorded = [event.type for event in clusters.events(CLUSTER_ID)]
    assert recorded == ["cluster.requested", "lease.granted"]


def test_release_of_the_last_lease_drains_the_cluster_in_the_same_write(clusters):
    create_cluster(clusters)

    cluster = clusters.record(
        CLUSTER_ID, [cluster_event(cl.LeaseReleased, "released", run_id=RUN_ID)]
    )

    assert (cluster.phase, cluster.version) == (ClusterPhase.DRAINING, 2)
    assert clusters.events(CLUSTER_ID)[-1].phase is ClusterPhase.DRAINING


def test_list_of_open_clusters_leaves_out_what_is_released(clusters):
    create_cluster(clusters)
    assert [cluster.cluster_id for cluster in clusters.list_open()] == [CLUSTER_ID]

    clusters.record(
        CLUSTER_ID,
        [
            cluster_event(cl.LeaseReleased, "released", run_id=RUN_ID),
            cluster_event(cl.TeardownStarted, "started"),
            cluster_event(cl.TeardownCompleted, "completed", cost_usd=0.5),
        ],
    )

    assert clusters.list_open() == []
