"""The Kubernetes version of a new cluster: one that EKS offers and plugins were checked with. Pure.

AWS says at run time what it offers (`aws/kubernetes_versions.py`). The table here says what the
product's parts can do with it, and is read again when one of them gets a new version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Final

from stationmaster.domain.errors import PermanentError

# Amazon EKS charges so much an hour for a control plane. Source: Amazon EKS pricing.
STANDARD_USD_PER_HOUR: Final = 0.10
EXTENDED_USD_PER_HOUR: Final = 0.60

# The oldest and the newest version that each part was read against or tried with.
CHECKED: Final[Mapping[str, tuple[str, str]]] = {
    # v1.9.4 is built with the client libraries of 1.36; it was tried with a kube-apiserver 1.35.
    "training-operator": ("1.31", "1.36"),
    # v0.20.0: its chart takes 1.10 and newer; the kubelet's device API, v1beta1, is that of 1.36.
    "nvidia-device-plugin": ("1.26", "1.36"),
    # v0.5.20: the same API of the kubelet.
    "efa-device-plugin": ("1.26", "1.36"),
    # 0.8.0 is built with the client libraries of 1.35: manifests/mpi-operator, for nccl-tests only.
    "mpi-operator": ("1.31", "1.36"),
    # Savers and stagers use a Job's podFailurePolicy, which is stable since 1.31.
    "relay": ("1.31", "1.36"),
}
# EKS itself picks versions of its add-ons, such as the FSx CSI driver, that fit the cluster's.

_SETTING: Final = "kubernetes_version in cdk.json"


class Support(StrEnum):
    """How EKS supports a version, in its own words; what is past both is not offered."""

    STANDARD = "STANDARD_SUPPORT"
    EXTENDED = "EXTENDED_SUPPORT"


@dataclass(frozen=True)
class OfferedVersion:
    """A version that EKS makes clusters of."""

    version: str
    support: Support
    is_default: bool = False
    standard_support_ends: date | None = None

    @property
    def usd_per_hour(self) -> float:
        """What EKS charges for a control plane of it."""
        if self.support is Support.STANDARD:
            return STANDARD_USD_PER_HOUR
        return EXTENDED_USD_PER_HOUR


def numbers(version: str) -> tuple[int, ...]:
    """Read a version as numbers that can be compared: 1.9 is older than 1.10."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def checked_range() -> tuple[str, str]:
    """Return the oldest and the newest version that all parts were checked with."""
    oldest = max((least for least, _ in CHECKED.values()), key=numbers)
    newest = min((most for _, most in CHECKED.values()), key=numbers)
    return oldest, newest


def is_checked(version: str) -> bool:
    oldest, newest = checked_range()
    return numbers(oldest) <= numbers(version) <= numbers(newest)


def choose_version(offered: Iterable[OfferedVersion], *, wanted: str = "") -> OfferedVersion:
    """Choose the version of a new cluster: the wanted one, or else one that was checked.

    Of these, standard support comes first, then EKS's default, then the newest.

    Raises:
        PermanentError: EKS does not offer the wanted one, or none that was checked.
    """
    every = sorted(offered, key=lambda each: numbers(each.version))
    there = ", ".join(each.version for each in every) or "none"
    if wanted:
        found = next((each for each in every if each.version == wanted), None)
        if found is None:
            raise PermanentError(
                f"EKS offers no Kubernetes {wanted}, only {there}; set {_SETTING} to one of them, "
                "or leave it out, and deploy again"
            )
        return found
    usable = [each for each in every if is_checked(each.version)]
    if not usable:
        oldest, newest = checked_range()
        raise PermanentError(
            f"EKS offers Kubernetes {there}, and the plugins of this version of Stationmaster were "
            f"checked with {oldest} to {newest}; deploy a newer version of it, or set {_SETTING} "
            "to try one"
        )
    return max(
        usable,
        key=lambda each: (
            each.support is Support.STANDARD,
            each.is_default,
            numbers(each.version),
        ),
    )


def unfit(chosen: OfferedVersion, *, wanted: str = "") -> str:
    """Say what speaks against a version that can be used all the same; "" if nothing does."""
    if chosen.support is Support.EXTENDED:
        ended = chosen.standard_support_ends
        since = f" since {ended:%d %B %Y}" if ended is not None else ""
        return (
            f"Kubernetes {chosen.version} is in extended support{since}: EKS charges "
            f"${EXTENDED_USD_PER_HOUR:.2f} an hour for each control plane, "
            f"${STANDARD_USD_PER_HOUR:.2f} in standard support"
        )
    if wanted and not is_checked(chosen.version):
        oldest, newest = checked_range()
        return (
            f"Kubernetes {chosen.version} is set, and the plugins were checked with {oldest} to "
            f"{newest}"
        )
    return ""
