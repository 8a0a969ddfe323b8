"""Picks, while a log grows, the line that explains its failure best by the rules."""

from __future__ import annotations

import re
from typing import Final

from stationmaster.diagnosis.matching import evidence_of, matches
from stationmaster.diagnosis.rules import LOG, Rank, Severity

# Errors that name where they were raised, and not why.
_OF_A_LIBRARY: Final = re.compile(r"nccl|CUDA error|Dist(?:Backend|Store|Network)Error|c10d", re.I)


def is_of_a_library(error: str) -> bool:
    """Say whether an error is one that libraries raise for whatever went wrong before."""
    return _OF_A_LIBRARY.search(error) is not None


class Evidence:
    """The best line so far; memory does not grow with the log."""

    def __init__(self) -> None:
        self._rank: Rank = Rank.CONSEQUENCE
        self._line = ""

    def take(self, line: str) -> None:
        """Look at the next line of the log; the first of a rank counts."""
        if '"stationmaster"' in line:
            return  # our trainer reports its failures itself
        for match in matches(line, LOG):
            if match.rule.severity is Severity.ERROR and match.rule.rank < self._rank:
                self._rank = match.rule.rank
                self._line = evidence_of(line, match.start)

    def beside(self, said: str, *, is_named: bool) -> str:
        """Return the line, where it explains more than what is said anyway; "" otherwise.

        Args:
            is_named: what is said is an error that the program ended with. Of these, only those of
                libraries may have been explained before; the others say what they mean.
        """
        rank = min((match.rule.rank for match in matches(said, LOG)), default=None)
        if rank is None and is_named and not is_of_a_library(said):
            return ""
        return self._line if rank is None or self._rank < rank else ""
