"""Logs of training pods for a result: the end of each, and honest about the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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


def text_of(cluster: Any, **options: int) -> str:
    (log,) = PodLogs(cluster, namespace="stationmaster", run_id=RUN).read(**options)
    assert log.pod == "worker-0"
    return log.text.decode()


def test_long_log_keeps_its_end_from_a_whole_line_on() -> None:
    lines = [f"line {number}\n".encode() for number in range(10)]
    cluster = Cluster(*lines, state={"running": {}})

    text = text_of(cluster, max_bytes=25)

    left_out = 7 * len(b"line 0\n")
    assert text == (
        f"[stationmaster] the first {left_out} bytes are left out\nline 7\nline 8\nline 9\n"
    )


def test_log_that_fits_is_whole() -> None:
    cluster = Cluster(b"line 0\nli", b"ne 1\n", state={"terminated": {"exitCode": 0}})

    assert text_of(cluster, max_bytes=14) == "line 0\nline 1\n"


def test_log_that_breaks_off_says_so_after_what_was_read() -> None:
    cluster = Cluster(b"line 0\n", ClusterUnreachable("no answer"), state={"running": {}})

    assert text_of(cluster) == "line 0\n\n[stationmaster] the rest could not be read: no answer\n"


def test_log_that_kubernetes_has_not_is_a_note() -> None:
    cluster = Cluster(ObjectMissing("HTTP 404"), state={"terminated": {"exitCode": 1}})

    assert text_of(cluster) == "[stationmaster] Kubernetes has no log of it: HTTP 404\n"


def test_pod_whose_container_never_started_has_a_note() -> None:
    cluster = Cluster(state={"waiting": {"reason": "ImagePullBackOff"}})

    assert text_of(cluster) == "[stationmaster] the container never started\n"


def test_pod_whose_container_printed_nothing_has_another_note() -> None:
    cluster = Cluster(b"", state={"terminated": {"exitCode": 0}})

    assert text_of(cluster) == "[stationmaster] it printed nothing\n"


def test_run_before_the_last_comes_first() -> None:
    cluster = Cluster(b"said\n", state={"running": {}}, restarts=2)

    assert text_of(cluster).splitlines() == [
        "[stationmaster] restarted 2 times; this is the run before the last",
        "said",
        "[stationmaster] this is the last run",
        "said",
    ]
