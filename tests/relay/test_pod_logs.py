"""Logs of training pods for a result: the end of each, and honest about the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from stationmaster.domain.ids import RunId
from stationmaster.relay.cluster import ClusterUnreachable, ObjectMissing
from stationmaster.relay.saving.pod_logs import PodLogs

RUN = RunId("tiny-llama-0123abcd")


class Cluster:
    """One pod, whose log comes in chunks; a chunk that is an error breaks off."""

    def __init__(self, *chunks: bytes | Exception, state: dict[str, Any], restarts: int = 0):
        self._chunks = chunks
        status = {"name": "pytorch", "state": state, "restartCount": restarts}
        self._pod = {
            "metadata": {"name": "worker-0"},
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

    assert (log.pod, log.text.decode()) == ("worker-0", text)
