"""Which line, and which of many bad ends, is reported as the cause."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from containers import read, worker_failed
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.run.events import PodChanged, ProcessFailed
from stationmaster.domain.run.failure_lines import MAX_LINE, FailureLines
from stationmaster.domain.run.failures import failures_after, first_cause, still_open

START = datetime(2026, 11, 20, 18, 0, tzinfo=UTC)

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.10 GiB"
)
# As torchrun 2.13 prints it at its own end, after the last worker failed.
AGENTS_END = """\
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 6, in <module>
    sys.exit(main())
             ^^^^^^
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
training FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 3 (pid: 26086)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================""".splitlines()


def traceback(last, *, prefix=""):
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    f()", last]
    return [prefix + line for line in lines]


TWO_RANKS = (
    traceback("ValueError: first", prefix="[rank1]: "),
    traceback("ValueError: second", prefix="[rank0]: "),
)


def lines_of(*texts):
    lines = FailureLines()
    for text in texts:
        lines.take(text)
    return lines


@pytest.mark.parametrize(
    ("texts", "cause"),
    [
        (
            [*traceback("x")[:3], "    assert size % ranks == 0", "    ~~~~^^^^", "AssertionError"],
            "AssertionError: assert size % ranks == 0",
        ),
        (traceback("torch.cuda.SomeError"), "torch.cuda.SomeError: f()"),
        ([*traceback("x")[:2], "KeyboardInterrupt"], "KeyboardInterrupt"),
        (traceback("ValueError: no such file: /x"), "ValueError: no such file: /x"),
        ([*traceback(OUT_OF_MEMORY), *AGENTS_END], OUT_OF_MEMORY),
        (
            [
                *traceback("KeyError: 'a'"),
                "",
                "During handling of the above exception, another exception occurred:",
                "",
                *traceback("ConfigError: key a is missing"),
            ],
            "KeyError: 'a'",
        ),
        (
            [
                *traceback("torch.distributed.DistBackendError: NCCL error in: x.cpp:77"),
                "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
                "Last error:",
                "Duplicate GPU detected : rank 1 and rank 0",
            ],
            "Duplicate GPU detected",
        ),
        (
            [line for pair in zip(*TWO_RANKS, strict=True) for line in pair],
            "ValueError: first",
        ),
        (["starting", "/bin/sh: 1: trainer: command not found"], "/bin/sh: 1: trainer: command"),
        ([*traceback("ConnectionError: Connection reset by peer"), *AGENTS_END], ""),
        (["all is well", *AGENTS_END], ""),
    ],
)
def test_failure_lines_pick_what_the_process_broke_of(texts, cause):
    assert lines_of(*texts).cause.startswith(cause)
    assert bool(lines_of(*texts).cause) == bool(cause)


OWN = """CUDA out of memory. Tried to allocate 2 GiB
RuntimeError: CUDA error: device-side assert triggered
NCCL WARN NCCL error 2 'unhandled system error'
ncclSystemError: System call failed
ncclInternalError: Internal check failed
Segmentation fault (core dumped)
Bus error (core dumped)
Fatal Python error: Aborted
OSError: [Errno 28] No space left on device
exec format error"""
OF_PEERS = """another worker of the job is gone, start again to continue: x
the elastic agent is gone; this worker ends
ncclRemoteError: A call failed possibly due to a network error
Connection closed by peer [10.0.1.2]:4711
Connection reset by peer
a remote process exited
BrokenPipeError: Broken pipe
failed to recv, got 0 bytes
RendezvousConnectionError: The connection to the C10d store has failed
RendezvousClosedError
Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"""


def test_failure_lines_know_failures_of_libraries_and_kernel_and_what_only_follows():
    for text in OWN.splitlines():
        lines = lines_of("before", text, "after")
        assert (lines.cause, lines.peer, lines.last) == (text, "", "after")
    for text in OF_PEERS.splitlines():
        lines = lines_of("before", text, "after")
        assert (lines.cause, lines.peer, lines.last) == ("", text, "after")


def test_failure_lines_without_a_traceback_end_with_the_last_line_meant_to_be_read():
    closed = "w:1:9 [0] NCCL INFO [Service thread] Connection closed by localRank 0"
    told = '{"stationmaster":1,"kind":"x"}'
    nothing = ["=====", "", "frame #27: _start + 0x21", "<omitting python frames>"]
    nothing += ["2026-01-02 03:04:05,678 INFO training: checkpoint removed: /x", "INFO:root:saved"]
    nothing += ["2026-01-02T03:04:05Z - app.x - INFO - saved", "[I0102 03:04:05.678 a.cpp:9] saved"]
    lines = lines_of("config.yaml: no such key", told, *nothing, "[stationmaster] x", closed)

    assert (lines.cause, lines.last) == ("", "config.yaml: no such key")


BARS = (
    "Loading weights: 100%|####",
    "Loading checkpoint shards:  50%|\u2588\u2588\u258c  | 2/4 [00:01<00:01,  1.50it/s]",
    "100%|##########| 7/7 [00:00<?, ?it/s, loss=2.1]",
    "Map: 5000 examples [00:01, 4812.51it/s]",
    "Epoch 0 \u2501\u2501\u2501\u2501\u2501\u2501\u2501\u257a 3/4 0:00:01 4.2it/s",
)


@pytest.mark.parametrize("bar", BARS)
@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_progress_bar_is_never_the_line_that_explains_a_failure(bar, prefix):
    assert lines_of("no such file: /x", prefix + bar).last == "no such file: /x"
    assert lines_of(prefix + bar).last == ""
    first, *others = traceback("KeyError: 'a'", prefix=prefix)
    assert lines_of(first, prefix + bar, *others).cause == "KeyError: 'a'"


def test_text_behind_a_progress_bar_is_read():
    bar = BARS[1]
    assert lines_of(f"{bar} {bar}config.yaml: no such key").last == "config.yaml: no such key"
    begins, *others = traceback("KeyError: 'a'")
    assert lines_of(bar + begins, *others).cause == "KeyError: 'a'"


@given(st.lists(st.text(max_size=400), max_size=30))
def test_failure_lines_of_any_text_are_short(texts):
    lines = lines_of(*texts, *traceback("E: " + "x" * 9999))

    assert max(len(lines.cause), len(lines.peer), len(lines.last)) <= MAX_LINE


def failures_of(*texts, exit_code=None, restarts_allowed=0):
    """The failures that the relay tells of a container's log and of its end."""
    events = read(*texts, exit_code=exit_code, max_restarts=restarts_allowed)
    return [event for event in events if isinstance(event, ProcessFailed)]


