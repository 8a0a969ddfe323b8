"""The relay's load at a small size: a kill and a bus that is away lose and double nothing."""

from __future__ import annotations

from bench.relay_load import Load, play


def test_no_line_is_lost_or_doubled_over_a_kill_and_an_outage() -> None:
    taken = play(Load(pods=20, lines_per_s=200, seconds=12, away=(7, 10), killed_at=2, more_s=1))

    assert (taken.lost, taken.doubled) == (0, 0)
    assert len(taken.printed) > 2000
    assert taken.delays_s()
