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
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from bench.figures import AtLeast, Figure, NotHere
from bench.speed_lines import Window, read_progress_line, read_titan_line

TORCHTITAN_PYTHON: Final = "TORCHTITAN_PYTHON"
"""Environment variable: the Python that torchtitan is installed for; `--torchtitan` sets it."""

RECIPE: Final = "llama3.2-1b"
VOCABULARY: Final = 128_256
WINDOW_STEPS: Final = 5
WARM_UP_WINDOWS: Final = 3
WINDOWS: Final = 8
_LAST_STEP: Final = (WARM_UP_WINDOWS + WINDOWS) * WINDOW_STEPS

# Compilation of two dozen kernels takes 1 to 3 min, the steps about as long.
_TIME_LIMIT_S: Final = 1200
# Weights, gradients and moments in float32 and gathered weights in bfloat16: 18 bytes each; and
# what a sequence of 8,192 keeps for backward, compiled, its logits included. The second is a rough
# guess to start the search at: what does not fit is tried again smaller.
_FIXED_GIB: Final = 18 * 1.2358 / 1.0737
_SEQUENCE_GIB: Final = 13.0
_LARGEST_BATCH: Final = 8

_CHECKOUT: Final = Path(__file__).resolve().parents[1]

_OUT_OF_MEMORY: Final = re.compile("OutOfMemoryError|CUDA out of memory")

_DESCRIBE: Final = """
import importlib.metadata, json, torch
gpu = torch.cuda.is_available()
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda or "",
    "cudnn": str(torch.backends.cudnn.version() or "") if gpu else "",
    "device": torch.cuda.get_device_name(0) if gpu else "",
    "memory_gib": torch.cuda.get_device_properties(0).total_memory / 2**30 if gpu else 0.0,
    "torchtitan": version("torchtitan"),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What one Python sees; `device` is "" without a GPU, `torchtitan` "" where it is missing."""

    torch: str
    cuda: str
    cudnn: str
    device: str
    memory_gib: float
    torchtitan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Sequences a step, and tokens a sequence."""

    batch: int
    sequence_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Return tokens a second, MFU and peak memory, and the ratio to torchtitan's tokens a second.

    Raises:
        NotHere: no GPU, or one too small for the model.
    """
    environment = describe(sys.executable)
    if not environment.device:
        raise NotHere(f"no NVIDIA GPU that torch {environment.torch} can use")
    peer = os.environ.get(TORCHTITAN_PYTHON, sys.executable)
    peer_environment = describe(peer)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as directory:
        data = write_tokens(Path(directory, "data"))
        for setup in setups(environment.memory_gib):
            try:
                ours = run(
                    our_command(setup, data=data, output_dir=_new_directory(directory)),
                    environ={"STATIONMASTER_CACHE_DIR": directory},
                    read=read_progress_line,
                    directory=_CHECKOUT,
                )
                theirs: Measured | str = f"name its Python with {TORCHTITAN_PYTHON}="
                if peer_environment.torchtitan:
                    theirs = _measure_theirs(peer, setup, data=data, directory=directory)
            except OutOfMemory:
                continue
            return figures(environment, setup, ours, theirs, peer=peer_environment)
    raise NotHere(f"{environment.device} has too little memory for a sequence of {RECIPE}")


def _measure_theirs(python: str, setup: Setup, *, data: Path, directory: str) -> Measured | str:
    """Measure torchtitan's run, or say why it failed: that must not hide our own figures."""
    try:
        return run(
            titan_command(python, setup, data=data, output_dir=_new_directory(directory)),
            environ=titan_environ(),
            read=read_titan_line,
            directory=Path(directory),
        )
    except RuntimeError as error:
        return str(error)


def describe(python: str) -> Environment:
    """Ask an interpreter, in a process of its own that leaves nothing on the GPU.

    Raises:
        RuntimeError: it has no torch.
    """
    answer = subprocess.run(
        [python, "-c", _DESCRIBE], capture_output=True, text=True, check=False, cwd="/"
    )
    if answer.returncode:
        raise RuntimeError(f"{python} cannot name its torch: {answer.stderr.strip()[-300:]}")
    return Environment(**json.loads(answer.stdout))


def setups(memory_gib: float) -> Iterator[Setup]:
    """Yield what may fit, largest first: batches of 8,192 tokens a sequence, then less."""
    fitting = int((0.95 * memory_gib - _FIXED_GIB) / _SEQUENCE_GIB)
    for batch in range(min(_LARGEST_BATCH, max(1, fitting)), 0, -1):
        yield Setup(batch=batch, sequence_length=8192)
    for length in (4096, 2048):
        yield Setup(batch=1, sequence_length=length)


def our_command(setup: Setup, *, data: Path, output_dir: Path) -> list[str]:
    """Return the trainer as a pod starts it; stopped from outside before it writes a checkpoint."""
    return [
        *(sys.executable, "-m", "training", RECIPE),
        f"steps={20 * _LAST_STEP}",
        f"checkpoint_every={20 * _LAST_STEP}",
        f"log_every={WINDOW_STEPS}",
        "eval_every=0",
        "eval_samples=0",
        f"global_batch_size={setup.batch}",
        f"micro_batch_size={setup.batch}",
        f"sequence_length={setup.sequence_length}",
        "activation_checkpointing=off",
        "compile=true",
        "precision=bf16",
        f"dataset={data}",
        *("--output-dir", str(output_dir)),
    ]


