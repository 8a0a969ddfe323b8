"""What the workflows of runs and clusters report, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stationmaster.domain.errors import StationmasterError


@dataclass(frozen=True, slots=True)
class StepBegins:
    """A step of the workflow is about to work."""


@dataclass(frozen=True, slots=True)
class Caught:
    """What Step Functions caught: the name of the error, and its sentence where it has one."""

    error: str
    sentence: str = ""

    @property
    def why(self) -> str:
        """What a person reads of it."""
        return self.sentence or self.error or "unknown error"


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
class EndWork:
    """The step does nothing but raise `error`, so the workflow goes to its conclusion at once."""

    error: type[StationmasterError]
    sentence: str


@dataclass(frozen=True, slots=True)
class EndWait:
    """The workflow waits no longer; its wait fails with `error`, or ends well without one."""

    error: type[StationmasterError] | None = None
    sentence: str = ""
