"""Facts that the workflows of runs and clusters report, and reactions that they carry out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final

from stationmaster.domain.errors import StationmasterError

# What is requested is written first, and its workflow starts a moment later; what has ended is
# released a moment later. Until then the reaper leaves it alone.
GRACE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class StepBegins:
    """A step of the workflow is about to work."""


@dataclass(frozen=True, slots=True)
class Caught:
    """An error that Step Functions caught: its name, and its sentence where it has one."""

    error: str
    sentence: str = ""

    @property
    def why(self) -> str:
        """The text of it for people."""
        return self.sentence or self.error or "unknown error"


def parse_caught(error: Mapping[str, str] | None) -> Caught | None:
    """Parse the error that ended a workflow; None after success."""
    if error is None:
        return None
    return Caught(error.get("Error", ""), sentence_of(error.get("Cause", "")))


def sentence_of(cause: str) -> str:
    """Read the sentence in a Cause: Lambda puts JSON there, SendTaskFailure plain text.

    A workflow that fails puts there all that it caught, of which a timeout has no Cause.
    """
    try:
        parsed = json.loads(cause)
    except ValueError:
        return cause
    if isinstance(parsed, dict) and "Error" in parsed:
        return sentence_of(parsed.get("Cause") or parsed["Error"])
    if isinstance(parsed, dict):
        return str(parsed.get("errorMessage", cause))
    return cause


@dataclass(frozen=True, slots=True)
class WorkflowEnds:
    """The workflow has come to its conclusion; `caught` is None after success."""

    at: datetime
    caught: Caught | None = None


@dataclass(frozen=True, slots=True)
class WorkflowFailed:
    """The workflow was ended from outside, so it concluded nothing; `sentence` says how."""

    sentence: str


@dataclass(frozen=True, slots=True)
class WorkflowFound:
    """The reaper asked for the workflow; `status` is None where none was ever started."""

    at: datetime
    status: str | None


@dataclass(frozen=True, slots=True)
class EndWork:
    """Raise `error` instead of working, so that the workflow goes to its conclusion at once."""

    error: type[StationmasterError]
    sentence: str


@dataclass(frozen=True, slots=True)
class EndWait:
    """End the workflow's wait: with `error`, or well without one."""

    error: type[StationmasterError] | None = None
    sentence: str = ""


class Do(Enum):
    """What is done without further figures."""

    START_WORKFLOW = auto()
    """Start the workflow; whoever should have done so ended before."""
    PROLONG_WAIT = auto()
    """Keep the workflow's wait alive: its job is still watched."""
    ASK_CAPACITY = auto()
    """Ask AWS whether the run's nodes still exist; the answer may be a CapacityLost."""
    RELEASE_LEASE = auto()
    """Release the run's lease; whoever should have done so ended before."""
    EXPLAIN_SILENCE = auto()
    """Look at the cluster from outside; the answer is a SilenceExplained."""
    SAVE_AGAIN = auto()
    """Record that saving is tried once more, and start another execution of the workflow."""
    ANNOUNCE_DRAIN = auto()
    """Put on the bus that the cluster drains; a rule then starts the teardown."""
    COMPLETE_TEARDOWN = auto()
    """Release the cluster, with its cost."""
    START_TEARDOWN = auto()
    """Start a teardown, unless one is running."""
    ASK_WORKFLOW = auto()
    """Ask Step Functions for the cluster's workflow; the answer is a WorkflowFound."""


@dataclass(frozen=True, slots=True)
class RecordCrash:
    """Record that a workflow is over without a conclusion, so that its purpose has failed."""

    status: str


def repair_workflow(
    found: WorkflowFound, *, requested_at: datetime, is_untouched: bool
) -> tuple[Do | RecordCrash, ...]:
    """Decide from the status of a workflow that should not be over yet.

    `is_untouched`: what was requested is as it was then, so no workflow has worked on it.
    """
    if found.status is None:
        missed = is_untouched and found.at - requested_at >= GRACE
        return (Do.START_WORKFLOW,) if missed else ()
    return () if found.status == "RUNNING" else (RecordCrash(found.status),)
