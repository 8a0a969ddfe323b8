"""Signals to local mode: heard in whichever thread they arrive, and the second one ends it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# The main thread waits; a signal goes to another thread, as the kernel may choose to do.
PROGRAM = """
import signal, threading, time
from stationmaster.local.stop_signals import StopSignals

idle = threading.Thread(target=threading.Event().wait, daemon=True)
idle.start()

def send():
    signal.pthread_kill(idle.ident, signal.{name})

with StopSignals({window}) as signals:
    threading.Thread(target=send).start()
    signals.wait()
    print("asked", flush=True)
    {then}
print("left", flush=True)
"""


def run(name, then, window=""):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name, then=then, window=window)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_that_another_thread_takes_is_heard(name):
    ended = run(name, then="pass")

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "asked\nleft\n", "")


def test_second_signal_ends_a_process_that_hangs_while_it_stops():
    ended = run("SIGINT", then="\n    while True: send(); threading.Event().wait(0.1)")

    assert ended.returncode == 128 + signal.SIGINT
    assert ended.stdout == "asked\n"
    assert ended.stderr == "stationmaster: ended at once; every pod ends with it\n"


def test_two_signals_at_the_same_time_are_one_wish():
    # An hour, because a loaded machine may take seconds from one signal to the next.
    # The wait is time for a listener that counts two to end the process.
    # Raised here: one for another thread may come when the process listens for none any more.
    then = "signal.raise_signal(signal.SIGTERM); threading.Event().wait(1)"
    ended = run("SIGTERM", then=then, window="same_wish_s=3600")

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "asked\nleft\n", "")


def test_wait_for_an_event_ends_with_it_with_the_time_or_with_a_signal():
    program = "print(signals.wait_for(threading.Event(), limit_s=600), signals.asked())"

    ended = run("SIGTERM", then=program)

    assert ended.stdout == "asked\nFalse True\nleft\n"
