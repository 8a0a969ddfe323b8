"""torchtitan's command line: each key as its flag, and what fetches the tokenizer first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stationmaster.domain.ids import RunId
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.rendering.frameworks.torchtitan import FETCHING
from stationmaster.rendering.job_spec import job_spec
from tests.support.factories import make_request

ROOT = Path(__file__).parents[2]
RUN = RunId("run-0123abcd")
OUTPUT = f"/fsx/runs/{RUN}/output"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
KWARGS = "--optimizer.param-groups.0.optimizer-kwargs"


def words_of(**overrides: Any) -> list[str]:
    request = make_request(
        recipe="torchtitan-llama3.1-8b",
        instance_type="p5.48xlarge",
        overrides={key: str(value).lower() for key, value in overrides.items()},
    )
    return list(job_spec(request, first_assignment(RUN, request), run_id=RUN, image="i").program)


def flags_of(**overrides: Any) -> dict[str, list[str]]:
    """Each flag behind the name of the program, with its values."""
    words = words_of(**overrides)
    found: dict[str, list[str]] = {}
    for word in words[words.index("torchtitan.train") + 1 : -1]:
        if word.startswith("--"):
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def test_tokenizer_is_fetched_before_torchrun_starts() -> None:
    words = words_of(tokenizer=f"org/mirror@{COMMIT}")

    assert words[: words.index("torchtitan.train") + 1] == [
        *("python", FETCHING, "org/mirror", "--revision", COMMIT),
        *("--directory", "/tmp/tokenizer", "--"),
        *("torchrun", "--local-ranks-filter", "0", "--role", "rank", "--tee", "3"),
        *("-m", "torchtitan.train"),
    ]


def test_image_has_what_fetches_the_tokenizer() -> None:
    directory, _, name = FETCHING.rpartition("/")
    copied = (ROOT / "container/torchtitan/Dockerfile").read_text()

    assert f"container/torchtitan/{name} " in copied
    assert f"{directory}/\n" in copied


def test_each_key_is_given_as_its_flag() -> None:
    assert flags_of(
        steps=600,
        global_batch_size=64,
        micro_batch_size=2,
        sequence_length=4096,
        learning_rate=2e-4,
        min_learning_rate=5e-5,
        schedule="cosine",
        warmup_steps=7,
        weight_decay=0.2,
        beta1=0.8,
        beta2=0.99,
        grad_clip=0.5,
        tensor_parallel=4,
        compile=True,
        cuda_graphs=False,
        checkpoint_every=100,
        log_every=5,
        eval_every=250,
        eval_steps=3,
        seed=9,
    ) == {
        "--module": ["llama3"],
        "--config": ["llama3_8b"],
        "--training.steps": ["600"],
        "--training.global-batch-size": ["64"],
        "--training.local-batch-size": ["2"],
        "--training.seq-len": ["4096"],
        "--training.max-norm": ["0.5"],
        "--training.disable-cuda-graphs": [],
        f"{KWARGS}.lr": ["0.0002"],
        f"{KWARGS}.weight-decay": ["0.2"],
        f"{KWARGS}.betas": ["0.8", "0.99"],
        "--lr-scheduler.warmup-steps": ["7"],
        "--lr-scheduler.decay-type": ["cosine"],
        "--lr-scheduler.min-lr-factor": ["0.25"],
        "--parallelism.tensor-parallel-degree": ["4"],
        "--compile.enable": [],
        "--debug.seed": ["9"],
        "--hf-assets-path": ["/tmp/tokenizer"],
        "--dataloader.dataset": ["c4"],
        "--validator.enable": [],
        "--validator.freq": ["250"],
        "--validator.steps": ["3"],
        "--checkpoint.enable": [],
        "--checkpoint.folder": ["checkpoints"],
        "--checkpoint.interval": ["100"],
        "--checkpoint.keep-latest-k": ["2"],
        "--checkpoint.last-save-in-hf": [],
        "--checkpoint.export-dtype": ["bfloat16"],
        "--dump-folder": [OUTPUT],
        "--metrics.log-freq": ["5"],
        "--metrics.disable-color-printing": [],
        "--comm.init-timeout-seconds": ["1800"],
        "--comm.train-timeout-seconds": ["1800"],
        "--comm.save-traces-folder": [f"/fsx/runs/{RUN}/flight-recorder"],
        "--comm.save-traces-file-prefix": ["nccl_trace_rank_"],
        "--profiler.no-enable-profiling": [],
        "--debug.no-enable-structured-logging": [],
    }


def test_what_is_off_is_left_out() -> None:
    found = flags_of(eval_every=0)

    assert not {"--validator.enable", "--validator.freq", "--validator.steps"} & set(found)
    assert not {"--compile.enable", "--training.disable-cuda-graphs"} & set(found)


def test_constant_rate_decays_in_no_step() -> None:
    assert flags_of(schedule="constant")["--lr-scheduler.decay-ratio"] == ["0.0"]
    assert "--lr-scheduler.decay-ratio" not in flags_of(schedule="linear")


def test_checkpointing_of_activations_is_the_last_word() -> None:
    ways = ("off", "selective", "full")

    assert [words_of(activation_checkpointing=way)[-1] for way in ways] == [
        "activation-checkpoint:none",
        "activation-checkpoint:selective",
        "activation-checkpoint:full",
    ]
