"""The wheel has all that a run in local mode needs: code, manifests, state machines, the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")


def test_wheel_runs_the_main_job_in_an_empty_folder(tmp_path: Path) -> None:
    wheels, empty, venv = tmp_path / "wheels", tmp_path / "empty", tmp_path / "venv"
    empty.mkdir()
    subprocess.run([UV, "build", "--quiet", "--out-dir", wheels, ROOT], check=True)
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    # The libraries of this environment, without the checkout that is installed in it.
    (here,) = [path for path in sys.path if path.endswith("site-packages")]
    (site_packages / "libraries.pth").write_text(here + "\n")
    (wheel,) = wheels.glob("*.whl")
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--no-deps", "--python", venv / "bin/python", wheel],
        check=True,
    )

    ran = subprocess.run(
        [
            *(venv / "bin" / "stationmaster", "local", "run", "/train tiny-llama nodes=1 steps=2"),
            *("--results", "results", "--json", "run.jsonl"),
        ],
        check=False,
        cwd=empty,
        env=os.environ
        | {
            "XDG_DATA_HOME": str(tmp_path / "data"),
            "PYTHONPATH": "",
            # torchrun is a program of the libraries.
            "PATH": f"{UV.parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert list(empty.glob("results/*/model/model.safetensors"))
    assert json.loads((empty / "run.jsonl").read_text().splitlines()[-1])
    assert sorted(path.name for path in empty.iterdir()) == ["results", "run.jsonl"]
    assert (tmp_path / "data" / "stationmaster-run").is_dir()
