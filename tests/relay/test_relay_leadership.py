"""Relays of one run that agree by a Lease on which of them sends; every clock is the test's."""

from __future__ import annotations

import copy
import itertools
import random
from datetime import UTC, datetime, timedelta

import pytest

from stationmaster.relay.cluster import ClusterUnreachable, Conflict, ObjectMissing
from stationmaster.relay.leadership import OTHERS_FIRST_S, RENEW_WITHIN_S, RETRY_EVERY_S, Leadership
from stationmaster.relay.leases import LEASE_DURATION_S, SENT_ANNOTATION, Sent

NOW = datetime(2026, 1, 2, tzinfo=UTC)
# The longest call to the bus: two seconds to connect and three to read, see relay/__main__.py.
LONGEST_CALL_S = 5


class LeaseServer:
    """An API server with one Lease, which checks resource versions as a real one does."""

    def __init__(self):
        self.lease = {"metadata": {"name": "run-1-relay", "resourceVersion": "1"}}
        self.versions = itertools.count(2)
        self.loses_answers = False

    @property
    def spec(self):
        return self.lease["spec"]

    def get(self):
        if self.lease is None:
            raise ObjectMissing("no such lease")
        return copy.deepcopy(self.lease)

    def create(self, body):
        if self.lease is not None:
            raise Conflict("there is one")
        return self._store(body)

    def replace(self, body):
        if self.lease is None:
            raise ObjectMissing("no such lease")
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        return self._store(body)

    def _store(self, body):
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(next(self.versions))
        if self.loses_answers:
            raise ClusterUnreachable("the answer was lost")
        return copy.deepcopy(self.lease)


class Relay:
    """A candidate with its own connection to the server and its own clocks."""

    def __init__(self, name, server, world, *, wall_skew_s=0.0):
        self.name = name
        self.server = server
        self.world = world
        self.away = False
        self.sends = Sent(behind_s=0.0)
        self.taken_over = []
        self.learnt = []
        self.leadership = Leadership(
            self,
            lease="run-1-relay",
            namespace="stationmaster",
            identity=name,
            job="job-1",
            # A monotonic clock may begin anywhere.
            clock=lambda: world.seconds + 1000 * len(name),
            now=lambda: NOW + timedelta(seconds=world.seconds + wall_skew_s),
        )

    def step(self):
        self.leadership.step(self)

    @property
    def leads(self):
        return self.leadership.leads()

    # The API, for this relay

    def get(self, path, *, read_timeout_s):
        self._connect(path, "/run-1-relay")
        return self.server.get()

    def create(self, path, body, *, read_timeout_s):
        self._connect(path, "/leases")
        return self.server.create(body)

    def replace(self, path, body, *, read_timeout_s):
        self._connect(path, "/run-1-relay")
        return self.server.replace(body)

    def _connect(self, path, end):
        assert path.startswith("/apis/coordination.k8s.io/v1/namespaces/stationmaster/leases")
        assert path.endswith(end)
        if self.away:
            raise ClusterUnreachable("no route")

    # What sends

    def lead(self, sent):
        self.taken_over.append(sent)

    def learn(self, sent, *, written_after):
        self.learnt.append((sent, written_after))

    def sent(self):
        return self.sends


class World:
    """The time that passes for all."""

    def __init__(self):
        self.seconds = 0.0

    def pass_time(self, relays, seconds, *, every=RETRY_EVERY_S):
        until = self.seconds + seconds
        while self.seconds < until:
            self.seconds += every
            for relay in relays:
                relay.step()


@pytest.fixture
def world():
    return World()


@pytest.fixture
def server():
    return LeaseServer()


@pytest.fixture
def pair(server, world):
    """Two relays, of which the first leads."""
    first, second = Relay("relay-a", server, world), Relay("relay-bb", server, world)
    first.step()
    second.step()
    assert (first.leads, second.leads) == (True, False)
    return first, second


def test_first_relay_takes_a_new_lease_and_renews_it_while_the_other_stands_by(server, world):
    first, second = Relay("relay-a", server, world), Relay("relay-bb", server, world)
    assert not first.leads

    first.step()
    world.pass_time([first, second], 60)

    assert (first.leads, second.leads) == (True, False)
    assert server.spec == {
        "holderIdentity": "relay-a",
        "leaseDurationSeconds": LEASE_DURATION_S,
        "acquireTime": "2026-01-02T00:00:00.000000Z",
        "renewTime": "2026-01-02T00:01:00.000000Z",
        "leaseTransitions": 0,
    }


def test_leader_gone_the_other_waits_for_the_lease_and_takes_it(pair, server, world):
    _, second = pair
    world.pass_time(pair, 10)

    world.pass_time([second], LEASE_DURATION_S - RETRY_EVERY_S)
    assert not second.leads
    world.pass_time([second], 2 * RETRY_EVERY_S)

    assert second.leads
    assert server.spec["holderIdentity"] == "relay-bb"
    assert server.spec["leaseTransitions"] == 1


def test_leader_cut_off_stops_sending_before_the_other_may_take_over(pair, world):
    first, second = pair
    world.pass_time(pair, 10)
    first.away = True

    stopped_at = taken_at = None
    while taken_at is None:
        world.pass_time(pair, 0.1, every=0.1)
        stopped_at = world.seconds if stopped_at is None and not first.leads else stopped_at
        taken_at = world.seconds if second.leads else None

    assert stopped_at is not None
    assert taken_at - stopped_at >= LONGEST_CALL_S - 0.2
    first.away = False
    world.pass_time(pair, 60)
    assert (first.leads, second.leads) == (False, True)
    assert first.learnt


