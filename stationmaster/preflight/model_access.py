"""Whether the pods of a start may read their model: many on the hub are gated by a licence."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.account import Account
from stationmaster.domain.errors import BadParameter
from stationmaster.preflight.findings import Finding, absent, present
from stationmaster.preflight.subject import Subject
from stationmaster.services import Services

NAME: Final = "model-access"


def applies(services: Services, subject: Subject) -> bool:
    """Say whether pods read weights or a tokenizer from the Hugging Face hub."""
    return bool(subject.repositories)


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding for each repository."""
    found: list[Finding] = []
    for repository in subject.repositories:
        try:
            services.hub.check_readable(repository)
        except BadParameter as error:
            found += absent(
                NAME,
                str(error),
                "the token of the pods is the field token of the deployment's Hugging Face "
                "secret, see docs/deploy.md",
            )
        else:
            found += present(NAME, f"{repository} can be read from the Hugging Face hub")
    return found
