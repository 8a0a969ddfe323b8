"""Logs of pods that are gone are in the bucket, from the relay that reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from stationmaster.relay import kept_logs
from stationmaster.relay.kept_logs import KeptLogs
from stationmaster.relay.lines import LogLine
from stationmaster.relay.s3 import NotDone

STAMP = "2026-11-20T18:00:0{}.000000000Z"


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
