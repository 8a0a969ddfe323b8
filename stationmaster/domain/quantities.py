"""Kubernetes quantities (`500m`, `2Gi`) as numbers. Pure."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_FORM: Final = re.compile(r"([+-]?\d{1,18}(?:\.\d{0,9})?)(?:[eE]([+-]?\d{1,2}))?([A-Za-z]{0,2})")
_UNITS: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}


def quantity(value: object) -> Fraction | None:
    """Read a quantity as a number; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _FORM.fullmatch(str(value).strip())
    if match is None or match[3] not in _UNITS:
        return None
    return Fraction(match[1]) * Fraction(10) ** int(match[2] or 0) * _UNITS[match[3]]
