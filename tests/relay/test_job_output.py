"""What a Job of the relay's image prints."""

from __future__ import annotations

import pytest

from stationmaster.domain.results import SavingLine
from stationmaster.relay.job_output import ByteProgress


def test_progress_is_printed_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    seldom, often = (
        ByteProgress(
            lambda done, total: SavingLine(saved_bytes=done, total_bytes=total), every_s=every_s
        )
        for every_s in (3600, 0)
    )
    for progress in (seldom, often):
        progress.expect(10)
        progress.add(4)
        progress.expect(5)
        progress.add(6)

    lines = [SavingLine.model_validate_json(text) for text in capsys.readouterr().out.splitlines()]
    assert [(line.saved_bytes, line.total_bytes) for line in lines] == [(4, 10), (10, 15)]
