"""`push_to=ORG/NAME`: where the model goes after the run, and who allows it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from stationmaster.domain.catalogue.hub import is_repository
from stationmaster.domain.errors import BadCommand, NotPossibleNow
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.planning.plan import Plan

_ANY_ORGANISATION: Final = "*"

PUSH_TO: Final = Key(
    name="push_to",
    help="a private repository of the Hugging Face hub, ORG/NAME, that gets the model of a run "
    "that succeeds",
    meanings=("push", "upload_to", "hub_model_id", "push_to_hub"),
    typed=lambda options: options.push_to,
)


class Option(Part):
    """Where the model goes."""

    push_to: str = ""
    """The repository of the hub that its model is pushed to, ORG/NAME; "" for none."""


def read(typed: Typed) -> Option:
    """Read the name of a repository."""
    value = typed.get(PUSH_TO)
    if value is None:
        return Option()
    if "/" not in value or not is_repository(value):
        raise BadCommand(
            f"push_to={value[:120]} is not accepted: expected ORG/NAME, a repository of the "
            "Hugging Face hub with its owner"
        )
    return Option(push_to=value)


def refuse_push(repository: str, *, organisations: Collection[str], has_token: bool) -> None:
    """Refuse to push where the deployment does not allow it, or could not.

    Raises:
        NotPossibleNow: naming the field of cdk.json, or the secret that is empty.
    """
    owner = repository.partition("/")[0]
    if owner not in organisations and _ANY_ORGANISATION not in organisations:
        which = (
            f"pushes models to {', '.join(organisations)} only"
            if organisations
            else "pushes no models to the Hugging Face hub yet"
        )
        raise NotPossibleNow(
            f'push_to={repository}: this deployment {which}; add "{owner}" to '
            "push_organisations in cdk.json and deploy again, see docs/deploy.md"
        )
    if not has_token:
        raise NotPossibleNow(
            f"push_to={repository}: this deployment has no token for the Hugging Face hub; fill "
            "its secret with one that may write there, see docs/deploy.md"
        )


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say where the model goes."""
    if repository := start.part(Option).push_to:
        yield (
            f"push_to={repository}: after it succeeded, its model goes to that private repository "
            "of the Hugging Face hub"
        )


FAMILY: Final = Family(keys=(PUSH_TO,), read=read, note=note)
