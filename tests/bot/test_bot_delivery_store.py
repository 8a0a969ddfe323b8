"""The notifier's memory: claims, versions, and a budget of edits that Slack never refuses."""

from __future__ import annotations

import pytest

from stationmaster.aws.delivery_store import Delivery
from stationmaster.domain.errors import WriteConflict


def test_claim_that_was_not_confirmed_comes_back_with_its_time(services, clock):
    first = clock.now()
    assert services.deliveries.claim("run-1", ["e1"], now=first) == {"e1": None}
    clock.advance(5)

    again = services.deliveries.claim("run-1", ["e1", "e2"], now=clock.now())

    assert again == {"e1": first, "e2": None}


def test_confirmed_claim_is_never_given_out_again(services, clock):
    services.deliveries.claim("run-1", ["e1"], now=clock.now())

    services.deliveries.confirm("run-1", ["e1"], now=clock.now())

    assert services.deliveries.claim("run-1", ["e1"], now=clock.now()) == {}


def test_delivery_is_read_back_as_saved(services, clock):
    delivery = Delivery(owner="run-1", channel_id="C1", card_ts="1.2", card_updated_at=clock.now())

    saved = services.deliveries.save(delivery, now=clock.now())

    assert services.deliveries.load("run-1") == saved
    assert saved.version == 1


def test_delivery_saved_over_a_newer_one_is_refused(services, clock):
    old = services.deliveries.load("run-1")
    services.deliveries.save(old, now=clock.now())

    with pytest.raises(WriteConflict, match="not at version 0"):
        services.deliveries.save(old, now=clock.now())


def test_budget_of_edits_is_used_and_never_above_fifty_a_minute(services, clock):
    taken = []
    while len(taken) < 90:
        wait_s = services.deliveries.take_update_token(clock.now())
        if wait_s == 0:
            taken.append(clock.monotonic())
        else:
            clock.advance(wait_s + 1e-3)

    windows = [sum(at <= other < at + 60 for other in taken) for at in taken]
    assert 45 <= max(windows) <= 50


def test_budget_keeps_its_reserve_for_urgent_edits(services, clock):
    while services.deliveries.take_update_token(clock.now(), reserve=3) == 0:
        pass

    urgent = [services.deliveries.take_update_token(clock.now()) for _ in range(4)]

    assert urgent[:3] == [0, 0, 0]
    assert urgent[3] == pytest.approx(2.0)
