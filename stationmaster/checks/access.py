"""Whether everybody who acts in the cluster has the rights for it, by Kubernetes' own word.

These are the product's functions, by the role that runs this check, and the accounts of relays and
savers, by the roles that are rendered for them. The pods of training and of checks have no rights.
Granted rights become valid some seconds after they are made, so a missing one is asked for again,
and an account's are applied anew, for as long as the check may take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.names import cluster_name
from stationmaster.domain.sizes import counted
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.rights import (
    EVERYTHING,
    GRANT,
    GUESTS,
    Account,
    Right,
    granted_rights,
    needed_rights,
)
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.relay import render_relay_rights
from stationmaster.rendering.saver_job import render_saving_rights

if TYPE_CHECKING:
    from stationmaster.kubernetes.gateway import KubernetesGateway

NAME: Final = "access"


def applies(spec: ClusterSpec, *, is_full: bool) -> bool:
    """Say yes: every run is watched and saved."""
    return True


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make the accounts and their rights."""
    return [namespace(), *_rights(cluster)]


def look(cluster: LiveCluster) -> Finding:
    """Ask Kubernetes for each right; nothing is ready on the nodes yet, and nothing has to be."""
    gateway = cluster.kubernetes
    of_team = cluster.spec.queue is not None
    fault = own_fault(cluster, needed_rights(gateway.namespace, gateway.backend, of_team=of_team))
    if fault:
        return Finding(Verdict.WAITING, fault)
    granted = granted_rights([gateway.placed(item) for item in _rights(cluster)])
    for account, rights in granted.items():
        if not gateway.exists("v1", "ServiceAccount", name=account.name):
            return Finding(Verdict.MISSING, f"{account} is not there")
        missing = [right for right in rights if not gateway.may(right, account=account)]
        if missing:
            return Finding(Verdict.MISSING, _denied(account, missing))
    num_rights = sum(len(rights) for rights in granted.values())
    return Finding(
        Verdict.GOOD,
        f"the product has every right that it uses, and {counted(len(granted), 'account')} of its "
        f"pods have their {num_rights}",
        {"accounts": len(granted), "account_rights": num_rights},
    )


def own_fault(cluster: LiveCluster, rights: Sequence[Right]) -> str:
    """Name the right of these that the product itself lacks, with what to type; else ""."""
    fault = lacking(cluster.kubernetes, rights)
    if not fault:
        return ""
    eks_name = cluster.spec.eks_name
    about = f"--cluster-name {eks_name or cluster_name(cluster.cluster_id)} --principal-arn ROLE"
    give = f"{GRANT}, and aws eks update-access-entry {about} --kubernetes-groups {GUESTS}"
    if not eks_name:
        give = (
            f"type aws eks associate-access-policy {about} --policy-arn arn:aws:eks::aws:cluster-"
            "access-policy/AmazonEKSClusterAdminPolicy --access-scope type=cluster"
        )
    return f"{fault}; {give}, for each ROLE of the deployment"


def lacking(gateway: KubernetesGateway, rights: Sequence[Right]) -> str:
    """Say which of these rights the product lacks; "" where it has all.

    An administrator has everything, which is one question; otherwise each right is asked for.
    """
    if gateway.may(EVERYTHING):
        return ""
    missing = [right for right in rights if not gateway.may(right)]
    return f"the product's role may not {_listed(missing)}" if missing else ""


def _denied(account: Account, missing: Sequence[Right]) -> str:
    first = missing[0]
    where = f" --namespace {first.namespace}" if first.namespace else ""
    return (
        f"{account} may not {_listed(missing)}, though the roles that allow it were applied; type "
        f"kubectl auth can-i {first.verb} {first.kind}{where} --as {account.user}, look for what "
        "in the cluster changes roles or denies access, and validate again"
    )


def _listed(missing: Sequence[Right]) -> str:
    others = len(missing) - 1
    return f"{missing[0]}" + (f" and {counted(others, 'other right')}" if others else "")


def _rights(cluster: LiveCluster) -> list[KubernetesObject]:
    return [*render_relay_rights(cluster.kubernetes.backend), *render_saving_rights()]
