"""The local workspace of each test file that needs no app behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slack_fixtures import local_slack

from stationmaster.local.slack.server import LocalSlack


@pytest.fixture(scope="module")
def slack() -> Iterator[LocalSlack]:
    with local_slack() as workspace:
        yield workspace
