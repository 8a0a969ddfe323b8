"""Runs in each phase, and what their blocks show."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.kept import Results
from stationmaster.domain.run.view import RunView
from tests.support.factories import make_request

START = datetime(2026, 1, 2, 9, 0, tzinfo=UTC)

NOW = START + timedelta(minutes=7)

RUN_ID = "tiny-llama-0123abcd"

REQUEST = make_request(
    command="/train tiny-llama", team_id="T0TEAM", channel_id="C0TRAINING", user_id="U0OPERATOR"
)

TEARDOWN_PHASE = {
    TeardownStatus.NOT_STARTED: ClusterPhase.READY,
    TeardownStatus.RUNNING: ClusterPhase.RELEASING,
    TeardownStatus.COMPLETED: ClusterPhase.RELEASED,
    TeardownStatus.FAILED: ClusterPhase.RELEASING,
}


def make_cluster(
    *,
    teardown: TeardownStatus = TeardownStatus.NOT_STARTED,
    torn_down_at: datetime | None = None,
    teardown_reason: str = "",
    **values: object,
) -> Cluster:
    phase = TEARDOWN_PHASE[teardown]
    if teardown is TeardownStatus.FAILED:
        teardown_reason = teardown_reason or "it did not go"
    elif phase is ClusterPhase.RELEASING:
        teardown_reason = ""
    return Cluster(
        cluster_id=RUN_ID,
        spec=spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="m5.2xlarge"),
        run_id=RUN_ID,
        phase=phase,
        phases=[(phase, torn_down_at or START)],
        requested_at=START,
        teardown_reason=teardown_reason,
        **values,
    )


OF_CLUSTER = {
    *("teardown", "teardown_reason", "left_behind", "final_cost_usd", "torn_down_at"),
    *("resources", "plugins", "checks"),
}


def make_run(**values: object) -> RunView:
    """A run with its cluster; `values` go to the one that has them."""
    of_cluster = {key: value for key, value in values.items() if key in OF_CLUSTER}
    values = {key: value for key, value in values.items() if key not in OF_CLUSTER}
    made = {
        "run_id": RUN_ID,
        "request": REQUEST,
        "phases": [(ev.RunPhase.REQUESTED, START)],
        "requested_at": START,
        "price_per_hour_usd": 1.1,
        "estimated_cost_usd": 0.5,
    }
    return RunView(Run(**(made | values)), make_cluster(**of_cluster))


def in_phase(*phases: ev.RunPhase, **values: object) -> RunView:
    entered = [
        (phase, START + timedelta(minutes=index))
        for index, phase in enumerate((ev.RunPhase.REQUESTED, *phases))
    ]
    ended = {"ended_at": entered[-1][1]} if entered[-1][0].is_terminal else {}
    return make_run(phases=entered, phase=entered[-1][0], **(ended | values))


def running(**values: object) -> RunView:
    return in_phase(
        ev.RunPhase.PROVISIONING,
        ev.RunPhase.VALIDATING,
        ev.RunPhase.SUBMITTING,
        ev.RunPhase.RUNNING,
        **values,
    )


def progress(step: int, **values: object) -> ev.ProgressReported:
    made = {"seq": step, "step": step, "total_steps": 60, "loss_nats": 4.25}
    return ev.ProgressReported(event_id=f"p{step}", run_id=RUN_ID, at=NOW, **(made | values))


def _owner(event_class: type) -> str:
    return "run_id" if "run_id" in event_class.model_fields else "cluster_id"


def event(event_class: type, index: int = 0, **values: object):
    name = f"{event_class.__name__}-{index}"
    about = {"event_id": name, _owner(event_class): RUN_ID, "at": NOW}
    return event_class(**(about | values))


def seen(content) -> str:
    shown = [[each, getattr(each, "plain", None)] for each in content.blocks]
    return json.dumps(shown, ensure_ascii=False)


def buttons(content) -> list[str]:
    return [
        element["action_id"]
        for block in content.blocks
        if block["type"] == "actions"
        for element in block["elements"]
    ]


URI = "s3://a-bucket/runs/tiny-llama-0123abcd/"
RESULTS = Results(
    uri=URI, num_files=7, num_bytes=13_476_000_000, manifest_sha256="0" * 64, saved_at=NOW
)
DENIED = "S3 refuses <the saver>: AccessDenied"


def saved(*phases: RunPhase, **values: object):
    run = {"results": RESULTS, "training_started_at": NOW, "progress": progress(60)}
    return in_phase(RunPhase.RUNNING, RunPhase.SAVING, *phases, **(run | values))


def unsaved(**values: object):
    run = {"unsaved_reason": DENIED, "training_started_at": NOW, "pods": {}}
    return in_phase(RunPhase.RUNNING, RunPhase.SAVING, **(run | values))
