"""The relay as its own process, against the local cluster and an endpoint that records PutEvents.

The pods are real processes that print progress lines, so what is checked is the whole way of a
line: container, log, API, relay, bus. What the relay is for is that killing it changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from kubernetes import client
from kubernetes.utils import create_from_dict
from pydantic import SecretStr
from recording_bus import RecordingBus, figures_of

from stationmaster.domain.progress_lines import FinishedLine, ProgressLine, StartedLine
from stationmaster.rendering import pytorch_job
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.relay import render_relay_key, render_relay_rights
from tests.support.cluster_fixtures import eventually, pytorchjob, start_cluster
from tests.support.rendered import relay_objects

REPOSITORY = Path(__file__).parents[2]
NAMESPACE = "stationmaster"
KEY = SecretStr("key of every run here")
# A trainer as far as its log goes: waits for a file between steps, so that the test has the pace.
LINES = {
    line.kind: json.loads(line.text())
    for line in (
        StartedLine(total_steps=0, world_size=2),
        ProgressLine(step=0, total_steps=0, loss_nats=0.0, tokens_per_s=2000.0),
        FinishedLine(step=0),
    )
}
TRAINER = (
    f"""
LINES = {LINES}
"""
    + """
import json, os, pathlib, sys, time
gate, first, last = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def say(kind, **fields):
    print(json.dumps({**LINES[kind], "seq": fields.get("step", 0), **fields}))
    sys.stdout.flush()
if os.environ.get("PRINTS", "1") == "1":
    say("started", total_steps=last)
    for step in range(first, last + 1):
        while not (gate / str(step)).exists():
            time.sleep(0.01)
        say("progress", step=step, total_steps=last, loss_nats=9 - step / 100)
    say("finished", step=last)
sys.exit(int(sys.argv[4]) if len(sys.argv) > 4 else 0)
"""
)


class Bus(RecordingBus):
    """An EventBridge endpoint that takes every entry and keeps it."""

    def __init__(self):
        super().__init__()
        bus = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                data = json.dumps(bus.put_events(Entries=body["Entries"])).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def variables(self):
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.server_address[1]}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        }

    def of(self, type_):
        found = [event for batch in self.batches for event in batch.events]
        return [event for event in found if event.type == type_]

    def steps(self):
        return [event.step for event in self.of("progress.reported")]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def relay_process(cluster, bus, run_id, log_path):
    environment = {
        "PATH": os.environ["PATH"],
        "STATIONMASTER_RUN_ID": run_id,
        "STATIONMASTER_JOB": run_id,
        "STATIONMASTER_BUS_NAME": "stationmaster",
        "STATIONMASTER_POD": "run-1-relay-0",
        "STATIONMASTER_RELAY_KEY": KEY.get_secret_value(),
        "STATIONMASTER_ARTIFACTS_BUCKET": "results",
        "AWS_REGION": "us-east-1",
        "KUBECONFIG": str(cluster.local.kubeconfig),
    }
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "stationmaster.relay"],
            cwd=REPOSITORY,
            env=environment | bus.variables,
            stderr=log,
        )


@pytest.fixture
def bus():
    endpoint = Bus()
    yield endpoint
    endpoint.close()


@pytest.fixture
def bare_cluster(tmp_path):
    """A cluster that does not know of PyTorchJobs yet."""
    started = start_cluster(tmp_path / "cluster")
    started.add_nodes(node_group="training")
    started.core.create_namespace({"metadata": {"name": NAMESPACE}})
    yield started
    started.close()


@pytest.fixture
def gate(tmp_path):
    folder = tmp_path / "gate"
    folder.mkdir()
    (tmp_path / "trainer.py").write_text(TRAINER)
    return folder


def open_gate(gate, steps):
    for step in steps:
        (gate / str(step)).touch()


def job(name, gate, *arguments, **changes):
    trainer = " ".join([f"{sys.executable} {gate.parent / 'trainer.py'} {gate}", *arguments])
    # The operator tells each replica its rank; only the first prints.
    script = f'PRINTS=$([ "$RANK" = 0 ] && echo 1 || echo 0) exec {trainer}'
    return pytorchjob(name, script=script, **changes)


def submit(cluster, body):
    cluster.custom.create_namespaced_custom_object(
        "kubeflow.org", "v1", NAMESPACE, "pytorchjobs", body
    )


def reported(bus):
    """Pods and the phases that they were seen in."""
    return {(event.pod, event.phase) for event in bus.of("pod.changed")}


def test_relay_before_type_and_job_exist_tells_the_whole_run(
    bare_cluster, bus, gate, tmp_path, request
):
    relay = relay_process(bare_cluster, bus, "run-a", tmp_path / "relay.log")
    request.addfinalizer(relay.kill)
    bus.wait_for(lambda: bus.batches)
    assert bus.batches[0].heartbeat

    bare_cluster.install_operator()
    submit(bare_cluster, job("run-a", gate, "1", "5"))
    # A worker that comes when its master has ended would wait for its name without end.
    pods = {("run-a-master-0", "Running"), ("run-a-worker-0", "Running")}
    bus.wait_for(lambda: pods <= reported(bus))
    open_gate(gate, range(1, 6))
    bus.wait_for(
        lambda: (
            "Succeeded" in [e.condition for e in bus.of("job.condition_changed")]
            and bus.of("training.finished")
        )
    )

    assert bus.steps() == [1, 2, 3, 4, 5]
    conditions = [event.condition for event in bus.of("job.condition_changed")]
    assert conditions == ["Created", "Running", "Succeeded"]
    # The end of the job is reported after everything that its pods printed.
    events = [event for batch in bus.batches for event in batch.events]
    order = [event.type for event in events]
    last_condition = len(order) - 1 - order[::-1].index("job.condition_changed")
    assert order.index("training.finished") < last_condition
    bus.wait_for(
        lambda: any(
            '"finished"' in tail.lines[-1]
            for batch in bus.batches
            for tail in batch.log_tails
            if tail.pod == "run-a-master-0"
        )
    )
    assert len({event.event_id for event in events}) == len(events)
    (url,) = re.findall(r"metrics are served url='(.*?)'", (tmp_path / "relay.log").read_text())
    eventually(lambda: scrape(url)["relay_events_waiting"] == 0, "all is counted as sent")
    read = scrape(url)
    run = [read[f"run_{name}"] for name in ("step", "loss_nats", "tokens_per_second")]
    assert run == [5, 8.95, 2000]
    assert (read["relay_leads"], read["relay_pods"], read["relay_lines_total"]) == (1, 2, 7)
    assert read["relay_events_sent_total"] >= len(events)
    with pytest.raises(HTTPError, match="403"):  # of a page whose name leads to the loopback
        urlopen(Request(url, headers={"Host": "page.example"}), timeout=60)
    relay.send_signal(signal.SIGTERM)
    assert relay.wait(10) == 0
    assert "everything_sent=True" in (tmp_path / "relay.log").read_text()


def scrape(url):
    with urlopen(url, timeout=60) as answer:
        return figures_of(answer.read().decode(), "run-a")


def leader_of(cluster, run_id):
    """The pod and the process that hold the lease of a run's relays; None while nobody does."""
    leases = client.CoordinationV1Api(cluster.api)
    lease = leases.read_namespaced_lease(f"{run_id}-relay", NAMESPACE)
    pod = (lease.spec.holder_identity or "").rpartition("_")[0] if lease.spec else ""
    own_name = f"STATIONMASTER_POD={pod}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if own_name in (folder / "environ").read_bytes().split(b"\0"):
                return pod, int(folder.name)
        except OSError:  # another user's, or it has just ended
            continue
    return None


