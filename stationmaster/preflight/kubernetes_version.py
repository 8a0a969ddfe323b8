"""Which Kubernetes version a new cluster would get, and whether it is in standard support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.aws.account import Account
from stationmaster.domain.catalogue.kubernetes_versions import (
    OfferedVersion,
    Support,
    choose_version,
    unfit,
)
from stationmaster.domain.errors import PermanentError
from stationmaster.preflight.findings import Finding, Severity
from stationmaster.preflight.subject import DEPLOYMENT, Subject
from stationmaster.services import Services

NAME: Final = "kubernetes-version"
_SETTING: Final = "kubernetes_version in cdk.json"


def applies(services: Services, subject: Subject) -> bool:
    """Wherever a cluster would be made; it is the same for all of a deployment."""
    return subject.machines is not None or subject == DEPLOYMENT


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding."""
    wanted = services.settings.kubernetes_version
    return [judge(account.kubernetes_versions(), wanted=wanted)]


def judge(offered: Sequence[OfferedVersion], *, wanted: str) -> Finding:
    """Judge what EKS offers and the deployment has set; `wanted` is "" for nothing."""
    try:
        chosen = choose_version(offered, wanted=wanted)
    except PermanentError as error:
        message, _, remedy = str(error).partition("; ")
        return Finding(check=NAME, severity=Severity.ERROR, message=message, remedy=remedy)
    doubt = unfit(chosen, wanted=wanted)
    if not doubt:
        said = f"a new cluster gets Kubernetes {chosen.version}, which is in standard support"
        return Finding(check=NAME, severity=Severity.INFO, message=said)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        message=doubt,
        remedy=_remedy(offered, chosen, wanted=wanted),
    )


def _remedy(offered: Sequence[OfferedVersion], chosen: OfferedVersion, *, wanted: str) -> str:
    if not wanted:
        return "deploy a newer version of Stationmaster, whose plugins were checked with newer ones"
    try:
        better = choose_version(offered)
    except PermanentError:
        better = chosen
    if better.support is Support.STANDARD and better != chosen:
        return f"leave {_SETTING} out to get {better.version}, and deploy again"
    return f"leave {_SETTING} out once newer ones were checked"
