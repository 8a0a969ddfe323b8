"""What a check before a start finds: how bad it is, what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stationmaster.aws.account import Account
from stationmaster.domain.frozen import Frozen
from stationmaster.preflight.subject import Subject
from stationmaster.services import Services

_NOT_ASKED: Final = "could not be asked"


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """It is lacking: a start would fail, so nothing is made."""
    WARNING = "warning"
    """A start may fail, or nobody could tell."""
    INFO = "info"
    """It is there."""


class Finding(Frozen):
    """One sentence about one thing, and its remedy; of what is there, the remedy is empty."""

    check: str
    severity: Severity
    message: str
    remedy: str = ""

    @property
    def is_unanswered(self) -> bool:
        """Whether nobody could tell if it is there."""
        return self.message.startswith(_NOT_ASKED)

    @property
    def sentence(self) -> str:
        """The message with its remedy."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


@dataclass(frozen=True)
class Check:
    """One question before a start."""

    name: str
    applies: Callable[[Services, Subject], bool]
    """Whether it has anything to ask."""
    look: Callable[[Services, Account, Subject], list[Finding]]
    """Ask and judge; a StationmasterError is raised where nobody answers."""


def present(check: str, message: str) -> list[Finding]:
    """Return the finding of what is there."""
    return [Finding(check=check, severity=Severity.INFO, message=message)]


def absent(check: str, message: str, remedy: str = "") -> list[Finding]:
    """Return the finding of what a start would fail without."""
    return [Finding(check=check, severity=Severity.ERROR, message=message, remedy=remedy)]


def lacking(findings: Iterable[Finding]) -> list[Finding]:
    """Return those for which nothing may be made."""
    return [each for each in findings if each.severity is Severity.ERROR]


def uncertain(findings: Iterable[Finding]) -> list[Finding]:
    """List those that are reported and stop nothing."""
    return [each for each in findings if each.severity is Severity.WARNING]


def unanswered(check: str, why: str) -> Finding:
    """Return the finding of a question without an answer, which stops nothing."""
    return Finding(
        check=check,
        severity=Severity.WARNING,
        message=f"{_NOT_ASKED}: {why}",
        remedy="the start goes on without an answer; if it fails, look here first",
    )