def test_container_that_exits_badly_is_reported_with_its_last_line_and_the_same_id_each_time():
    (reported,) = failures_of("starting", "config.yaml is missing", exit_code=3)
    (again,) = failures_of("starting", "config.yaml is missing", exit_code=3)
    (of_a_lost_pod,) = failures_of(*traceback(OUT_OF_MEMORY), exit_code=None)

    assert (reported.line, again) == ("config.yaml is missing", reported)
    assert (reported.process, reported.lost_peer) == ("", False)
    assert of_a_lost_pod.line == OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("texts", "exit_code"),
    [
        (traceback("ValueError: caught and logged"), 0),
        (["still busy"], None),
        ([], 3),
    ],
)
def test_container_that_ended_well_or_says_nothing_is_no_failure(texts, exit_code):
    assert failures_of(*texts, exit_code=exit_code) == []


NO_INTERFACE = "w-0:7:7 [0] NCCL WARN Bootstrap : no socket interface found"
NCCL_ERROR = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, internal error"


@pytest.mark.parametrize(
    ("last", "code", "evidence"),
    [
        (NCCL_ERROR, 1, NO_INTERFACE),
        ("ValueError: bad token", 1, ""),
        (NCCL_ERROR, -6, NO_INTERFACE),
        (NCCL_ERROR, -9, ""),
        (NCCL_ERROR, 75, ""),
    ],
)
def test_worker_that_failed_is_reported_with_the_line_that_explains_it(last, code, evidence):
    (reported,) = failures_of(
        NO_INTERFACE, *traceback(last), worker_failed(code), *AGENTS_END, exit_code=1
    )

    assert (reported.line, reported.evidence) == (last, evidence)
    assert [failure.evidence for failure in failures_after([], reported)] == [evidence]


def test_container_without_an_agent_is_reported_with_the_line_that_explains_it():
    (reported,) = failures_of("CUDA out of memory", "bye", exit_code=1)
    (other,) = failures_of(NO_INTERFACE, "bye", exit_code=1)

    assert (reported.line, reported.evidence) == ("CUDA out of memory", "")
    assert (other.line, other.evidence) == ("bye", NO_INTERFACE)


def test_worker_that_was_killed_is_not_blamed_on_what_it_printed_last():
    (reported,) = failures_of("a warning", worker_failed(-9), exit_code=1)

    assert failures_of("a warning", exit_code=137) == []
    assert (reported.process, reported.line) == ("process 0 was killed by SIGKILL", "")


