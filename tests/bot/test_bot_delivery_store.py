"""The notifier's memory: claims, versions, and a budget of edits that Slack never refuses."""

from __future__ import annotations

import pytest

from stationmaster.aws.delivery_store import Delivery
from stationmaster.domain.errors import WriteConflict


def test_event_is_claimed_exactly_once(services, clock):
    claims = [services.deliveries.claim_event("run-1", "e1", now=clock.now()) for _ in range(3)]

    assert claims == [True, False, False]


def test_released_event_can_be_claimed_again(services, clock):
    services.deliveries.claim_event("run-1", "e1", now=clock.now())

    services.deliveries.release_events("run-1", ["e1"])

    assert services.deliveries.claim_event("run-1", "e1", now=clock.now())


def test_delivery_is_read_back_as_saved(services, clock):
    delivery = Delivery(run_id="run-1", channel_id="C1", card_ts="1.2", card_updated_at=clock.now())

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
    assert urgent[3] == pytest.approx(1.5)
