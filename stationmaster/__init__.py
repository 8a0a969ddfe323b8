"""Distributed PyTorch training on Amazon EKS, run from a chat channel."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stationmaster.client import Client

__all__ = ["Client", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "Client":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # With the first use: most who import this package need neither it nor boto3.
    return import_module("stationmaster.client").Client
