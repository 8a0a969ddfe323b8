"""A run's relays and the job of a check, rendered with settings that no test is about."""

from __future__ import annotations

from typing import Any

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.rendering import pytorch_job
from stationmaster.rendering.check_job import collectives, render_check_job, smoke
from stationmaster.rendering.job_backends import JobBackend
from stationmaster.rendering.relay import render_relay


def relay_objects(
    run_id: RunId, *, backend: JobBackend = pytorch_job, **changes: Any
) -> list[dict[str, Any]]:
    about = {"job": run_id, "image": "relay:1", "bus_name": "bus", "bucket": "results"}
    return render_relay(run_id, backend=backend, **({"region": "us-west-2", **about} | changes))


def check_job(
    cluster_id: ClusterId,
    spec: ClusterSpec,
    check: str,
    *,
    name: str,
    nodes: int = 2,
    backend: JobBackend = pytorch_job,
) -> list[dict[str, Any]]:
    """What belongs to the network check in full, or to the training check."""
    program = smoke(spec, name=name, nodes=nodes, recipe="llama2-7b")
    return render_check_job(
        cluster_id,
        spec,
        program if check == "training" else collectives(is_full=True),
        backend=backend,
        check=check,
        name=name,
        nodes=nodes,
        image="t:1",
    )
