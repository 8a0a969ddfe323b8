"""The quick `python` of simulated runs: what it starts behaves as if the real one had done so."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stationmaster.settings import HubAccess
from tests.chaos.forked_programs import add_programs


@pytest.fixture
def python(tmp_path: Path) -> str:
    add_programs(tmp_path)
    return str(tmp_path / "python")


@pytest.fixture
def waiting_environment(tmp_path: Path) -> dict[str, str]:
    """With it a relay waits for a cluster which nobody serves."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return {
        "STATIONMASTER_RUN_ID": "tiny-llama-0123abcd",
        "STATIONMASTER_JOB": "tiny-llama-0123abcd",
        "STATIONMASTER_BUS_NAME": "bus",
        "STATIONMASTER_POD": "run-1-relay-0",
        "STATIONMASTER_ARTIFACTS_BUCKET": "results",
        "STATIONMASTER_RELAY_KEY": "key",
        "AWS_REGION": "us-west-2",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "KUBECONFIG": str(kubeconfig),
    }


@pytest.fixture
def waiting(python: str, waiting_environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A relay that waits."""
    with subprocess.Popen(
        [python, "-m", "stationmaster.relay"],
        env=waiting_environment,
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stderr is not None
        assert "relay starts run_id='tiny-llama-0123abcd'" in started.stderr.readline()
        yield started


def test_program_has_the_clients_environment_files_and_exit_code(python: str):
    ended = subprocess.run(
        [python, "-m", "stationmaster.relay.save"],
        env={"STATIONMASTER_RUN_ID": "x"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert "STATIONMASTER_RUN_ID" not in ended.stdout
    assert ended.stdout.endswith("is missing; the saver's Job must set it\n")


def test_signal_reaches_the_program(waiting: subprocess.Popen[str]):
    waiting.send_signal(signal.SIGTERM)

    assert waiting.wait() == 0
    assert waiting.stderr is not None
    assert "relay stops" in waiting.stderr.read()


def test_program_is_killed_with_its_client(waiting: subprocess.Popen[str]):
    waiting.kill()

    assert waiting.stderr is not None
    assert "relay stops" not in waiting.stderr.read()  # it ends when the program has


def test_program_is_killed_when_whoever_started_it_ends(
    python: str, waiting_environment: dict[str, str]
):
    with subprocess.Popen(
        ["/bin/sh", "-c", f"{python} -m stationmaster.relay & wait"],
        env=waiting_environment,
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stderr is not None
        assert "relay starts" in started.stderr.readline()

        started.kill()

        assert "relay stops" not in started.stderr.read()  # it ends when the program has


def test_torchrun_is_forked_and_forks_its_ranks(tmp_path: Path):
    add_programs(tmp_path, trains=True)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HF_ENDPOINT": HubAccess.from_environment().url,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }

    def run(*words: str) -> str:
        return subprocess.check_output(
            [tmp_path / "torchrun", "--nproc-per-node", "2", *words],
            env=environment,
            cwd=tmp_path,
            text=True,
        )

    assert run("--no-python", "printenv", "PYTHON_EXEC") == "python\n" * 2
    assert run("-m", "training.collectives", "--help").count("usage: ") == 2


def test_other_programs_are_started_by_the_real_python(python: str):
    found = subprocess.check_output(
        [python, "-c", "import sys; print(sys.executable)", "-m"], text=True
    )

    assert Path(found.strip()).samefile(sys.executable)
