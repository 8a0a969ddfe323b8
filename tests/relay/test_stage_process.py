"""The stager as a program: its lines and its exit codes."""

from __future__ import annotations

import pytest
from staging_world import LARGE, PART, Data

from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_REFUSED
from stationmaster.domain.staged_data import StagedLine, StagingLine, read_staging_line
from stationmaster.relay.stage import main


def test_program_says_how_far_it_is_and_what_it_has_brought(
    data: Data, capsys: pytest.CaptureFixture[str]
) -> None:
    data.put("large.tar", LARGE, part_bytes=PART)

    code = main(data.variables())

    first, last = (read_staging_line(line) for line in capsys.readouterr().out.splitlines())
    assert code == 0
    assert isinstance(first, StagingLine)
    assert (first.staged_bytes, first.total_bytes) == (0, len(LARGE))
    assert isinstance(last, StagedLine)
    assert (last.run_id, last.num_bytes) == ("run-1", len(LARGE))
    assert data.files(last) == {"large.tar": LARGE}


def test_refusal_is_the_last_line(data: Data, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(data.variables())

    (line,) = capsys.readouterr().out.splitlines()
    assert code == EXIT_REFUSED
    assert "holds no objects" in line


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"AWS_REGION": ""}, "variable AWS_REGION is"),
        ({"STATIONMASTER_DATA_DIRECTORY": ""}, "STATIONMASTER_DATA_DIRECTORY is empty"),
        ({"STATIONMASTER_STAGING_ORDER": "{}"}, "ORDER is not understood: run_id"),
    ],
)
def test_bad_setting_is_one_sentence_and_exit_code_2(
    data: Data,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, str],
    said: str,
) -> None:
    code = main(data.variables() | changed)

    (line,) = capsys.readouterr().out.splitlines()
    assert code == EXIT_MISUNDERSTOOD
    assert said in line
