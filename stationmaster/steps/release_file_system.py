"""Deletes a cluster's file systems, and waits until FSx says that they are gone.

FSx deletes the association with a bucket along with the file system; the bucket stays as it is. The
file system goes before nodes and cluster: its network interfaces hold subnet and security group.
"""

from __future__ import annotations

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.resources import ResourceKind
from stationmaster.services import Services
from stationmaster.steps import READY, StepResult
from stationmaster.steps.parts.leftovers import holders, raise_if_held
from stationmaster.steps.parts.records import check_teardown, resources_deleted


def release_file_system(services: Services, cluster_id: ClusterId) -> StepResult:
    """Look once; ready when no file system or association carries the cluster's tag.

    While the results of a run are being saved from it, it is waited for.

    Raises:
        ResultsHeld: results could not be saved, so it stays.
        StepTimedOut: it is still there when the teardown's time is over.
    """
    cluster = services.cluster_states.load(cluster_id)
    held = holders(services, cluster)
    if held.gave_up:
        raise_if_held(services, cluster)
    if held.run_ids:
        what = f"the results of run {held.run_ids[0]} are still being saved"
        return check_teardown(services, cluster, what)
    found = services.file_systems.list_tagged(cluster_id)
    links = services.data_links.list_tagged(cluster_id)
    if not found and not links:
        resources_deleted(services, cluster, ResourceKind.FILE_SYSTEM, ResourceKind.DATA_LINK)
        return READY
    for file_system in found:
        if file_system.lifecycle != "DELETING":
            services.file_systems.release(cluster_id, file_system.file_system_id)
    if found:
        what = f"file system {found[0].file_system_id} is still {found[0].lifecycle}"
    else:
        for link in links:
            services.data_links.release(cluster_id, link.association_id)
        what = f"data repository association {links[0].association_id} is still there"
    seen = found[0].failure if found else links[0].failure
    return check_teardown(services, cluster, what, seen=seen)