def test_each_attempt_is_reported_with_its_own_line():
    reported = failures_of(
        *traceback("ValueError: one"),
        worker_failed(1),
        *traceback("ValueError: two"),
        worker_failed(1),
        restarts_allowed=1,
    )

    assert [event.line for event in reported] == ["ValueError: one", "ValueError: two"]


@pytest.mark.parametrize("code", [75, -6, -15, 143])
def test_worker_that_lost_another_one_is_a_consequence(code):
    (reported,) = failures_of(worker_failed(code), exit_code=1)

    assert reported.lost_peer


def failed(second, pod, **fields):
    about = {"event_id": f"{pod}{second}{fields}", "run_id": "run"}
    return ProcessFailed(**about, at=START + timedelta(seconds=second), pod=pod, **fields)


def ended(second, pod, code, *, reason="Error", **fields):
    about = {"event_id": f"{pod}{second}", "run_id": "run", "phase": "Running"}
    at = START + timedelta(seconds=second)
    return PodChanged(**about | fields, at=at, pod=pod, exit_code=code, reason=reason)


def cause_of(*events):
    failures = []
    for event in events:
        after = failures_after(failures, event)
        failures = failures if after is None else after
    found = first_cause(failures)
    return found.sentence if found else None


KILLED = [
    ended(10, "w-1", 137, reason="OOMKilled"),
    failed(10, "w-0", process="process 0 exited with code 75", lost_peer=True),
    ended(11, "w-0", 1),
    failed(10, "w-2", line="another worker of the job is gone", lost_peer=True),
    ended(10, "w-2", 75),
    ended(12, "w-3", 143),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(KILLED))))[::37])
def test_killed_container_is_the_cause_whatever_is_reported_first(order):
    assert (
        cause_of(*(KILLED[index] for index in order)) == "pod w-1 exited with code 137 (OOMKilled)"
    )


def test_killed_worker_is_the_cause_although_its_agent_ends_as_the_others_do():
    peers = [
        failed(9, "w-0", process="process 0 exited with code 75", lost_peer=True),
        ended(11, "w-0", 1),
        ended(11, "w-1", 1),
    ]
    own = failed(10, "w-1", process="process 0 was killed by SIGKILL")

    assert cause_of(*peers, own) == (
        "pod w-1 exited with code 1 after process 0 was killed by SIGKILL"
    )


@pytest.mark.parametrize("own_first", [True, False])
def test_killed_worker_of_a_pod_is_reported_and_not_its_neighbour_that_followed(own_first):
    own = failed(10, "w-0", process="process 1 was killed by SIGKILL")
    followed = failed(11, "w-0", process="process 0 exited with code 75", lost_peer=True)
    order = [own, followed] if own_first else [followed, own]

    assert cause_of(*order) == "pod w-0 failed: process 1 was killed by SIGKILL"


def test_exit_code_and_line_of_one_container_make_one_sentence():
    line = failed(9, "w-0", line="FileNotFoundError: config.yaml")

    assert cause_of(line, ended(10, "w-0", 3)) == (
        "pod w-0 exited with code 3: FileNotFoundError: config.yaml"
    )
    assert cause_of(ended(10, "w-0", 3), line) == cause_of(line, ended(10, "w-0", 3))
    (kept,) = failures_after(failures_after([], line), ended(10, "w-0", 3))
    assert kept.at == line.at


def test_pod_in_back_off_or_gone_keeps_how_it_ended():
    waiting = ended(12, "w-0", None, reason="CrashLoopBackOff", restarts=1)
    gone = ended(13, "w-0", None, reason="", phase="Deleted", restarts=1)

    assert cause_of(ended(10, "w-0", 3), waiting, gone) == "pod w-0 exited with code 3"


def test_evicted_pod_is_reported_with_the_clusters_reason():
    evicted = ended(
        10, "w-0", None, reason="Evicted", phase="Failed", message="the node was low on disk"
    )

    assert cause_of(evicted) == "pod w-0 failed (Evicted: the node was low on disk)"


def test_failure_that_training_went_on_from_is_no_cause_any_more():
    failures = failures_after([], ended(10, "w-0", 9))

    assert still_open(failures, trained_at=START + timedelta(seconds=10.5)) == failures
    assert still_open(failures, trained_at=START + timedelta(seconds=14)) == []


def test_failures_of_a_large_gang_are_bounded_and_keep_the_cause():
    failures = []
    for number in range(200):
        event = failed(number, f"w-{number}", process="p", lost_peer=True)
        failures = failures_after(failures, event)
    failures = failures_after(failures, ended(300, "w-7", 137, reason="OOMKilled"))

    assert len(failures) < 50
    assert first_cause(failures).pod == "w-7"
