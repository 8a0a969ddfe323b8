"""One plugin of the run's cluster: installed, and ready for the run's nodes."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.addons import FSX_CSI_ADDON, POD_IDENTITY_AGENT
from stationmaster.domain.errors import PermanentError, ResourceFailed
from stationmaster.domain.events import PluginReady, make_event_id
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import NAMESPACE, relay_name
from stationmaster.domain.planning.requirements import (
    EFA_DEVICE_PLUGIN,
    FSX_CSI_DRIVER,
    NVIDIA_DEVICE_PLUGIN,
    RELAY_PLUGIN,
    TRAINING_OPERATOR,
)
from stationmaster.domain.run.aggregate import Run
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.rendering.relay import render_relay
from stationmaster.rendering.storage import CSI_DRIVER
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import check_time
from stationmaster.steps.stopping import raise_if_stopped

_PYTORCH_JOB_CRD: Final = "pytorchjobs.kubeflow.org"
_OPERATOR: Final = ("kubeflow", "training-operator")
_DAEMON_SETS: Final = {
    NVIDIA_DEVICE_PLUGIN: ("kube-system", "nvidia-device-plugin"),
    EFA_DEVICE_PLUGIN: ("kube-system", "aws-efa-k8s-device-plugin"),
}


def install_plugin(services: Services, run_id: RunId, *, plugin: str) -> StepResult:
    """Install the plugin if it is missing; ready when it works.

    Raises:
        StepTimedOut: it is not ready in time; says what its pods wait for.
        ResourceFailed: EKS could not install the add-on.
        RunStopped: someone asked to stop.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    if plugin in run.plugins:
        return READY
    if plugin == FSX_CSI_DRIVER:
        missing = _ensure_fsx_driver(services, run)
    else:
        missing = _ensure_objects(services, run, plugin)
    if missing:
        started = [r.active_at for r in run.resources.values() if r.active_at is not None]
        check_time(
            services,
            since=max(started, default=None),
            limit_s=services.settings.plugin_timeout_s,
            what=f"plugin {plugin} is not ready",
            seen=missing,
        )
        return NOT_READY
    event = PluginReady(
        event_id=make_event_id(run_id, "plugin.ready", plugin),
        run_id=run_id,
        at=services.now(),
        plugin=plugin,
    )
    services.runs.record(run_id, [event])
    return READY


def _ensure_fsx_driver(services: Services, run: Run) -> str:
    """What is missing of the FSx CSI driver; empty when volumes can be mounted."""
    services.addons.ensure(run.run_id, POD_IDENTITY_AGENT)
    status = services.addons.ensure(
        run.run_id, FSX_CSI_ADDON, role_arn=services.settings.fsx_csi_role_arn
    )
    if status == "CREATE_FAILED":
        raise ResourceFailed(f"EKS could not install add-on {FSX_CSI_ADDON}: it is {status}")
    if status != "ACTIVE":
        return f"add-on {FSX_CSI_ADDON} is {status}"
    if not services.kubernetes(run.run_id).csi_driver_registered(CSI_DRIVER):
        return f"CSI driver {CSI_DRIVER} is not registered"
    return ""


def _ensure_objects(services: Services, run: Run, plugin: str) -> str:
    """What is missing of a plugin that is made of Kubernetes objects; empty when it is ready."""
    gateway = services.kubernetes(run.run_id)
    missing = _missing(gateway, run, plugin)
    if not missing:
        return ""
    if plugin == RELAY_PLUGIN:
        settings = services.settings
        gateway.apply(
            render_relay(
                run.run_id,
                image=settings.relay_image,
                bus_name=settings.bus_name,
                region=settings.region,
            )
        )
    else:
        gateway.apply(load_manifests(plugin))
    return _missing(gateway, run, plugin)


def _missing(gateway: KubernetesGateway, run: Run, plugin: str) -> str:
    match plugin:
        case "training-operator":
            if not gateway.crd_established(_PYTORCH_JOB_CRD):
                return f"type {_PYTORCH_JOB_CRD} is not served"
            kind, (namespace, name) = "Deployment", _OPERATOR
            ready = gateway.deployment_ready(namespace, name)
        case "relay":
            kind, namespace, name = "Deployment", NAMESPACE, relay_name(run.run_id)
            ready = gateway.deployment_ready(namespace, name)
        case "nvidia-device-plugin" | "efa-device-plugin":
            kind, (namespace, name) = "DaemonSet", _DAEMON_SETS[plugin]
            ready = gateway.daemon_set_ready(namespace, name, nodes=run.request.nodes)
        case _:
            known = (TRAINING_OPERATOR, FSX_CSI_DRIVER, *_DAEMON_SETS, RELAY_PLUGIN)
            raise PermanentError(f'plugin "{plugin}" is not known; known: {", ".join(known)}')
    if ready:
        return ""
    return gateway.explain(namespace, gateway.pods_of(kind, namespace, name))
