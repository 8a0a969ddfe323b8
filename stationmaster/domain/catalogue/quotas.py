"""How many vCPUs an account may run at once: one quota for each family of instance types.

Source: EC2 user guide, "Amazon EC2 On-Demand Instance quotas" and "Spot Instance quotas": the codes
of Service Quotas, service code `ec2`. New accounts have 0 for P, G and Trn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

SERVICE_CODE: Final = "ec2"


@dataclass(frozen=True)
class VcpuQuota:
    """One quota: its code, its name in the console, and the families that share it."""

    code: str
    name: str
    families: tuple[str, ...]
    """The letters before the generation in names of instance types: "p" of p5.48xlarge."""
    is_spot: bool = False
    generations: str = ""
    """The only generations of the families; "" for all."""

    def counts(self, instance_type: str) -> bool:
        """Say whether instances of a type count towards it."""
        # ("p", "5") of p5en.48xlarge
        found = re.match(r"([a-z]+)(?:-[a-z]+)?(\d*)", instance_type)
        family, generation = found.groups() if found else ("", "")
        return family in self.families and (not self.generations or generation in self.generations)


_STANDARD: Final = ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z")
_LETTERS: Final = "A, C, D, H, I, M, R, T, Z"
_G: Final = ("g", "gr", "vt")

QUOTAS: Final = (
    VcpuQuota("L-1216C47A", f"Running On-Demand Standard ({_LETTERS}) instances", _STANDARD),
    VcpuQuota("L-417A185B", "Running On-Demand P instances", ("p",)),
    VcpuQuota("L-DB2E81BA", "Running On-Demand G and VT instances", _G),
    VcpuQuota("L-2C3B7624", "Running On-Demand Trn instances", ("trn",)),
    VcpuQuota("L-34B43A08", f"All Standard ({_LETTERS}) Spot Instance Requests", _STANDARD, True),
    VcpuQuota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", ("p",), True, "234"),
    VcpuQuota("L-C4BD4855", "All P5 Spot Instance Requests", ("p",), True, "5"),
    VcpuQuota("L-3819A6DF", "All G and VT Spot Instance Requests", _G, True),
    VcpuQuota("L-6B0D517C", "All Trn Spot Instance Requests", ("trn",), True),
)


def quota_of(instance_type: str, *, is_spot: bool = False) -> VcpuQuota | None:
    """Return the quota that instances of a type count towards; None where it is not known here."""
    found = (each for each in QUOTAS if each.is_spot is is_spot and each.counts(instance_type))
    return next(found, None)
