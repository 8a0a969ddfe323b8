"""The main job from the command line, as a person without a browser runs it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from open_ports import listeners

from tests.support.patience import PATIENCE_S

STATIONMASTER = Path(sys.executable).parent / "stationmaster"


def test_local_run_trains_to_a_receipt_and_kubectl_follows(tmp_path):
    record, state = tmp_path / "out.jsonl", tmp_path / "state"

    process = subprocess.Popen(
        [
            STATIONMASTER,
            "local",
            "run",
            "/train tiny-llama nodes=2 steps=16",
            "--timeout",
            str(PATIENCE_S),
            "--json",
            record,
            "--state-dir",
            state,
            "--results",
            tmp_path / "results",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )
    try:
        _await_progress(record, process)
        opened = listeners(process.pid) if Path("/proc/net/tcp").exists() else None
        asked = _ask("results", "tiny-llama-none", state=state)
        refused = _ask("train", "lama nodes=2", "--channel", "C000TRAINING", state=state)
        seen = _follow_with_kubectl(state)
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()

    lines = [json.loads(line) for line in record.read_text().splitlines()]
    result = lines[-1]
    assert process.returncode == 0, output
    assert result["kind"] == "result"
    assert (result["status"], result["steps"]) == ("succeeded", 16)
    assert result["last_loss"] < result["first_loss"] - 0.5
    assert result["billable_resources_left"] == 0
    assert [line["phase"] for line in lines if line["kind"] == "phase"] == [
        "requested",
        "provisioning",
        "validating",
        "submitting",
        "running",
        "saving",
        "succeeded",
    ]
    assert asked.returncode == 1
    assert "run tiny-llama-none has no complete result" in asked.stderr
    assert (refused.returncode, refused.stdout) == (2, "")
    assert 'recipe "lama" is not in the catalogue' in refused.stderr
    assert not (state / "settings.env").exists(), "it would lead to a local mode that has ended"
    folder = tmp_path / "results" / result["run_id"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert result["result"]["num_files"] == len(manifest["files"])
    assert result["result"]["uri"].endswith(f"/runs/{result['run_id']}/")
    for file in manifest["files"]:
        found = (folder / file["path"]).read_bytes()
        assert hashlib.sha256(found).hexdigest() == file["sha256"], file["path"]
    _use_with_transformers(folder, result["last_loss"])
    steps = [line["step"] for line in lines if line.get("type") == "progress.reported"]
    assert steps == list(range(1, 17))
    assert "nothing billable is left" in output
    if opened is not None:  # Linux
        # torchrun's store, the workers' store and gloo, and local mode's own servers.
        assert any("torchrun -m training" in command for command in opened.values()), opened
        assert any("-u -m training" in command for command in opened.values()), opened
        assert {str(address) for address, _ in opened} == {"127.0.0.1"}, opened
    if seen is not None:
        jobs, log = seen
        assert "-worker-0" in jobs
        assert "-worker-1" in jobs
        assert "pytorchjob.kubeflow.org/tiny-llama-" in jobs
        assert '"kind":"progress"' in log.replace(" ", ""), log[-2000:]


def _ask(*words, state):
    """Ask the running local mode."""
    return subprocess.run(
        [STATIONMASTER, *words, "--state-dir", state],
        capture_output=True,
        text=True,
        check=False,
    )


def _use_with_transformers(folder, last_loss):
    """Use the model as a person does, without the product: it knows what it was trained on."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    text = Path(json.__file__).read_text()  # of the standard library, as the data
    tokens = torch.tensor([tokenizer.encode(text)[:512]])
    with torch.no_grad():
        loss = model(input_ids=tokens, labels=tokens).loss.item()
    assert loss < last_loss + 1.5


def _await_progress(record, process):
    deadline = time.monotonic() + PATIENCE_S
    while '"progress.reported"' not in (record.read_text() if record.exists() else ""):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, "no progress was recorded"
        time.sleep(0.2)


def _follow_with_kubectl(state):
    """`kubectl get` and `logs -f` while the job runs, as (table, log); None without kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return None
    base = [kubectl, "--kubeconfig", state / "kubeconfig"]
    table = subprocess.run(
        [*base, "get", "pytorchjobs,pods"], capture_output=True, text=True, check=True
    ).stdout
    worker = next(word for word in table.split() if word.endswith("-worker-0"))
    # Any pod may hold rank 0, which prints; both are followed at the same time.
    follows = [
        subprocess.Popen(
            [*base, "logs", "-f", pod], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for pod in (worker, worker.removesuffix("0") + "1")
    ]
    logs = [follow.communicate(timeout=PATIENCE_S)[0] for follow in follows]
    return table, "\n".join(logs)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_record_that_finds_no_room_is_given_up_and_nothing_else():
    process = subprocess.run(
        [STATIONMASTER, "local", "run", "/train help", "--json", "/dev/full"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=os.environ | {"COLUMNS": "200"},
    )

    assert process.returncode == 0, process.stderr
    said = "--json /dev/full: No space left on device; nothing more is recorded"
    assert said in process.stdout + process.stderr
    assert "Traceback" not in process.stderr


def test_output_that_nobody_reads_on_is_no_error():
    reader = subprocess.run(
        f"{STATIONMASTER} recipes --json | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    assert (reader.stdout, reader.stderr) == ("[\n", "")
