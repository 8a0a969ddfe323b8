"""Every fault that can be chosen by name is described where people look for it."""

from pathlib import Path

import pytest

from stationmaster.cli.main import make_parser
from stationmaster.local.faults import FAULTS, described

DOCUMENT = Path(__file__).parents[2] / "docs" / "local-mode.md"


def test_document_lists_every_fault_with_its_effect_and_its_source() -> None:
    text = DOCUMENT.read_text()
    table = text.partition("<!-- faults -->\n")[2].partition("<!-- end of faults -->")[0]

    rows = [f"| `{each.name}` | {each.effect} | {each.source} |" for each in FAULTS.values()]
    assert table.splitlines()[2:] == rows


@pytest.mark.parametrize("verb", ["up", "run"])
def test_help_lists_every_fault(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["local", verb, "--help"])

    assert described() in capsys.readouterr().out
    assert all(each.name in described() and each.effect in described() for each in FAULTS.values())
