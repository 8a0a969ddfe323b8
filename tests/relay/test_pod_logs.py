"""Logs of training pods for a result: the end of each, and honest about the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stationmaster.domain.ids import RunId
from stationmaster.relay import kept_logs
from stationmaster.relay.cluster import ClusterUnreachable, ObjectMissing
from stationmaster.relay.kept_logs import KeptLogs
from stationmaster.relay.lines import LogLine
from stationmaster.relay.s3 import NotDone
from stationmaster.relay.saving.pod_logs import PodLogs

RUN = RunId("tiny-llama-0123abcd")


STAMP = "2026-11-20T18:00:0{}.000000000Z"


class Cluster:
    """One pod, whose log comes in chunks; a chunk that is an error breaks off."""

    def __init__(self, *chunks: bytes | Exception, state: dict[str, Any], restarts: int = 0):
        self._chunks = chunks
        status = {"name": "pytorch", "state": state, "restartCount": restarts}
        self._pod = {
            "metadata": {"name": "worker-0", "labels": {"stationmaster/attempt": "2"}},
            "status": {"containerStatuses": [status]},
        }

    def list(self, path: str, query: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
        assert path == "/api/v1/namespaces/stationmaster/pods"
        assert query == {"labelSelector": f"stationmaster/run-id={RUN},stationmaster/role=training"}
        return [self._pod], ""

    @contextmanager
    def log(self, path: str, **options: Any) -> Iterator[Iterator[bytes]]:
        yield self._read()

    def _read(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


RUNS, WELL = {"running": {}}, {"terminated": {"exitCode": 0}}
LINES = [f"line {number}\n".encode() for number in range(10)]
NOTE = "[stationmaster] "


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (
            Cluster(*LINES, state=RUNS),
            f"{NOTE}the first 49 bytes are left out\nline 7\nline 8\nline 9\n",
        ),
        (Cluster(b"line 0\nli", b"ne 1\n", state=WELL), "line 0\nline 1\n"),
        (
            Cluster(b"line 0\n", ClusterUnreachable("no answer"), state=RUNS),
            f"line 0\n\n{NOTE}the rest could not be read: no answer\n",
        ),
        (
            Cluster(ObjectMissing("HTTP 404"), state=WELL),
            f"{NOTE}Kubernetes has no log of it: HTTP 404\n",
        ),
        (
            Cluster(state={"waiting": {"reason": "ImagePullBackOff"}}),
            f"{NOTE}the container never started\n",
        ),
        (Cluster(b"", state=WELL), f"{NOTE}it printed nothing\n"),
        (
            Cluster(b"said\n", state=RUNS, restarts=2),
            f"{NOTE}restarted 2 times; this is the run before the last\nsaid\n"
            f"{NOTE}this is the last run\nsaid\n",
        ),
    ],
    ids=["long", "short", "broken off", "gone", "never started", "silent", "restarted"],
)
def test_log_of_a_pod_is_its_end_with_notes_of_what_is_missing(cluster: Any, text: str) -> None:
    (log,) = PodLogs(cluster, namespace="stationmaster", run_id=RUN).read(max_bytes=25)

    assert (log.name, log.text.decode()) == ("worker-0.attempt-2", text)


class Store(dict[str, bytes]):
    """The bucket; it may be away."""

    is_away = False

    def put(self, path: str, data: bytes, *, digest: bytes) -> str:
        if self.is_away:
            raise NotDone("the bucket is away")
        self[path] = data
        return ""


def line(text: str, second: int = 0) -> LogLine:
    return LogLine(stamp=STAMP.format(second), ordinal=0, text=text)


def kept_in(directory: Path, store: Store, *, leads: bool = True) -> KeptLogs:
    kept = KeptLogs(directory, store=store, may_send=lambda: leads)
    kept.keep("w-0", line("step 1"))
    kept.keep("w-1", line("other pod"))
    kept.keep("w-0", line("stopping \udcff", 1))
    return kept


def test_log_of_a_pod_is_in_the_bucket_once_it_has_ended_and_the_bucket_is_there(tmp_path: Path):
    store = Store()
    kept = kept_in(tmp_path, store)
    assert store == {}

    store.is_away = True
    kept.pod_ended("w-0")
    store.is_away = False
    kept.send()

    lines = [b"2026-11-20T18:00:00.000000000Z step 1", b"2026-11-20T18:00:01.000000000Z stopping ?"]
    assert store == {"w-0.log": b"\n".join(lines) + b"\n"}
    kept_in(tmp_path, others := Store(), leads=False).pod_ended("w-0")
    assert others == {}, "it stands by"


def test_long_log_keeps_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_logs, "MAX_KEPT_BYTES", 1000)
    store = Store()
    kept = KeptLogs(tmp_path, store=store, may_send=lambda: True)
    for number in range(100):
        kept.keep("w-0", line(f"line {number}"))

    kept.pod_ended("w-0")

    text = store["w-0.log"]
    assert 500 <= len(text) <= 1100
    assert text.endswith(b"line 99\n")
