"""The local Lambda: the Invoke API, the runtime in this process and the runtime in processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from stationmaster.local.aws import Function, InProcessRuntime, LocalAws, RicRuntime
from tests.support.aws_fixtures import Script, until

HERE = Path(__file__).parent


def function(**fields: Any) -> Function:
    """Return a function whose handler runs in a Lambda process."""
    return Function(
        **{
            "name": "probe",
            "handler": "aws_handlers.in_process",
            "arn": "arn:aws:lambda:us-west-2:123456789012:function:probe",
            "timeout_s": 30,
            "memory_mib": 256,
            "environment": {"COLOUR": "blue"},
            **fields,
        }
    )


@pytest.fixture
def ric(tmp_path: Path) -> Iterator[RicRuntime]:
    """A process runtime that finds this folder's modules."""
    path = os.pathsep.join([str(HERE), str(HERE.parents[2])])
    runtime = RicRuntime(environment={"PYTHONPATH": path}, log_dir=tmp_path)
    yield runtime
    runtime.close()


def call(runtime: RicRuntime, payload: Any, **fields: Any) -> tuple[Any, bool]:
    """Invoke the probe."""
    result, failed = runtime.invoke(function(**fields), json.dumps(payload).encode())
    return json.loads(result), failed


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self").exists():
        return True  # macOS: its init waits for orphans
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- the Invoke API -----------------------------------------------------------


def test_invoke_failure_is_an_unhandled_function_error(aws: LocalAws, script: Script) -> None:
    script.fail("worker", times=1)

    answer = aws.client("lambda").invoke(FunctionName="worker", Payload=b"{}")

    assert (answer["StatusCode"], answer["FunctionError"]) == (200, "Unhandled")
    assert json.load(answer["Payload"])["errorType"] == "CapacityError"


def test_invoke_of_unknown_function_is_not_found(aws: LocalAws, script: Script) -> None:
    client = aws.client("lambda")

    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.invoke(FunctionName="nobody", Payload=b"{}")


def test_invoke_event_returns_before_the_handler_and_retries(aws: LocalAws, script: Script) -> None:
    script.fail("worker", times=2)

    answer = aws.client("lambda").invoke(
        FunctionName="worker", InvocationType="Event", Payload=b'{"n":1}'
    )

    assert answer["StatusCode"] == 202
    until(lambda: len(script.received("worker")) == 3)
    assert script.received("worker") == [{"n": 1}] * 3


def test_reserved_concurrency_of_one_lets_no_two_invocations_overlap(
    aws: LocalAws, script: Script
) -> None:
    entered, left, overlaps = threading.Event(), threading.Event(), []

    def work(event: Any, context: Any) -> None:
        overlaps.append(entered.is_set() and not left.is_set())
        entered.set()
        # Long enough for the other call to come in, if it is let in.
        left.wait(timeout=0.5)
        left.set()

    script.on("worker", work)
    client = aws.client("lambda")
    client.put_function_concurrency(FunctionName="worker", ReservedConcurrentExecutions=1)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: client.invoke(FunctionName="worker"), range(2)))
    finally:
        client.delete_function_concurrency(FunctionName="worker")

    assert overlaps == [False, False]


# -- in this process ----------------------------------------------------------


def test_in_process_exception_becomes_lambdas_error_payload() -> None:
    runtime = InProcessRuntime()

    result, failed = runtime.invoke(function(environment={}), b'{"do":"raise"}')

    error = json.loads(result)
    assert failed
    assert (error["errorType"], error["errorMessage"]) == (
        "CapacityError",
        "no capacity in us-west-2a",
    )
    assert any("in_process" in line for line in error["stackTrace"])


def test_in_process_conflicting_environment_is_refused() -> None:
    runtime = InProcessRuntime()
    runtime.invoke(function(), b"{}")

    result, failed = runtime.invoke(function(name="other", environment={"COLOUR": "red"}), b"{}")
    runtime.close()

    assert failed
    assert "COLOUR='red'" in json.loads(result)["errorMessage"]
    assert "COLOUR" not in os.environ


def test_in_process_call_after_the_end_is_refused_and_sets_no_variable() -> None:
    runtime = InProcessRuntime()
    runtime.close()

    result, failed = runtime.invoke(function(), b"{}")

    assert failed
    assert "the local AWS endpoint has stopped" in json.loads(result)["errorMessage"]
    assert "COLOUR" not in os.environ


