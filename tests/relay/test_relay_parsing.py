"""Log lines of trainers, ours and foreign, turned into events."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.progress_lines import FailedLine
from stationmaster.domain.run.events import (
    RUN_EVENT,
    CheckpointSaved,
    ProgressReported,
    TrainingEvaluated,
    TrainingFinished,
    TrainingPreparing,
    TrainingReportedFailure,
    TrainingResumed,
    TrainingStarted,
    WorkersRestarting,
)
from stationmaster.relay.lines import LogLine, PodFacts
from stationmaster.relay.parsing import FAILURE_EVERY_S, FAILURES_AT_ONCE, LineInterpreter

STAMP = "2026-01-02T03:04:05.678901234Z"


def pod(**facts):
    usual = {"run_id": "run-1", "job": "run-1", "name": "run-1-worker-0", "uid": "uid-0"}
    usual["container"] = "pytorch"
    return PodFacts(**(usual | facts))


def line(text, *, stamp=STAMP, ordinal=0):
    return LogLine(stamp, ordinal, text)


def read(*texts, facts=None):
    interpreter = LineInterpreter(facts or pod())
    stamped = [
        line(text, stamp=f"2026-01-02T03:04:{i:02}.000000000Z") for i, text in enumerate(texts)
    ]
    return [event for one in stamped for event in interpreter.read(one)]


def ours(kind, **fields):
    head = {"stationmaster": 1, "kind": kind, "run_id": "run-1", "seq": 7}
    return json.dumps(head | {"at": "2026-01-02T03:04:05.678+00:00"} | fields)


def progress_line(**fields):
    return ours("progress", **({"step": 3, "total_steps": 60, "loss_nats": 8.25} | fields))


def test_read_progress_line_reports_every_figure():
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

    assert isinstance(event, ProgressReported)
    reported = event.model_dump(include=set(figures) | {"seq", "step", "total_steps", "loss_nats"})
    assert reported == figures | {"seq": 7, "step": 3, "total_steps": 60, "loss_nats": 8.25}
    assert event.at == datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected", "fields"),
    [
        (
            ours("started", total_steps=60, world_size=2, num_parameters=1000),
            TrainingStarted,
            {"total_steps": 60, "world_size": 2, "num_parameters": 1000},
        ),
        (
            ours("preparing", waits_for="libraries"),
            TrainingPreparing,
            {"waits_for": "libraries"},
        ),
        (
            ours("checkpoint_saved", step=20, path="/fsx/step-20", duration_s=0.5),
            CheckpointSaved,
            {"step": 20, "path": "/fsx/step-20", "duration_s": 0.5},
        ),
        (
            ours("evaluated", step=20, loss_nats=2.0, perplexity=7.389, targets=512),
            TrainingEvaluated,
            {"step": 20, "loss_nats": 2.0, "perplexity": 7.389, "top1": None},
        ),
        (
            ours("evaluated", step=20, loss_nats=2.0, perplexity=None, top1=0.5, top5=0.75),
            TrainingEvaluated,
            {"perplexity": None, "top1": 0.5, "top5": 0.75},
        ),
        (ours("resumed", step=20), TrainingResumed, {"step": 20}),
        (
            ours("finished", step=60, loss_nats=5.5),
            TrainingFinished,
            {"step": 60, "loss_nats": 5.5, "samples": ()},
        ),
        (
            ours(
                "finished",
                step=60,
                samples=[{"prompt": "a secret\nthe\n\n", "text": f"\n{'x' * 2000}\nby heart"}] * 4,
            ),
            TrainingFinished,
            {"samples": ({"prompt": "the", "text": "x" * 1000},) * 3},
        ),
        (
            ours("failed", reason="rank 1 stood still", restarting=True),
            TrainingReportedFailure,
            {"reason": "rank 1 stood still", "restarting": True},
        ),
        (
            FailedLine(error="TrainingFailed", reason="step 3: loss nan, expected finite").text(),
            TrainingReportedFailure,
            {"reason": "step 3: loss nan, expected finite", "restarting": False},
        ),
        (
            ours("failed", error="DataNotFound", message="dataset /x is not there"),
            TrainingReportedFailure,
            {"reason": "dataset /x is not there"},
        ),
    ],
)
def test_read_each_kind_becomes_its_event(text, expected, fields):
    (event,) = read(text)

    assert type(event) is expected
    assert event.model_dump(include=set(fields)) == fields


def test_read_line_behind_torchrun_prefix_is_understood():
    (event,) = read("[default0]: " + progress_line())

    assert event.step == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loading the tokenizer",
        '{"stationmaster":1',
        '{"stationmaster":2,"kind":"progress","seq":1,"step":1,"total_steps":2,"loss_nats":1.0}',
        '{"stationmaster":1,"kind":"evaluated","step":1}',
        '{"stationmaster":1,"kind":["progress"]}',
        '["stationmaster"]',
        progress_line(loss_nats="8.2"),
        progress_line(step=-1),
        progress_line(step=1.5),
        progress_line(seq=10**30),
        '{"stationmaster":1,"kind":"progress","a":' + "[" * 100_000,
        "Batch 1 Loss: , Speed: 8.30 samples/sec, lr: 0.000010",
    ],
)
def test_read_malformed_line_is_a_plain_line(text):
    assert read(text) == []


@pytest.mark.parametrize(
    "text",
    [
        progress_line(loss_nats="NaN"),
        progress_line().replace("8.25", "NaN"),
        progress_line().replace("8.25", "1e999"),
        progress_line(loss_nats="-Infinity"),
        progress_line(loss_nats=1e14),
        "Batch 3 Loss: nan, Speed: 8.30 samples/sec, lr: 0.000010",
        " iteration 3/ 60 | lm loss: NAN | grad norm: inf |",
        "step:  3  loss: inf  grad_norm:  nan  memory:  9.10GiB(6.51%)",
    ],
)
def test_read_loss_that_is_not_finite_is_a_step_without_a_figure(text):
    (event,) = read(text)

    assert isinstance(event, ProgressReported)
    assert (event.step, event.loss_nats, event.grad_norm) == (3, None, None)
    assert RUN_EVENT.validate_json(event.model_dump_json()) == event


def test_read_figures_that_are_not_finite_are_left_out_of_the_other_events():
    evaluated, finished = read(
        ours("evaluated", step=9, loss_nats="NaN", perplexity="Infinity"),
        ours("finished", step=9, loss_nats="NaN"),
    )

    assert (evaluated.loss_nats, evaluated.perplexity, finished.loss_nats) == (None, None, None)


def test_read_times_and_figures_that_cannot_be_true_are_left_out():
    (slow,) = read(progress_line(step_time_s=1e14, at="0001-01-01T00:00:00Z"))
    megatron, cookbook = read(
        " iteration 4/ 60 | elapsed time per iteration (ms): 1E-300 | global batch size: 9e9 |"
        " lm loss: 1.0 |",
        "Training Epoch: 1/999999999999999, step 5/999999999999999 completed (loss: 1.5",
    )

    assert (slow.step_time_s, slow.at.year) == (None, 2026)
    assert megatron.samples_per_s is None
    assert cookbook.total_steps == 0


@given(st.text(max_size=300))
def test_read_any_text_never_raises(text):
    assert all(event.run_id == "run-1" for event in read(text, progress_line()[:40] + text))


@given(
    st.dictionaries(
        st.sampled_from(
            ["seq", "step", "total_steps", "loss_nats", "mfu", "at", "path", "message", "reason"]
        ),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=20)
        | st.lists(st.integers(), max_size=2),
    ),
    st.sampled_from(
        ["progress", "started", "checkpoint_saved", "resumed", "finished", "failed", "else"]
    ),
)
def test_read_any_fields_give_an_event_that_survives_json(fields, kind):
    for event in read(ours(kind, **fields)):
        assert RUN_EVENT.validate_json(event.model_dump_json()) == event


def test_read_again_gives_the_same_ids_and_equal_stamps_differ():
    first = LineInterpreter(pod()).read(line(progress_line()))
    again = LineInterpreter(pod()).read(line(progress_line()))
    second_of_stamp = LineInterpreter(pod()).read(line(progress_line(), ordinal=1))
    other_pod = LineInterpreter(pod(uid="uid-1")).read(line(progress_line()))

    assert first == again
    assert len({e[0].event_id for e in (first, second_of_stamp, other_pod)}) == 3


FOREIGN = {
    "fsdp old": (
        "2024-05-01 10:00:00 I [train.py:102] Batch 93 Loss: 7.10000, Speed: 8.96 samples/sec, "
        "lr: 0.000010",
        {"step": 93, "loss_nats": 7.1, "samples_per_s": 8.96, "learning_rate": 1e-5},
    ),
    "fsdp new": (
        "2026-02-20 10:00:00,123 [INFO] __main__: Batch 5 Loss: 11.64000, Speed: 0.40 samples/sec, "
        "Tokens/s: 1638, TFLOPS/GPU: 12.5, MFU: 0.385, lr: 0.000025",
        {"step": 5, "loss_nats": 11.64, "tokens_per_s": 1638.0, "mfu": 0.385},
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
    "torchtitan": (
        "[rank0]:[titan] 2026-01-01 00:00:00,000 - root - INFO - step: 10  loss:  8.1234  "
        "grad_norm:  1.2500  memory: 13.50GiB(17.05%)  tps: 7,000  tflops: 12.30  mfu: 41.50%",
        {
            "step": 10,
            "loss_nats": 8.1234,
            "grad_norm": 1.25,
            "memory_gib": 13.5,
            "mfu": 0.415,
            "tokens_per_s": None,
        },
    ),
}


@pytest.mark.parametrize(("text", "figures"), FOREIGN.values(), ids=FOREIGN.keys())
def test_read_foreign_format_reports_its_figures(text, figures):
    (event,) = read(text)

    assert isinstance(event, ProgressReported)
    assert event.model_dump(include=set(figures)) == pytest.approx(figures)


def test_read_foreign_lines_over_a_restart_keeps_seq_growing():
    text = "Batch {} Loss: 7.1, Speed: 8.96 samples/sec, lr: 0.000010"

    events = read(
        text.format(1),
        text.format(2),
        "failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: python",
        text.format(1),
    )

    reported = [event for event in events if isinstance(event, ProgressReported)]
    assert [event.step for event in reported] == [1, 2, 1]
    assert [event.seq for event in reported] == sorted({event.seq for event in reported})


def test_read_step_reported_by_several_ranks_counts_once():
    text = "Training Epoch: 1/1, step {}/64 completed (loss: 1.5)"

    events = read(text.format(0), text.format(0), text.format(1), text.format(0))

    assert [event.step for event in events] == [1, 2]


def test_read_other_ranks_than_0_are_left_out():
    toy = "[RANK 3] Epoch 12 | Batchsize: 32 | Steps: 8 | Loss: 0.51"

    assert read(toy, FOREIGN["torchtitan"][0].replace("rank0", "rank8")) == []


def test_read_etcd_rendezvous_says_nothing_of_training():
    etcd = """Etcd machines: ['http://0.0.0.0:2379']
