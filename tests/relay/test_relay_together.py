"""What the relay notices of pods that train each for itself, and where it must say nothing."""

from __future__ import annotations

import json

import pytest
from containers import facts, line, worker_failed

from stationmaster.domain.run.events import PodsApart
from stationmaster.relay.parsing import LineInterpreter
from stationmaster.relay.together import Together

BAR = " 10%|#   | {}/100 [00:12<00:17, 2.0it/s]"
DICT = "{'loss': 2.5, 'grad_norm': 0.9, 'learning_rate': 3e-05, 'epoch': 0.1}"
OURS = {"stationmaster": 1, "kind": "progress", "total_steps": 9, "loss_nats": 2.5}


def said(step):
    """A step as programs print it on one rank, by their names."""
    return {
        "hugging-face": [BAR.format(step), DICT],
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
        "anybody's-dict": [BAR.format(step), "{'loss': 2.5}"],
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


def test_rank_that_moves_to_another_pod_is_one_rank():
    def at(step):
        return said(step)["nanogpt"]

    assert apart((0, 1, at(1)), (0, 2, at(2)), (1, 30, at(3)), (1, 31, at(4))) == []
    # Back again after a failure: what came before it does not count.
    moved = [(0, 1, at(1)), (1, 30, at(2)), (1, 40, [worker_failed(1)]), (0, 50, at(3))]
    assert apart(*moved) == []
    assert apart(moved[0], moved[1], moved[3]) != []
