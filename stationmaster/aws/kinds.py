"""What every kind of AWS resource has: the verbs of its deletion, and the IAM actions it takes.

A kind is a class of this package: it has the verbs that steps call, and its module's `ACTIONS` the
IAM actions for `stacks` to grant. `Services` makes the class and knows its place in deletion.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Literal, Protocol

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import TAG_CLUSTER_ID
from stationmaster.domain.resources import Left


class Releasable(Protocol):
    """A kind of resource that is deleted by itself; add-ons and the like go with their cluster."""

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List those of the cluster that still exist."""

    def release(self, cluster_id: ClusterId, resource_id: str, /) -> None:
        """Request the deletion of one; nothing happens where it is gone or in use."""


@dataclass(frozen=True)
class Actions:
    """The IAM actions of one kind whose resources carry the tag of their cluster.

    Each is granted as narrowly as AWS allows: `create` where the request has the product's tag,
    `change` and `delete` where the resource has `tag` with a value like `tag_value`, `read` on all
    resources, because AWS grants listing on all or none.
    """

    permission: Literal["network", "file-system", "data-link"]
    """Functions are granted NAME-create, NAME-read and NAME-delete in `lambdas.registry`."""
    resource: str
    """AWS's name of the type, with its service: "ec2:placement-group"."""
    parent: str = ""
    """The type that it is created in, where IAM asks for a right on that as well."""
    create: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    tag: str = TAG_CLUSTER_ID
    tag_value: str = "*"
    or_tag: str = ""
    """A further tag by which a resource may be deleted, with any value."""


@cache
def actions_by_kind() -> dict[str, Actions]:
    """Collect the `ACTIONS` of every module of this package that has them, by the kind's name.

    A module of several kinds has theirs by name. All modules are imported, boto3 included: for
    `stacks`, and not for a function.
    """
    names = [found.name for found in iter_modules([str(Path(__file__).parent)])]
    modules = {name: import_module(f"{__package__}.{name}") for name in names}
    found = {name: getattr(mod, "ACTIONS", {}) for name, mod in modules.items()}
    return {
        kind: actions
        for name, of in found.items()
        for kind, actions in ({name: of} if isinstance(of, Actions) else of).items()
    }
