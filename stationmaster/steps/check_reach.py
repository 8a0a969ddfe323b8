"""Whether the functions reach every cluster once a deployment takes them out of the network.

Called by the function check-reach, before they leave. A cluster that is made at the same time is
not seen; functions refuse it later, with the same way out (`kubernetes.connect`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.services import Services

_MOST_NAMED: Final = 5


def check_reach(services: Services) -> str:
    """Why the functions cannot leave, "" where they can."""
    closed = []
    for cluster in services.cluster_states.list_open():
        found = services.control_plane(cluster.cluster_id)
        if found is not None and found.is_closed:
            closed.append(cluster.label)
    return refusal(closed)


def refusal(closed: Sequence[str]) -> str:
    """The sentence for living clusters whose API is closed, "" without any."""
    if not closed:
        return ""
    named = ", ".join(closed[:_MOST_NAMED])
    more = f" and {len(closed) - _MOST_NAMED} more" if len(closed) > _MOST_NAMED else ""
    return (
        "this deployment takes the functions out of the network, and only from there they reach "
        f"the Kubernetes APIs of {named}{more}; expected no such cluster: finish its runs and "
        'delete it, or set "public_api": false or "api_cidrs": ["0.0.0.0/0"] in cdk.json, then '
        "deploy again"
    )
