"""The GPU benchmark without a GPU: its commands, the lines it reads, and the figures it makes."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.gpu import (
    LAST_STEP,
    WINDOW_STEPS,
    Measured,
    OutOfMemory,
    Window,
    figures,
    our_command,
    read_progress_line,
    read_titan_line,
    run,
    titan_command,
    write_tokens,
)
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.planning.estimate import flops_per_token
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.progress_lines import ProgressLine, StartedLine
from training.config import parse_config
from training.data.sources import prepare_source
from training.data.tokenizers import describe_tokenizer

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
VALIDATION = "[titan] - root - INFO - validate step: 10  loss:  7.1  memory: 9.10GiB(6.51%)"


@pytest.mark.parametrize(
    ("line", "window"),
    [
        (TITAN_LINE, Window(step=25, tokens_per_s=41234.0)),
        (TITAN_COLOURED, Window(step=5, tokens_per_s=987.0)),
        (VALIDATION, None),
    ],
)
def test_read_titan_line_takes_the_speed(line: str, window: Window | None) -> None:
    assert read_titan_line(line) == window


def test_read_progress_line_reads_what_the_trainer_writes() -> None:
    progress = ProgressLine(step=5, total_steps=9, loss_nats=2.5, tokens_per_s=40123.5)
    started = StartedLine(recipe="llama3.2-1b", total_steps=9)

    assert read_progress_line(progress.text()) == Window(step=5, tokens_per_s=40123.5)
    assert read_progress_line(started.text()) is None


def test_both_commands_have_the_same_batch_and_data(tmp_path: Path) -> None:
    data = write_tokens(tmp_path / "data")
    ours = our_command(6, 8192, data=data, output_dir=tmp_path / "out")
    theirs = titan_command("/titan/python", 6, 8192, data=data, output_dir=tmp_path / "out")

    config = parse_config(ours[3:], {})
    options = dict(zip(theirs[3::2], theirs[4::2], strict=True))

    training = config.recipe.training
    assert isinstance(training, LanguageTraining)
    assert (training.global_batch_size, training.micro_batch_size) == (6, 6)
    assert training.sequence_length == 8192
    assert (training.compile, training.activation_checkpointing) == (True, "off")
    assert training.log_every == WINDOW_STEPS
    assert training.steps == training.checkpoint_every  # ended before it saves 15 GB
    prepared = prepare_source(config)
    assert prepared.data.manifest.num_tokens > LAST_STEP * 6 * 8192
    # What a run writes beside its checkpoints needs to know how a document ends.
    assert prepared.tokenizer is not None
    assert describe_tokenizer(prepared.tokenizer).end_id == 0
    assert options["--training.local_batch_size"] == "6"
    assert options["--training.seq_len"] == "8192"
    assert options["--metrics.log_freq"] == str(WINDOW_STEPS)
    assert options["--training.steps"] == str(LAST_STEP)
    assert options["--dataloader.dataset_path"] == str(data / "tokens-00000.bin")


def test_both_count_the_same_flops() -> None:
    # torchtitan 0.3.0's get_nparams_and_flops for its 1B flavour at 8,192 tokens.
    model = get_recipe("llama3.2-1b").model

    assert flops_per_token(model, sequence_length=8192) == 10_636_111_872


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


def test_figures_compare_our_speed_to_theirs() -> None:
    window = Window(step=5, tokens_per_s=40_000)
    ours = Measured("train", [window])
    theirs = Measured("titan", [replace(window, tokens_per_s=41_000)])

    ratio, *_ = figures(ours, theirs, where="NVIDIA H200", peer="torchtitan 0.3.0")
    *_, last = figures(ours, "it is not installed", where="NVIDIA H200", peer="")

    assert (ratio.value, ratio.verdict) == (pytest.approx(40 / 41), "over")
    assert last.note == "torchtitan was not measured: it is not installed"


def test_bench_gpu_without_a_gpu_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine may have a GPU, on which the benchmark runs for minutes")

    code = main(["gpu"])

    _machine, line = capsys.readouterr().out.splitlines()
    assert code == 0
    assert line.startswith("  gpu: not measured here: no NVIDIA GPU that torch 2.")
