"""Log lines of trainers and NCCL turned into events, and pods that train each for itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from containers import facts, line, read, worker_failed
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.run.events import (
    RUN_EVENT,
    NetworkObserved,
    PodsApart,
    ProgressReported,
    WorkersRestarting,
)
from stationmaster.relay.parsing import FAILURE_EVERY_S, FAILURES_AT_ONCE, LineInterpreter
from stationmaster.relay.pods import pod_facts
from stationmaster.relay.together import Together
from stationmaster.rendering import pytorch_job
from tests.support.nccl_logs import HOSTS, efa, info, sockets


def ours(kind, **fields):
    head = {"stationmaster": 1, "kind": kind, "run_id": "run-1", "seq": 7}
    return json.dumps(head | {"at": "2026-01-02T03:04:05.678+00:00"} | fields)


def progress_line(**fields):
    return ours("progress", **({"step": 3, "total_steps": 60, "loss_nats": 8.25} | fields))


def test_progress_line_reports_every_figure():
    figures = {
        "tokens_per_s": 1000.5,
        "samples_per_s": 8,
        "learning_rate": 3e-3,
        "grad_norm": 1.5,
        "mfu": None,
        "step_time_s": 0.25,
        "memory_gib": 0.5,
        "gpu_use": 0.75,
    }

    (event,) = read(progress_line(**figures))

    reported = event.model_dump(include={*figures, "seq", "step", "total_steps", "loss_nats"})
    assert reported == figures | {"seq": 7, "step": 3, "total_steps": 60, "loss_nats": 8.25}
    assert event.at == datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


SECRET = {"prompt": "a secret\nthe\n\n", "text": f"\n{'x' * 2000}\nby heart"}


@pytest.mark.parametrize(
    ("kind", "said", "type_", "reported"),
    [
        ("started", {"total_steps": 60, "world_size": 2, "num_parameters": 9}, "started", {}),
        ("preparing", {"waits_for": "libraries"}, "preparing", {}),
        ("evaluated", {"step": 9, "loss_nats": 2.0, "perplexity": 7.389}, "evaluated", {}),
        ("evaluated", {"loss_nats": 2.0, "step": 9, "top1": 0.5, "top5": 0.7}, "evaluated", {}),
        ("resumed", {"step": 20, "path": "/fsx/step-20"}, "resumed", {}),
        ("finished", {"step": 60, "loss_nats": 5.5}, "finished", {"samples": ()}),
        (
            "finished",
            {"step": 60, "samples": [SECRET] * 4},
            "finished",
            {"samples": ({"prompt": "the", "text": "x" * 1000},) * 3},
        ),
        ("failed", {"reason": "rank 1 stood still", "restarting": True}, "failed", {}),
        ("failed", {"error": "E", "reason": "loss nan"}, "failed", {"restarting": False}),
        ("failed", {"error": "E", "message": "no data"}, "failed", {"reason": "no data"}),
    ],
)
def test_each_kind_becomes_its_event(kind, said, type_, reported):
    (event,) = read(ours(kind, **said))

    assert event.type == f"training.{type_}"
    expected = {key: value for key, value in said.items() if key not in ("error", "message")}
    expected |= reported
    assert event.model_dump(include=set(expected)) == expected


def test_checkpoint_that_is_saved_is_reported_with_its_place():
    (event,) = read(ours("checkpoint_saved", step=20, path="p" * 2000, duration_s=0.5))

    assert (event.type, event.step, event.path) == ("checkpoint.saved", 20, "p" * 1000)
    assert event.duration_s == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"stationmaster":1,"kind":"evaluated","step":1}',
        "Batch 1 Loss: , Speed: 8.30 samples/sec, lr: 0.000010",
    ],
)
def test_malformed_line_is_a_plain_line(text):
    assert read(text) == []


@pytest.mark.parametrize(
    "text",
    [
        progress_line(loss_nats="NaN"),
        progress_line().replace("8.25", "1e999"),
        progress_line(loss_nats=1e14),
        "Batch 3 Loss: nan, Speed: 8.30 samples/sec, lr: 0.000010",
        " iteration 3/ 60 | lm loss: NAN | grad norm: inf |",
        "step:  3  loss: inf  grad_norm:  nan  memory:  9.10GiB(6.51%)",
    ],
)
def test_loss_that_is_not_finite_is_a_step_without_a_figure(text):
    (event,) = read(text)

    assert (event.type, event.step) == ("progress.reported", 3)
    assert (event.loss_nats, event.grad_norm) == (None, None)


def test_times_and_figures_that_cannot_be_true_are_left_out():
    (slow,) = read(progress_line(step_time_s=1e14, at="0001-01-01T00:00:00Z"))
    evaluated, finished = read(
        ours("evaluated", step=9, loss_nats="NaN", perplexity="Infinity"),
        ours("finished", step=9, loss_nats="NaN"),
    )
    megatron, cookbook = read(
        " iteration 4/ 60 | elapsed time per iteration (ms): 1E-300 | global batch size: 9e9 |"
        " lm loss: 1.0 |",
        "Training Epoch: 1/999999999999999, step 5/999999999999999 completed (loss: 1.5",
    )

    assert (slow.step_time_s, slow.at.year) == (None, 2026)
    assert (evaluated.loss_nats, evaluated.perplexity, finished.loss_nats) == (None, None, None)
    assert (megatron.samples_per_s, cookbook.total_steps) == (None, 0)


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text):
    assert all(event.run_id == "run-1" for event in read(text, progress_line()[:40] + text))


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
FIELDS = ["seq", "step", "total_steps", "loss_nats", "mfu", "at", "path", "message", "reason"]
KINDS = ["progress", "started", "checkpoint_saved", "resumed", "finished", "failed", "else"]


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), st.sampled_from(KINDS))
def test_any_fields_give_an_event_that_survives_json(fields, kind):
    for event in read(ours(kind, **fields)):
        assert RUN_EVENT.validate_json(event.model_dump_json()) == event


def test_line_that_is_read_again_has_the_same_id_and_equal_stamps_differ():
    said = progress_line()
    first, again = (LineInterpreter(facts()).read(line(said)) for _ in range(2))
    second_of_stamp = LineInterpreter(facts()).read(line(said, ordinal=1))
    other_pod = LineInterpreter(facts(uid="uid-1")).read(line(said))

    assert first == again
    assert len({e[0].event_id for e in (first, second_of_stamp, other_pod)}) == 3


BATCH = "Batch {} Loss: 7.1, Speed: 8.96 samples/sec, lr: 0.000010"
FOREIGN = {
    "fsdp old": (
        f"2024-05-01 10:00:00 I [train.py:102] {BATCH.format(93)}",
        {"step": 93, "loss_nats": 7.1, "samples_per_s": 8.96, "learning_rate": 1e-5},
    ),
    "fsdp new": (
        "2026-02-20 10:00:00,123 [INFO] __main__: Batch 5 Loss: 11.64000, Speed: 0.40 samples/sec, "
        "Tokens/s: 1638, TFLOPS/GPU: 12.5, MFU: 0.385, lr: 0.000025",
        {"step": 5, "loss_nats": 11.64, "tokens_per_s": 1638.0, "mfu": 0.385},
    ),
    "fsdp in percent": (
        "Batch 5 Loss: 1.5, Speed: 0.40 samples/sec, MFU: 38.5, lr: 0.000025",
        {"step": 5, "mfu": 0.385},
    ),
    "megatron": (
        " [2025-01-01 00:00:00] iteration      500/   10000 | consumed samples:       256000 | "
        "elapsed time per iteration (ms): 2000.0 | throughput per GPU (TFLOP/s/GPU): 200.1 | "
        "learning rate: 9.9E-06 | global batch size:   512 | lm loss: 2.345000E+00 | "
        "loss scale: 1.0 | grad norm: 0.777 | number of skipped iterations:   0 |",
        {
            "step": 500,
            "total_steps": 10000,
            "loss_nats": 2.345,
            "grad_norm": 0.777,
            "samples_per_s": 256.0,
            "step_time_s": 2.0,
            "learning_rate": 9.9e-06,
        },
    ),
    "cookbook": (
        "Training Epoch: 2/3, step 31/64 completed (loss: 1.0512): : 50%|=====     | 32/64",
        {"step": 96, "total_steps": 192, "loss_nats": 1.0512},
    ),
    "ddp toy": (
        "[RANK 0] Epoch 12 | Batchsize: 32 | Steps: 8 | Loss: 0.51",
        {"step": 12, "loss_nats": 0.51, "has_loss": True},
    ),
    "ddp toy without loss": (
        "[RANK 0] Epoch 12 | Batchsize: 32 | Steps: 8",
        {"step": 12, "loss_nats": None, "has_loss": False},
    ),
    "ddp toy with a loss that is not finite": (
        "[GPU0] Epoch 3 | Batchsize: 32 | Steps: 8 | Loss: nan",
        {"step": 3, "loss_nats": None, "has_loss": True},
    ),
    "imagenet": (
        "Epoch: [1][ 10/834]\tTime  0.500 ( 0.600)\tData  0.001 ( 0.002)\tLoss 6.9e+00 (7.0e+00)\t"
        "Acc@1   0.10 (  0.10)\tAcc@5   0.50 (  0.50)",
        {"step": 844, "loss_nats": 6.9, "step_time_s": 0.5},
    ),
}


BAR = "  5%|▌         | 64/8192 [00:31<1:05:01,  2.08it/s]"
# A program's lines, and the steps, totals and losses that they report.
PROGRAMS = {
    "transformers 4": (
        [
            "  1%|          | 10/8192 [00:05<1:05:01,  2.08it/s]",
            BAR,
            "{'loss': 2.41, 'grad_norm': 0.91, 'learning_rate': 1e-05, 'epoch': 0.1}",
        ],
        [(10, 8192, None), (64, 8192, None), (64, 8192, 2.41)],
    ),
    "transformers 5": (
        [BAR, "{'loss': '2.41', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'epoch': '0.1'}"],
        [(64, 8192, None), (64, 8192, 2.41)],
    ),
    "its evaluation": (
        [
            BAR,
            "{'loss': 2.5}",
            " 40%|████      | 10/25 [00:01<00:02,  9.0it/s]",
            "{'eval_loss': 2.1}",
        ],
        [(64, 8192, None), (64, 8192, 2.5), (64, None, 2.1)],
    ),
    "its last line": (
        [BAR, "{'train_runtime': 12.3, 'train_loss': 2.0, 'epoch': 3.0}"],
        [(64, 8192, None), (64, 8192, 2.0)],
    ),
    "transformers without a bar": (
        [
            "[INFO|trainer.py:1619] 2026-01-02 03:04:05,678 >>   Num examples = 1,600",
            "[INFO|trainer.py:1625] 2026-01-02 03:04:05,678 >>   Total train batch size "
            "(w. parallel, distributed & accumulation) = 16",
            "[INFO|trainer.py:1627] 2026-01-02 03:04:05,678 >>   Total optimization steps = 1,000",
            "{'loss': '2.41', 'grad_norm': '0.9', 'learning_rate': '1e-05', 'epoch': '0.5'}",
            "{'loss': '2.01', 'grad_norm': '0.9', 'learning_rate': '1e-05', 'epoch': '10'}",
        ],
        [(50, 1000, 2.41), (1000, 1000, 2.01)],
    ),
    "accelerate's examples": (
        [
            "epoch 0: {'accuracy': 0.68, 'f1': 0.79}",
            "01/02/2026 03:04:05 - INFO - __main__ - epoch 1: {'accuracy': 0.7}",
        ],
        [(1, 0, None), (2, 0, None)],
    ),
    "a bar beside them": ([BAR, "epoch 99: {'accuracy': 0.68}"], [(64, 8192, None)]),
    "figures of nobody knows which step": (["{'loss': 2.5, 'epoch': 0.1}"], []),
    "bars of something else": (
        ["Map: 100%|██████████| 5000/5000 [00:01<00:00]", "Generating train split: 7 examples"],
        [],
    ),
    "nanoGPT": (
        [
            "step 0: train loss 4.2, val loss 4.3",
            "iter 10: loss 3.2123, time 45.67ms, mfu 1.23%",
        ],
        [(0, None, 4.3), (10, 0, 3.2123)],
    ),
    "nanoGPT with its configuration": (
        [
            "Overriding config with config/train.py:",
            "max_iters = 5000",
            "Overriding: max_iters = 60",
            "iter 10: loss 3.2123, time 45.67ms, mfu 1.23%",
        ],
        [(10, 60, 3.2123)],
    ),
    "nanochat": (
        ["step 00010/00100 (10.00%) | loss: 3.200000 | lrm: 1.00 | dt: 45.1ms | tok/sec: 12,345"],
        [(10, 100, 3.2)],
    ),
    "Lightning": (
        ["Epoch 1:  42%|████▏     | 25/60 [00:12<00:17, 2.0it/s, v_num=0, train_loss_step=0.51]"],
        [(85, 0, 0.51)],
    ),
    "Lightning's rich bar": (
        ["Epoch 0/9 ━━━━━╸━━━ 25/60 0:00:12 • 0:00:17 2.01it/s v_num: 0.000 train_loss: 0.51"],
        [(25, 600, 0.51)],
    ),
    "MNIST": (["Train Epoch: 2 [640/60000 (1%)]\tLoss: 0.25"], [(60640, 0, 0.25)]),
    "minGPT": (
        [
            "[GPU0] Epoch 1 | Iter 0 | Train Loss 4.0",
            "[GPU1] Epoch 1 | Iter 100 | Train Loss 9.0",
            "[GPU0] Epoch 1 | Iter 100 | Train Loss 3.0",
            "[GPU0] Epoch 2 | Iter 0 | Train Loss 2.5",
            "[RANK0] Epoch 2 | Iter 0 | Eval Loss 2.4",
        ],
        [(0, 0, 4.0), (100, 0, 3.0), (101, 0, 2.5), (101, None, 2.4)],
    ),
    "Megatron-like": ([" iteration 10/ 100 | lr: 1e-05 | loss: 2.5 | "], [(10, 100, 2.5)]),
    "NeMo": (
        [
            "Training epoch 1, iteration 20/99 | lr: 3e-05 | global_batch_size: 8 | "
            "global_step: 120 | reduced_train_loss: 1.233 | train_step_timing in s: 0.03146"
        ],
        [(121, 100, 1.233)],
    ),
    "DeepSpeed": (
        [
            "[2026-01-02 03:04:05] [INFO] [logging.py:96:log_dist] [Rank 0] step=5, skipped=0, "
            "lr=[1e-05], mom=[[0.9, 0.95]]",
            "steps: 10 loss: 2.3456 iter time (s): 0.123 samples/sec: 32.5",
        ],
        [(5, 0, None), (10, 0, 2.3456)],
    ),
    "torchtune": (
        [
            " 12%|█▏        | 12/96 [00:31<1:05, 2.0it/s]",
            "1|13|Loss: 1.25:  13%|█▎ | 13/96 [00:1<0:5]",
        ],
        [(12, 96, None), (13, 0, 1.25)],
    ),
    "anybody": (
        ["epoch 0 step 10/100 lr 0.1 loss 2.25", "step=20 val_loss=9.0", "step 30: test loss 9"],
        [(10, 100, 2.25)],
    ),
}


@pytest.mark.parametrize(("texts", "reported"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_programs_of_others_report_step_total_and_loss(texts, reported):
    events = read(*texts)

    said = [(each.step, getattr(each, "total_steps", None), each.loss_nats) for each in events]
    assert said == reported


def test_figures_beside_a_bar_are_reported():
    text = "{'loss': 2.41, 'grad_norm': 0.91, 'learning_rate': 1e-05, 'epoch': 0.1}"

    event = read(BAR, text)[-1]

    assert (event.grad_norm, event.learning_rate, event.has_loss) == (0.91, 1e-05, True)


def test_our_line_of_any_program_needs_no_number():
    (event,) = read('{"stationmaster":1,"kind":"progress","step":1,"total_steps":2,"loss_nats":3}')

    assert (event.step, event.loss_nats) == (1, 3.0)
    assert event.seq > 0


@pytest.mark.parametrize(("text", "figures"), FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_format_reports_its_figures(text, figures):
    (event,) = read(text)

    assert event.type == "progress.reported"
    assert event.model_dump(include=set(figures)) == pytest.approx(figures)


def test_foreign_lines_over_a_restart_keep_seq_growing():
    events = read(BATCH.format(1), BATCH.format(2), worker_failed(-9), BATCH.format(1))

    reported = [event for event in events if isinstance(event, ProgressReported)]
    assert [event.step for event in reported] == [1, 2, 1]
    assert [event.seq for event in reported] == sorted({event.seq for event in reported})


def test_step_that_several_ranks_report_counts_once_and_only_rank_0_where_it_is_named():
    text = "Training Epoch: 1/1, step {}/64 completed (loss: 1.5)"
    toy = "[RANK 3] Epoch 12 | Batchsize: 32 | Steps: 8 | Loss: 0.51"

    events = read(text.format(0), text.format(0), text.format(1), text.format(0))

    assert [event.step for event in events] == [1, 2]
    assert read(toy, "[rank8]:[titan] - root - INFO - step: 10  loss:  8.1234  mfu: 41.50%") == []


def test_etcd_rendezvous_says_nothing_of_training():
    events = read(
        "Joined rendezvous version 1 as rank 1. Full state: {'status': 'frozen', 'version': '1'}",
        "Creating EtcdStore as the c10d::Store implementation",
        "[RANK 0] Epoch 1 | Batchsize: 32 | Steps: 8",
        "Epoch 1 | Training snapshot saved at /fsx/snapshot.pt",
    )

    assert [event.type for event in events] == ["progress.reported", "checkpoint.saved"]


def test_foreign_line_beside_our_format_is_left_out():
    assert [event.step for event in read(progress_line(), FOREIGN["fsdp old"][0])] == [3]


def test_total_steps_of_a_foreign_format_come_from_the_command_line():
    (event,) = read(FOREIGN["fsdp old"][0], total_steps=100)

    assert event.total_steps == 100


NEMO = "/fsx/output/checkpoints/reduced_train_loss=2.3456-step=499-last/weights"


def test_foreign_checkpoints_are_reported_when_complete_and_when_they_are_loaded():
    events = read(
        "Writing checkpoint to ./checkpoints/llama_v2-50steps.",
        "Completed checkpoint.",
        "  successfully saved checkpoint from iteration     500 to /shared/ckpt",
        "=> nothing",
        "Checkpoint loaded from ./checkpoints/llama_v2-50steps.",
        # Megatron-LM core_v0.19.0
        "  successfully loaded checkpoint from /fsx/output [ t 1/2, gtp_remat 1/1, p 1/1 ] at "
        "iteration 50",
        "[titan] - root - INFO - Loading the checkpoint from outputs/checkpoint/step-20.",
        # NeMo r2.5.0, dist_ckpt_io.py; and Lightning
        f"[NeMo I nemo_logging:393] Successfully saved checkpoint from iteration     499 to {NEMO}",
        f"Restored all states from the checkpoint at {NEMO}",
    )

    assert [(e.type, e.step, e.path) for e in events] == [
        ("checkpoint.saved", 50, "./checkpoints/llama_v2-50steps"),
        ("checkpoint.saved", 500, "/shared/ckpt"),
        ("training.resumed", 50, "./checkpoints/llama_v2-50steps"),
        ("training.resumed", 50, "/fsx/output"),
        ("training.resumed", 20, "outputs/checkpoint/step-20"),
        ("checkpoint.saved", 500, NEMO),
        ("training.resumed", 500, NEMO),
    ]


def test_torchtitan_0_3_0_reports_training_and_its_evaluation():
    # torchtitan/trainer.py, __init__ and train, and torchtitan/components/metrics.py, log and
    # log_validation, of torchtitan 0.3.0.
    said = "[rank0]:[titan] 2026-01-01 00:00:00,000 - root - INFO - "
    figures = "memory: 44.50GiB(56.25%)  tps: 5,762  "

    events = read(
        f"{said}Trainer is initialized with local batch size 1, global batch size 128, gradient "
        "accumulation steps 8, sequence length 8192, total steps 1000 (warmup 200)",
        f"{said}step:  1  loss: 12.27120  grad_norm:  4.1233  {figures}tflops: 333.68  mfu: 33.74%",
        f"{said}validate step: 50  loss:  6.6000  {figures}",
        f"{said}step: 60  loss:  6.50000  grad_norm:  1.2500  {figures}tflops: 333.68  mfu: N/A",
    )

    first, evaluated, last = events
    assert [(each.step, each.loss_nats) for each in (first, last)] == [(1, 12.2712), (60, 6.5)]
    assert {first.total_steps, last.total_steps} == {1000}
    assert [first.mfu, last.mfu] == [pytest.approx(0.3374), None]
    assert (last.grad_norm, last.memory_gib, last.tokens_per_s) == (1.25, 44.5, None)
    assert (evaluated.type, evaluated.step, evaluated.loss_nats) == ("training.evaluated", 50, 6.6)


def agent_restarts(left: int) -> str:
    return (
        "I0102 03:04:05.000000 77 torch/distributed/elastic/agent/server/api.py:942] [default] "
        f"Worker group FAILED. {left}/3 attempts left; will restart worker group"
    )


def restarts(*texts, **changed):
    return [event for event in read(*texts, **changed) if isinstance(event, WorkersRestarting)]


def test_failure_and_agent_line_tell_one_restart_each_time():
    lines = [worker_failed(-9), agent_restarts(3), worker_failed(1), agent_restarts(2)]

    events = restarts(*lines, max_restarts=3)

    assert [(event.pod, event.reason) for event in events] == [
        ("run-1-worker-0", "process 0 was killed by SIGKILL"),
        ("run-1-worker-0", "process 0 exited with code 1"),
    ]
    # The agent says it where the specification does not.
    assert [event.reason for event in restarts(*lines)] == [event.reason for event in events]


def test_failure_without_attempts_left_tells_no_restart():
    assert len(restarts(*[worker_failed(1)] * 2, max_restarts=1)) == 1
    assert restarts(worker_failed(1), max_restarts=0) == []


def test_restart_that_two_pods_report_has_one_id_and_that_of_another_attempt_another():
    texts = [worker_failed(-9), "Writing checkpoint to ./ckpt/x-50steps.", "Completed checkpoint."]

    first = read(*texts, max_restarts=3)
    second = read(*texts, max_restarts=3, job="run-1-2", uid="uid-9")
    (other_pod,) = restarts("", agent_restarts(3), name="run-1-worker-1", uid="uid-1")

    assert [event.type for event in first] == [event.type for event in second]
    assert {"workers.restarting", "checkpoint.saved"} <= {event.type for event in first}
    assert not {event.event_id for event in first} & {event.event_id for event in second}
    assert other_pod.event_id in [event.event_id for event in first]


def test_flood_of_failures_is_reported_at_a_bounded_rate():
    interpreter = LineInterpreter(facts(max_restarts=0))

    events = [
        event
        for second in range(100)
        for ordinal in range(50)
        for event in interpreter.read(line(worker_failed(1), second, ordinal))
    ]

    assert len(events) == FAILURES_AT_ONCE + 99 // FAILURE_EVERY_S


def test_container_restart_begins_a_new_count_of_restarts():
    interpreter = LineInterpreter(facts(max_restarts=1))
    _, first = interpreter.read(line(worker_failed(-9)))

    interpreter.start_container_run(1)
    _, second = interpreter.read(line(worker_failed(-9)))

    assert first.event_id != second.event_id


HEALTHY = sorted((Path(__file__).parents[1] / "diagnosis" / "healthy").glob("*.log"))
HOST = HOSTS[0]
TCP = info(HOST, "NET/OFI Selected provider is tcp;ofi_rxm, fabric is 10.0.0.0/16 (found 4 nics)")


def observed(lines, *, num_efa=4, name="run-1-worker-0", runs=1):
    interpreter = LineInterpreter(facts(name=name, uid=f"u-{name}", num_efa=num_efa))
    events = []
    for run in range(runs):
        interpreter.start_container_run(run)
        for i, text in enumerate(lines):
            events += interpreter.read(line(text, run, ordinal=i))
    return [event for event in events if isinstance(event, NetworkObserved)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (sockets(), {"uses_sockets": True, "plugin_not_found": True, "provider": ""}),
        ([f"[default3]:{line}" for line in sockets()], {"uses_sockets": True}),
        ([TCP], {"uses_sockets": True, "provider": "tcp;ofi_rxm"}),
        (efa(1), {"uses_sockets": False, "provider": "efa", "num_nics": 1}),
        # What the lines are with NCCL_DEBUG_SUBSYS=NET: no summary of the network.
        (
            [line for line in sockets() if "Using network" not in line]
            + [info(HOST, "Channel 00/0 : 9[1] -> 0[0] [receive] via NET/Socket/0")],
            {"uses_sockets": True},
        ),
        # Channels of one transport are read once, of another one all the same.
        (
            [
                info(HOST, f"Channel {i:02}/0 : {i}[0] -> 9[1] [send] via NET/{net}/{i}")
                for net in ("Libfabric", "Socket")
                for i in range(9)
            ],
            {"uses_sockets": True},
        ),
    ],
    ids=["sockets", "prefixed", "tcp", "one-of-four", "only-net", "both"],
)
def test_efa_that_is_not_used_is_reported_once_an_attempt(lines, expected):
    events = observed(lines, runs=2)

    assert len(events) == 1
    assert expected.items() <= events[0].model_dump().items()
    assert events == observed(lines, runs=2)
    # The fact is one, whichever pod reports it first.
    assert observed(lines, name="run-1-worker-1")[0].event_id == events[0].event_id


@pytest.mark.parametrize(
    ("lines", "num_efa"),
    [
        (efa(), 4),
        (efa(None), 4),
        (sockets(), 0),
        ([], 4),
        ([info(HOST, "NET/Plugin: Could not find: libnccl-net.so")], 4),
        # It is opened for NCCL's own start, before a network is chosen.
        ([info(HOST, "NET/Socket : Using [0]eth0:10.0.0.1<0>")], 4),
    ],
    ids=["all", "old-plugin", "without-efa", "silence", "plugin-name", "bootstrap"],
)
def test_nothing_is_reported_without_proof(lines, num_efa):
    assert observed(lines, num_efa=num_efa) == []


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.name)
def test_healthy_log_reports_nothing(path):
    assert observed(path.read_text().splitlines(), num_efa=32) == []


@pytest.mark.parametrize(("nodes", "num_efa"), [("2", 4), ("2:8", 4), ("1", 0), ("1:1", 0)])
def test_only_a_pod_with_others_is_judged(nodes, num_efa):
    container = {
        "name": "pytorch",
        "env": [{"name": "PET_NNODES", "value": nodes}],
        "resources": {"limits": {"vpc.amazonaws.com/efa": "4"}},
    }
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [container]}}

    assert pod_facts("run-1", "run-1", pytorch_job, pod).num_efa == num_efa


BAR_OF_STEP = " 10%|#   | {}/100 [00:12<00:17, 2.0it/s]"
DICT = "{'loss': 2.5, 'grad_norm': 0.9, 'learning_rate': 3e-05, 'epoch': 0.1}"
OURS = {"stationmaster": 1, "kind": "progress", "total_steps": 9, "loss_nats": 2.5}


def said(step):
    """A step as programs print it on one rank, by their names."""
    return {
        "hugging-face": [BAR_OF_STEP.format(step), DICT],
        "lightning": [f"Epoch 0:  5%|#  | {step}/60 [00:12<00:17, 2.0it/s, v_num=0, loss=0.51]"],
        "nanogpt": [f"iter {step}: loss 3.2123, time 45.67ms, mfu 1.23%"],
        "megatron": [f" iteration {step}/ 100 | lm loss: 2.5E+00 | grad norm: 1.0 |"],
        "ours": [json.dumps(OURS | {"step": step})],
    }


def every_rank(step):
    """A step as programs print it on every rank."""
    return {
        "imagenet": [f"Epoch: [0][ {step}/100]\tTime  0.1 ( 0.1)\tLoss 6.9e+00 (6.9e+00)"],
        "plain": [f"step {step}/100 loss 2.5"],
        "anybody's-bar": [f"Epoch 1:  5%|#  | {step}/60 [00:12<00:17, 2.0it/s, loss=0.51]"],
        "anybody's-dict": [BAR_OF_STEP.format(step), "{'loss': 2.5}"],
        "hugging-face-without-a-bar": [
            *("Num examples = 160", "Total train batch size = 16", "Total optimization steps = 99"),
            DICT.replace("0.1}", f"{step / 10}}}"),
        ],
        "accelerate's-examples": [f"epoch {step}: {{'accuracy': 0.7}}"],
        "joined": ["Process rank: 0, distributed training: True", "MEMBER: 1/2"],
    }


def apart(*told):
    """The events of lines of (pod, second, text), in the order in which they are read."""
    together, pods, found = Together(), {}, []
    for pod, second, texts in told:
        known = facts(name=f"run-1-worker-{pod}", uid=f"uid-{pod}")
        reader = pods.setdefault(pod, LineInterpreter(known, together))
        for ordinal, text in enumerate(texts):
            found += reader.read(line(text, second, ordinal))
    return [event for event in found if isinstance(event, PodsApart)]


@pytest.mark.parametrize("program", said(1))
@pytest.mark.parametrize("order", [(0, 1, 0), (0, 0, 1)], ids=["in-turn", "in-batches"])
def test_two_pods_that_print_as_the_one_rank_are_said_once(program, order):
    seconds = (1, 2, 3) if order == (0, 1, 0) else (1, 3, 2)
    told = list(zip(order, seconds, (said(s)[program] for s in (1, 2, 3)), strict=True))

    (event,) = apart(*told, (1, 9, said(9)[program]), (0, 10, said(10)[program]))

    assert event.pods == ("run-1-worker-0", "run-1-worker-1")
    assert event.job == "run-1"


@pytest.mark.parametrize("program", every_rank(1))
def test_lines_that_every_rank_prints_say_nothing(program):
    assert apart(*((pod, s, every_rank(s)[program]) for s in range(1, 6) for pod in (0, 1))) == []


@pytest.mark.parametrize(
    "text",
    [
        "[WARNING] - Process rank: 0, device: cuda:0, n_gpu: 1, distributed training: False, 16",
        "Distributed environment: DistributedType.NO",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/1",
    ],
)
def test_two_pods_that_say_that_they_train_alone_have_not_joined(text):
    (event,) = apart((0, 1, [text]), (1, 30, [text]))

    assert event.pods == ("run-1-worker-0", "run-1-worker-1")
    assert apart((0, 1, [text]), (0, 30, [text])) == []


def test_pods_that_begin_with_the_same_losses_of_their_own_batches_have_not_joined():
    def mnist(pod, seconds, loss=2.3):
        lines = "Train Epoch: 1 [{}/60000 (0%)]\tLoss: {:.6f}"
        return [(pod, s, [lines.format(640 * s, loss - s / 1e4)]) for s in seconds]

    (event,) = apart(*mnist(0, range(4)), *mnist(1, range(9)))

    assert event.pods == ("run-1-worker-0", "run-1-worker-1")
    assert apart(*mnist(0, range(9)), *mnist(1, range(9), loss=2.31)) == []
    assert apart(*mnist(0, range(2)), *mnist(1, range(2))) == []


def test_rank_that_moves_to_another_pod_is_one_rank():
    def at(step):
        return said(step)["nanogpt"]

    assert apart((0, 1, at(1)), (0, 2, at(2)), (1, 30, at(3)), (1, 31, at(4))) == []
    # Back again after a failure: what came before it does not count.
    moved = [(0, 1, at(1)), (1, 30, at(2)), (1, 40, [worker_failed(1)]), (0, 50, at(3))]
    assert apart(*moved) == []
    assert apart(moved[0], moved[1], moved[3]) != []
