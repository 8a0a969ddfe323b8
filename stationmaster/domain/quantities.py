"""Kubernetes quantities (`500m`, `2Gi`) as numbers. Pure."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_FORM: Final = re.compile(r"([+-]?\d{1,18}(?:\.\d{0,9})?)(?:[eE]([+-]?\d{1,2}))?([A-Za-z]{0,2})")
_POWERS: Final = {
    1000: {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6},
    1024: {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6},
}
_UNITS: Final = {
    unit: Fraction(base) ** power for base, of in _POWERS.items() for unit, power in of.items()
}


def quantity(value: object) -> Fraction | None:
    """Read a quantity as a number; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _FORM.fullmatch(str(value).strip())
    if match is None or match[3] not in _UNITS:
        return None
    return Fraction(match[1]) * Fraction(10) ** int(match[2] or 0) * _UNITS[match[3]]
