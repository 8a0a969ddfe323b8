"""Corrections to moto's internals, each in the module named after its concern.

`apply()` is called once by the endpoint before its server starts. The patches reach into private
code, so they refuse every version of moto but the one that they were written against.
"""

from __future__ import annotations

import functools
import importlib

import moto

MOTO_VERSION = "5.2.5"
PATCHES = (
    "caches",
    "capacity_reservations",
    "dynamodb",
    "ec2",
    "events",
    "lambda_invoke",
    "s3",
    "scaling",
    "schedules",
    "states_errors",
    "states_executions",
    "states_tasks",
    "states_time",
    "states_tokens",
    "tagging",
)


def require_version(found: str) -> None:
    """Refuse a moto that the patches were not written against.

    Raises:
        RuntimeError: the version is another one.
    """
    if found != MOTO_VERSION:
        raise RuntimeError(
            f"moto {found} is installed but the local AWS endpoint patches internals of moto "
            f"{MOTO_VERSION}; install moto=={MOTO_VERSION}"
        )


@functools.cache
def apply() -> None:
    """Apply every patch, once a process.

    Raises:
        RuntimeError: another version of moto is installed.
    """
    require_version(moto.__version__)
    # Imported here so that a wrong version fails with the message above, not inside a patch.
    for name in PATCHES:
        importlib.import_module(f"{__name__}.{name}").apply()
