"""What an FSx for Lustre file system is sold with: MB/s for each TiB, by its throughput tier.

Source: FSx for Lustre user guide, "Performance characteristics of SSD and HDD storage classes"
(read 2026-11-23): disk throughput, baseline and burst, and for SCRATCH_2 reads and writes apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FileSystemSpeed:
    """The MB/s for each TiB of storage that the disks sustain."""

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