def titan_command(python: str, setup: Setup, *, data: Path, output_dir: Path) -> list[str]:
    """Return the command of torchtitan on one GPU; see bench/peers/torchtitan_llama.py."""
    return [
        *(python, "-m", "torchtitan.train"),
        *("--module", "torchtitan_llama", "--config", "llama32_1b"),
        *("--hf_assets_path", str(data)),
        *("--dataloader.dataset_path", str(data / "tokens-00000.bin")),
        *("--training.local_batch_size", str(setup.batch)),
        *("--training.seq_len", str(setup.sequence_length)),
        *("--training.steps", str(_LAST_STEP)),
        *("--metrics.log_freq", str(WINDOW_STEPS)),
        *("--dump_folder", str(output_dir)),
    ]


def titan_environ() -> dict[str, str]:
    """Return what an agent would set for the only worker of a job."""
    return {
        "PYTHONPATH": str(_CHECKOUT / "bench" / "peers"),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }


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
                if windows and windows[-1].step >= _LAST_STEP:
                    break
        finally:
            too_long.cancel()
            _end(process)
    measured = [one for one in windows if one.step > WARM_UP_WINDOWS * WINDOW_STEPS]
    if len(measured) < WINDOWS:
        text = "".join(tail)
        if _OUT_OF_MEMORY.search(text):
            raise OutOfMemory
        raise RuntimeError(f"{' '.join(command)} ended early:\n{text[-3000:]}")
    words = [*(f"{name}={value}" for name, value in settings.items()), *command]
    return Measured(command=" ".join(words), windows=measured)


def figures(
    environment: Environment,
    setup: Setup,
    ours: Measured,
    theirs: Measured | str,
    *,
    peer: Environment,
) -> list[Figure]:
    """Return what the two runs say; the notes carry all that is needed to measure them again.

    Args:
        environment: of our run.
        setup: of both.
        ours: our run.
        theirs: torchtitan's, or why there is none.
        peer: of torchtitan's run.
    """
    where = (
        f"{environment.device}, torch {environment.torch}, CUDA {environment.cuda}, "
        f"cuDNN {environment.cudnn}; {setup.batch} x {setup.sequence_length} tokens, bf16"
    )
    reported = _reported("gpu", ours, note=where)
    if isinstance(theirs, str):
        return [
            *reported[:-1],
            replace(reported[-1], note=f"torchtitan was not measured: {theirs}"),
        ]
    ratio = Figure(
        name="gpu ours to torchtitan's tokens/s",
        value=ours.tokens_per_s / theirs.tokens_per_s,
        unit="",
        target=AtLeast(1.0),
        note=f"medians of {WINDOWS} windows of {WINDOW_STEPS} steps, same batch",
    )
    version = f"torchtitan {peer.torchtitan}, torch {peer.torch}, CUDA {peer.cuda}"
    return [ratio, *reported, *_reported("gpu torchtitan", theirs, note=version)]


def _reported(name: str, measured: Measured, *, note: str) -> list[Figure]:
    rates = [window.tokens_per_s for window in measured.windows]
    reported = [
        Figure(
            name=f"{name} {RECIPE} tokens/s",
            value=measured.tokens_per_s,
            unit="tokens/s",
            note=f"{min(rates):,.0f} to {max(rates):,.0f}; {note}; {measured.command}",
        )
    ]
    shares = [window.mfu for window in measured.windows if window.mfu is not None]
    if shares:
        reported.append(
            Figure(
                name=f"{name} {RECIPE} MFU",
                value=statistics.median(shares),
                unit="",
                note="6 (N - N_embedding) + 12 L H S FLOPs a token; a tied embedding stays in N",
            )
        )
    peak_gib = max(window.memory_gib for window in measured.windows)
    reported.append(Figure(name=f"{name} {RECIPE} peak memory", value=peak_gib, unit="GiB"))
    return reported


def write_tokens(directory: Path) -> Path:
    """Return a packed data set of random ids, one file: the trainers do not look at them."""
    from tokenizers import Tokenizer, models

    from training.data.shards import TOKENIZER, Packing, PackPlan, Position, ShardWriter

    directory.mkdir()
    end = "<|endoftext|>"
    Tokenizer(models.WordLevel({end: 0}, unk_token=end)).save(str(directory / TOKENIZER))
    # As many as the longer run reads, four batches of eight aside: no token is seen twice.
    num_tokens = (_LAST_STEP + 4) * _LARGEST_BATCH * 8192 + 1
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


def _new_directory(parent: str) -> Path:
    return Path(tempfile.mkdtemp(dir=parent, prefix="output-"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end(process: subprocess.Popen[str]) -> None:
    """End a trainer and its compiler's workers: it is the first of a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
