"""The verdict on a log of nccl-tests, as it is shown and as its JSON has it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from stationmaster.diagnosis.nccl.transport import Kind
from stationmaster.domain.frozen import Frozen


class Verdict(StrEnum):
    """Whether training on such a network makes sense: yes, yes but slower than it could, no."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


_ORDER: Final = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)


class Finding(Frozen):
    """A reason for a verdict; `remedy` says what to do about it."""

    verdict: Verdict
    text: str
    remedy: str | None = None
    nodes: tuple[str, ...] = ()
    """The machines that it is about, as the log calls them; empty where it is about none."""


def failure(text: str, remedy: str | None = None, nodes: tuple[str, ...] = ()) -> Finding:
    return Finding(verdict=Verdict.FAIL, text=text, remedy=remedy, nodes=nodes)


def warning(text: str, remedy: str | None = None) -> Finding:
    return Finding(verdict=Verdict.WARN, text=text, remedy=remedy)


def passed(text: str) -> Finding:
    return Finding(verdict=Verdict.PASS, text=text)


def worst(findings: list[Finding]) -> Verdict:
    """Return the worst verdict of all; FAIL without any, as nothing was shown to work."""
    return max((finding.verdict for finding in findings), key=_ORDER.index, default=Verdict.FAIL)


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Sort in the order in which a person should read them."""
    return sorted(findings, key=lambda finding: -_ORDER.index(finding.verdict))


class MeasuredRow(Frozen):
    """A size of message, out of place where that was printed, else in place."""

    size_bytes: int
    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    in_place_busbw_gbps: float | None


class Figures(Frozen):
    """What one test measured; None where it did not."""

    operation: str | None = None
    num_ranks: int | None = None
    peak_busbw_gbps: float | None = None
    judged_size_bytes: int | None = None
    judged_busbw_gbps: float | None = None
    floor_busbw_gbps: float | None = None
    """The bandwidth below which a test fails, at the judged size."""
    warn_busbw_gbps: float | None = None
    reference_busbw_gbps: float | None = None
    small_message_us: float | None = None
    rows: list[MeasuredRow] = []


class TestReport(Figures):
    """One test of a log, e.g. the all-reduce before the broadcast."""

    verdict: Verdict
    average_busbw_gbps: float | None
    """The average as the log has it; shown, and never judged: it depends on the range of sizes."""
    reference_source: str | None
    wrong_values: int
    is_complete: bool
    findings: list[Finding]

    __test__ = False  # its name is no test's for pytest


class NcclReport(Figures):
    """The whole answer; its figures are those of the first all-reduce, or first test."""

    verdict: Verdict
    instance_type: str
    nodes: int
    transport: Kind
    provider: str | None
    num_nics: int | None
    num_nics_expected: int
    gpudirect: bool | None
    plugin_version: str | None
    nccl_version: str | None
    wrong_values: int
    reasons: list[str]
    next_steps: list[str]
    findings: list[Finding]
    tests: list[TestReport]
