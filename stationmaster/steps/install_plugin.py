"""One plugin of a cluster: installed, and working on its nodes."""

from __future__ import annotations

from stationmaster.domain.cluster.events import PluginReady
from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.inspection import Finding, LiveCluster, Verdict, live_cluster
from stationmaster.plugins import Plugin, get_plugin
from stationmaster.rendering.placing import from_copies
from stationmaster.services import Services
from stationmaster.steps import READY, StepResult
from stationmaster.steps.parts.exit_from_existing import taken_out_when_late
from stationmaster.steps.parts.records import check_time, of_pass
from stationmaster.steps.parts.stops import wanted_cluster


def install_plugin(services: Services, cluster_id: ClusterId, *, plugin: str) -> StepResult:
    """Install the plugin if it is missing; ready when it works.

    Raises:
        StepTimedOut: it is not ready in time; says what its pods wait for.
        ResourceFailed: EKS could not install an add-on.
        ClusterDrained: nobody leases the cluster any more.
    """
    cluster = wanted_cluster(services, cluster_id)
    if plugin in cluster.plugins:
        return READY
    finding = _ensure(live_cluster(services, cluster), cluster.run_id, get_plugin(plugin))
    if finding.verdict is Verdict.BAD:
        raise ResourceFailed(finding.sentence)
    if finding.verdict is not Verdict.GOOD:
        started = [r.active_at for r in cluster.resources.values() if r.active_at is not None]
        return check_time(
            services,
            since=max([cluster.pass_began_at, *started]) if started else None,
            limit_s=services.settings.plugin_timeout_s,
            what=f"plugin {plugin} is not ready",
            seen=finding.sentence,
            then="try again later",
        )
    event = PluginReady(
        **services.cluster_stamp(cluster_id, "plugin.ready", plugin, *of_pass(cluster)),
        plugin=plugin,
    )
    services.cluster_states.record(cluster_id, [event])
    return READY


def _ensure(cluster: LiveCluster, run_id: RunId | None, plugin: Plugin) -> Finding:
    """Look at the plugin; install it and look again, unless it works or cannot work any more.

    What was installed in this call counts as working from the next call at the earliest.
    """
    finding = plugin.look(cluster)
    if finding.verdict in (Verdict.GOOD, Verdict.BAD):
        return finding
    services = cluster.services
    for addon in plugin.ADDONS:
        services.addons.ensure(cluster.cluster_id, addon, run_id=run_id)
    objects = from_copies(plugin.render(cluster), services.settings.image_copies)
    if objects:
        with taken_out_when_late(services, cluster.cluster_id):
            cluster.kubernetes.apply(objects)
    after = plugin.look(cluster)
    return finding if after.verdict is Verdict.GOOD else after
