"""Roles and bindings.

Source: kubernetes, pkg/apis/rbac/validation/validation.go. Pure.
"""

from __future__ import annotations

from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.validation.problems import Problems

GROUP = "rbac.authorization.k8s.io"


def check_role(obj: Object, problems: Problems) -> None:
    """Check the rules of a Role or a ClusterRole."""
    for index, rule in enumerate(obj.get("rules") or []):
        where = f"rules[{index}]"
        if not rule.get("verbs"):
            problems.required(f"{where}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            if obj["kind"] == "Role":
                problems.invalid(
                    f"{where}.nonResourceURLs",
                    rule["nonResourceURLs"],
                    "namespaced rules cannot apply to non-resource URLs",
                )
            continue
        if not rule.get("apiGroups"):
            problems.required(
                f"{where}.apiGroups", "resource rules must supply at least one api group"
            )
        if not rule.get("resources"):
            problems.required(
                f"{where}.resources", "resource rules must supply at least one resource"
            )


def check_binding(obj: Object, problems: Problems) -> None:
    """Check what is bound, and to whom."""
    role = obj.get("roleRef") or {}
    group = role.get("apiGroup", GROUP)
    if group != GROUP:
        problems.unsupported("roleRef.apiGroup", group, [GROUP])
    known = ["ClusterRole"] if obj["kind"] == "ClusterRoleBinding" else ["Role", "ClusterRole"]
    if role.get("kind") and role["kind"] not in known:
        problems.unsupported("roleRef.kind", role["kind"], known)
    for index, subject in enumerate(obj.get("subjects") or []):
        where, kind = f"subjects[{index}]", subject.get("kind")
        if kind == "ServiceAccount":
            if not subject.get("namespace"):
                problems.required(f"{where}.namespace")
            if subject.get("apiGroup"):
                problems.unsupported(f"{where}.apiGroup", subject["apiGroup"], [""])
        elif kind in ("User", "Group"):
            if subject.get("apiGroup", GROUP) != GROUP:
                problems.unsupported(f"{where}.apiGroup", subject["apiGroup"], [GROUP])
        elif kind:
            problems.unsupported(f"{where}.kind", kind, ["ServiceAccount", "User", "Group"])
