"""The GPU benchmark without a GPU: its commands, the lines it reads, and the figures it makes."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path

import pytest

# The benchmarks are run from the checkout and are no part of what is installed.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.__main__ import main
from bench.figures import Verdict
from bench.gpu import (
    WARM_UP_WINDOWS,
    WINDOW_STEPS,
    WINDOWS,
    Environment,
    Measured,
    OutOfMemory,
    Setup,
    figures,
    our_command,
    run,
    setups,
    titan_command,
    write_tokens,
)
from bench.speed_lines import Window, read_progress_line, read_titan_line
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.planning.estimate import flops_per_token
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.progress_lines import ProgressLine, StartedLine
from training.config import parse_config
from training.data.sources import prepare_source
from training.data.tokenizers import describe_tokenizer
from training.progress import ProgressWriter

SETUP = Setup(batch=6, sequence_length=8192)
H200 = Environment(
    torch="2.13.0+cu130",
    cuda="13.0",
    cudnn="91500",
    device="NVIDIA H200",
    memory_gib=139.8,
    torchtitan="0.3.0",
)
# As torchtitan 0.3.0 formats them, with and without colours.
TITAN_LINE = (
    "[titan] 2026-01-02 09:00:00,000 - root - INFO - step: 25  loss:  7.12345  grad_norm:  1.2345  "
    "memory: 91.40GiB(65.38%)  tps: 41,234  tflops: 438.57  mfu: 44.34%\n"
)
TITAN_COLOURED = (
    "[titan] 2026-01-02 09:00:00,000 - root - INFO - \x1b[31mstep:  5  \x1b[32mloss: 11.76543  "
    "\x1b[38;2;180;60;0mgrad_norm:  2.0000  \x1b[36mmemory:  9.10GiB(6.51%)  \x1b[34mtps: 987  "
    "\x1b[36mtflops: 10.50  \x1b[35mmfu: N/A\x1b[39m\n"
)


def test_read_titan_line_takes_speed_memory_and_mfu() -> None:
    assert read_titan_line(TITAN_LINE) == Window(
        step=25, tokens_per_s=41234.0, memory_gib=91.40, mfu=pytest.approx(0.4434)
    )


def test_read_titan_line_coloured_without_mfu() -> None:
    assert read_titan_line(TITAN_COLOURED) == Window(
        step=5, tokens_per_s=987.0, memory_gib=9.10, mfu=None
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[titan] 2026-01-02 - root - INFO - Training starts at step 1.\n",
        "[titan] 2026-01-02 - root - INFO - validate step: 10  loss:  7.1  memory: 9.10GiB(6.51%)",
        '{"stationmaster": 1, "kind": "progress", "step": 5}\n',
    ],
)
def test_read_titan_line_other_lines_say_nothing(line: str) -> None:
    assert read_titan_line(line) is None


def test_read_progress_line_reads_what_the_trainer_writes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer = ProgressWriter(run_id="r-1", rank=0)
    writer.emit(StartedLine(recipe="llama3.2-1b", total_steps=9))
    writer.emit(
        ProgressLine(
            step=5, total_steps=9, loss_nats=2.5, tokens_per_s=40123.5, memory_gib=88.5, mfu=0.431
        )
    )

    lines = [*capsys.readouterr().out.splitlines(), "W0102 a warning of torch"]

    assert [read_progress_line(line) for line in lines] == [
        None,
        Window(step=5, tokens_per_s=40123.5, memory_gib=88.5, mfu=0.431),
        None,
    ]


def test_our_command_is_understood_by_the_trainer_as_meant(tmp_path: Path) -> None:
    data = write_tokens(tmp_path / "data")
    python, dash_m, module, *words = our_command(SETUP, data=data, output_dir=tmp_path / "out")

    config = parse_config(words, {})

    assert (python, dash_m, module) == (sys.executable, "-m", "training")
    training = config.recipe.training
    assert isinstance(training, LanguageTraining)
    assert (training.global_batch_size, training.micro_batch_size) == (6, 6)
    assert training.sequence_length == 8192
    assert (training.compile, training.activation_checkpointing) == (True, "off")
    assert training.log_every == WINDOW_STEPS
    assert training.steps == training.checkpoint_every  # ended before it saves 15 GB
    prepared = prepare_source(config)
    last_step = (WARM_UP_WINDOWS + WINDOWS) * WINDOW_STEPS
    assert prepared.data.manifest.num_tokens > last_step * 6 * 8192
    # What a run writes beside its checkpoints needs to know how a document ends.
    assert prepared.tokenizer is not None
    assert describe_tokenizer(prepared.tokenizer).end_id == 0


def test_titan_command_has_our_batch_and_data(tmp_path: Path) -> None:
    command = titan_command("/titan/python", SETUP, data=tmp_path, output_dir=tmp_path / "out")

    assert command[:3] == ["/titan/python", "-m", "torchtitan.train"]
    options = dict(zip(command[3::2], command[4::2], strict=True))
    assert options["--training.local_batch_size"] == "6"
    assert options["--training.seq_len"] == "8192"
    assert options["--metrics.log_freq"] == str(WINDOW_STEPS)
    assert options["--training.steps"] == str((WARM_UP_WINDOWS + WINDOWS) * WINDOW_STEPS)
    assert options["--dataloader.dataset_path"] == str(tmp_path / "tokens-00000.bin")


def test_both_count_the_same_flops() -> None:
    # torchtitan 0.3.0's get_nparams_and_flops for its 1B flavour at 8,192 tokens.
    model = get_recipe("llama3.2-1b").model

    assert flops_per_token(model, sequence_length=8192) == 10_636_111_872


@pytest.mark.parametrize(
    ("memory_gib", "first"), [(139.8, 8), (79.1, 4), (39.4, 1), (23.5, 1), (178.4, 8)]
)
def test_setups_begin_with_what_may_fit(memory_gib: float, first: int) -> None:
    tried = list(setups(memory_gib))

    assert tried[0] == Setup(batch=first, sequence_length=8192)
    assert tried[-1] == Setup(batch=1, sequence_length=2048)
    assert all(
        a.batch * a.sequence_length > b.batch * b.sequence_length
        for a, b in itertools.pairwise(tried)
    )


def script(tmp_path: Path, body: str) -> list[str]:
    path = tmp_path / "trainer.py"
    path.write_text(body)
    return [sys.executable, "-u", str(path)]


def test_run_keeps_the_windows_after_the_warm_up_and_ends_the_trainer(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        "import itertools, os\n"
        "print('noise')\n"
        "for step in itertools.count(1):\n"
        "    if step == 1 or step % 5 == 0:\n"
        "        print(f'step: {step:2}  loss:  7.1  memory:  9.10GiB(6.51%)  tps: {step}  '\n"
        "              f'tflops: 1  mfu: 1.00%')\n",
    )

    measured = run(command, environ={"RANK": "0"}, read=read_titan_line, directory=tmp_path)

    steps = [window.step for window in measured.windows]
    assert steps == [20, 25, 30, 35, 40, 45, 50, 55]
    assert measured.tokens_per_s == 37.5
    assert measured.command.startswith(
        f"PYTORCH_ALLOC_CONF=expandable_segments:True RANK=0 {sys.executable}"
    )


def test_run_out_of_memory_is_distinguished_from_other_ends(tmp_path: Path) -> None:
    full = script(tmp_path, "raise SystemExit('torch.OutOfMemoryError: CUDA out of memory.')")

    with pytest.raises(OutOfMemory):
        run(full, environ={}, read=read_titan_line, directory=tmp_path)

    broken = script(tmp_path, "raise SystemExit('no such option')")
    with pytest.raises(RuntimeError, match="no such option"):
        run(broken, environ={}, read=read_titan_line, directory=tmp_path)


def measured(rate: float, *, mfu: float | None = 0.4) -> Measured:
    windows = [
        Window(step=5 * n, tokens_per_s=rate + n, memory_gib=80.0 + n, mfu=mfu) for n in (1, 2, 3)
    ]
    return Measured(command=f"train at {rate:.0f}", windows=windows)


@pytest.mark.parametrize(
    ("theirs", "verdict"), [(39_000.0, Verdict.PASS), (41_000.0, Verdict.OVER)]
)
def test_figures_hold_our_speed_to_theirs(theirs: float, verdict: Verdict) -> None:
    ratio, *others = figures(H200, SETUP, measured(40_000), measured(theirs), peer=H200)

    assert ratio.verdict is verdict
    assert ratio.value == pytest.approx(40_002 / (theirs + 2))
    values = {figure.name: figure.value for figure in others}
    assert values == {
        "gpu llama3.2-1b tokens/s": 40_002.0,
        "gpu llama3.2-1b MFU": 0.4,
        "gpu llama3.2-1b peak memory": 83.0,
        "gpu torchtitan llama3.2-1b tokens/s": theirs + 2,
        "gpu torchtitan llama3.2-1b MFU": 0.4,
        "gpu torchtitan llama3.2-1b peak memory": 83.0,
    }
    ours, other = others[0].note, others[3].note
    for fact in ("NVIDIA H200", "2.13.0+cu130", "CUDA 13.0", "6 x 8192 tokens", "train at 40000"):
        assert fact in ours
    assert "torchtitan 0.3.0" in other
    assert f"train at {theirs:.0f}" in other


def test_figures_without_torchtitan_say_why() -> None:
    others = figures(H200, SETUP, measured(40_000, mfu=None), "it is not installed", peer=H200)

    assert [figure.name for figure in others] == [
        "gpu llama3.2-1b tokens/s",
        "gpu llama3.2-1b peak memory",
    ]
    assert others[-1].note == "torchtitan was not measured: it is not installed"


def test_bench_gpu_without_a_gpu_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine may have a GPU, on which the benchmark runs for minutes")

    code = main(["gpu"])

    _machine, *lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert len(lines) == 1
    assert lines[0].startswith("  gpu: not measured here: no NVIDIA GPU that torch 2.")
