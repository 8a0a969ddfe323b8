"""What is said of a run that trains: its network and its speed, and nothing where it does well."""

from __future__ import annotations

import pytest

from stationmaster.diagnosis.running import planned, running_findings
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.ids import RunId
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.speeds import KEPT_LINES, SKIPPED_LINES, Speeds
from tests.support.factories import RUN_ID, START, make_event, make_request, make_run

LINES = SKIPPED_LINES + KEPT_LINES
GPU = "llama2-7b"


def trains(recipe=GPU, **values):
    """A run of the recipe where it trains by default."""
    known = CATALOGUE[recipe]
    wish = {"nodes": known.default_nodes, "instance_type": known.default_instance}
    request = make_request(recipe=recipe, **(wish | values.pop("wish", {})))
    return make_run(ev.RunPhase.RUNNING, request=request, **values)


def after(run, *, part=1.0, lines=LINES, mfu=None, gpu_use=None, first=1):
    """After progress lines with this part of the planned speed."""
    plan = planned(run)
    speed = part * (plan.samples_per_s if plan is not None else 1.0)
    for step in range(first, first + lines):
        line = make_event(
            ev.ProgressReported,
            event_id=f"p{step}",
            seq=step,
            step=step,
            total_steps=1000,
            loss_nats=2.0,
            samples_per_s=speed,
            mfu=mfu,
            gpu_use=gpu_use,
        )
        run = apply(run, line)
    return run


def said(run):
    return [found.text for found in running_findings(run)]


def network(**values):
    usual = {"job": RUN_ID, "pod": f"{RUN_ID}-worker-1", "uses_sockets": True}
    return make_event(ev.NetworkObserved, **(usual | values))


@pytest.mark.parametrize("recipe", CATALOGUE)
def test_run_of_each_recipe_is_slow_below_half_of_its_plan_only(recipe):
    run = trains(recipe)

    mfu = planned(run).assumed_mfu if CATALOGUE[recipe].needs_gpu else None
    assert said(after(run, part=1.0, mfu=mfu)) == []
    assert said(after(run, part=0.51, mfu=mfu)) == []
    slow = said(after(run, part=0.49, mfu=mfu))
    assert len(slow) == (1 if CATALOGUE[recipe].needs_gpu else 0)


def test_slow_run_says_both_figures_and_where_to_look():
    run = trains(wish={"nodes": 2, "instance_type": "p4d.24xlarge"})
    plan = planned(run).samples_per_s

    (found,) = running_findings(after(run, part=0.25))

    assert f"{plan / 4:,.3g} samples a second" in found.text
    assert f"expects {plan:,.3g} on 2 x p4d.24xlarge" in found.text
    assert f"`/train logs {RUN_ID}`" in found.remedy
    assert "validate=full" in found.remedy


@pytest.mark.parametrize("values", [{}, {"wish": {"program": ("python", "train.py")}}])
def test_idle_gpu_is_said_with_what_it_waits_for_also_where_there_is_no_plan(values):
    run = trains(**values)

    (found,) = running_findings(after(run, part=0.1, gpu_use=0.37))

    assert "a GPU is idle 63% of the time" in found.text
    assert "more data_workers" in found.remedy
    assert said(after(run, gpu_use=0.5)) == []
    assert said(after(run, gpu_use=0.37, lines=LINES - 1)) == []


@pytest.mark.parametrize(
    "run",
    [
        after(trains(), part=0.1, lines=LINES - 1),
        after(trains(emulated_speed=60.0), part=0.0),
        after(trains("tiny-llama"), part=0.0),
        after(trains(wish={"program": ("python", "train.py")}), part=0.0),
        after(trains(wish={"instance_type": "p9.unknown"}), part=0.0),
        after(trains(), part=0.1).model_copy(update={"phase": ev.RunPhase.SUCCEEDED}),
        after(trains(), part=0.1).model_copy(update={"phase": ev.RunPhase.RECOVERING}),
        # It has just been started again, and the new speed is not known yet.
        apply(
            after(trains(), part=0.1),
            make_event(ev.TrainingResumed, event_id="r", step=5),
        ),
    ],
    ids=["few-lines", "emulated", "cpu", "program", "unknown", "ended", "recovering", "resumed"],
)
def test_nothing_is_said_where_nothing_is_known(run):
    assert said(run) == []


def test_first_lines_of_a_start_do_not_count_and_old_ones_go():
    run = after(trains(), part=0.01, lines=SKIPPED_LINES)
    assert after(trains(), lines=2).speeds.samples_per_s == ()
    run = after(run, part=1.0, lines=KEPT_LINES, first=10)
    assert len(run.speeds.samples_per_s) == KEPT_LINES
    assert said(run) == []
    assert len(after(run, part=0.1, lines=50, first=100).speeds.samples_per_s) == KEPT_LINES
    assert len(said(after(run, part=0.1, lines=6, first=100))) == 1


def test_gpus_that_wait_are_told_by_their_mfu():
    run = trains()
    expected = planned(run).assumed_mfu

    assert said(after(run, mfu=0.11 * expected)) == []
    (text,) = said(after(run, part=0.05, mfu=0.09 * expected))
    assert "GPUs mostly wait" in text
    assert f"{0.09 * expected:.1%} MFU" in text


def test_lost_nodes_are_not_expected_to_work():
    run = trains(wish={"nodes": 8, "min_nodes": 2}, left_nodes=["n-1"])
    assert planned(run).nodes == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"plugin_not_found": True}, "used sockets instead of EFA on worker-1: its plugin"),
        ({"provider": "tcp;ofi_rxm"}, "libfabric sent over tcp;ofi_rxm instead of EFA"),
        (
            {"uses_sockets": False, "provider": "efa", "num_nics": 1},
            "1 of 4 EFA interfaces were found on worker-1",
        ),
    ],
)
def test_network_says_what_is_not_used_and_what_to_do(values, words):
    run = apply(trains(wish={"nodes": 2, "instance_type": "p4d.24xlarge"}), network(**values))

    (found,) = running_findings(run)

    assert words in found.text
    assert found.remedy
    assert running_findings(run.model_copy(update={"phase": ev.RunPhase.FAILED})) == []


def test_network_of_a_new_attempt_is_not_that_of_the_one_before():
    run = trains(wish={"nodes": 2, "instance_type": "p4d.24xlarge"})
    assert said(apply(run, network(job="another"))) == []
    started = make_event(
        ev.AttemptStarted,
        event_id="a",
        attempt_id="attempt-1",
        cluster_id="c",
        placement=run.placement,
        job=f"{RUN_ID}-2",
        rendezvous_id="x",
    )
    assert said(apply(apply(run, network()), started)) == []
    assert said(apply(trains(wish={"nodes": 1, "instance_type": "p4d.24xlarge"}), network())) == []


def test_run_that_was_stored_before_has_no_finding():
    stored = trains().model_dump(mode="json")
    del stored["speeds"], stored["network"]
    read = type(trains()).model_validate(stored)
    assert read.run_id == RunId(RUN_ID)
    assert read.requested_at == START
    assert (read.speeds, said(read)) == (Speeds(), [])
