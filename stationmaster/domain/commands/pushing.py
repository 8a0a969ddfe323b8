"""What `push_to=` of a start means, and who allows it. Pure; `parameters` and commands call it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from stationmaster.domain.catalogue.hub import is_repository
from stationmaster.domain.errors import BadCommand, NotPossibleNow
from stationmaster.domain.planning.plan import Plan

PUSH_TO: Final = "push_to"
ANY_ORGANISATION: Final = "*"


def read_push_to(value: str | None) -> str:
    """The repository that a model is pushed to, ORG/NAME; "" for none.

    Raises:
        BadCommand: it is not the name of a repository with its owner.
    """
    if value is None:
        return ""
    if "/" not in value or not is_repository(value):
        raise BadCommand(
            f"{PUSH_TO}={value[:120]} is not accepted: expected ORG/NAME, a repository of the "
            "Hugging Face hub with its owner"
        )
    return value


def refuse_push(repository: str, *, organisations: Collection[str], has_token: bool) -> None:
    """Refuse to push where the deployment does not allow it, or could not.

    Raises:
        NotPossibleNow: naming the field of cdk.json, or the secret that is empty.
    """
    owner = repository.partition("/")[0]
    if owner not in organisations and ANY_ORGANISATION not in organisations:
        which = (
            f"pushes models to {', '.join(organisations)} only"
            if organisations
            else "pushes no models to the Hugging Face hub yet"
        )
        raise NotPossibleNow(
            f'{PUSH_TO}={repository}: this deployment {which}; add "{owner}" to '
            "push_organisations in cdk.json and deploy again, see docs/deploy.md"
        )
    if not has_token:
        raise NotPossibleNow(
            f"{PUSH_TO}={repository}: this deployment has no token for the Hugging Face hub; fill "
            "its secret with one that may write there, see docs/deploy.md"
        )


def plan_with_push(plan: Plan, repository: str) -> Plan:
    """The plan with the push among its notes."""
    if not repository:
        return plan
    note = (
        f"{PUSH_TO}={repository}: after it succeeded, its model goes to that private repository of "
        "the Hugging Face hub"
    )
    return plan.model_copy(update={"warnings": [note, *plan.warnings]})
