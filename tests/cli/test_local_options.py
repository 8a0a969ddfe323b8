"""What the command line hands to local mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from stationmaster.cli.local_mode import local_options
from stationmaster.cli.local_watch import Record
from stationmaster.cli.main import make_parser


@pytest.mark.parametrize("verb", [["up"], ["run", "/train help"]])
def test_commands_of_the_channel_are_off_unless_the_flag_was_typed(
    verb: list[str], tmp_path: Path
) -> None:
    def allowed(*flags: str) -> bool:
        words = ["local", *verb, "--state-dir", str(tmp_path), *flags]
        return local_options(make_parser().parse_args(words), Record(None)).allow_commands

    assert not allowed()
    assert allowed("--allow-commands")


def test_run_works_while_the_demo_is_open() -> None:
    demo = make_parser().parse_args(["local", "up"])
    run = make_parser().parse_args(["local", "run", "/train help"])

    assert run.state_dir != demo.state_dir
    assert run.port == 0  # any that is free
