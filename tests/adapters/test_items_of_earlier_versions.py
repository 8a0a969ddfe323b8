"""Items that an earlier version has written are read for ever: each file below items/ is one.

None is ever changed; a version whose items differ adds one, of a run in `local up`: python
tests/adapters/test_items_of_earlier_versions.py FILE, with the variables of its aws.env.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from collections import Counter
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import boto3
import pytest

from stationmaster.aws.audit_store import AuditStore
from stationmaster.aws.cluster_store import ClusterStore
from stationmaster.aws.delivery_store import DeliveryStore, of_cluster, of_run
from stationmaster.aws.run_store import RunStore
from stationmaster.domain.cluster.aggregate import ClusterPhase
from stationmaster.domain.run.events import RunPhase
from tests.support.memory_table import MemoryTable

KEPT = re.compile(r"(AUDIT|CLUSTER)#.*|DELIVERY#.* STATE|RUN#.* (EVENT#.*|STATE|STEP#1.*)")
FOLDER = Path(__file__).parent / "items"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.items")), ids=lambda path: path.stem)
def test_items_of_an_earlier_version_are_read_whole(path: Path) -> None:
    table: Any = MemoryTable(lambda: datetime.now(UTC))
    items = [json.loads(line) for line in path.read_text().splitlines()]
    for item in items:
        table.put_item(TableName="runs", Item=item)
    places = [(*item["PK"]["S"].split("#", 1), item["SK"]["S"]) for item in items]
    there = Counter(kind for kind, _, place in places if place != "STATE")
    (run_id,) = {owner for kind, owner, _ in places if kind == "RUN"}
    runs, clusters = RunStore("runs", table), ClusterStore("runs", table)

    run, cluster = runs.load(run_id), clusters.load(run_id)
    entries = [*AuditStore("runs", table).newest_first(run.request.channel_id)]

    assert (run.phase, run.last_checkpoint_step) == (RunPhase.SUCCEEDED, 10)
    assert cluster.phase is ClusterPhase.READY
    assert len(runs.events(run_id)) == there["RUN"] > 20
    assert len(clusters.events(cluster.cluster_id)) == there["CLUSTER"] > 20
    for owner in (of_run(run.run_id), of_cluster(cluster.cluster_id)):
        assert DeliveryStore("runs", table).load(owner).version > 0
    # A chain that was written stays whole: the hash is of the text that was stored.
    (stored,) = (item["body"]["S"] for item in items if item["PK"]["S"].startswith("AUDIT#"))
    assert [entry.hash for entry in entries] == [hashlib.sha256(stored.encode()).hexdigest()]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.calls")), ids=lambda path: path.stem)
def test_steps_take_what_definitions_of_an_earlier_version_hand_them(path: Path) -> None:
    for name, *keys in map(str.split, path.read_text().splitlines()):
        step = name.replace("-", "_")
        function = getattr(import_module(f"stationmaster.steps.{step}"), step)
        _, *taken = inspect.signature(function).parameters.values()
        assert {each.name for each in taken if each.default is each.empty} <= {*keys}, name


if __name__ == "__main__":
    found = boto3.client("dynamodb").scan(TableName="stationmaster")["Items"]
    kept = [each for each in found if KEPT.fullmatch(f"{each['PK']['S']} {each['SK']['S']}")]
    Path(sys.argv[1]).write_text("".join(f"{json.dumps(each)}\n" for each in kept))
