"""What the functions log: the run or the cluster is in every line."""

from __future__ import annotations

import logging

import pytest

from stationmaster.invocations import guarded
from stationmaster.log_keys import bound

module_logger = logging.getLogger("stationmaster.steps.something")


def test_lines_of_any_module_name_the_run_and_keep_what_they_say_themselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def call() -> None:
        module_logger.warning("odd", extra={"step": "mine"})

    guarded(call, keys={"run_id": "run-1", "step": "reap"})
    module_logger.warning("after")

    (odd,) = [line for line in caplog.records if line.message == "odd"]
    (after,) = [line for line in caplog.records if line.message == "after"]
    assert (odd.run_id, odd.step) == ("run-1", "mine")  # type: ignore[attr-defined]
    assert not hasattr(after, "run_id")


def test_inner_keys_are_added_to_outer_ones(caplog: pytest.LogCaptureFixture) -> None:
    with bound({"cluster_id": "c"}), bound({"run_id": "r"}):
        module_logger.warning("both")

    (line,) = caplog.records
    assert (line.cluster_id, line.run_id) == ("c", "r")  # type: ignore[attr-defined]
