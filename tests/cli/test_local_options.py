"""What the command line hands to local mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from stationmaster.cli.local_mode import local_options, up
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


def test_templates_are_looked_at_before_anything_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, empty = tmp_path / "state", tmp_path / "empty"
    empty.mkdir()
    words = ["local", "up", "--port", "0", "--state-dir", str(state), "--templates", str(empty)]

    assert up(make_parser().parse_args(words)) == 2

    assert "has no templates" in capsys.readouterr().err
    assert not state.exists()


def test_run_works_while_the_demo_is_open() -> None:
    demo = make_parser().parse_args(["local", "up"])
    run = make_parser().parse_args(["local", "run", "/train help"])

    assert run.state_dir != demo.state_dir
    assert run.port == 0  # any that is free
