"""Anything that runs and clusters may say, and what Slack takes of it."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from run_blocks import START

from stationmaster.domain.cluster.aggregate import Check
from stationmaster.domain.cluster.resources import Resource, ResourceStatus
from stationmaster.domain.resources import ResourceKind
from stationmaster.local.slack.blocks import check_blocks, total_text

# Any text, much of it hostile: control characters of mrkdwn, back quotes, very long, no spaces.
TEXT = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["<!channel>", "`" * 30, "&" * 900, "a" * 5_000, "", " \n\t ", "x\n" * 400]),
)
AMOUNT = st.floats(min_value=0, max_value=1e12, allow_nan=False)
MOMENT = st.integers(0, 10**7).map(lambda seconds: START + timedelta(seconds=seconds))
RESOURCES = st.lists(
    st.builds(
        Resource,
        kind=st.sampled_from(list(ResourceKind)),
        name=TEXT,
        status=st.sampled_from(list(ResourceStatus)),
        price_per_hour_usd=AMOUNT,
        requested_at=MOMENT,
        active_at=st.none() | MOMENT,
        deleted_at=st.none() | MOMENT,
    ),
    max_size=40,
).map(lambda made: {f"{index}": resource for index, resource in enumerate(made)})
CHECKS = st.lists(st.builds(Check, name=TEXT, passed=st.booleans(), detail=TEXT), max_size=40)
SLOW = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def assert_slack_takes(content) -> None:
    assert check_blocks(content.blocks) == []
    assert total_text(content.blocks) <= 13_200
    assert 0 < len(content.text) <= 3_000
