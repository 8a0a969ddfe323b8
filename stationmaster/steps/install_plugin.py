"""One plugin of the run's cluster: installed, and working on the run's nodes."""

from __future__ import annotations

from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.events import PluginReady, make_event_id
from stationmaster.domain.ids import RunId
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.plugins import Plugin, get_plugin
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.live import live_cluster
from stationmaster.steps.recording import check_time
from stationmaster.steps.stopping import raise_if_stopped


def install_plugin(services: Services, run_id: RunId, *, plugin: str) -> StepResult:
    """Install the plugin if it is missing; ready when it works.

    Raises:
        StepTimedOut: it is not ready in time; says what its pods wait for.
        ResourceFailed: EKS could not install an add-on.
        RunStopped: someone asked to stop.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    if plugin in run.plugins:
        return READY
    finding = _ensure(live_cluster(services, run), get_plugin(plugin))
    if finding.verdict is Verdict.BAD:
        raise ResourceFailed(finding.sentence)
    if finding.verdict is not Verdict.GOOD:
        started = [r.active_at for r in run.resources.values() if r.active_at is not None]
        check_time(
            services,
            since=max(started, default=None),
            limit_s=services.settings.plugin_timeout_s,
            what=f"plugin {plugin} is not ready",
            seen=finding.sentence,
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


def _ensure(cluster: LiveCluster, plugin: Plugin) -> Finding:
    """Look at the plugin; install it and look again, unless it works or cannot work any more."""
    finding = plugin.look(cluster)
    if finding.verdict in (Verdict.GOOD, Verdict.BAD):
        return finding
    services = cluster.services
    for addon in plugin.ADDONS:
        services.addons.ensure(cluster.cluster_id, addon)
    objects = plugin.render(cluster)
    if objects:
        cluster.kubernetes.apply(objects)
    return plugin.look(cluster)
