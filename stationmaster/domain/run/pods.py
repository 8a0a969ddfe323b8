"""What a run remembers of the pods of its job; `stall` judges it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final

from pydantic import AfterValidator

from stationmaster.domain.event import shared
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.outside import MAX_KEPT_BYTES, Name, clipped
from stationmaster.domain.run.events import PodChanged

# The largest recipe has as many nodes.
MAX_PODS: Final = 128


class Pod(Frozen):
    """The newest word on one pod of the job."""

    name: str
    phase: str
    node: str = ""
    reason: Name = ""
    message: Annotated[str, AfterValidator(lambda text: clipped(text, MAX_KEPT_BYTES))] = ""
    exit_code: int | None = None
    restarts: int = 0
    was_up: bool = False
    """Whether it has run before: a pod that is only starting differs from one that was lost."""
    down_since: datetime | None = None
    """When it stopped running, or was first seen not to run yet; None while it is up."""

    @property
    def is_up(self) -> bool:
        """Whether its container runs, or has done all its work."""
        return self.is_finished or (self.phase == "Running" and not self.reason)

    @property
    def is_finished(self) -> bool:
        """Whether its container has ended well."""
        return self.phase == "Succeeded" or self.exit_code == 0

    @property
    def is_lost(self) -> bool:
        """Whether it does not run and has run before, or will never run."""
        return not self.is_up and (self.was_up or self.phase in ("Deleted", "Failed", "Unknown"))

    @property
    def standing(self) -> str:
        """The pod's state, in the cluster's own words."""
        if self.phase == "Deleted":
            return f"pod {self.name} was deleted"
        ended = f" with exit code {self.exit_code}" if self.exit_code is not None else ""
        why = ": ".join(part for part in (self.reason, self.message) if part)
        return f"pod {self.name} is {self.phase}{ended}{f' ({why})' if why else ''}"


def deleted_first(pods: Mapping[str, Pod]) -> list[str]:
    """Return the pods by name, deleted ones before the others."""
    return sorted(pods, key=lambda name: pods[name].phase != "Deleted")


def pod_after(known: Pod | None, event: PodChanged) -> Pod:
    """Return the pod after `event`; `known` is its state before, or None."""
    pod = Pod(**shared(event, Pod), name=event.pod)
    if pod.is_up:
        return pod.model_copy(update={"was_up": True})
    since = known.down_since if known is not None and known.down_since else event.at
    was_up = known is not None and known.was_up
    return pod.model_copy(update={"was_up": was_up, "down_since": since})