def test_api_server_away_for_both_nobody_sends_and_one_leads_afterwards(pair, world):
    first, second = pair
    first.away = second.away = True
    world.pass_time(pair, 300)
    assert not first.leads
    assert not second.leads

    first.away = second.away = False
    world.pass_time(pair, 2 * RETRY_EVERY_S)

    assert first.leads != second.leads


def test_answer_to_a_renewal_that_is_lost_does_not_end_the_lead(pair, server, world):
    first, second = pair
    server.loses_answers = True
    world.pass_time([first], RETRY_EVERY_S)
    server.loses_answers = False

    world.pass_time(pair, 3 * RETRY_EVERY_S)

    assert (first.leads, second.leads) == (True, False)
    assert server.spec["leaseTransitions"] == 0


@pytest.mark.parametrize("is_watched", [True, False])
def test_lease_given_back_goes_at_once_to_who_has_watched_and_later_to_a_new_relay(
    pair, server, world, is_watched
):
    first, second = pair
    world.pass_time(pair, 10)
    first.sends = Sent(behind_s=0.0, logs={"uid-1": "stamp"})
    fresh = Relay("relay-ccc", server, world)

    first.leadership.give_back(first)
    assert not first.leads
    fresh.step()
    assert not fresh.leads
    if is_watched:
        world.pass_time([fresh, second], RETRY_EVERY_S)
    else:
        world.pass_time([fresh], OTHERS_FIRST_S + 2 * RETRY_EVERY_S)

    assert (second.leads, fresh.leads) == (is_watched, not is_watched)
    assert (second if is_watched else fresh).taken_over[0].logs == {"uid-1": "stamp"}


def test_lease_deleted_is_made_again_only_when_nobody_can_lead_by_it_any_more(pair, server, world):
    first, second = pair
    world.pass_time(pair, 10)
    server.lease = None
    fresh = Relay("relay-ccc", server, world)

    while server.lease is None:
        world.pass_time([fresh, second, first], 0.5, every=0.5)
        assert sum(relay.leads for relay in (first, second, fresh)) <= 1
        assert server.lease is None or not first.leads
    world.pass_time([fresh, second, first], 10)

    assert sum(relay.leads for relay in (first, second, fresh)) == 1


def test_two_that_write_at_once_only_one_leads(server, world):
    first, second = Relay("relay-a", server, world), Relay("relay-bb", server, world)
    read = second.get
    # The second reads, then the first writes, then the second does.
    second.get = lambda path, **more: (read(path, **more), first.step())[0]

    second.step()

    assert (first.leads, second.leads) == (True, False)


def test_leader_writes_how_far_it_has_sent_and_the_other_learns_it(pair, server, world):
    first, second = pair
    first.sends = Sent(behind_s=3.0, logs={"uid-1": "2026-01-02T00:00:01.000000000Z"})

    world.pass_time(pair, RETRY_EVERY_S)

    sent, written_after = second.learnt[-1]
    assert sent == first.sends
    assert (
        '"through":"2026-01-01T23:59:59.000000Z"'
        in (server.lease["metadata"]["annotations"][SENT_ANNOTATION])
    )
    # On its own clock: when its read before began, which did not show it yet.
    assert written_after == 1000 * len(second.name)


def test_who_could_not_read_for_long_does_not_take_the_writing_for_new(pair, world):
    _, second = pair
    world.pass_time(pair, 10)
    second.away = True
    last_read = world.seconds
    world.pass_time(pair, 300)
    second.away = False

    second.step()

    assert second.learnt[-1][1] == last_read + 1000 * len(second.name)
    assert not second.leads


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"job": "job-1"}', '{"job": "job-0"}'])
def test_what_another_job_s_relay_sent_and_what_cannot_be_read_is_nothing(pair, server, text):
    _, second = pair
    server.lease["metadata"]["annotations"][SENT_ANNOTATION] = text
    second.learnt.clear()

    second.step()

    assert second.learnt == []


def test_labels_of_somebody_else_are_no_sign_of_life(pair, server, world):
    _, second = pair
    for _ in range(20):
        world.pass_time([second], 1.0, every=1.0)
        if not second.leads:
            server.lease["metadata"]["labels"] = {"touched": str(world.seconds)}
            server.lease["metadata"]["resourceVersion"] = str(next(server.versions))

    assert second.leads


@pytest.mark.parametrize("seed", range(8))
def test_never_do_two_lead_at_a_time_whatever_fails(seed, server, world):
    chance = random.Random(seed)
    relays = [Relay("a" * (n + 1), server, world, wall_skew_s=1000 * n) for n in range(3)]
    changes = 0
    leader = None
    for _ in range(2_000):
        world.seconds += chance.uniform(0.05, 1.0)
        relay = chance.choice(relays)
        match chance.randrange(40):
            case 0:
                relay.away = not relay.away
            case 1:
                server.loses_answers = not server.loses_answers
            case 2:  # killed and started again
                index = relays.index(relay)
                relays[index] = Relay(relay.name + "x" * 3, server, world)
            case 3:
                relay.leadership.give_back(relay)
            case _:
                relay.step()
        leading = [each for each in relays if each.leads]
        assert len(leading) <= 1
        if leading and leading[0] is not leader:
            leader, changes = leading[0], changes + 1
    assert changes > 3


def test_leader_s_time_to_send_ends_with_room_for_a_call_that_is_under_way():
    assert RENEW_WITHIN_S + LONGEST_CALL_S <= LEASE_DURATION_S
