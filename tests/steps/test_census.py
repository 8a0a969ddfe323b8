"""What a deployment has at one moment: what costs money, and teardowns that do not end."""

from __future__ import annotations

import io
import json

import pytest

from lambdas import reaper
from stationmaster.domain.census import LONGEST_TEARDOWN, NAMESPACE, Census
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.resources import ResourceKind
from stationmaster.invocations import logger
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.reap import Open, list_open
from stationmaster.steps.take_census import take_census
from tests.support.aws_steps import Account
from tests.support.kill_acts import finish, of_cluster
from tests.support.kill_givens import drained, torn_down_in_vain


def test_what_was_requested_and_not_seen_gone_is_in_the_spend(alone: Account):
    alone.request()
    before = take_census(alone.services, num_helped=0)
    node_group = {"kind": ResourceKind.NODE_GROUP, "name": "training"}
    alone.happen_to_cluster(
        cluster_events.ResourceRequested, **node_group, price_per_hour_usd=98.319
    )

    during = take_census(alone.services, num_helped=2)
    alone.happen_to_cluster(cluster_events.ResourceDeleted, **node_group)
    after = take_census(alone.services, num_helped=0)

    assert (during.OpenClusters, during.Helped, during.StuckTeardowns) == (1, 2, 0)
    assert during.UsdPerHour == pytest.approx(before.UsdPerHour + 98.32)
    assert after.UsdPerHour == before.UsdPerHour


def test_teardown_that_gave_up_is_stuck(alone: Account):
    torn_down_in_vain(alone)

    assert take_census(alone.services, num_helped=0).StuckTeardowns == 1


def test_teardown_that_takes_too_long_is_stuck(alone: Account):
    drained(alone)
    finish(alone, of_cluster(begin_teardown))
    assert take_census(alone.services, num_helped=0).StuckTeardowns == 0

    alone.late += LONGEST_TEARDOWN * 1.1

    assert take_census(alone.services, num_helped=0).StuckTeardowns == 1


def test_census_counts_what_the_reaper_has_listed_and_lists_what_it_could_not(alone: Account):
    drained(alone)
    listed = list_open(alone.services)
    alone.aws.forget_calls()

    counted = take_census(alone.services, listed, num_helped=0)
    assert ("dynamodb", "Query") not in alone.aws.calls
    missing = take_census(alone.services, Open(runs=None, clusters=None), num_helped=0)

    assert ("dynamodb", "Query") in alone.aws.calls
    assert missing == counted
    assert counted.OpenClusters == 1


def test_reaper_logs_figures_as_cloudwatch_reads_them(
    alone: Account, monkeypatch: pytest.MonkeyPatch
):
    drained(alone)
    for name, value in alone.services.settings.to_environment().items():
        monkeypatch.setenv(name, value)
    written = io.StringIO()
    handler = logger.registered_handler
    before = handler.setStream(written)
    try:
        reaper.handler({}, None)
    finally:
        handler.setStream(before)

    (line,) = [each for each in map(json.loads, written.getvalue().splitlines()) if "_aws" in each]
    (described,) = line["_aws"]["CloudWatchMetrics"]
    assert (described["Namespace"], described["Dimensions"]) == (NAMESPACE, [["service"]])
    assert [each["Name"] for each in described["Metrics"]] == list(Census.model_fields)
    assert line["service"] == alone.services.settings.deployment
    assert line["OpenClusters"] == [1.0]
