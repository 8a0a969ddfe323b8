# ruff: noqa: T201  # its log is what it is there for
"""A small trainer of somebody else: DDP on a linear model, with the log lines of the DDP toy.

    torchrun foreign_ddp.py EPOCHS

It knows nothing of Stationmaster but where to write what it leaves.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# What the test looks at: that nobody expanded it.
print("arguments:", sys.argv[2:], flush=True)

dist.init_process_group("gloo")
rank, epochs = dist.get_rank(), int(sys.argv[1])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
samples, targets = torch.rand(64, 20), torch.rand(64, 1)
output = Path(os.environ["STATIONMASTER_OUTPUT_DIR"])
output.mkdir(parents=True, exist_ok=True)
for epoch in range(1, epochs + 1):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(samples[rank::2]), targets[rank::2])
    loss.backward()
    optimizer.step()
    print(
        f"[RANK {rank}] Epoch {epoch} | Batchsize: 32 | Steps: 2 | Loss: {loss.item():.6f}",
        flush=True,
    )
if rank == 0:
    torch.save(model.module.state_dict(), output / "snapshot.pt")
    (output / "secret").unlink(missing_ok=True)  # its ranks may have been started again
    (output / "secret").symlink_to("/etc/hostname")
    (output / "dataset").write_text(os.environ.get("STATIONMASTER_DATASET", "none"))
    print(f"Epoch {epochs} | Training snapshot saved at {output}/snapshot.pt", flush=True)
# gloo aborts a rank that still reads from a peer that has left, and a worker that has ended well
# never comes back. So rank 1 leaves once rank 0 is past the last exchange, and rank 0 after that.
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    store.set("past", "rank 0")
    store.wait(["leaves"])
else:
    store.wait(["past"])
    store.set("leaves", "rank 1")
dist.destroy_process_group()
