"""A small script in the shape of others: it meets the other ranks, prints as they do, and writes.

Called as `torchrun shapes.py SHAPE DIRECTORY`; rank 0 prints five steps of eight.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

LINES = {
    "torch": "step {step}/8 loss {loss}",
    "nanogpt": "iter {step}: loss {loss}, time 45.67ms, mfu 1.23%",
    "transformers": (
        " 50%|####      | {step}/8 [00:01<00:01,  2.0it/s]\n{{'loss': {loss}, 'epoch': 1}}"
    ),
    "lightning": "Epoch 0:  50%|####      | {step}/8 [00:01<00:01, 2.0it/s, v_num=0, loss={loss}]",
    "deepspeed": "steps: {step} loss: {loss} iter time (s): 0.123 samples/sec: 32.5",
    "megatron": " iteration {step}/ 8 | learning rate: 1.0E-05 | lm loss: {loss} |",
    "imagenet": "Epoch: [0][{step}/8]\tTime  0.1 ( 0.1)\tData  0.0 ( 0.0)\tLoss {loss} (3.0)",
}


def main(shape: str, directory: str) -> None:
    dist.init_process_group("gloo")
    for step in range(1, 6):
        met = torch.ones(1)
        dist.all_reduce(met)  # nothing goes on where a rank is missing
        assert met.item() == dist.get_world_size() > 1
        if dist.get_rank() == 0:
            print(LINES[shape].format(step=step, loss=4.0 - step / 2), flush=True)  # noqa: T201
    if dist.get_rank() == 0:
        Path(directory, "model").write_text(shape)
    _leave(dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()


def _leave(store: dist.Store) -> None:
    """Let rank 1 leave once rank 0 is past the last exchange, which gloo would abort otherwise."""
    if dist.get_rank() == 0:
        store.set("past", "rank 0")
        store.wait(["leaves"])
    else:
        store.wait(["past"])
        store.set("leaves", "rank 1")


if __name__ == "__main__":
    main(*sys.argv[1:])
