"""How the parts of the services are made: of which class, and with which client of AWS."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

Make = Callable[[Any, Callable[..., Any]], Any]
"""Makes a part of the services, whose class it is given."""


def part(name: str, make: Make) -> Any:
    """Return a part that is made when it is asked for first, of the class `name` in `aws`.

    Its module is imported then: boto3 clients are most of a function's cold start, and no function
    uses all of them.
    """
    module, _, kind = name.partition(".")

    def made(services: Any) -> Any:
        return make(services, getattr(import_module(f"stationmaster.aws.{module}"), kind))

    return cached_property(made)


def rows(services: Any, kind: Callable[..., Any]) -> Any:
    """Make what keeps items of the product's table."""
    return kind(services.settings.table_name, services.client("dynamodb"))


def of(*names: str) -> Make:
    """Return what makes a part with the settings and clients of AWS services."""
    return lambda services, kind: kind(services.settings, *map(services.client, names))


def quick(*names: str) -> Make:
    """Return what makes a part that is asked quickly: for a command that a person waits for."""
    return lambda services, kind: kind(services.settings, *map(services.quick_client, names))
