"""One validation check of the run's cluster: passed, or the run ends before it wastes money.

Fail-closed: only figures that are right pass. What may still settle (nodes joining, plugins
counting devices) is looked at again until the time is up; a storage check that ran and failed is
final.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.domain.errors import CheckFailed, PermanentError
from stationmaster.domain.events import CheckFinished, RunPhase, make_event_id
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import LABEL_RUN_ID, NAMESPACE, TRAINING_NODE_GROUP
from stationmaster.domain.planning.requirements import (
    EFA_CHECK,
    GPUS_CHECK,
    NODES_CHECK,
    STORAGE_CHECK,
)
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import NodeView
from stationmaster.rendering import JobSpec, job_spec
from stationmaster.rendering.checks import render_storage_checks
from stationmaster.rendering.metadata import LABEL_CHECK, LABEL_NODE_GROUP, namespace
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import enter_phase
from stationmaster.steps.stopping import raise_if_stopped
from stationmaster.steps.submit_job import storage_objects

_GPU: Final = "nvidia.com/gpu"
_EFA: Final = "vpc.amazonaws.com/efa"


@dataclass(frozen=True)
class Finding:
    """What a look at the cluster says; `passed` is None while it may still settle."""

    passed: bool | None
    detail: str


def run_check(services: Services, run_id: RunId, *, check: str) -> StepResult:
    """Look at the cluster once; ready when the check has passed.

    Raises:
        CheckFailed: with the figures seen and expected.
        RunStopped: someone asked to stop.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    run = enter_phase(services, run, RunPhase.VALIDATING)
    finished = next((known for known in run.checks if known.name == check), None)
    if finished is not None:
        if finished.passed:
            return READY
        raise CheckFailed(f"check {check} failed: {finished.detail}")
    spec = job_spec(run.request, run_id=run_id, image=services.settings.training_image)
    finding = _look(services, spec, check)
    if finding.passed is None:
        began = run.entered(RunPhase.VALIDATING)
        waited_s = (services.now() - began).total_seconds() if began else 0.0
        if waited_s <= services.settings.check_timeout_s:
            return NOT_READY
        finding = Finding(False, f"{finding.detail} (after {waited_s:.0f} s)")
    event = CheckFinished(
        event_id=make_event_id(run_id, "check.finished", check),
        run_id=run_id,
        at=services.now(),
        check=check,
        passed=bool(finding.passed),
        detail=finding.detail,
    )
    services.runs.record(run_id, [event])
    if not finding.passed:
        raise CheckFailed(f"check {check} failed: {finding.detail}")
    return READY


def _look(services: Services, spec: JobSpec, check: str) -> Finding:
    gateway = services.kubernetes(spec.run_id)
    # Runs may share a cluster: the nodes of others do not count.
    nodes = gateway.nodes(labels={LABEL_NODE_GROUP: TRAINING_NODE_GROUP, LABEL_RUN_ID: spec.run_id})
    joined = _check_nodes(spec, nodes)
    if check == NODES_CHECK or not joined.passed:
        return joined
    if check == GPUS_CHECK:
        return _check_devices(nodes, resource=_GPU, expected=spec.num_gpus)
    if check == EFA_CHECK:
        return _check_devices(nodes, resource=_EFA, expected=spec.num_efa)
    if check == STORAGE_CHECK:
        return _check_storage(services, gateway, spec, nodes)
    known = (NODES_CHECK, GPUS_CHECK, EFA_CHECK, STORAGE_CHECK)
    raise PermanentError(f'check "{check}" is not known; known: {", ".join(known)}')


def _check_nodes(spec: JobSpec, nodes: list[NodeView]) -> Finding:
    ready = [node for node in nodes if node.ready]
    wrong = [node for node in nodes if node.instance_type != spec.instance.name]
    zones = sorted({node.zone for node in nodes})
    if wrong:
        return Finding(
            None,
            f"node {wrong[0].name} is a {wrong[0].instance_type or 'node of unknown type'}, "
            f"{spec.instance.name} expected",
        )
    detail = f"{len(ready)} of {spec.nodes} {spec.instance.name} nodes are ready"
    if len(ready) != spec.nodes or len(nodes) != spec.nodes:
        return Finding(None, detail)
    if len(zones) != 1:
        return Finding(None, f"{detail}, but in {len(zones)} zones ({', '.join(zones)}), not 1")
    return Finding(True, f"{detail} in {zones[0]}")


def _check_devices(nodes: list[NodeView], *, resource: str, expected: int) -> Finding:
    wrong = [node for node in nodes if node.count(resource) != expected]
    if wrong:
        node = wrong[0]
        others = f" ({len(wrong)} of {len(nodes)} nodes are wrong)" if len(wrong) > 1 else ""
        return Finding(
            None,
            f"node {node.name} offers {node.count(resource)} {resource}, "
            f"{expected} expected{others}",
        )
    return Finding(True, f"{expected} {resource} on each of {len(nodes)} nodes")


def _check_storage(
    services: Services, gateway: KubernetesGateway, spec: JobSpec, nodes: list[NodeView]
) -> Finding:
    """Every node writes to the file system and reads what the others wrote."""
    labels = {LABEL_RUN_ID: spec.run_id, LABEL_CHECK: STORAGE_CHECK}
    checks = {
        str(check["metadata"]["name"]): check
        for check in render_storage_checks(
            spec.run_id, hostnames=[node.hostname for node in nodes], image=spec.image
        )
    }
    jobs = {job.name: job for job in gateway.batch_jobs(NAMESPACE, labels=labels)}
    for name in jobs.keys() - checks.keys():
        # It checks a set of nodes that is no longer there.
        gateway.delete("batch/v1", "Job", name=name, namespace=NAMESPACE)
    missing = [check for name, check in checks.items() if name not in jobs]
    if missing:
        gateway.apply([namespace(), *storage_objects(services, spec), *missing])
        return Finding(None, "the storage check was just started")
    pods = [
        pod
        for pod in gateway.pods(NAMESPACE, labels=labels)
        if pod.name.rpartition("-")[0] in checks
    ]
    failed = [pod for pod in pods if pod.phase == "Failed"]
    if failed:
        line = gateway.last_log_line(NAMESPACE, failed[0].name)
        said = line or failed[0].terminated_reason or "it printed nothing"
        return Finding(False, f"pod {failed[0].name} exited with {failed[0].exit_code}: {said}")
    if any(jobs[name].failed for name in checks):
        return Finding(False, "a storage check job failed and its pod is gone")
    if all(jobs[name].succeeded for name in checks):
        return Finding(True, f"{len(checks)} nodes wrote to the file system and read each other")
    return Finding(None, gateway.explain(NAMESPACE, pods))
