"""How far a run is with what it needs before it trains: other runs' results, then data. Pure.

What was brought for one cluster is not on the file system of another.
"""

from __future__ import annotations

from datetime import datetime

from stationmaster.domain.datasets import Preparation
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.run.events import (
    DataEvent,
    DataReported,
    DataStaged,
    DataUnlinked,
    StagingWork,
)


class Staging(Frozen):
    """The data of a run on the file system of one cluster."""

    cluster_id: ClusterId
    work: StagingWork
    """What is being done, or was done last."""
    since: datetime | None = None
    """When the work before it ended; None where it is the first."""
    done_bytes: int = 0
    total_bytes: int = 0
    restored: bool = False
    """Whether what is needed of other runs' results is there."""
    weights_root: str = ""
    """Where the converted weights are, below the directory of all data; "" until they are."""
    looked: bool = False
    """Whether data that was there was looked at and can be trained on."""
    data_id: str = ""
    """The name of what was copied, once it is."""
    preparation: Preparation = Preparation.NONE
    """What is still to be done with it."""
    root: str = ""
    """Where the trainer finds it, below the directory of all data; "" until it is ready."""
    num_files: int = 0
    num_bytes: int = 0
    """The bytes that were copied or linked."""
    linked: bool = False
    """Whether it is linked, so that each file is brought when it is first read."""
    unlinked_reason: str = ""
    """Why it could not be linked and is copied instead; a sentence."""


def staging_after(staging: Staging | None, event: DataEvent) -> Staging:
    """Return the state after a report, or after a piece of the work."""
    if staging is None or staging.cluster_id != event.cluster_id:
        work = "linking" if isinstance(event, DataUnlinked) else event.work
        staging = Staging(cluster_id=event.cluster_id, work=work)
    if isinstance(event, DataReported):
        if _is_done(staging, event.work):
            return staging  # an older report
        counts = {"done_bytes": event.done_bytes, "total_bytes": event.total_bytes}
        return staging.model_copy(update={"work": event.work, **counts})
    none_yet = {"since": event.at, "done_bytes": 0, "total_bytes": 0}
    if isinstance(event, DataUnlinked):
        given_up = {"work": "copying", "unlinked_reason": event.reason}
        return staging.model_copy(update=given_up | none_yet)
    return staging.model_copy(update={"work": event.work, **_brought(event), **none_yet})


def _brought(event: DataStaged) -> dict[str, object]:
    """Return what one piece of work has changed."""
    counts: dict[str, object] = {"num_files": event.num_files, "num_bytes": event.num_bytes}
    if event.work == "restoring":
        return {"restored": True}
    if event.work == "converting":
        return {"weights_root": event.root}
    if event.work == "looking":
        return {"looked": True, **counts}
    root = event.root if event.preparation is Preparation.NONE else ""
    data: dict[str, object] = {"data_id": event.data_id, "root": root}
    data["preparation"] = event.preparation
    if event.work == "preparing":
        return data
    return {**data, **counts, "linked": event.work == "linking"}


def _is_done(staging: Staging, work: StagingWork) -> bool:
    done = {
        "restoring": staging.restored,
        "converting": staging.weights_root,
        "looking": staging.looked,
        "linking": staging.data_id or staging.unlinked_reason,
        "copying": staging.data_id,
        "preparing": staging.root,
    }
    return bool(done[work])
