"""How far a run is with what it needs before it trains: other runs' results, then data. Pure.

What was brought for one cluster is not on the file system of another.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.datasets import Preparation
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.run.events import (
    DataReported,
    DataStaged,
    DataUnlinked,
    StagingWork,
)


class Staging(BaseModel):
    """The data of a run on the file system of one cluster."""

    model_config = ConfigDict(frozen=True)

    cluster_id: ClusterId
    work: StagingWork
    """What is being done, or was done last."""
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


def staging_after(
    staging: Staging | None, event: DataReported | DataStaged | DataUnlinked
) -> Staging:
    """Return the state after a report, or after a piece of the work."""
    if staging is None or staging.cluster_id != event.cluster_id:
        work = "linking" if isinstance(event, DataUnlinked) else event.work
        staging = Staging(cluster_id=event.cluster_id, work=work)
    if isinstance(event, DataUnlinked):
        return staging.model_copy(
            update={
                "work": "copying",
                "unlinked_reason": event.reason,
                "done_bytes": 0,
                "total_bytes": 0,
            }
        )
    if isinstance(event, DataReported):
        if _is_done(staging, event.work):
            return staging  # an older report
        return staging.model_copy(
            update={
                "work": event.work,
                "done_bytes": event.done_bytes,
                "total_bytes": event.total_bytes,
            }
        )
    if event.work == "restoring":
        return staging.model_copy(
            update={"work": event.work, "restored": True, "done_bytes": 0, "total_bytes": 0}
        )
    if event.work == "converting":
        return staging.model_copy(
            update={
                "work": event.work,
                "weights_root": event.root,
                "done_bytes": 0,
                "total_bytes": 0,
            }
        )
    if event.work == "looking":
        return staging.model_copy(
            update={
                "work": event.work,
                "looked": True,
                "num_files": event.num_files,
                "num_bytes": event.num_bytes,
                "done_bytes": 0,
                "total_bytes": 0,
            }
        )
    is_ready = event.preparation is Preparation.NONE
    changes = {
        "work": event.work,
        "data_id": event.data_id,
        "preparation": event.preparation,
        "root": event.root if is_ready else "",
        "done_bytes": 0,
        "total_bytes": 0,
    }
    if event.work in ("linking", "copying"):
        changes |= {"num_files": event.num_files, "num_bytes": event.num_bytes}
        changes["linked"] = event.work == "linking"
    return staging.model_copy(update=changes)


def _is_done(staging: Staging, work: StagingWork) -> bool:
    match work:
        case "restoring":
            return staging.restored
        case "converting":
            return bool(staging.weights_root)
        case "looking":
            return staging.looked
        case "linking":
            return bool(staging.data_id or staging.unlinked_reason)
        case "copying":
            return bool(staging.data_id)
        case "preparing":
            return bool(staging.root)
