"""Every fault that can be chosen by name is described where people look for it, and soon over."""

from pathlib import Path

import pytest

from stationmaster.cli.main import make_parser
from stationmaster.local.faults import DEFAULT_LIMITS, FAULTS, described, limits_with
from stationmaster.settings import Settings

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


def test_faults_shorten_each_the_limit_that_it_ends_at() -> None:
    limits = limits_with(["plugin-never-ready", "gpu-short", "no-capacity"])

    shortened = [name for name in DEFAULT_LIMITS if limits[name] < DEFAULT_LIMITS[name]]
    assert shortened == ["plugin_timeout_s", "check_timeout_s"]
    assert limits.keys() == limits_with(()).keys() <= Settings.model_fields.keys()
