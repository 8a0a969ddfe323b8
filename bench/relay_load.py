"""The relay as a process under load: many pods, a `kill -9`, and an EventBridge that is away.

A server of this process serves Kubernetes' objects and the pods' logs, and takes PutEvents. What it
takes counts once for each event id, as the recorder's table has it; the recorder itself and the
table's own time are not in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from bench.figures import Figure, percentile
from bench.saver import kubeconfig
from stationmaster.domain.progress_lines import ProgressLine

_RUN = "tiny-llama-0123abcd"
_TICK_S = 0.1
_REPOSITORY = Path(__file__).parents[1]
_STARTED = "2026-01-02T03:04:05Z"


@dataclass(frozen=True)
class Load:
    """How much is printed, and when the bus is away and the relay is killed, in seconds."""

    pods: int = 100
    lines_per_s: int = 5000
    seconds: float = 60.0
    away: tuple[float, float] = (20.0, 50.0)
    killed_at: float = 30.0
    more_s: float = 30.0
    """For how long it measures on after everything has arrived."""


@dataclass
class Taken:
    """What has become of the lines."""

    printed: dict[int, float] = field(default_factory=dict)
    """When each step was printed."""
    arrived: dict[int, float] = field(default_factory=dict)
    """When each step came first."""
    ids: dict[int, str] = field(default_factory=dict)
    doubled: int = 0
    """Events that say again, under another id, what one has said."""
    memory_mib: list[float] = field(default_factory=list)
    """Of the relay, a second apart while lines are printed."""
    all_arrived_at: float = 0.0

    @property
    def lost(self) -> int:
        return len(self.printed) - len(self.arrived)

    def delays_s(self) -> list[float]:
        """How long the lines took that were printed once all others had arrived."""
        since, came = self.all_arrived_at, self.arrived.items()
        return [at - self.printed[step] for step, at in came if self.printed[step] >= since]


def measure_relay_load() -> list[Figure]:
    """Measure it at its full size, which takes about two minutes."""
    load = Load()
    taken = play(load)
    delays = taken.delays_s()
    afterwards = taken.memory_mib[-int(load.more_s) + 1 :]
    said = f"{len(taken.printed):,} lines of {load.pods} pods, killed at {load.killed_at:g} s"
    return [
        Figure(name="relay load: lines lost", value=taken.lost, unit="", at_most=0, note=said),
        Figure(name="relay load: lines doubled", value=taken.doubled, unit="", at_most=0),
        Figure(
            name="relay load: caught up after",
            value=taken.all_arrived_at - taken.printed[0] - load.seconds,
            unit="s",
            note=f"of the last line; the bus was away for {load.away[1] - load.away[0]:g} s",
        ),
        Figure(
            name="relay load: line to bus, p95 after that",
            value=percentile(delays, 95) if len(delays) > 1 else float("inf"),
            unit="s",
            at_most=1,
        ),
        Figure(
            name="relay load: memory, growth after that",
            value=max(afterwards) - afterwards[0],
            unit="MiB",
            at_most=16,
            note=f"peak {max(taken.memory_mib):.0f} MiB",
        ),
    ]


def play(load: Load, *, patience_s: float = 600.0) -> Taken:
    """Print all lines; once all have arrived, or so much later, print on for a few seconds."""
    world = _World(load)
    app = Request.application(world.respond)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with tempfile.TemporaryDirectory() as folder:
        relay = _relay(address, Path(folder))
        try:
            _print(world, relay, until_s=load.killed_at)
            relay.kill()
            relay.wait()
            relay = _relay(address, Path(folder))
            _print(world, relay, until_s=load.seconds)
            world.taken.all_arrived_at = _wait(world, patience_s)
            world.began += time.monotonic() - world.began - load.seconds
            _print(world, relay, until_s=load.seconds + load.more_s)
            _wait(world, patience_s)
        finally:
            relay.kill()
            relay.wait()
            world.is_over = True
            server.shutdown()
            server.server_close()
    return world.taken


def _print(world: _World, relay: subprocess.Popen[bytes], *, until_s: float) -> None:
    away, taken = world.load.away, world.taken
    while (now := time.monotonic() - world.began) < until_s:
        world.print_until(now)
        world.is_away = away[0] <= now < away[1]
        if len(taken.memory_mib) < now:
            command = ["ps", "-o", "rss=", "-p", str(relay.pid)]
            shown = subprocess.run(command, capture_output=True, check=False).stdout.strip()
            taken.memory_mib.append(int(shown or 0) / 1024)
        time.sleep(_TICK_S)


def _wait(world: _World, patience_s: float) -> float:
    """Wait until every line has arrived; return the time then."""
    deadline = time.monotonic() + patience_s
    while world.taken.lost and time.monotonic() < deadline:
        time.sleep(_TICK_S)
    return time.time()


class _World:
    """The pods with their logs, and the bus."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.taken = Taken()
        self.began = time.monotonic()
        self.is_away = self.is_over = False
        self.logs: list[list[tuple[str, bytes]]] = [[] for _ in range(load.pods)]
        self._guard = threading.Lock()

    def print_until(self, now: float) -> None:
        """Print the lines that are due, to one pod after the other."""
        at = datetime.now(UTC)
        stamp, second = f"{at:%Y-%m-%dT%H:%M:%S.%f}000Z", f"{at:%Y-%m-%dT%H:%M:%S}Z"
        for step in range(len(self.taken.printed), int(now * self.load.lines_per_s)):
            line = ProgressLine(
                run_id=_RUN, seq=step, at=at, step=step, total_steps=10**6, loss_nats=5.123456
            )
            self.taken.printed[step] = at.timestamp()
            self.logs[step % self.load.pods].append((second, f"{stamp} {line.text()}\n".encode()))

    def take(self, entries: list[dict[str, str]]) -> None:
        now = time.time()
        for entry in entries:
            for event in json.loads(entry["Detail"])["events"]:
                if event["type"] == "progress.reported":
                    with self._guard:
                        taken, step = self.taken, event["step"]
                        taken.arrived.setdefault(step, now)
                        taken.doubled += (
                            taken.ids.setdefault(step, event["event_id"]) != (event["event_id"])
                        )

    def respond(self, request: Request) -> Response:
        """Answer as Kubernetes' API, or as EventBridge."""
        name = request.path.rpartition("/")[2]
        if request.method == "POST":
            if self.is_away:
                return Response(status=503)
            entries = request.get_json(force=True)["Entries"]
            self.take(entries)
            return _json({"FailedEntryCount": 0, "Entries": [{"EventId": "1"} for _ in entries]})
        if "watch" in request.args:
            return Response(self.follow([], ""))
        if name == "log":
            pod = int(request.path.removesuffix("/log").rpartition("-")[2])
            return Response(self.follow(self.logs[pod], request.args.get("sinceTime", "")))
        if name.startswith(_RUN):
            return _json(_pod(int(name.rpartition("-")[2])))
        items: list[dict[str, object]] = []
        if name == "pods":
            items = [_pod(number) for number in range(self.load.pods)]
        elif name == "pytorchjobs":
            items = [{"metadata": {"name": _RUN, "uid": "job"}, "status": {"conditions": []}}]
        return _json({"items": items, "metadata": {"resourceVersion": "1"}})

    def follow(self, log: list[tuple[str, bytes]], since: str) -> Iterator[bytes]:
        """Yield the log from a given second on, and what follows while somebody reads."""
        place = next((n for n, (second, _) in enumerate(log) if second >= since), len(log))
        while not self.is_over:
            lines = [line for _, line in log[place:]]
            place += len(lines)
            yield b"".join(lines)
            time.sleep(_TICK_S)