Attempting to join next rendezvous
Observed existing rendezvous state: {'status': 'joinable', 'version': '1', 'participants': [0]}
Joined rendezvous version 1 as rank 1. Full state: {'status': 'frozen', 'version': '1'}
Waiting for remaining peers.
All peers arrived. Confirming membership.
Rendezvous version 1 is complete. Final state: {'status': 'final', 'version': '1'}
Creating EtcdStore as the c10d::Store implementation
[RANK 0] Epoch 1 | Batchsize: 32 | Steps: 8
Epoch 1 | Training snapshot saved at /fsx/snapshot.pt"""

    events = read(*etcd.splitlines())

    assert [type(event) for event in events] == [ProgressReported, CheckpointSaved]


def test_read_foreign_line_beside_our_format_is_left_out():
    events = read(progress_line(), FOREIGN["fsdp old"][0])

    assert [event.step for event in events] == [3]


def test_read_foreign_total_steps_come_from_the_command_line():
    (event,) = read(FOREIGN["fsdp old"][0], facts=pod(total_steps=100))

    assert event.total_steps == 100


def test_read_foreign_checkpoints_are_reported_when_complete():
    events = read(
        "Writing checkpoint to ./checkpoints/llama_v2-50steps.",
        "Completed checkpoint.",
        "  successfully saved checkpoint from iteration     500 to /shared/ckpt",
        "=> nothing",
    )

    assert [(e.type, e.step, e.path) for e in events] == [
        ("checkpoint.saved", 50, "./checkpoints/llama_v2-50steps"),
        ("checkpoint.saved", 500, "/shared/ckpt"),
    ]


def test_progress_of_megatron_arrives_from_whichever_pod_prints_it():
    # core_v0.19.0: rank 0 prints of checkpoints, the last rank of steps.
    resumed = (
        "  successfully loaded checkpoint from /fsx/runs/r/output/checkpoints [ t 1/2, gtp_remat "
        "1/1, p 1/1 ] at iteration 50"
    )
    step = (
        " [2026-11-20 18:00:00.123456] iteration       51/     100 | consumed samples:         6528"
        " | elapsed time per iteration (ms): 10800.0 | throughput per GPU (TFLOP/s/GPU): 366.1 | "
        "learning rate: 5.000000E-06 | global batch size:   128 | lm loss: 2.500000E+00 | loss "
        "scale: 1.0 | grad norm: 0.777 | number of skipped iterations:   0 | number of nan "
        "iterations:   0 |"
    )

    (first,) = read(resumed, facts=pod(name="r-master-0"))
    (last,) = read(step, facts=pod(name="r-worker-2"))

    assert (first.type, first.step) == ("training.resumed", 50)
    assert (last.type, last.step, last.total_steps) == ("progress.reported", 51, 100)
    assert (last.loss_nats, last.grad_norm, last.step_time_s) == (2.5, 0.777, 10.8)
    assert last.samples_per_s == pytest.approx(128 / 10.8)


def test_read_torchtitan_0_3_0_reports_training_and_no_evaluation():
    # torchtitan/trainer.py, __init__ and train, and torchtitan/components/metrics.py, log and
    # log_validation, of torchtitan 0.3.0.
    said = "[rank0]:[titan] 2026-01-01 00:00:00,000 - root - INFO - "
    figures = "memory: 44.50GiB(56.25%)  tps: 5,762  "

    events = read(
        f"{said}Trainer is initialized with local batch size 1, global batch size 128, gradient "
        "accumulation steps 8, sequence length 8192, total steps 1000 (warmup 200)",
        f"{said}Training starts at step 1",
        f"{said}step:  1  loss: 12.27120  grad_norm:  4.1233  {figures}tflops: 333.68  mfu: 33.74%",
        f"{said}validate step:  1  loss: 12.1034  {figures}",
        f"{said}validate step: 50  loss:  6.6000  {figures}",
        f"{said}step: 60  loss:  6.50000  grad_norm:  1.2500  {figures}tflops: 333.68  mfu: N/A",
    )

    reported = [event for event in events if isinstance(event, ProgressReported)]
    assert [(event.step, event.loss_nats) for event in reported] == [(1, 12.2712), (60, 6.5)]
    assert {event.total_steps for event in reported} == {1000}
    assert [event.mfu for event in reported] == [pytest.approx(0.3374), None]


def test_read_foreign_resumes_are_reported():
    events = read(
        "Checkpoint loaded from ./checkpoints/llama_v2-50steps.",
        "successfully loaded checkpoint from /shared/ckpt [ t 0, p 0 ] at iteration 500",
        "[titan] - root - INFO - Loading the checkpoint from outputs/checkpoint/step-20.",
    )

    assert [(e.type, e.step) for e in events] == [("training.resumed", n) for n in (50, 500, 20)]


FAILED = (
    "E0102 03:04:05.000000 77 site-packages/torch/distributed/elastic/multiprocessing/api.py:1003] "
    "failed (exitcode: {code}) local_rank: 0 (pid: 99) of binary: /usr/bin/python"
)
RESTARTS = (
    "I0102 03:04:05.000000 77 site-packages/torch/distributed/elastic/agent/server/api.py:942] "
    "[default] Worker group FAILED. {left}/3 attempts left; will restart worker group"
)


def restarts(*texts, facts=None):
    return [event for event in read(*texts, facts=facts) if isinstance(event, WorkersRestarting)]


def test_read_worker_failure_with_attempts_left_tells_a_restart():
    (event,) = restarts(FAILED.format(code=-9), facts=pod(max_restarts=3))

    assert isinstance(event, WorkersRestarting)
    assert event.pod == "run-1-worker-0"
    assert event.reason == "process 0 was killed by SIGKILL"


def test_read_failure_and_agent_line_tell_one_restart_each_time():
    events = restarts(
        FAILED.format(code=-9),
        RESTARTS.format(left=3),
        FAILED.format(code=1),
        RESTARTS.format(left=2),
        facts=pod(max_restarts=3),
    )

    assert [event.reason for event in events] == [
        "process 0 was killed by SIGKILL",
        "process 0 exited with code 1",
    ]


def test_read_failure_without_attempts_left_tells_no_restart():
    lines = [FAILED.format(code=1)] * 2

    assert len(restarts(*lines, facts=pod(max_restarts=1))) == 1
    assert restarts(*lines, facts=pod(max_restarts=0)) == []


def test_read_agent_line_tells_the_restart_when_attempts_are_unknown():
    (event,) = restarts(FAILED.format(code=-9), RESTARTS.format(left=3))

    assert event.reason == "process 0 was killed by SIGKILL"


def test_read_same_lines_of_another_attempts_job_are_events_of_their_own():
    texts = [
        FAILED.format(code=-9),
        "Writing checkpoint to ./checkpoints/llama_v2-50steps.",
        "Completed checkpoint.",
    ]

    first = read(*texts, facts=pod(max_restarts=3))
    second = read(*texts, facts=pod(max_restarts=3, job="run-1-2", uid="uid-9"))

    assert [event.type for event in first] == [event.type for event in second]
    assert {event.type for event in first} >= {"workers.restarting", "checkpoint.saved"}
    assert not {event.event_id for event in first} & {event.event_id for event in second}


def test_read_flood_of_failures_is_reported_at_a_bounded_rate():
    interpreter = LineInterpreter(pod(max_restarts=0))
    events = [
        event
        for second in range(100)
        for ordinal in range(50)
        for event in interpreter.read(
            line(
                FAILED.format(code=1),
                stamp=f"2026-01-02T09:{second // 60:02d}:{second % 60:02d}.000000000Z",
                ordinal=ordinal,
            )
        )
    ]

    assert len(events) == FAILURES_AT_ONCE + 99 // FAILURE_EVERY_S


def test_read_same_restart_reported_by_two_pods_has_one_id():
    one = restarts(FAILED.format(code=-9), facts=pod(max_restarts=3))
    other = restarts("", RESTARTS.format(left=3), facts=pod(name="run-1-worker-1", uid="uid-1"))

    assert one[0].event_id == other[0].event_id


def test_container_restart_begins_a_new_count_of_restarts():
    interpreter = LineInterpreter(pod(max_restarts=1))
    _, first = interpreter.read(line(FAILED.format(code=-9)))

    interpreter.start_container_run(1)
    _, second = interpreter.read(line(FAILED.format(code=-9)))

    assert first.event_id != second.event_id
