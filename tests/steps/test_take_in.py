"""What arrives at the recorder: what can be read is recorded, the rest is a dead letter."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from stationmaster.aws import table
from stationmaster.domain.bus import RELAY_BATCH_DETAIL_TYPE, is_signed, signature
from stationmaster.domain.names import ITEM_UNREADABLE, SET_ASIDE
from stationmaster.domain.progress_lines import Sample
from stationmaster.domain.run import events as ev
from stationmaster.steps.take_in import take_in
from tests.support.aws_steps import IDLE, Account
from tests.support.factories import make_event, signed

SPEED = IDLE


def progress(account: Account, step: int, **changes: Any) -> dict[str, Any]:
    event = ev.ProgressReported(
        event_id=f"p{step}",
        run_id=account.run_id,
        at=account.now(),
        seq=step,
        step=step,
        total_steps=99,
        loss_nats=2.0,
    )
    return {**event.model_dump(mode="json"), **changes}


def batch(account: Account, *events: Any, **changes: Any) -> dict[str, Any]:
    """The EventBridge event of a relay's batch."""
    detail = {
        "run_id": account.run_id,
        "batch_id": "b",
        "at": account.now().isoformat(),
        "events": [*events],
        "log_tails": [],
        "heartbeat": False,
    }
    return {
        "source": "stationmaster",
        "detail-type": RELAY_BATCH_DETAIL_TYPE,
        "detail": signed({**detail, **changes}),
    }


def take(account: Account, *events: Any, **changes: Any) -> dict[str, int]:
    """What the recorder answers to a batch of these events."""
    return take_in(account.services, batch(account, *events, **changes))


def succeeded(account: Account) -> dict[str, Any]:
    return ev.JobConditionChanged(
        event_id="succeeded",
        run_id=account.run_id,
        at=account.now(),
        condition="Succeeded",
        reason="r",
        message="m",
    ).model_dump(mode="json")


def kept(account: Account) -> list[Any]:
    return [*account.services.set_aside.list()]


@pytest.fixture(autouse=True)
def run_that_trains(account: Account) -> None:
    account.train()
    forget_all(account)


def forget_all(account: Account) -> None:
    for entry in kept(account):
        account.services.set_aside.delete(entry.item_id)


@pytest.mark.parametrize(
    "unreadable",
    [
        pytest.param({"type": "progress.reported"}, id="fields missing"),
        pytest.param({"type": "gpu.melted", "event_id": "x"}, id="unknown type"),
        pytest.param("progress", id="text"),
        pytest.param(None, id="nothing"),
        pytest.param([[]], id="list"),
    ],
)
def test_event_that_cannot_be_read_is_set_aside_and_costs_no_other(
    account: Account, unreadable: Any
) -> None:
    answer = take(account, progress(account, 1), unreadable, progress(account, 2))

    (entry,) = kept(account)
    assert answer == {"set_aside": 1}
    assert account.run.progress.step == 2
    assert json.loads(entry.payload)["detail"]["events"] == [unreadable]
    assert (entry.function, entry.is_cut) == ("recorder", False)
    assert account.run_id in entry.what


def test_what_was_set_aside_is_taken_in_once_it_can_be_read(account: Account) -> None:
    later = batch(account, progress(account, 3, watts=700))
    take_in(account.services, later)
    (entry,) = kept(account)
    assert "watts" in entry.reason
    payload = json.loads(entry.payload)
    assert payload["detail"]["events"] == later["detail"]["events"]
    assert payload["detail"] == signed(payload["detail"]), "its signature holds"

    del payload["detail"]["events"][0]["watts"]  # this version knows it now
    answer = take_in(account.services, {**payload, "detail": signed(payload["detail"])})

    assert (answer, account.run.progress.step) == ({"set_aside": 0}, 3)