def _pod(number: int) -> dict[str, object]:
    running = {"name": "pytorch", "restartCount": 0, "state": {"running": {"startedAt": _STARTED}}}
    return {
        "metadata": {"name": f"{_RUN}-worker-{number}", "uid": f"uid-{number}"},
        "spec": {"nodeName": "node", "containers": [{"name": "pytorch"}]},
        "status": {"phase": "Running", "containerStatuses": [running]},
    }


def _json(document: dict[str, object]) -> Response:
    return Response(json.dumps(document), mimetype="application/json")


class _Quiet(WSGIRequestHandler):
    def log(self, *_: object) -> None:
        """Drop the access log."""


def _relay(address: str, folder: Path) -> subprocess.Popen[bytes]:
    configured = folder / "kubeconfig"
    configured.write_text(kubeconfig(address))
    environment = {
        "PATH": os.environ["PATH"],
        "STATIONMASTER_RUN_ID": _RUN,
        "STATIONMASTER_JOB": _RUN,
        "STATIONMASTER_BUS_NAME": "stationmaster",
        "STATIONMASTER_POD": "relay-0",
        "STATIONMASTER_RELAY_KEY": "key",
        "STATIONMASTER_ARTIFACTS_BUCKET": "results",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "KUBECONFIG": str(configured),
    }
    with (folder / "relay.log").open("ab") as log:
        command = [sys.executable, "-m", "stationmaster.relay"]
        return subprocess.Popen(command, cwd=_REPOSITORY, env=environment, stderr=log)
