"""Whether the functions reach every cluster once a deployment takes them out of the network.

A cluster that is made meanwhile is not seen; `kubernetes.connect` refuses it, with the same remedy.
"""

from __future__ import annotations

from stationmaster.services import Services


def check_reach(services: Services) -> str:
    """Say why the functions cannot leave the network, "" where they can."""
    planes = (
        (cluster.label, services.control_plane(cluster.cluster_id))
        for cluster in services.cluster_states.list_open()
    )
    return refusal([label for label, plane in planes if plane is not None and plane.is_closed])


def refusal(closed: list[str]) -> str:
    """Write the sentence for living clusters whose API is closed, "" without any."""
    if not closed:
        return ""
    return (
        "this deployment takes the functions out of the network, and only from there they reach "
        f"the Kubernetes APIs of living clusters, {len(closed)} in all: {', '.join(closed[:5])}; "
        "expected none: finish their runs and delete them, or set "
        '"public_api": false or "api_cidrs": ["0.0.0.0/0"] in cdk.json, then deploy again'
    )