def node_of(cluster, pod):
    return cluster.core.read_namespaced_pod(pod, NAMESPACE).spec.node_name


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by /proc")
def test_relays_of_a_deployment_lose_nothing_with_the_leader_s_process_nor_with_its_node(
    bus, gate, tmp_path
):
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **bus.variables,
    }
    started = start_cluster(tmp_path / "cluster", pod_environment=environment)
    try:
        started.add_nodes(node_group="system", labels={"pool": "Master"})
        started.install_operator()
        taints = [{"key": "stationmaster/training", "value": "true", "effect": "NoSchedule"}]
        started.add_nodes(node_group="training", labels={"pool": "Worker"}, taints=taints)
        for body in (
            namespace(),
            *render_relay_rights(pytorch_job),
            render_relay_key("run-h", KEY),
            *relay_objects("run-h", region="us-east-1"),
        ):
            create_from_dict(started.api, body)
        read = started.apps.read_namespaced_deployment
        eventually(
            lambda: read("run-h-relay", NAMESPACE).status.available_replicas == 2, "both relays"
        )
        body = job("run-h", gate, "1", "30")
        for role, replica in body["spec"]["pytorchReplicaSpecs"].items():  # one on each node
            replica["template"]["spec"]["nodeSelector"] = {"pool": role}
            replica["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
        submit(started, body)
        open_gate(gate, range(1, 11))
        bus.wait_for(lambda: 10 in bus.steps())

        _, process_id = leader_of(started, "run-h")
        os.kill(process_id, signal.SIGKILL)
        open_gate(gate, range(11, 21))  # printed while nobody sends
        bus.wait_for(lambda: 20 in bus.steps())
        # The other relay, or the first one's new process where that was quicker.
        second, successor = leader_of(started, "run-h")
        assert successor != process_id

        assert sorted(set(bus.steps())) == list(range(1, 21))
        assert bus.steps().count(5) <= 2  # what the leader did not say that it has sent
        lost = node_of(started, second)
        started.local.lose_node(lost)
        bus.wait_for(lambda: bus.of("node.lost"))
        assert {event.node for event in bus.of("node.lost")} == {lost}
        reported = {}
        for event in bus.of("progress.reported"):
            assert reported.setdefault(event.event_id, event) == event
        assert sorted(event.step for event in reported.values()) == list(range(1, 21))
    finally:
        started.close()


def test_relay_without_its_variables_says_which_and_ends():
    result = subprocess.run(
        [sys.executable, "-m", "stationmaster.relay"],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert result.returncode == 2
    assert "STATIONMASTER_RUN_ID is missing" in result.stderr
