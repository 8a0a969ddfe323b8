"""Llama 3.2 1B on one NVIDIA GPU: our trainer, and torchtitan beside it on the same machine.

    python -m bench gpu                                  our trainer only
    python -m bench gpu --torchtitan /opt/titan/bin/python

Both train the same shape (1,235,814,400 parameters, tied embeddings) on the same packed tokens with
the same batch in bfloat16, gradients and AdamW in float32, blocks compiled, activations kept: as
processes of their own, started by the commands that the figures carry. Both report every five
steps; the median of these windows counts, without the first ones. The batch is the largest that
both hold, so that neither is measured half empty.

On a machine without a GPU one line says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.figures import Figure, NotHere
from bench.gang import free_port
from stationmaster.domain.progress_lines import ProgressLine, read_line

RECIPE: Final = "llama3.2-1b"
VOCABULARY: Final = 128_256
WINDOW_STEPS: Final = 5
WARM_UP_WINDOWS: Final = 3
WINDOWS: Final = 8
LAST_STEP: Final = (WARM_UP_WINDOWS + WINDOWS) * WINDOW_STEPS
# Sequences a step, and tokens a sequence: the first that fits is measured.
SETUPS: Final = ((8, 8192), (6, 8192), (4, 8192), (2, 8192), (1, 8192), (1, 4096), (1, 2048))

# Compilation of two dozen kernels takes 1 to 3 min, the steps about as long.
_TIME_LIMIT_S: Final = 1200
_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_OUT_OF_MEMORY: Final = re.compile("OutOfMemoryError|CUDA out of memory")
_TITAN: Final = re.compile(r"\bstep: *(\d+) .*\btps: *([\d,]+) ")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_DESCRIBE: Final = """
import importlib.metadata, json, torch
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda or "",
    "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "",
    "torchtitan": version("torchtitan"),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a trainer reports after some steps."""

    step: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One trainer's run."""

    command: str
    windows: Sequence[Window]
    """Without the warm-up."""

    @property
    def tokens_per_s(self) -> float:
        """The median of the windows."""
        return statistics.median(window.tokens_per_s for window in self.windows)


class OutOfMemory(Exception):
    """The batch does not fit; the next smaller one may."""


def measure_gpu() -> list[Figure]:
    """Return tokens a second, and their ratio to torchtitan's.

    Raises:
        NotHere: no GPU, or one too small for the model.
    """
    here = _describe(sys.executable)
    if not here["device"]:
        raise NotHere(f"no NVIDIA GPU that torch {here['torch']} can use")
    peer = os.environ.get("TORCHTITAN_PYTHON", sys.executable)
    there = _describe(peer)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as name:
        data = write_tokens(Path(name, "data"))
        for number, (batch, length) in enumerate(SETUPS):
            outputs = Path(name, f"ours-{number}"), Path(name, f"theirs-{number}")
            words = our_command(batch, length, data=data, output_dir=outputs[0])
            environ = {"STATIONMASTER_CACHE_DIR": name}
            try:
                ours = run(words, environ=environ, read=read_progress_line, directory=_CHECKOUT)
                theirs: Measured | str = "name its Python with --torchtitan"
                if there["torchtitan"]:
                    words = titan_command(peer, batch, length, data=data, output_dir=outputs[1])
                    theirs = _measure_theirs(words, Path(name))
            except OutOfMemory:
                continue
            where = f"{here['device']}, torch {here['torch']}, CUDA {here['cuda']}"
            version = f"torchtitan {there['torchtitan']}, torch {there['torch']}"
            how = f"{where}; {batch} x {length} tokens, bf16"
            return figures(ours, theirs, where=how, peer=version)
    raise NotHere(f"{here['device']} has too little memory for a sequence of {RECIPE}")


