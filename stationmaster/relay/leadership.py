"""Decides which relay of a run sends: a candidate for the Lease, one step every two seconds.

As in client-go's leader election, the clocks of two machines are never compared. A candidate waits
for the lease's duration on its own clock after it last saw the lease change; the leader stops
sending `RENEW_WITHIN_S` after it began the last write that succeeded. The difference is longer than
a call to the bus may take.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from stationmaster.domain.errors import TransientError
from stationmaster.relay.batching import Batcher
from stationmaster.relay.cluster import ClusterApi, Conflict, ObjectMissing
from stationmaster.relay.leases import LEASE_DURATION_S, Lease, new_lease

logger = logging.getLogger(__name__)

RENEW_WITHIN_S: Final = 10.0
RETRY_EVERY_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 4.0
# A lease that was given back goes to who has watched for longer than this: a relay that has just
# started did not see what happened before.
OTHERS_FIRST_S: Final = 3 * RETRY_EVERY_S


class Leadership:
    """Takes, renews and releases the Lease of a run's relays."""

    def __init__(
        self,
        api: ClusterApi,
        *,
        lease: str,
        namespace: str,
        identity: str,
        job: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`identity` is the process's own: what a restarted one did not see, the other one has."""
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{lease}"
        self._name, self._namespace = lease, namespace
        self._identity = identity
        self._job = job
        self._clock = clock
        self._now = now
        self._leads_until: float | None = None
        self._held: Lease | None = None  # as this relay wrote it last, unless it changed since
        self._seen: Lease | None = None  # as it was read last
        self._seen_at = 0.0  # when the lease was first seen as it is, on the own clock
        self._written_after: float | None = None  # it was written after that moment
        self._read_began: float | None = None
        self._missing_since: float | None = None
        self._began: float | None = None  # the first step
        self._thread: threading.Thread | None = None

    def leads(self) -> bool:
        """Say whether this relay may send now. Takes no lock."""
        until = self._leads_until
        return until is not None and self._clock() < until

    def start(self, sender: Batcher, stop: threading.Event) -> None:
        """Try for the lease until `stop`, in a thread."""

        def run() -> None:
            while not stop.is_set():
                self.step(sender)
                stop.wait(RETRY_EVERY_S * random.uniform(1.0, 1.2))

        self._thread = threading.Thread(target=run, name="lease", daemon=True)
        self._thread.start()

    def step(self, sender: Batcher) -> None:
        """Look at the lease once, and take or renew it where that is right."""
        led = self.leads()
        try:
            if self._held is not None:
                self._write(sender, self._held)
            else:
                self._look(sender)
        except Conflict as error:
            self._held = None  # read it again: somebody else has it, or an answer was lost
            logger.info("lease was written by another", extra={"error": str(error)})
        except ObjectMissing as error:
            self._held = None
            logger.warning("lease is not there", extra={"error": str(error)})
        except TransientError as error:
            logger.warning("lease out of reach", extra={"error": str(error)})
        if led and not self.leads():
            self._log("leads no more")

    def give_back(self, sender: Batcher) -> None:
        """Let another relay lead at once; the lease has what this one sent. After `stop`."""
        if self._thread is not None:
            self._thread.join(REQUEST_TIMEOUT_S)
        held, self._held = self._held, None
        if held is None or not self.leads():
            return
        # Nothing is sent from here on, whatever becomes of the request.
        self._leads_until = None
        body = held.held("", at=self._now(), job=self._job, sent=sender.sent())
        try:
            self._api.replace(self._path, body, read_timeout_s=REQUEST_TIMEOUT_S)
        except TransientError as error:
            logger.warning("lease was not given back", extra={"error": str(error)})
        else:
            self._log("gives the lease back")

    def _look(self, sender: Batcher) -> None:
        began = self._clock()
        self._began = began if self._began is None else self._began
        try:
            lease = Lease(self._api.get(self._path, read_timeout_s=REQUEST_TIMEOUT_S))
        except ObjectMissing:
            self._make(began)
            return
        answered = self._clock()
        self._missing_since = None
        if self._seen is None or lease.record != self._seen.record:
            # What a read that began earlier did not show yet was written after it began.
            self._seen_at, self._written_after = answered, self._read_began
        self._seen, self._read_began = lease, began
        free = answered >= self._seen_at + lease.duration_s
        if not lease.holder:
            free = lease.is_new or began >= self._began + OTHERS_FIRST_S
        if free or lease.holder == self._identity:
            self._write(sender, lease)
        elif (sent := lease.sent(self._job)) is not None:
            sender.learn(sent, written_after=self._written_after)

    def _make(self, began: float) -> None:
        """Make a new lease, held by nobody, once nobody can still lead by the old one."""
        if self._missing_since is None:
            self._missing_since = began
        if began >= self._missing_since + LEASE_DURATION_S:
            body = new_lease(self._name, self._namespace).body
            self._api.create(self._collection, body, read_timeout_s=REQUEST_TIMEOUT_S)
            self._missing_since = None

    def _write(self, sender: Batcher, lease: Lease) -> None:
        leads_on = self._held is not None
        body = lease.held(
            self._identity,
            at=self._now(),
            job=self._job,
            sent=sender.sent() if leads_on else None,
        )
        began = self._clock()
        stored = Lease(self._api.replace(self._path, body, read_timeout_s=REQUEST_TIMEOUT_S))
        if not leads_on or not self.leads():
            self._log("leads", before=lease.holder)
        self._held = stored
        self._leads_until = began + RENEW_WITHIN_S
        sender.lead(None if leads_on else lease.sent(self._job))

    def _log(self, what: str, **facts: str) -> None:
        logger.info(what, extra={"lease": self._name, "identity": self._identity, **facts})
