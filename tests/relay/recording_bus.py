"""A bus that records what a relay puts on it, and the relay's own figures."""

from __future__ import annotations

import threading

from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from stationmaster.domain.bus import RelayBatch

KEY = SecretStr("key of run-1")


class RecordingBus:
    """An EventBridge client: takes entries, or answers as `answers` says, in order."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.entries = []
        self.calls = []
        self.arrived = threading.Condition()
        self.open = threading.Event()
        self.open.set()

    def put_events(self, *, Entries):  # noqa: N803
        self.open.wait(10)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        codes = answer or [None] * len(Entries)
        results = [{"ErrorCode": code} if code else {"EventId": "1"} for code in codes]
        with self.arrived:
            self.calls.append(Entries)
            self.entries += [e for e, code in zip(Entries, codes, strict=True) if code is None]
            self.arrived.notify_all()
        return {"FailedEntryCount": sum(c is not None for c in codes), "Entries": results}

    @property
    def batches(self):
        return [RelayBatch.model_validate_json(entry["Detail"]) for entry in self.entries]

    @property
    def events(self):
        return [event.event_id for batch in self.batches for event in batch.events]

    def wait_for(self, condition, timeout_s=600):
        with self.arrived:
            assert self.arrived.wait_for(condition, timeout_s), self.batches


def figures_of(text, run_id):
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    assert {sample.labels["run_id"] for sample in samples} == {run_id}
    return {each.name.removeprefix("stationmaster_"): each.value for each in samples}
