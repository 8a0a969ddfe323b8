"""Which rank computes or waits for data longest, as a progress line says it."""

from __future__ import annotations

import os
import time

import pytest
import torch
from forked_ranks import results, run_ranks
from hub_lone import lone_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard

from training.waits import RankTimes


class Block(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.layer(inputs)


def measured(ranks, is_sharded):
    """Two steps in which rank 1 is slow, and rank 0 waits for data; evaluation does not count."""
    os.environ["NODE_NAME"] = "n-1"  # of this process, which is the rank's own
    model = nn.Sequential(*(Block((0.01, 0.2)[ranks.rank]) for _ in range(2)))
    blocks = list(model)
    if is_sharded:
        for block in (*blocks, model):
            fully_shard(block)
    times = RankTimes(blocks, ranks)
    for _ in range(2):
        with times.reading():
            time.sleep((0.1, 0.0)[ranks.rank])
        model(torch.ones(1, 4)).sum().backward()
    first = times.take(step_time_s=0.4)
    model.eval()
    model(torch.ones(1, 4))
    return first, times.take(step_time_s=0.4)["slowest"]


@pytest.mark.parametrize("is_sharded", [False, True])
def test_slow_rank_and_the_wait_for_data_are_those_of_one_rank(is_sharded):
    for line, unknown in results(run_ranks(measured, is_sharded, world_size=2)):
        assert (line["slowest_rank"], line["slowest_node"]) == (1, "n-1")
        assert line["slowest"] > 1.5  # also where one waits for the other's weights
        assert line["data_wait"] >= 0.25
        assert unknown is None


def test_lone_rank_is_compared_with_nobody():
    times = RankTimes([nn.Linear(1, 1)], lone_ranks())
    with times.reading():
        time.sleep(0.05)

    line = times.take(step_time_s=0.1)

    assert line["slowest"] is None
    assert 0.5 <= line["data_wait"] <= 1
