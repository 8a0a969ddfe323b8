"""How many vCPUs an account may run at once: one quota for each family of instance types.

Source: EC2 user guide, "Amazon EC2 On-Demand Instance quotas" and "Spot Instance quotas": the codes
of Service Quotas, service code `ec2`. New accounts have 0 for P, G and Trn.
"""

from __future__ import annotations

import re
from typing import Final

from pydantic import BaseModel, ConfigDict

SERVICE_CODE: Final = "ec2"


class VcpuQuota(BaseModel):
    """One quota: its code, its name in the console, and the families that share it."""

    model_config = ConfigDict(frozen=True)

    code: str
    name: str
    families: tuple[str, ...]
    """The letters before the generation in names of instance types: "p" of p5.48xlarge."""
    is_spot: bool = False
    generations: tuple[str, ...] = ()
    """The only generations of the families; empty for all."""

    def counts(self, instance_type: str) -> bool:
        """Say whether instances of a type count towards it."""
        family, generation = _parts(instance_type)
        return family in self.families and (not self.generations or generation in self.generations)


_STANDARD: Final = ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z")

QUOTAS: Final = (
    VcpuQuota(
        code="L-1216C47A",
        name="Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
        families=_STANDARD,
    ),
    VcpuQuota(code="L-417A185B", name="Running On-Demand P instances", families=("p",)),
    VcpuQuota(
        code="L-DB2E81BA",
        name="Running On-Demand G and VT instances",
        families=("g", "gr", "vt"),
    ),
    VcpuQuota(code="L-2C3B7624", name="Running On-Demand Trn instances", families=("trn",)),
    VcpuQuota(
        code="L-34B43A08",
        name="All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
        families=_STANDARD,
        is_spot=True,
    ),
    VcpuQuota(
        code="L-7212CCBC",
        name="All P4, P3 and P2 Spot Instance Requests",
        families=("p",),
        is_spot=True,
        generations=("2", "3", "4"),
    ),
    VcpuQuota(
        code="L-C4BD4855",
        name="All P5 Spot Instance Requests",
        families=("p",),
        is_spot=True,
        generations=("5",),
    ),
    VcpuQuota(
        code="L-3819A6DF",
        name="All G and VT Spot Instance Requests",
        families=("g", "gr", "vt"),
        is_spot=True,
    ),
    VcpuQuota(
        code="L-6B0D517C",
        name="All Trn Spot Instance Requests",
        families=("trn",),
        is_spot=True,
    ),
)


def quota_of(instance_type: str, *, is_spot: bool = False) -> VcpuQuota | None:
    """Return the quota that instances of a type count towards; None where it is not known here."""
    found = (each for each in QUOTAS if each.is_spot is is_spot and each.counts(instance_type))
    return next(found, None)


def _parts(instance_type: str) -> tuple[str, str]:
    """Split into family and generation: ("p", "5") of p5en.48xlarge."""
    found = re.match(r"([a-z]+)(?:-[a-z]+)?(\d*)", instance_type)
    return (found[1], found[2]) if found else ("", "")
