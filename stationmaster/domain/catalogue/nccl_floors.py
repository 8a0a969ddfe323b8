"""How fast NCCL must be on which instances: limits and published references, as dated data.

The limits are proposals between what a damaged fabric and a healthy one were measured to reach, not
promises of AWS. Bus bandwidths are in GB/s (1e9 bytes), as nccl-tests prints them, of float sums
out of place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.places import WITHOUT_GPUDIRECT

FLOORS_AS_OF: Final = "2026-11-20"
GIB: Final = 1 << 30
# Below this, latency and not bandwidth decides; averages over all sizes say even less.
SMALLEST_JUDGED_BYTES: Final = GIB

# Of messages up to this size, between nodes: published are 164 us on 2 x p4de, 69 us on 2 x p5 and
# 51 us on 2 x p6-b200 (nccl-tests logs of awslabs/awsome-distributed-training and of dstack pull
# request 3961), and 630 us on 2 x p4d with a stack of 2021.
SMALL_MESSAGE_BYTES: Final = 1024
SLOW_SMALL_MESSAGE_US: Final = 300.0
# Rings and trees grow with the nodes; nothing is published for more than this.
SMALL_MESSAGE_MAX_NODES: Final = 4


@dataclass(frozen=True)
class Limits:
    """The bus bandwidths by which messages of at least `min_size_bytes` are judged."""

    min_size_bytes: int
    fail_below_gbps: float
    warn_below_gbps: float


@dataclass(frozen=True)
class Signature:
    """What a bus bandwidth in this range is typical of."""

    low_gbps: float
    high_gbps: float
    meaning: str


@dataclass(frozen=True)
class Floor:
    """What all-reduce must reach on so many nodes of these instance types."""

    instance_types: tuple[str, ...]
    min_nodes: int
    max_nodes: int | None
    limits: tuple[Limits, ...]
    """The limits by size, the smallest first; the last one that a message reaches counts."""
    reference_gbps: float
    """The bandwidth of a healthy fabric, by the source."""
    reference_size_bytes: int
    source: str
    signatures: tuple[Signature, ...] = ()

    def limits_at(self, size_bytes: int) -> Limits | None:
        """Return the limits for messages of a size; None where it is too small to be judged."""
        reached = [limits for limits in self.limits if limits.min_size_bytes <= size_bytes]
        return reached[-1] if reached else None


_P4: Final = ("p4d.24xlarge", "p4de.24xlarge")
_P5: Final = ("p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge")
_B200: Final = ("p6-b200.48xlarge",)
_B300: Final = ("p6-b300.48xlarge",)
_AWS_LOGS: Final = "nccl-tests logs of awslabs/awsome-distributed-training, micro-benchmarks"
_SOCKETS: Final = "sockets in place of EFA"


def _limits(*rows: tuple[int, float, float]) -> tuple[Limits, ...]:
    return tuple(Limits(gib * GIB, fail, warn) for gib, fail, warn in rows)


_MEASURED: Final = (
    # Within one node: NVLink. The limits are about 0.65 and 0.87 of what was measured.
    Floor(
        _P4, 1, 1, _limits((1, 150, 200)), 230, GIB,
        "NVIDIA/nccl issue 527: 230.8 on one p4d, 2022",
    ),
    Floor(
        _P5, 1, 1, _limits((1, 300, 400)), 468, 2 * GIB,
        f"{_AWS_LOGS}: 468 on one p5; H200 has the same NVLink",
    ),
    # Two nodes of p4d exceed their 50 GB/s a node: a tree counts traffic over NVLink too.
    Floor(
        _P4, 2, 2, _limits((1, 35, 65)), 77, GIB,
        f"{_AWS_LOGS}: 76.8 at 1 GiB, 78.3 at 2 GiB on 2 x p4de; an AWS blog of 2022: 42.0, "
        "with one EFA interface 5.9, with sockets 2.4; skypilot issue 8391: 20 with one interface",
        (
            Signature(1.5, 3.5, _SOCKETS),
            Signature(4.5, 7.5, "one EFA interface of four on a stack of 2021"),
            Signature(15, 25, "one EFA interface of four on a current stack"),
            Signature(
                35, 65, "an NCCL or plugin of 2021 or 2022, of NCCL_ALGO=Ring, or of half the "
                "EFA interfaces",
            ),
        ),
    ),
    Floor(
        _P4, 3, None, _limits((1, 20, 30)), 40, GIB,
        "NVIDIA/nccl issue 527 (2022): 31.8 on 3 and 29.6 on 4 x p4d with channels for "
        "three interfaces of four; up to 40 seen by NVIDIA with all four",
        (Signature(0.5, 3.5, _SOCKETS),),
    ),
    Floor(
        _P5, 2, None, _limits((1, 250, 300), (2, 250, 380)), 437, 2 * GIB,
        f"{_AWS_LOGS}: 2 x p5 313 at 1 GiB and 438 at 2 GiB with NCCL 2.18, 437 and 444 "
        "with a newer one; at least 350 expected of p5en",
    ),
    # At 1 GiB: 0.7 of the limits for large messages; p5's published log has 0.9 there.
    Floor(
        _B200, 2, 2, _limits((1, 210, 315), (8, 300, 450)), 523.8, 8 * GIB,
        "published nccl-tests figures of 2 x p6-b200: 523.8 at 8 GiB",
    ),
    Floor(
        _B200, 3, None, _limits((1, 175, 225), (8, 250, 320)), 377, 16 * GIB,
        "published nccl-tests figures of 4 x p6-b200: 377 at 16 GiB",
    ),
    # Limits in the ratio of p6-b200's.
    Floor(
        _B300, 2, None, _limits((1, 260, 390), (8, 370, 560)), 654, 16 * GIB,
        "published nccl-tests figures of 2 x p6-b300: 654 at 16 GiB, 751 at 64 GiB",
    ),
)  # fmt: skip

# EFA without GPUDirect: about 0.7 of the line rate is expected, and half of that is the least.
# Proposed, not measured.
_EXPECTED_OF_LINE_RATE: Final = 0.7
# GPUs whose memory the EFA interfaces of their instances reach without the host.
_GPUDIRECT: Final = ("p4d.", "p4de.", "p5.", "p5e.", "p5en.", "p6-b200.", "p6-b300.")


def floor_for(instance: InstanceType, *, operation: str, num_nodes: int) -> Floor | None:
    """Return what an operation must reach there; None where nothing is known."""
    if operation != "all_reduce":
        return None
    for floor in _MEASURED:
        is_in_range = floor.min_nodes <= num_nodes <= (floor.max_nodes or num_nodes)
        if is_in_range and instance.name in floor.instance_types:
            return floor
    is_expected = instance.name.startswith(WITHOUT_GPUDIRECT) and instance.num_efa > 0
    return _from_line_rate(instance) if is_expected and num_nodes > 1 else None


def has_gpudirect(instance: InstanceType) -> bool:
    """Say whether EFA reads and writes the GPUs' memory there. Source: AWS, EFA user guide."""
    return instance.num_efa > 0 and instance.name.startswith(_GPUDIRECT)


def _from_line_rate(instance: InstanceType) -> Floor:
    expected = round(instance.network_gbps / 8 * _EXPECTED_OF_LINE_RATE, 2)
    return Floor(
        (instance.name,),
        2,
        None,
        _limits((1, round(0.5 * expected, 2), round(0.85 * expected, 2))),
        expected,
        GIB,
        f"0.7 of the line rate of {instance.network_gbps:g} Gbps; proposed, not measured",
    )
