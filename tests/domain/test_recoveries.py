"""What a setback has cost, and whether training went on rightly after it."""

from __future__ import annotations

import pytest
from histories import condition, ended, event, run_after, step, take

from stationmaster.domain.results import Setbacks
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.recoveries import ENOUGH_LOSSES, KEPT_LOSSES, MAX_RECOVERIES, robust_z
from tests.support.factories import make_request

COMMAND = make_request(program=("torchrun", "train.py"))


def losses(numbers: range, *, at: float, plus: float = 0, **fields: object) -> list[ev.RunEvent]:
    """A step a second, of a loss that falls and has some noise."""
    return [
        step(
            number,
            at=at + place,
            seq=int(at) + place,
            loss_nats=4 - number / 100 + (number * 7 % 5) / 50 + plus,
            **fields,
        )
        for place, number in enumerate(numbers, start=1)
    ]


def killed(*, at: float) -> ev.RunEvent:
    return ended("process 0 was killed by SIGKILL", at=at)


def resumed(number: int, *, at: float) -> ev.RunEvent:
    return event(ev.TrainingResumed, at=at, step=number)


def after_a_kill(*events: ev.RunEvent, **values: object) -> Run:
    """A run that reached step 60 at second 60, and was killed."""
    return run_after(
        *losses(range(1, 61), at=0), killed(at=61), *events, price_per_hour_usd=36.0, **values
    )


def test_setback_ends_with_what_it_cost_and_that_the_same_losses_came_again():
    run = after_a_kill(resumed(50, at=160), *losses(range(51, 62), at=170))

    (proof,) = run.recoveries
    assert (run.phase, run.setback) == (RunPhase.RUNNING, None)
    assert proof.why == "pod w-0 failed: process 0 was killed by SIGKILL"
    assert (proof.step, proof.resumed_step, proof.repeated_steps) == (60, 50, 10)
    training = run.request.resolved.training
    assert proof.resumed_sample == 50 * training.global_batch_size
    assert proof.repeated_tokens == 10 * training.global_batch_size * training.sequence_length
    assert (proof.lost_s, proof.lost_usd) == (121.0, pytest.approx(1.21))
    assert (proof.compared, proof.equal) == (10, 10)
    assert proof.loss_z is not None
    assert abs(proof.loss_z) < 3


def test_loss_that_jumped_is_out_of_its_band_and_not_the_same():
    run = after_a_kill(resumed(50, at=160), *losses(range(51, 62), at=170, plus=2))

    (proof,) = run.recoveries
    assert (proof.compared, proof.equal) == (10, 0)
    assert proof.loss_z > 3


@pytest.mark.parametrize(
    "again",
    [
        [],
        [resumed(50, at=160), *losses(range(51, 61), at=170)],  # not further than before
        [resumed(60, at=160), *losses(range(61, 64), at=170)],  # further, with too few losses
    ],
)
def test_setback_stays_open_until_enough_is_known(again):
    run = after_a_kill(*again)

    assert (run.recoveries, run.setback.step) == ([], 60)


def test_last_step_closes_a_setback_with_what_there_is():
    few = losses(range(61, 63), at=170)
    end = event(ev.TrainingFinished, at=180, step=62)
    (proof,) = after_a_kill(resumed(60, at=160), *few, end).recoveries

    assert (proof.repeated_steps, proof.compared) == (0, 0)
    assert len(few) < ENOUGH_LOSSES


def test_program_without_checkpoints_goes_on_from_the_first_step_that_it_reports_again():
    again = [condition("Running", at=100), *losses(range(1, 67), at=170, pod="w-0")]
    (proof,) = after_a_kill(*again, request=COMMAND).recoveries

    assert (proof.resumed_step, proof.repeated_steps) == (0, 60)
    assert (proof.resumed_sample, proof.repeated_tokens) == (None, None)


def test_second_setback_before_the_first_is_passed_is_one_with_it():
    first = [resumed(50, at=160), *losses(range(51, 55), at=170), killed(at=180)]
    run = after_a_kill(*first, resumed(40, at=260), *losses(range(41, 62), at=270))

    (proof,) = run.recoveries
    assert (proof.step, proof.resumed_step, proof.lost_s) == (60, 40, 231.0)


def test_second_setback_right_after_the_first_was_passed_counts_until_it_is_passed_too():
    first = [resumed(60, at=70), *losses(range(61, 63), at=80), killed(at=90)]
    run = after_a_kill(*first, resumed(62, at=190), *losses(range(63, 69), at=200))

    (proof,) = run.recoveries
    assert (proof.resumed_step, proof.lost_s) == (62, 141.0)


def test_stored_losses_and_proofs_are_bounded():
    run = after_a_kill(resumed(1, at=160), *losses(range(2, 60), at=170))
    assert len(run.setback.before) <= KEPT_LOSSES
    assert len(run.setback.again) == KEPT_LOSSES

    total = Setbacks()
    for number in range(60):
        at = 1000.0 * (number + 1)
        here = 62 + 10 * number
        before = run.recoveries
        run = take(run, *losses(range(here, here + 6), at=at), killed(at=at + 10))
        total = total.after(*(run.recoveries[-1:] if run.recoveries != before else ()))
        run = take(run, resumed(here + 5, at=at + 20))
    assert len(run.recoveries) == MAX_RECOVERIES
    assert run.setbacks.number == total.number == 60
    assert run.setbacks.lost_usd == pytest.approx(total.lost_usd)


@pytest.mark.parametrize("old", [[1.0] * 4, [1.0] * 9, []])
def test_band_needs_enough_losses_that_vary(old):
    assert robust_z([1.0], old) is None
