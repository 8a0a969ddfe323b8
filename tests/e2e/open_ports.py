"""Which addresses a process and everything that descends from it listen on. Linux only."""

from __future__ import annotations

import os
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

LISTENS = "0A"


def descendants(root: int) -> list[int]:
    """The process and its children, grandchildren and so on."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def listeners(root: int) -> dict[tuple[IPv4Address | IPv6Address, int], str]:
    """(address, port) of each listening socket, and the command line that holds it."""
    holders = {}
    for pid in descendants(root):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                target = os.readlink(entry)
                if target.startswith("socket:["):
                    holders[target[8:-1]] = command
        except OSError:
            continue  # it, or the descriptor, is gone
    found = {}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == LISTENS and fields[9] in holders:
                address, port = fields[1].split(":")
                found[_address(address), int(port, 16)] = holders[fields[9]]
    return found


def _address(text: str) -> IPv4Address | IPv6Address:
    """An address as the kernel prints it: words of 32 bits, each in the machine's order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    found = ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found
