"""The Lease by which a run's relays agree on which of them sends. Pure.

The object is a `coordination.k8s.io/v1` Lease; an annotation says what is on the bus, so that the
next leader continues from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from stationmaster.relay.cluster import JsonObject

# As client-go's leader election has them.
LEASE_DURATION_S: Final = 15
SENT_ANNOTATION: Final = "stationmaster/sent"


@dataclass(frozen=True)
class Sent:
    """What a leader has put on the bus."""

    behind_s: float | None = None
    """The age of the oldest unsent news of jobs, pods, warnings and nodes; None if unknown."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """By the uid of a pod: the stamp through which its log has been read and reported."""

    def annotation(self, job: str, *, at: datetime) -> str:
        """Write it for the Lease."""
        behind = {}
        if self.behind_s is not None:
            through = at - timedelta(seconds=self.behind_s)
            behind = {"through": _micro_time(through), "behind_s": round(self.behind_s, 3)}
        return json.dumps({"job": job, **behind, "logs": dict(self.logs)}, separators=(",", ":"))


@dataclass(frozen=True)
class Lease:
    body: JsonObject

    @property
    def holder(self) -> str:
        """The relay that leads, or led when it was written; empty when it was released."""
        return str(self._spec.get("holderIdentity") or "")

    @property
    def is_new(self) -> bool:
        return not self._spec.get("acquireTime")

    @property
    def duration_s(self) -> float:
        """The seconds that others wait after its last change."""
        return float(self._spec.get("leaseDurationSeconds") or LEASE_DURATION_S)

    @property
    def record(self) -> tuple[object, ...]:
        """A value that changes whenever a holder has written it; others' labels do not count."""
        names = ("holderIdentity", "acquireTime", "renewTime", "leaseTransitions")
        return tuple(self._spec.get(name) for name in names)

    def sent(self, job: str) -> Sent | None:
        """Return what its holder has sent of this job; None when it does not say."""
        annotations = (self.body.get("metadata") or {}).get("annotations") or {}
        try:
            said = json.loads(annotations.get(SENT_ANNOTATION, ""))
            if said["job"] != job:
                return None
            behind = said.get("behind_s")
            logs = {str(uid): str(stamp) for uid, stamp in said["logs"].items()}
            return Sent(behind_s=None if behind is None else float(behind), logs=logs)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def held(self, identity: str, *, at: datetime, job: str, sent: Sent | None) -> JsonObject:
        """Make the object to write, of the same resource version, held by `identity` from now on.

        An empty `identity` releases it. Without `sent`, what the holder before sent is kept.
        """
        body = {**self.body, "metadata": dict(self.body.get("metadata") or {})}
        spec = dict(self._spec)
        if identity and identity != self.holder:
            # The first holder makes no transition.
            former = spec.get("leaseTransitions")
            spec["leaseTransitions"] = 0 if former is None else former + 1
            spec["acquireTime"] = _micro_time(at)
        spec["holderIdentity"] = identity
        spec["leaseDurationSeconds"] = LEASE_DURATION_S
        spec["renewTime"] = _micro_time(at)
        body["spec"] = spec
        known = sent or Sent(logs=(self.sent(job) or Sent()).logs)
        body["metadata"]["annotations"] = {
            **(body["metadata"].get("annotations") or {}),
            SENT_ANNOTATION: known.annotation(job, at=at),
        }
        return body

    @property
    def _spec(self) -> JsonObject:
        return dict(self.body.get("spec") or {})


def new_lease(name: str, namespace: str) -> Lease:
    """Make a lease that nobody holds and that is not stored yet."""
    about = {"name": name, "namespace": namespace}
    return Lease({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": about})


def _micro_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