def test_the_same_dead_letter_is_kept_and_logged_once(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable = batch(account, {"type": "gpu.melted"})

    with caplog.at_level(logging.WARNING):
        answers = [take_in(account.services, unreadable) for _ in range(3)]

    assert answers == [{"set_aside": 1}] * 3
    assert len(kept(account)) == 1
    assert caplog.messages.count(SET_ASIDE) == 1


def test_event_of_another_run_in_a_batch_is_set_aside_alone(account: Account) -> None:
    foreign = progress(account, 5, run_id="other-run", event_id="foreign")

    take(account, progress(account, 1), foreign)

    (entry,) = kept(account)
    assert account.run.progress.step == 1
    assert "other-run" in entry.reason


def test_event_that_is_too_large_for_the_table_is_set_aside_cut(account: Account) -> None:
    huge = ev.TrainingFinished(
        event_id="w",
        run_id=account.run_id,
        at=account.now(),
        step=9,
        samples=(Sample(prompt="p", text="x" * 500_000),),
    ).model_dump(mode="json")

    take(account, huge, progress(account, 8))

    (entry,) = kept(account)
    assert account.run.progress.step == 8
    assert entry.is_cut
    assert "has 500" in entry.reason


def test_event_with_an_id_too_long_for_a_key_is_set_aside(account: Account) -> None:
    take(account, progress(account, 1, event_id="x" * 2_000))

    (entry,) = kept(account)
    assert "at most 300 characters" in entry.reason


@pytest.mark.parametrize(
    "spoilt", [{"at": "0001-01-01T00:00:00Z"}, {"step_time_s": 1e14}, {"seq": 10**400}]
)
def test_success_is_recorded_beside_an_event_that_cannot_be_true(
    account: Account, spoilt: dict[str, Any]
) -> None:
    answer = take(account, progress(account, 1, **spoilt), succeeded(account))

    assert (answer, account.run.job_condition) == ({"set_aside": 1}, "Succeeded")


def test_success_is_recorded_beside_an_event_that_raises(account: Account) -> None:
    """The trainer was seen at a time without a zone, which can be compared with no other."""
    naive = {"trainer_seen_at": account.now().replace(tzinfo=None)}
    account.damage("RUN", account.run.model_copy(update=naive).model_dump_json())

    take(account, progress(account, 1), succeeded(account))

    (entry,) = kept(account)
    assert "offset-naive" in entry.reason
    assert account.run.job_condition == "Succeeded"


def test_batch_of_an_unknown_run_is_set_aside_and_its_heartbeats_are_not(account: Account) -> None:
    account.lose("RUN")
    event = progress(account, 1)

    with_events = take(account, event, heartbeat=True)
    alone = take(account, heartbeat=True)

    (entry,) = kept(account)
    assert (with_events, alone) == ({"set_aside": 1}, {"set_aside": 0})
    assert json.loads(entry.payload)["detail"]["events"] == [event]


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(lambda detail: {**detail, "signature": ""}, id="not signed"),
        pytest.param(lambda detail: signed(detail, run_id="other-run"), id="by another run"),
        pytest.param(lambda detail: {**detail, "batch_id": "c"}, id="changed"),
    ],
)
def test_batch_that_the_relay_of_its_run_has_not_signed_changes_nothing(
    account: Account, forged: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    real = batch(account, progress(account, 4), heartbeat=True)

    answer = take_in(account.services, {**real, "detail": forged(real["detail"])})

    (entry,) = kept(account)
    assert (answer, account.run.progress) == ({"set_aside": 1}, None)
    assert "signature" in entry.reason


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ev.PhaseChanged, {"phase": "succeeded"}),
        (ev.StopRequested, {"user_id": "U1"}),
        (
            ev.ResultsSaved,
            {"uri": "s3://b/runs/r/", "num_files": 1, "num_bytes": 1, "manifest_sha256": "0"},
        ),
    ],
)
def test_event_of_the_workflow_is_not_taken_from_a_relay(
    account: Account, kind: type[Any], values: dict[str, Any]
) -> None:
    event = make_event(kind, run_id=account.run_id, **values).model_dump(mode="json")
    before = account.run

    take(account, event)

    (entry,) = kept(account)
    assert account.run == before
    assert event["type"] in entry.what


def test_signature_holds_for_the_same_values_written_in_another_way() -> None:
    key = SecretStr("key")
    detail = {"run_id": "r", "events": [{"step": 1, "loss_nats": 2.0, "reason": "\u00e9"}]}

    arrived = json.loads('{"events":[{"reason":"\u00e9","loss_nats":2,"step":1}],"run_id":"r"}')

    assert is_signed({**arrived, "signature": signature(detail, key)}, key)


@pytest.mark.parametrize("body", ["{", "{}", '{"schema": 9, "state": "compressed"}'])
def test_run_that_cannot_be_read_hides_no_other(
    account: Account, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    other = account.guest("other")
    account.damage("RUN", body)

    answer = take_in(account.services, batch(account, progress(account, 1)))
    listed = account.services.runs.list_open()

    assert answer == {"set_aside": 1}
    assert other.run_id in [run.run_id for run in listed]
    assert ITEM_UNREADABLE in caplog.messages


def test_event_item_that_cannot_be_read_hides_no_other(account: Account) -> None:
    take_in(account.services, batch(account, progress(account, 1)))
    account.aws.client("dynamodb").put_item(
        TableName=account.settings.table_name,
        Item=table.event("RUN", account.run_id, "bad").attributes | {"place": {"S": "first"}},
    )

    assert [event.step for event in account.events("progress.reported")] == [1]


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        "x",
        {},
        {"detail-type": RELAY_BATCH_DETAIL_TYPE},
        {"detail-type": RELAY_BATCH_DETAIL_TYPE, "detail": []},
        {"detail-type": RELAY_BATCH_DETAIL_TYPE, "detail": {"events": 3}},
        {"detail-type": "Step Functions Execution Status Change", "detail": {"status": "FAILED"}},
        {"detail-type": "Weather Report", "detail": {"sun": True}},
    ],
    ids=json.dumps,
)
def test_whatever_arrives_is_set_aside_without_an_error(account: Account, event: Any) -> None:
    assert take_in(account.services, event) == {"set_aside": 1}

    (entry,) = kept(account)
    assert json.loads(entry.payload) == event


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "event_id", "at", "run_id", "step"]), inner)
    ),
    max_leaves=6,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parts=st.lists(ANY_JSON, max_size=3), tails=ANY_JSON)
def test_batch_of_any_parts_never_raises(account: Account, parts: list[Any], tails: Any) -> None:
    event = batch(account, *parts, log_tails=tails)

    answer = take_in(account.services, event)

    assert answer["set_aside"] <= len(parts) + (len(tails) if isinstance(tails, list) else 1)
    forget_all(account)
