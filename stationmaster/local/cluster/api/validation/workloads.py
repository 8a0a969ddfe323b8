"""Deployments, ReplicaSets, DaemonSets and Jobs.

Source: kubernetes, pkg/apis/apps/validation and pkg/apis/batch/validation. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.selectors import match_selector
from stationmaster.local.cluster.api.validation import names
from stationmaster.local.cluster.api.validation.problems import Problems

Spec = Mapping[str, Any]


def check_workload(obj: Object, problems: Problems) -> None:
    """Check a Deployment, ReplicaSet or DaemonSet: it finds its pods, which run for ever."""
    spec, kind = obj.get("spec") or {}, obj["kind"]
    problems.at_least("spec.replicas", spec.get("replicas"), 0)
    problems.at_least("spec.minReadySeconds", spec.get("minReadySeconds"), 0)
    problems.at_least("spec.revisionHistoryLimit", spec.get("revisionHistoryLimit"), 0)
    template = spec.get("template")
    _check_selector(spec.get("selector"), template or {}, kind, problems)
    if template is not None:
        _check_template(template, problems)
    _check_strategy(spec.get("strategy") or {}, problems)


def _check_selector(selector: Any, template: Spec, kind: str, problems: Problems) -> None:
    if selector is None:
        return
    if not (selector.get("matchLabels") or selector.get("matchExpressions")):
        problems.invalid("spec.selector", selector, f"empty selector is invalid for {kind.lower()}")
        return
    labels = (template.get("metadata") or {}).get("labels") or {}
    if template and not match_selector(labels, selector):
        problems.invalid(
            "spec.template.metadata.labels", labels, "`selector` does not match template `labels`"
        )


def _check_template(template: Spec, problems: Problems) -> None:
    pod = template.get("spec") or {}
    policy = pod.get("restartPolicy", "Always")
    if policy != "Always":
        problems.unsupported("spec.template.spec.restartPolicy", policy, ["Always"])
    if pod.get("activeDeadlineSeconds") is not None:
        problems.forbidden(
            "spec.template.spec.activeDeadlineSeconds",
            "activeDeadlineSeconds in ReplicaSet is not Supported",
        )


def _check_strategy(strategy: Spec, problems: Problems) -> None:
    if strategy.get("type") == "Recreate" and strategy.get("rollingUpdate"):
        problems.forbidden(
            "spec.strategy.rollingUpdate",
            "may not be specified when strategy `type` is 'Recreate'",
        )


def check_job(obj: Object, problems: Problems) -> None:
    """Check a Job: pods that end, and a selector that is the server's own."""
    spec = obj.get("spec") or {}
    for field in (
        "parallelism",
        "completions",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    ):
        problems.at_least(f"spec.{field}", spec.get(field), 0)
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        problems.required("spec.completions", "when completion mode is Indexed")
    template = spec.get("template") or {}
    names.check_labels(
        (template.get("metadata") or {}).get("labels"), "spec.template.labels", problems
    )
    pod = template.get("spec") or {}
    policy = pod.get("restartPolicy", "Always")
    where = "spec.template.spec.restartPolicy"
    if policy not in ("OnFailure", "Never"):
        problems.required(where, 'valid values: "OnFailure", "Never"')
    failure = spec.get("podFailurePolicy")
    if failure is not None:
        if policy != "Never":
            problems.invalid(
                where, policy, 'only "Never" is supported when podFailurePolicy is specified'
            )
        _check_failure_policy(failure, pod, problems)


def _check_failure_policy(policy: Spec, pod: Spec, problems: Problems) -> None:
    containers = [*(pod.get("containers") or []), *(pod.get("initContainers") or [])]
    known = {container.get("name") for container in containers}
    for index, rule in enumerate(policy.get("rules") or []):
        where = f"spec.podFailurePolicy.rules[{index}]"
        codes = rule.get("onExitCodes")
        if codes is None and not rule.get("onPodConditions"):
            problems.invalid(
                where, rule, "specifying one of OnExitCodes and OnPodConditions is required"
            )
        if codes is None:
            continue
        if codes.get("containerName") is not None and codes["containerName"] not in known:
            problems.invalid(
                f"{where}.onExitCodes.containerName",
                codes["containerName"],
                "must be one of the container or initContainer names in the pod template",
            )
        values = codes.get("values") or []
        if codes.get("operator") == "In" and 0 in values:
            problems.invalid(
                f"{where}.onExitCodes.values[{values.index(0)}]",
                0,
                "must not be 0 for the In operator",
            )
        if values != sorted(values):
            problems.invalid(f"{where}.onExitCodes.values", values, "must be ordered")


def check_job_selector(obj: Object, problems: Problems) -> None:
    """Refuse a client's own selector, unless it says that it is its own."""
    spec = obj.get("spec") or {}
    if spec.get("selector") and not spec.get("manualSelector"):
        problems.invalid("spec.selector", spec["selector"], "`selector` not auto-generated")
