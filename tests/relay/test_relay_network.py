"""What the relay notices of EFA in NCCL's own lines, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from containers import facts, line

from stationmaster.domain.run.events import NetworkObserved
from stationmaster.relay.parsing import LineInterpreter
from stationmaster.relay.pods import pod_facts
from stationmaster.rendering import pytorch_job
from tests.support.nccl_logs import HOSTS, efa, info, sockets

HEALTHY = sorted((Path(__file__).parents[1] / "diagnosis" / "healthy").glob("*.log"))
HOST = HOSTS[0]
TCP = info(HOST, "NET/OFI Selected provider is tcp;ofi_rxm, fabric is 10.0.0.0/16 (found 4 nics)")


def observed(lines, *, num_efa=4, name="run-1-worker-0", runs=1):
    interpreter = LineInterpreter(facts(name=name, uid=f"u-{name}", num_efa=num_efa))
    events = []
    for run in range(runs):
        interpreter.start_container_run(run)
        for i, text in enumerate(lines):
            events += interpreter.read(line(text, run, ordinal=i))
    return [event for event in events if isinstance(event, NetworkObserved)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (sockets(), {"uses_sockets": True, "plugin_not_found": True, "provider": ""}),
        ([f"[default3]:{line}" for line in sockets()], {"uses_sockets": True}),
        ([TCP], {"uses_sockets": True, "provider": "tcp;ofi_rxm"}),
        (efa(1), {"uses_sockets": False, "provider": "efa", "num_nics": 1}),
        # What the lines are with NCCL_DEBUG_SUBSYS=NET: no summary of the network.
        (
            [line for line in sockets() if "Using network" not in line]
            + [info(HOST, "Channel 00/0 : 9[1] -> 0[0] [receive] via NET/Socket/0")],
            {"uses_sockets": True},
        ),
        # Channels of one transport are read once, of another one all the same.
        (
            [
                info(HOST, f"Channel {i:02}/0 : {i}[0] -> 9[1] [send] via NET/{net}/{i}")
                for net in ("Libfabric", "Socket")
                for i in range(9)
            ],
            {"uses_sockets": True},
        ),
    ],
    ids=["sockets", "prefixed", "tcp", "one-of-four", "only-net", "both"],
)
def test_efa_that_is_not_used_is_reported_once_an_attempt(lines, expected):
    events = observed(lines, runs=2)

    assert len(events) == 1
    assert expected.items() <= events[0].model_dump().items()
    assert events == observed(lines, runs=2)
    # The fact is one, whichever pod reports it first.
    assert observed(lines, name="run-1-worker-1")[0].event_id == events[0].event_id


@pytest.mark.parametrize(
    ("lines", "num_efa"),
    [
        (efa(), 4),
        (efa(None), 4),
        (sockets(), 0),
        ([], 4),
        ([info(HOST, "NET/Plugin: Could not find: libnccl-net.so")], 4),
        # It is opened for NCCL's own start, before a network is chosen.
        ([info(HOST, "NET/Socket : Using [0]eth0:10.0.0.1<0>")], 4),
    ],
    ids=["all", "old-plugin", "without-efa", "silence", "plugin-name", "bootstrap"],
)
def test_nothing_is_reported_without_proof(lines, num_efa):
    assert observed(lines, num_efa=num_efa) == []


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.name)
def test_healthy_log_reports_nothing(path):
    assert observed(path.read_text().splitlines(), num_efa=32) == []


@pytest.mark.parametrize(("nodes", "num_efa"), [("2", 4), ("2:8", 4), ("1", 0), ("1:1", 0)])
def test_only_a_pod_with_others_is_judged(nodes, num_efa):
    container = {
        "name": "pytorch",
        "env": [{"name": "PET_NNODES", "value": nodes}],
        "resources": {"limits": {"vpc.amazonaws.com/efa": "4"}},
    }
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [container]}}

    assert pod_facts("run-1", "run-1", pytorch_job, pod).num_efa == num_efa
