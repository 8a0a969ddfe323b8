"""How long local mode's workflows wait: hours for a busy machine, a minute to show a fault."""

import pytest

from stationmaster.local.limits import DEFAULT_LIMITS, limits_with
from stationmaster.local.mode import AWS_FAULTS, CLUSTER_FAULTS
from stationmaster.settings import Settings


@pytest.mark.parametrize(
    ("fault", "shortened"),
    [
        ("plugin-never-ready", {"plugin_timeout_s"}),
        ("pods-never-start", {"job_start_timeout_s"}),
        ("device-plugin-missing", {"check_timeout_s"}),
        ("gpu-short", {"check_timeout_s"}),
        ("launches-fail-silently", {"provision_timeout_s"}),
        *((fault, set()) for fault in AWS_FAULTS if fault != "launches-fail-silently"),
    ],
)
def test_fault_shortens_no_limit_but_the_one_that_it_ends_at(fault, shortened) -> None:
    limits = limits_with({fault})

    assert {name for name in DEFAULT_LIMITS if limits[name] < DEFAULT_LIMITS[name]} == shortened
    assert limits.keys() == limits_with(()).keys()


def test_faults_together_shorten_each_its_own_limit() -> None:
    limits = limits_with(CLUSTER_FAULTS)

    assert [name for name in DEFAULT_LIMITS if limits[name] < DEFAULT_LIMITS[name]] == [
        "plugin_timeout_s",
        "check_timeout_s",
        "job_start_timeout_s",
    ]


def test_limits_are_settings_of_the_product() -> None:
    assert limits_with(()).keys() <= Settings.model_fields.keys()
