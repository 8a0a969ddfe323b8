"""Picks, from what a container printed, the line that says why it ended. Pure.

The best line is a traceback's last; then one of a library or the kernel that means a failure; then
the last of all. Where all of them only say that another worker is gone, the container is no cause
but a consequence.
"""

from __future__ import annotations

import re
from typing import Final

MAX_LINE: Final = 300
_MAX_OPEN: Final = 64  # tracebacks of different ranks that are printed at the same time

# torchrun --tee puts "[default0]:" before each line, other launchers "[rank8]:".
_PREFIX: Final = re.compile(r"^\[[A-Za-z_]{1,30}\d{1,6}\]: ?")
# An exception without a word is explained by the line of source that raised it.
_BARE: Final = re.compile(r"[\w.]*(?:Error|Exception)$")
_SOURCE: Final = re.compile(r" {4}(?![\s~^])")
_TRACEBACK: Final = "Traceback (most recent call last):"
# Between exceptions of one chain: the first says what went wrong, the others what it led to.
_CHAINED: Final = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)
# NCCL's errors are of several lines, and the one after this says why.
_LAST_ERROR: Final = "Last error:"
_NCCL: Final = re.compile(r"NCCL error|nccl\w{1,40}Error")
# What torchrun says of itself once a worker has failed.
_OF_THE_AGENT: Final = re.compile(
    r"elastic\.multiprocessing\.(?:errors\.ChildFailedError|api\.SignalException)"
    r"|torch/distributed/elastic/"
)
_FATAL: Final = re.compile(
    r"CUDA out of memory|CUDA error:|OutOfMemoryError|NCCL error|nccl(?:System|UnhandledCuda"
    r"|Internal)Error|Segmentation fault|Bus error|Fatal Python error|No space left on device"
    r"|command not found|[Ee]xec format error"
)
_PEER: Final = re.compile(
    r"another worker of the job is gone|elastic agent is gone|ncclRemoteError"
    r"|Connection (?:reset|closed) by (?:remote )?peer|remote process exited|Broken pipe"
    r"|failed to recv, got 0 bytes|RendezvousConnectionError|RendezvousClosedError"
    r"|Watchdog caught collective operation timeout|DistNetworkError|Connection was likely closed"
)
# What is no fault of the program and may be gone at the next start: faulty hardware, agents or
# ranks that did not find each other in time, a network or a file system that failed.
_PASSING: Final = re.compile(
    r"\bXid\b|uncorrectable ECC|fallen off the bus|GPU is lost|[Hh]ardware error"
    r"|RendezvousTimeoutError|DistStoreError|waiting for clients|ncclSystemError"
    r"|Input/output error|Stale file handle|[Tt]ransport endpoint"
)
# Of these, what the machine is to blame for: another one may not meet it.
_MACHINE: Final = re.compile(
    r"\bXid\b|uncorrectable ECC|fallen off the bus|GPU is lost|[Hh]ardware error"
)
# A part of whatever the patterns above match: looking for parts first takes a tenth of their time,
# and a trainer may print thousands of lines a second.
_HINTS: Final = (
    "rror",
    "of memory",
    "OfMemory",
    "peer",
    "fault",
    "elastic",
    "gone",
    "exited",
    "pipe",
    "space left",
    "recv",
    "not found",
    "timeout",
)
# Lines that divide others, frames of C++, notes in a saved log, and what is logged of a program
# that works: none says why it ended.
_SAYS_NOTHING: Final = re.compile(
    r"[-=_*#~\s]*$|frame #\d+: |<omitting python frames>|\[stationmaster\] |\[?I\d{4} \d\d:"
    r"|[\W\dTZ]{0,40}(?:[\w.]{1,60} - )?(?:INFO|DEBUG)\b"
)
# Progress bars of tqdm and rich. They do not end their line, so what follows may stand behind them.
_BAR: Final = re.compile(
    r"[^|]{0,200}?\b\d{1,3}%\|[^|]{0,300}(?:\|[^\[\]]{0,60}(?:\[[^\]]{0,200}(?:\]|$))?|$)"
    r"|[^|\[]{0,200}\[\d{1,4}:\d\d[,:][^\]]{0,100}(?:it/s|s/it)\]|[^\u2501]{0,200}\u2501{4}.*"
)
_BAR_HINTS: Final = ("%|", "it/s", "s/it", "\u2501")


def says_lost_peer(text: str) -> bool:
    """Say whether the sentence of a failure only means that another worker is gone."""
    return _PEER.search(text) is not None


def says_passing(text: str) -> bool:
    """Say whether the sentence of a failure names what another start may not meet again."""
    return _PASSING.search(text) is not None


def says_bad_machine(text: str) -> bool:
    """Say whether the sentence of a failure blames the machine that the pod was on."""
    return _MACHINE.search(text) is not None


class FailureLines:
    """The best lines so far; memory does not grow with the log."""

    def __init__(self) -> None:
        # Of processes whose traceback is being printed: the newest line of source, by their prefix.
        self._open: dict[str, str] = {}
        self._chained: set[str] = set()
        self._explains: str | None = None  # the process whose next line says why NCCL failed
        self._in_agents = False
        self._traceback = self._fatal = ""
        self.peer = ""
        """The line that says that another worker is gone."""
        self.last = ""
        """The last line that was meant to be read."""

    def take(self, line: str) -> None:
        """Look at the next line of the log."""
        match = _PREFIX.match(line)
        prefix = match[0] if match else ""
        text = line[len(prefix) :].rstrip()
        while any(hint in text for hint in _BAR_HINTS) and (bar := _BAR.match(text)):
            text = text[bar.end() :]
            if not text.strip():
                return  # also between the lines of a traceback
        if text.startswith(_TRACEBACK) and len(self._open) < _MAX_OPEN:
            self._open[prefix] = ""
        elif prefix in self._open:
            if text and text[0] not in " \t|+":
                source = self._open.pop(prefix)
                self._raised(f"{text}: {source}" if source and _BARE.match(text) else text, prefix)
            elif _SOURCE.match(text):
                self._open[prefix] = text.strip()
        elif text.startswith(_CHAINED):
            self._chained.add(prefix)
        elif text == _LAST_ERROR:
            self._explains = prefix
        elif prefix == self._explains and text:
            self._explains = None
            if _NCCL.search(self._traceback):
                self._traceback = text[:MAX_LINE]
        else:
            self._plain(text)

    @property
    def cause(self) -> str:
        """What the container itself failed of; empty when it does not say."""
        return self._traceback or self._fatal

    def _raised(self, text: str, prefix: str) -> None:
        chained = prefix in self._chained
        self._chained.discard(prefix)
        if _OF_THE_AGENT.search(text):
            self._in_agents = True  # its report of the failure follows
        elif _PEER.search(text):
            self.peer = self.peer or text[:MAX_LINE]
        elif not self._traceback and not (chained and self.peer):
            self._traceback = text[:MAX_LINE]  # the first process that failed is the cause

    def _plain(self, text: str) -> None:
        if self._in_agents or _SAYS_NOTHING.match(text) or '"stationmaster"' in text:
            return
        if " NCCL INFO " in text:
            return  # it also tells of the end of each process, after what it ended of
        self.last, before = text[:MAX_LINE], self.last
        if not any(hint in text for hint in _HINTS):
            return
        if _OF_THE_AGENT.search(text):
            self.last = before
        elif _PEER.search(text):
            self.peer = self.peer or text[:MAX_LINE]
        elif _FATAL.search(text):
            self._fatal = self._fatal or text[:MAX_LINE]