def _measure_theirs(command: Sequence[str], directory: Path) -> Measured | str:
    """Measure torchtitan's run, or say why it failed: that must not hide our own figures."""
    # What an agent would set for the only worker of a job.
    environ = {
        "PYTHONPATH": str(_CHECKOUT / "bench" / "peers"),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    try:
        return run(command, environ=environ, read=read_titan_line, directory=directory)
    except RuntimeError as error:
        return str(error)


def _describe(python: str) -> dict[str, str]:
    """Ask an interpreter, in a process of its own that leaves nothing on the GPU.

    Raises:
        RuntimeError: it has no torch.
    """
    answer = subprocess.run(
        [python, "-c", _DESCRIBE], capture_output=True, text=True, check=False, cwd="/"
    )
    if answer.returncode:
        raise RuntimeError(f"{python} cannot name its torch: {answer.stderr.strip()[-300:]}")
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def our_command(batch: int, length: int, *, data: Path, output_dir: Path) -> list[str]:
    """Return the trainer as a pod starts it; stopped from outside before it writes a checkpoint."""
    return [
        *(sys.executable, "-m", "training", RECIPE),
        f"steps={20 * LAST_STEP}",
        f"checkpoint_every={20 * LAST_STEP}",
        f"log_every={WINDOW_STEPS}",
        "eval_every=0",
        "eval_samples=0",
        f"global_batch_size={batch}",
        f"micro_batch_size={batch}",
        f"sequence_length={length}",
        "activation_checkpointing=off",
        "compile=true",
        "precision=bf16",
        f"dataset={data}",
        *("--output-dir", str(output_dir)),
    ]


def titan_command(
    python: str, batch: int, length: int, *, data: Path, output_dir: Path
) -> list[str]:
    """Return the command of torchtitan on one GPU; see bench/peers/torchtitan_llama.py."""
    return [
        *(python, "-m", "torchtitan.train"),
        *("--module", "torchtitan_llama", "--config", "llama32_1b"),
        *("--hf_assets_path", str(data)),
        *("--dataloader.dataset_path", str(data / "tokens-00000.bin")),
        *("--training.local_batch_size", str(batch)),
        *("--training.seq_len", str(length)),
        *("--training.steps", str(LAST_STEP)),
        *("--metrics.log_freq", str(WINDOW_STEPS)),
        *("--dump_folder", str(output_dir)),
    ]


def read_progress_line(line: str) -> Window | None:
    """Return a `progress` line of our trainer."""
    read = read_line(line)
    if not isinstance(read, ProgressLine) or read.tokens_per_s is None:
        return None
    return Window(step=read.step, tokens_per_s=read.tokens_per_s)


def read_titan_line(line: str) -> Window | None:
    """Read a metrics line of torchtitan 0.2 and 0.3; its tps are for its one GPU."""
    match = _TITAN.search(_COLOUR.sub("", line))
    if match is None:
        return None
    return Window(step=int(match[1]), tokens_per_s=float(match[2].replace(",", "")))


def run(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    read: Callable[[str], Window | None],
    directory: Path,
) -> Measured:
    """Start a trainer, follow its lines to the last window, and end it.

    Args:
        command: one process, which starts no others that outlive it.
        environ: besides this process's own.
        read: what a line of its output says, if anything.
        directory: where it runs.

    Raises:
        OutOfMemory: it said so.
        RuntimeError: it ended early, or took too long.
    """
    settings = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} | dict(environ)
    windows: list[Window] = []
    tail: list[str] = []
    with subprocess.Popen(
        command,
        env=os.environ | settings,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        too_long = threading.Timer(_TIME_LIMIT_S, process.kill)
        too_long.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                tail = [*tail[-39:], line]
                window = read(line)
                # torchtitan reports its first step too, which is no window of five.
                if window is not None and window.step % WINDOW_STEPS == 0:
                    windows.append(window)
                if windows and windows[-1].step >= LAST_STEP:
                    break
        finally:
            too_long.cancel()
            # With its compiler's workers: it is the first of a process group of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    measured = [one for one in windows if one.step > WARM_UP_WINDOWS * WINDOW_STEPS]
    if len(measured) < WINDOWS:
        text = "".join(tail)
        if _OUT_OF_MEMORY.search(text):
            raise OutOfMemory
        raise RuntimeError(f"{' '.join(command)} ended early:\n{text[-3000:]}")
    words = [*(f"{name}={value}" for name, value in settings.items()), *command]
    return Measured(" ".join(words), measured)


def figures(ours: Measured, theirs: Measured | str, *, where: str, peer: str) -> list[Figure]:
    """Return what the two runs say; the notes carry all that is needed to measure them again.

    Args:
        ours: our run.
        theirs: torchtitan's, or why there is none.
        where: the machine and versions of our run, and the batch of both.
        peer: the versions of torchtitan's run.
    """
    reported = _reported("gpu", ours, note=where)
    if isinstance(theirs, str):
        why = f"torchtitan was not measured: {theirs}"
        return [reported, Figure(name="gpu torchtitan", value=0, unit="runs", note=why)]
    ratio = Figure(
        name="gpu ours to torchtitan's tokens/s",
        value=ours.tokens_per_s / theirs.tokens_per_s,
        unit="",
        at_least=1.0,
        note=f"medians of {WINDOWS} windows of {WINDOW_STEPS} steps, same batch",
    )
    return [ratio, reported, _reported("gpu torchtitan", theirs, note=peer)]


def _reported(name: str, measured: Measured, *, note: str) -> Figure:
    rates = [window.tokens_per_s for window in measured.windows]
    return Figure(
        name=f"{name} {RECIPE} tokens/s",
        value=measured.tokens_per_s,
        unit="tokens/s",
        note=f"{min(rates):,.0f} to {max(rates):,.0f}; {note}; {measured.command}",
    )


def write_tokens(directory: Path) -> Path:
    """Return a packed data set of random ids, one file: the trainers do not look at them."""
    from tokenizers import Tokenizer, models

    from training.data.shards import TOKENIZER, Packing, PackPlan, Position, ShardWriter

    directory.mkdir()
    end = "<|endoftext|>"
    Tokenizer(models.WordLevel({end: 0}, unk_token=end)).save(str(directory / TOKENIZER))
    # As many as the longer run reads, four of the largest batches aside: no token is seen twice.
    num_tokens = (LAST_STEP + 4) * SETUPS[0][0] * SETUPS[0][1] + 1
    plan = PackPlan(
        dataset="random",
        revision="",
        corpus="random",
        tokenizer="none",
        tokenizer_sha256="",
        vocab_size=VOCABULARY,
        begin_ids=(),
        end_id=0,
        dtype="uint32",
        shard_tokens=num_tokens,
    )
    writer = ShardWriter(directory, Packing(plan=plan))
    ids = np.random.default_rng(0).integers(0, VOCABULARY, num_tokens, dtype=np.uint32)
    writer.add(ids, at=Position())
    writer.finish()
    return directory
