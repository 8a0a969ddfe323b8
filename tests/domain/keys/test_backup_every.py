"""backup_every= as it is typed, read, typed again, planned and continued."""

from __future__ import annotations

import pytest

from stationmaster.domain.keys.backup_every import USUAL_S
from tests.support.typed import refused, start_of


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [("10m", 600), ("6h", USUAL_S), ("7d", 7 * 86_400), ("never", None)],
)
def test_backup_every_is_read(typed, seconds):
    assert start_of(f"tiny-llama backup_every={typed}").options.backup_every_s == seconds


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("backup_every=5m", "/train plan tiny-llama backup_every=10m"),
        ("backup_every=30d", "/train plan tiny-llama backup_every=7d"),
        ("backup_every=off", "/train plan tiny-llama backup_every=never"),
        ("backup_every=often", "/train plan tiny-llama backup_every=6h"),
        ("backup_every=2Hours", "/train tiny-llama backup_every=2h"),
    ],
)
def test_other_values_are_refused_with_a_command_that_works(typed, suggested):
    error = refused(f"tiny-llama {typed}")

    assert "expected a duration from 10m to 7d" in str(error)
    assert error.suggestion == suggested


@pytest.mark.parametrize("typed", ["backup_every=45m", "backup_every=never"])
def test_start_is_typed_again_and_planned_with_it(typed):
    start = start_of(f"tiny-llama {typed}")

    assert start.words == f"tiny-llama {typed}"
    assert start.plan.warnings[0].startswith(f"{typed}: ")


def test_usual_value_is_neither_typed_again_nor_planned():
    start = start_of("tiny-llama backup_every=6h")

    assert start.words == "tiny-llama"
    assert not [note for note in start.plan.warnings if "backup" in note]