# -- in processes -------------------------------------------------------------


def test_ric_runs_the_handler_in_a_warm_process_of_its_own(ric: RicRuntime) -> None:
    first, failed = call(ric, {})
    second, _ = call(ric, {})

    assert not failed
    assert first["pid"] != os.getpid()
    assert first["pid"] == second["pid"]
    assert first["request_id"] != second["request_id"]
    assert (first["function"], first["memory"], first["variable"]) == ("probe", "256", "blue")
    assert 0 < first["remaining_ms"] <= 30_000


def test_ric_exception_keeps_its_class_name(ric: RicRuntime) -> None:
    error, failed = call(ric, {"do": "raise"})

    assert failed
    assert (error["errorType"], error["errorMessage"]) == (
        "CapacityError",
        "no capacity in us-west-2a",
    )


def test_ric_handler_that_cannot_be_imported_fails(ric: RicRuntime) -> None:
    error, failed = call(ric, {}, handler="no_such_module.handler")

    assert failed
    assert error["errorType"] == "Runtime.ImportModuleError"


def test_ric_concurrent_calls_get_processes_of_their_own(ric: RicRuntime, tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    payloads = [
        {"do": "meet", "mine": one, "other": two, "seconds": 25},
        {"do": "meet", "mine": two, "other": one, "seconds": 25},
    ]

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda payload: call(ric, payload), payloads))

    assert [failed for _, failed in answers] == [False, False]
    assert len({answer["pid"] for answer, _ in answers}) == 2


@pytest.mark.parametrize("foreign", [{"Host": "evil.test"}, {"Origin": "https://evil.test"}])
def test_ric_takes_no_answer_from_a_foreign_page(ric: RicRuntime, foreign: dict[str, str]) -> None:
    address = f"http://{call(ric, {})[0]['runtime_api']}/2018-06-01/runtime/invocation"

    statuses = [
        httpx.get(f"{address}/next", headers=foreign).status_code,
        httpx.post(f"{address}/x/response", json={"forged": True}, headers=foreign).status_code,
        httpx.options(f"{address}/x/response", headers=foreign).status_code,
    ]

    assert statuses == [403, 403, 403]
    assert call(ric, {})[0]["function"] == "probe"


def test_ric_timeout_kills_the_process_and_names_it(ric: RicRuntime) -> None:
    pid = call(ric, {})[0]["pid"]

    error, failed = call(ric, {"do": "sleep", "seconds": 60}, timeout_s=1)

    assert failed
    assert error["errorType"] == "Sandbox.Timedout"
    assert "timed out after 1.00 seconds" in error["errorMessage"]
    assert not alive(pid)


def test_ric_process_that_exits_is_an_exit_error_and_is_replaced(ric: RicRuntime) -> None:
    first = call(ric, {})[0]["pid"]

    error, failed = call(ric, {"do": "exit"})
    second = call(ric, {})[0]["pid"]

    assert failed
    assert error["errorType"] == "Runtime.ExitError"
    assert second != first


def test_ric_call_that_runs_while_the_runtime_is_closed_is_an_exit_error(
    ric: RicRuntime, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    meeting = {"do": "meet", "mine": str(mine), "other": str(tmp_path / "nobody"), "seconds": 900}

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call, ric, meeting, timeout_s=900)
        until(mine.exists)
        ric.close()
        error, failed = running.result()

    assert failed
    assert error["errorType"] == "Runtime.ExitError"
    with pytest.raises(RuntimeError, match='"probe": the Lambda runtime is closed'):
        call(ric, {})


def test_ric_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    parent_code = (
        "import json, sys, time\n"
        "from stationmaster.local.aws import Function, RicRuntime\n"
        f"ric = RicRuntime(environment={{'PYTHONPATH': {str(HERE)!r}}})\n"
        "out, _ = ric.invoke(Function(name='p', handler='aws_handlers.in_process',"
        " timeout_s=900), b'{}')\n"
        "print(json.loads(out)['pid'], flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        was_alive = alive(child)
        parent.send_signal(signal.SIGKILL)

    assert was_alive
    until(lambda: not alive(child))
