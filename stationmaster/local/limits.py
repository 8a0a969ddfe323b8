"""How long the workflows of local mode wait before they give up, in real seconds.

Used by `local.mode`. Emulated work is quick, so a limit is there for hangs and for faults only.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

# A limit only ends a hang: no slow or busy machine may reach it.
DEFAULT_LIMITS: Final = dict.fromkeys(
    (
        "provision_timeout_s",
        "plugin_timeout_s",
        "check_timeout_s",
        "job_start_timeout_s",
        "release_job_timeout_s",
        "release_timeout_s",
    ),
    1800.0,
)
# A function that was killed here is gone at once, and what it asked for is done soon.
_CREATION_GRACE_S: Final = 10.0
# The limit that a fault ends at; short, so that its demonstration is soon over.
_FAULT_LIMITS: Final[dict[str, dict[str, float]]] = {
    "device-plugin-missing": {"check_timeout_s": 60.0},
    "gpu-short": {"check_timeout_s": 60.0},
    "launches-fail-silently": {"provision_timeout_s": 30.0},
    "plugin-never-ready": {"plugin_timeout_s": 60.0},
    "pods-never-start": {"job_start_timeout_s": 90.0},
}


def limits_with(faults: Collection[str]) -> dict[str, float]:
    """Return each wait's limit in the workflows, in real seconds, by the setting's name."""
    limits = {**DEFAULT_LIMITS, "creation_grace_s": _CREATION_GRACE_S}
    for fault in faults:
        limits |= _FAULT_LIMITS.get(fault, {})
    return limits
