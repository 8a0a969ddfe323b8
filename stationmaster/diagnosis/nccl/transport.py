"""What NCCL's own lines say of the network that it used. They need NCCL_DEBUG=INFO.

NCCL tries plugins by several names and initialises sockets for its bootstrap, so neither a plugin
that was not found nor a socket that was opened is a failure: only what channels used counts.
Sources: src/transport/net*.cc and src/plugin/net.cc of NVIDIA/nccl, src/nccl_ofi_net.cpp of
aws-ofi-nccl.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stationmaster.domain.catalogue.defects import parse_version

_I: Final = re.IGNORECASE
_HOST: Final = re.compile(r"([A-Za-z0-9][\w.-]{0,252}):[0-9]+:[0-9]+ \[\w+\]")
_IS_NCCL: Final = re.compile(r"NCCL (?:INFO|WARN|version)|NET/OFI")

_PROVIDER: Final = re.compile(
    r"NET/OFI Selected provider is ([\w;-]+)(?:, fabric is [\w;-]+)?"
    r"(?: \(found ([0-9]{1,4}) nics?\))?",
    _I,
)
_PLUGIN: Final = re.compile(r"NET/OFI Initializing aws-ofi-nccl ([\w.+-]+)", _I)
# In brackets, the rank through which PXN goes.
_DEVICE: Final = re.compile(
    r"via NET/(?:AWS )?Libfabric/([0-9]{1,3})(?:\([0-9]+\))?((?:/\w+)*)", _I
)
_SIGNS: Final = {
    "socket used": re.compile(r"via NET/Socket|(?:Using network|Assigned NET plugin) Socket", _I),
    "socket opened": re.compile(r"NET/Socket ?: Using|Initialized NET plugin Socket", _I),
    "libfabric": re.compile(
        r"(?:Using network|Assigned NET plugin) (?:AWS )?Libfabric|via NET/(?:AWS )?Libfabric", _I
    ),
    "no plugin": re.compile(
        r"NET/Plugin ?: ?(?:Could not find:? \S*libnccl-net|No plugin found)", _I
    ),
    "no provider": re.compile(
        r"NET/OFI (?:No eligible providers were found|Couldn't find any optimal provider|"
        r"(?:OFI )?fi_getinfo\(\) call failed)",
        _I,
    ),
}
# Between a GPU and an interface that is far from it, it is always off: those lines say "for GPU".
_GPUDIRECT: Final = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for HCA", _I)
_NCCL_VERSION: Final = re.compile(r"NCCL version ([0-9]+\.[0-9]+(?:\.[0-9]+)?(?:[+.][\w.]+)?)", _I)
# Words of all patterns above: most of NCCL's lines have none of them.
_HINT: Final = re.compile(r"NET|Network|GPU Direct|NCCL version", _I)
_MAX_WARNING: Final = 200  # characters that are quoted
_LIBRARY_CODE: Final = re.compile(r"nccl-library=([0-9]{4,6})(?![0-9])")


class Kind(StrEnum):
    """What carried the messages between nodes."""

    EFA = "efa"
    SOCKET = "socket"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Transport:
    """The network as NCCL's lines have it."""

    kind: Kind = Kind.UNKNOWN
    provider: str | None = None
    """The name of libfabric's provider, e.g. "efa" or "tcp;ofi_rxm"."""
    num_nics: int | None = None
    """The fewest network interfaces that a node has found; None where no line says so."""
    fewest_nics_on: str | None = None
    """The node that found the fewest, where nodes differ."""
    num_devices_used: int | None = None
    """The network devices in the channels' lines; several interfaces may be behind one device."""
    has_gpudirect: bool | None = None
    """Whether every channel over libfabric reads the GPUs' memory; None where no line says so."""
    plugin_version: str | None = None
    nccl_version: str | None = None
    socket_hosts: tuple[str, ...] = ()
    """The nodes that used sockets."""
    plugin_not_found: bool = False
    no_provider: bool = False
    """Whether libfabric had no EFA to offer to the plugin."""
    warning: str = ""
    """The first warning of NCCL or its plugin, as it was printed; "" without one."""
    has_nccl_lines: bool = False
    has_info_lines: bool = False


