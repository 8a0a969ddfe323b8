"""The stager as a process: killed and started again, its lines and its exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from staging_world import LARGE, PART, Data

from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_REFUSED
from stationmaster.domain.staged_data import StagedLine, StagingLine, read_staging_line
from stationmaster.relay.stage import main
from tests.support.cluster_fixtures import eventually

REPOSITORY = Path(__file__).parents[2]


def start(data: Data) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stationmaster.relay.stage"],
        cwd=REPOSITORY,
        env={**data.aws.environment(), **data.variables(), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_stager_that_is_killed_continues_where_it_was(data: Data) -> None:
    data.put("large.tar", LARGE, part_bytes=PART)
    # Two parts arrive; the stager asks for the third again and again.
    data.aws.inject("s3", "GetObject", "SlowDown", times=10_000, after=2)
    stager = start(data)
    eventually(
        lambda: any(
            len(journal.read_text().splitlines()) == 3
            for journal in data.directory.glob("*/partial/*.parts")
        ),
        "two parts",
    )
    stager.send_signal(signal.SIGKILL)
    stager.communicate()
    data.aws.clear_injected()
    data.aws.forget_calls()

    again = start(data)
    said, _ = again.communicate()

    first, last = (read_staging_line(line) for line in said.splitlines())
    assert again.returncode == 0
    assert data.reads() == 1
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
