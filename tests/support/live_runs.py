"""A run on a cluster for whom Jobs are rendered, without AWS or Kubernetes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pydantic import SecretStr

from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import start_run
from stationmaster.domain.run.attempts import Attempt, first_assignment
from stationmaster.domain.run.staging import Staging
from stationmaster.jobs.live_run import LiveRun
from stationmaster.rendering.shared_volume import SharedStorage
from stationmaster.settings import Settings
from tests.support.factories import START, make_request, make_requested

STORAGE = SharedStorage("fs-0123456789abcdef0", "fs-0.fsx.amazonaws.com", "abcdefgh", 1200)
SETTINGS = Settings(
    region="us-west-2",
    table_name="t",
    bus_name="b",
    artifacts_bucket="artifacts",
    relay_image="relay:1",
    training_image="training:1",
    nemo_image="nemo:1",
)


def live_run(run_id: RunId, *, staged: dict[str, Any] | None = None, **request: Any) -> LiveRun:
    """The run of a request, with what of its data is on its file system."""
    wanted = make_request(**request)
    assignment = first_assignment(run_id, wanted)
    about = {"cluster_id": assignment.cluster_id, "work": "copying"}
    run = start_run(make_requested(run_id, request=wanted)).model_copy(
        update={
            "attempts": [Attempt(**assignment.model_dump(), started_at=START)],
            "staging": Staging(**about, **staged) if staged is not None else None,
        }
    )
    spec = SimpleNamespace(eks_name="", file_system=SimpleNamespace(existing_id="", claim=""))
    services = SimpleNamespace(
        settings=SETTINGS,
        guest_spec=lambda _: None,
        cluster_states=SimpleNamespace(load=lambda _: SimpleNamespace(spec=spec)),
        file_systems=SimpleNamespace(mountable=lambda *_, **__: STORAGE),
        runs=SimpleNamespace(load_each=lambda _: ([], [])),
        secrets=SimpleNamespace(hugging_face_token=lambda: SecretStr("hf_x"), tracking=dict),
    )
    return LiveRun(services, run)


def jobs_in(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The Jobs among what was rendered."""
    return [item for item in objects if item["kind"] == "Job"]
