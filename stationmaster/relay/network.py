"""Turns what NCCL's lines in a training container's log say of EFA into an event. Pure.

Only what is wrong is reported, once an attempt: silence is no finding.
"""

from __future__ import annotations

import string
from typing import Final

from stationmaster.diagnosis.nccl.transport import Kind, TransportReader
from stationmaster.domain.run.events import NetworkObserved, RelayEvent, run_event_id
from stationmaster.relay.lines import LogLine, PodFacts

# NCCL prints a line for each channel of each pair of ranks, thousands that differ in figures only.
_CHANNEL: Final = "via NET/"
_MAX_CHANNELS: Final = 64  # kinds of channels that are remembered
_WITHOUT_DIGITS: Final = str.maketrans("", "", string.digits)


class NetworkReader:
    """Reads the lines of one pod's training container for the network, over its restarts."""

    def __init__(self, pod: PodFacts) -> None:
        self._pod = pod
        self._reader = TransportReader()
        self._channels: set[str] = set()
        self._reported = pod.num_efa == 0

    def start_container_run(self) -> None:
        """Take what is read from now on as printed by another run of the container."""
        self._reader = TransportReader()

    def read(self, line: LogLine) -> list[RelayEvent]:
        """Return the event of a line that shows that EFA, or some of it, is not used."""
        if self._reported or ("NCCL INFO" not in line.text and "NET/OFI" not in line.text):
            return []
        if self._is_known_channel(line.text):
            return []
        self._reader.feed(" ".join(line.text.split()))
        transport = self._reader.result()
        # What was sent over or chosen: NCCL opens sockets for its bootstrap too.
        is_proven = bool(transport.socket_hosts) or transport.provider is not None
        uses_sockets = transport.kind is Kind.SOCKET and is_proven
        lacks = transport.num_nics is not None and transport.num_nics < self._pod.num_efa
        if not uses_sockets and not lacks:
            return []
        self._reported = True
        return [
            NetworkObserved(
                # Every pod may say so: the job identifies the fact.
                event_id=run_event_id(self._pod.run_id, "network", self._pod.job),
                run_id=self._pod.run_id,
                at=line.at,
                job=self._pod.job,
                pod=self._pod.name,
                uses_sockets=uses_sockets,
                provider=transport.provider or "",
                num_nics=transport.num_nics,
                plugin_version=transport.plugin_version or "",
                plugin_not_found=transport.plugin_not_found,
                no_provider=transport.no_provider,
            )
        ]

    def _is_known_channel(self, text: str) -> bool:
        """Say whether a channel of this transport was read before; another one says no more."""
        place = text.find(_CHANNEL)
        if place < 0:
            return False
        transport = text[place:].translate(_WITHOUT_DIGITS)
        if transport in self._channels:
            return True
        if len(self._channels) < _MAX_CHANNELS:
            self._channels.add(transport)
        return False
