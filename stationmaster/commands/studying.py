"""What a person asks of a study: runs of one recipe, one after another on one cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stationmaster.commands.clusters import AnnounceCluster, create_cluster
from stationmaster.commands.guarding import check_limits
from stationmaster.commands.permitting import Actor
from stationmaster.commands.runs import Announce, asked_already, check_start, request_run
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.guards import Spending
from stationmaster.domain.commands.requests import StudyRuns
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.names import study_cluster
from stationmaster.domain.run.aggregate import Run, new_run_id
from stationmaster.services import Services


@dataclass(frozen=True)
class Begun:
    """What became of a study."""

    runs: tuple[Run, ...]
    """In the order in which they train."""
    created: bool
    """Whether this call has written the first."""
    cluster: Cluster | None
    """The one that is made for them; None where they use a kept one."""


def request_study(
    services: Services,
    study: StudyRuns,
    who: Actor,
    announce: Announce,
    announce_cluster: AnnounceCluster,
    *,
    request_id: str,
) -> Begun:
    """Write the runs of a study and start their workflows, each once for each request.

    Where they name no cluster, one is made for them first. All is checked before anything is
    written; the reaper takes back what that cluster keeps for runs that were not. Raises as
    request_run and create_cluster do.
    """
    # All runs of a study have words of their own, so that none counts as another.
    asking = [replace(who, same=f"{who.words} {start.words}") for start in study.starts]
    ids = tuple(
        new_run_id(start.recipe, dedup_key=f"{who.team_id}/{request_id}/{place}")
        for place, start in enumerate(study.starts)
    )
    known, _ = asked_already(services, ids[0], asking[0], at=services.now())
    if known is None:
        for start in study.starts:
            check_start(services, start, channel_id=who.channel_id)
        check_limits(services, Spending("", who.channel_id, who.user_id, len(ids), usd_per_hour=0))
    else:
        ids = known.request.study
    starts, cluster = dict(zip(ids, study.starts, strict=True)), None
    if study.cluster is not None:
        its = dict.fromkeys(("cluster_id", "on"), study_cluster(ids))
        for run_id, start in starts.items():
            starts[run_id] = replace(start, options=start.options.model_copy(update=its))
        wish = replace(study.cluster, runs=starts)
        cluster, _ = create_cluster(
            services, wish, who, request_id=request_id, announce=announce_cluster
        )
    runs = []
    for (run_id, start), each in zip(starts.items(), asking, strict=True):
        it = replace(each, words=f"{COMMAND} {start.words}")
        run, _ = request_run(services, start, it, request_id=run_id, announce=announce, study=ids)
        runs.append(run)
    return Begun(tuple(runs), known is None, cluster)