class TransportReader:
    """Collects NCCL's lines; `result` judges them together."""

    def __init__(self) -> None:
        self._providers: set[str] = set()
        self._nics: dict[str, int] = {}
        self._devices: set[int] = set()
        self._direct: set[bool] = set()
        self._can_be_direct: set[bool] = set()
        self._plugins: set[str] = set()
        self._nccl: str | None = None
        self._library: str | None = None
        self._socket_hosts: set[str] = set()
        self._seen: set[str] = set()
        self._warning = ""

    def feed(self, line: str) -> None:
        """Take the next line, its words one space apart."""
        library = _LIBRARY_CODE.search(line) if "nccl-library" in line else None
        if library:
            self._library = _version_of_code(int(library.group(1)))
        if not _IS_NCCL.search(line):
            return
        self._seen.add("nccl")
        if "NCCL WARN " in line:
            self._warning = self._warning or line.partition("NCCL WARN ")[2][:_MAX_WARNING]
        if "NCCL INFO" in line or "NET/OFI" in line:
            self._seen.add("info")
        if not _HINT.search(line):
            return
        host_found = _HOST.search(line)
        host = host_found.group(1) if host_found else ""
        self._take_plugin(line, host)
        self._take_channel(line)
        signs = {name for name, pattern in _SIGNS.items() if pattern.search(line)}
        self._seen |= signs
        if "socket used" in signs:
            self._socket_hosts.add(host)
        if version := _NCCL_VERSION.search(line):
            self._nccl = self._nccl or version.group(1)

    def result(self) -> Transport:
        """Judge all lines together."""
        fewest = min(self._nics.values(), default=None)
        fewest_on = None
        if len(set(self._nics.values())) > 1:
            fewest_on = min(self._nics, key=lambda host: (self._nics[host], host)) or None
        # What channels use counts more than what interfaces can.
        direct = self._direct or self._can_be_direct
        return Transport(
            kind=self._kind(),
            provider=", ".join(sorted(self._providers)) or None,
            num_nics=fewest,
            fewest_nics_on=fewest_on,
            num_devices_used=len(self._devices) or None,
            has_gpudirect=direct == {True} if direct else None,
            plugin_version=min(self._plugins, key=parse_version, default=None),
            nccl_version=self._nccl or self._library,
            socket_hosts=tuple(sorted(self._socket_hosts - {""})),
            plugin_not_found="no plugin" in self._seen,
            no_provider="no provider" in self._seen,
            warning=self._warning,
            has_nccl_lines="nccl" in self._seen,
            has_info_lines="info" in self._seen,
        )

    def _kind(self) -> Kind:
        if "socket used" in self._seen:
            return Kind.SOCKET
        if self._providers:
            # libfabric also offers TCP; the plugin takes it where EFA is missing.
            return Kind.EFA if all(_is_efa(name) for name in self._providers) else Kind.SOCKET
        if "libfabric" in self._seen:
            return Kind.EFA
        if "socket opened" in self._seen:
            return Kind.SOCKET
        return Kind.EFA if self._plugins and "no provider" not in self._seen else Kind.UNKNOWN

    def _take_plugin(self, line: str, host: str) -> None:
        if plugin := _PLUGIN.search(line):
            self._plugins.add(plugin.group(1))
        if provider := _PROVIDER.search(line):
            self._providers.add(provider.group(1).lower())
            if provider.group(2):
                found = int(provider.group(2))
                self._nics[host] = min(found, self._nics.get(host, found))

    def _take_channel(self, line: str) -> None:
        if device := _DEVICE.search(line):
            self._devices.add(int(device.group(1)))
            self._direct.add("/gdrdma" in device.group(2).lower())
        if direct := _GPUDIRECT.search(line):
            self._can_be_direct.add(direct.group(1).lower() == "enabled")


def _is_efa(provider: str) -> bool:
    return provider == "efa" or provider.startswith("efa-")


def _version_of_code(code: int) -> str:
    """Read 2.23.4 from 22304; before 2.9, 2708 was 2.7.8. Source: NCCL_VERSION in nccl.h."""
    if code < 10_000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"
