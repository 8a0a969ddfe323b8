"""Service accounts, as the admission plugin ServiceAccount deals with them.

Called by `objects.py`: every namespace has the account `default`, and a pod of an account that is
not there is refused. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.resources import Object

DEFAULT_ACCOUNT = "default"


def admit(pod: Object, exists: Callable[[str], bool]) -> None:
    """Let a pod pass whose account exists.

    Raises:
        ApiError: 403. Source: kubernetes, plugin/pkg/admission/serviceaccount/admission.go.
    """
    metadata = pod["metadata"]
    account = pod["spec"].get("serviceAccountName") or DEFAULT_ACCOUNT
    if not exists(account):
        where = f"{metadata['namespace']}/{account}"
        raise errors.forbidden(
            f'pods "{metadata["name"]}" is forbidden: error looking up service account {where}: '
            f'serviceaccount "{account}" not found',
            details={"name": metadata["name"], "kind": "pods"},
        )
