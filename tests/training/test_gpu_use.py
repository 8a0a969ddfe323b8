"""How busy a GPU is, from a stand-in for nvidia-smi; none of it has run on a GPU."""

from __future__ import annotations

import time

import pytest
import torch
from forked_ranks import results, run_ranks
from hub_lone import lone_ranks

from training.gpu_use import GpuUse, watch_gpu
from training.parallel import least_over_ranks


def test_use_is_the_mean_of_what_was_printed_since_the_last_look(tmp_path):
    printed = tmp_path / "printed"
    prints = "printf '20\\n[N/A]\\n40\\n1000\\n-1\\n\\n'; touch $0; exec sleep 60"
    use = GpuUse(["bash", "-c", prints, str(printed)])
    while not printed.exists():
        time.sleep(0.01)

    use.close()

    assert use.take() == pytest.approx(0.3)
    assert use.take() is None


@pytest.mark.parametrize("command", [None, ["no-such-program"], ["bash", "-c", "exit 9"]])
def test_use_is_unknown_where_nothing_measures_it(command):
    use = GpuUse(command)

    assert use.take() is None
    use.close()


def test_cpu_is_not_measured():
    assert watch_gpu(torch.device("cpu")).take_least(lone_ranks()) is None
    assert least_over_ranks(0.4, lone_ranks()) == 0.4


def least(ranks, figures):
    return [least_over_ranks(figure[ranks.rank], ranks) for figure in figures]


def test_every_rank_gets_the_least_use_that_any_has():
    figures = [(0.9, 0.4), (None, 0.7), (None, None)]

    assert results(run_ranks(least, figures, world_size=2)) == [[0.4, 0.7, None]] * 2
