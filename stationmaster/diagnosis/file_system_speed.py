"""Judges whether a file system is as fast as what was bought, by all nodes' measurements. Pure.

It reads what `training.file_system_speed` printed on each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from stationmaster.domain.frozen import Frozen
from stationmaster.domain.outside import Count, Finite

# Shares of what was bought. Burst credits make a healthy file system faster than that.
_PASSES_AT: Final = 0.8
_FAILS_BELOW: Final = 0.5
# A node with less than this share of the others' median is slow by itself.
_SLOW_NODE: Final = 0.5
_MB: Final = 1_000_000
_LUSTRE: Final = "lustre"


@dataclass(frozen=True, slots=True)
class FileSystemSpeed:
    """The MB/s for each TiB of storage that the disks of a throughput tier sustain.

    Source: FSx for Lustre user guide, "Performance characteristics of SSD and HDD storage classes"
    (2026-11-23): disk throughput, baseline and burst, and for SCRATCH_2 reads and writes apart.
    """

    read: int
    write: int
    burst: int | None
    """The MB/s that burst credits allow for a time, or None."""


# By MB/s a TiB as it is bought. 200 is SCRATCH_2, the others are PERSISTENT_2.
SPEEDS: Final = {
    125: FileSystemSpeed(read=125, write=125, burst=500),
    200: FileSystemSpeed(read=200, write=100, burst=1300),
    250: FileSystemSpeed(read=250, write=250, burst=500),
    500: FileSystemSpeed(read=500, write=500, burst=None),
    1000: FileSystemSpeed(read=1000, write=1000, burst=None),
}
# A client without EFA for Lustre, as all are here. Source: the same guide, "Throughput to
# individual client instances".
MAX_CLIENT_GBPS: Final = 100.0


class Moved(Frozen):
    """How many bytes one node moved in how many seconds."""

    num_bytes: Count
    seconds: Annotated[Finite, Field(gt=0)]

    @property
    def mbps(self) -> float:
        """MB/s, of a million bytes each as AWS counts them."""
        return self.num_bytes / _MB / self.seconds


class NodeSpeed(Frozen):
    """The line that `training.file_system_speed` prints on one node."""

    stationmaster: Literal[1]
    kind: Literal["file_system_speed"]
    node: str
    file_system: str
    write: Moved
    read: Moved
    read_from: str
    cache: str


class Level(StrEnum):
    """What a measurement says of the file system."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    FIGURES = "figures"
    """Figures alone: there is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Bought:
    """The file system as it was asked for, and the nodes that use it.

    `mbps_per_tib` is None where nobody knows it. `client_gbps` is the network of one node. Where
    `is_shared`, others may use the file system now: then it is not failed.
    """

    storage_gib: int
    mbps_per_tib: int | None
    client_gbps: float
    is_shared: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict with its sentence, which has every figure."""

    level: Level
    sentence: str
    figures: dict[str, float]
    slow_node: str = ""
    """The node that alone caused the failure; "" where it passed or all are slow."""


def read_speed(line: str) -> NodeSpeed | None:
    """Read the measurement in a line; None where it is something else."""
    try:
        return NodeSpeed.model_validate_json(line)
    except ValidationError:
        return None


def aggregate_mbps(moves: Sequence[Moved]) -> float:
    """Return the MB/s of all nodes: they began at the same time, so the slowest one ends it."""
    return sum(moved.num_bytes for moved in moves) / _MB / max(moved.seconds for moved in moves)


def judge(speeds: Sequence[NodeSpeed], bought: Bought) -> Judged:
    """Compare what the nodes measured together with what was bought.

    Args:
        speeds: one of each node, at least one.
        bought: what to compare with.
    """
    written = aggregate_mbps([speed.write for speed in speeds])
    read = aggregate_mbps([speed.read for speed in speeds])
    figures: dict[str, float] = {"write_mbps": round(written), "read_mbps": round(read)}
    sentence = f"wrote {written:.0f} MB/s and read {read:.0f} MB/s together ({_how(speeds)})"
    slow_node, how = _slow_node(speeds)
    slow = f"; node {slow_node} {how}: replace it" if slow_node else ""
    tier = SPEEDS.get(bought.mbps_per_tib or 0)
    if tier is None or any(speed.file_system != _LUSTRE for speed in speeds):
        return Judged(Level.FIGURES, f"{sentence}{slow}", figures)
    tib, clients = bought.storage_gib / 1024, _clients_mbps(bought, len(speeds))
    expected = {"write": min(tib * tier.write, clients), "read": min(tib * tier.read, clients)}
    share, what = min((written / expected["write"], "write"), (read / expected["read"], "read"))
    figures |= {f"{name}_bought_mbps": round(mbps) for name, mbps in expected.items()}
    sentence += (
        f", {share:.0%} of the {expected[what]:.0f} MB/s to {what} that were bought; bought are "
        f"{expected['write']:.0f} to write and {expected['read']:.0f} to read"
    )
    if share >= _PASSES_AT:
        if tier.burst is not None and share > 1:
            sentence += f"; burst credits allow up to {tib * tier.burst:.0f} for a time"
        return Judged(Level.PASS, f"{sentence}{slow}", figures)
    if share >= _FAILS_BELOW or bought.is_shared:
        shared = "others may use it now; " if bought.is_shared else ""
        advice = f"; {shared}checkpoints take longer than planned"
        return Judged(Level.WARN, f"{sentence}{slow}{advice}", figures)
    advice = "" if slow else "; type the `/train` command again, with another file_system_type="
    return Judged(Level.FAIL, f"{sentence}{slow}{advice}", figures, slow_node)


def _how(speeds: Sequence[NodeSpeed]) -> str:
    """Say how the page cache was kept out, which decides what reading means."""
    caches = " and ".join(sorted({speed.cache for speed in speeds}))
    kinds = " and ".join(sorted({speed.file_system or "unknown" for speed in speeds}))
    own = "" if len(speeds) > 1 else ", its own files"
    return f"{kinds}, {caches}{own}"


def _clients_mbps(bought: Bought, num_nodes: int) -> float:
    return num_nodes * min(bought.client_gbps, MAX_CLIENT_GBPS) * 1000 / 8


def _slow_node(speeds: Sequence[NodeSpeed]) -> tuple[str, str]:
    """Return the slowest node, where it is far slower than the others, and how slow it is."""
    if len(speeds) < 2:
        return "", ""
    for what in ("write", "read"):
        (slowest, node), *others = sorted((getattr(each, what).mbps, each.node) for each in speeds)
        usual = median(mbps for mbps, _ in others)
        if slowest < _SLOW_NODE * usual:
            done = "wrote" if what == "write" else "read"
            return node, f"{done} {slowest:.0f} MB/s, the others {usual:.0f}"
    return "", ""
