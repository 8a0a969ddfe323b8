"""First values of a transformers model that was built without memory, sharded or not.

Called by the language task. A model's buffers (rotary tables above all) are in no checkpoint and no
sharding: giving them memory without values trains on whatever was there, often NaN. So every module
that owns a parameter or a buffer is initialised by transformers' own rule for it, one after the
other, on a full-sized stand-in, of which each rank keeps its shard.

What some architectures do beyond that to the weights of a module's children (GPT-2 narrows those
that end a residual branch) is left out: it matters to random first weights of these only.

Each module is drawn from its own seed, made of the run's seed and the module's name: the weights
are the same for any number of ranks, and a rank never holds more than one full module besides its
shards.
"""

from __future__ import annotations

import hashlib

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_utils import PreTrainedModel

_ALREADY_INITIALISED = "_is_hf_initialized"  # transformers leaves tensors alone that carry this


def initialise(model: PreTrainedModel, *, seed: int, device: torch.device) -> None:
    """Give every parameter and buffer memory and its first value.

    Args:
        model: on the meta device; parameters may be DTensors.
        seed: of the run.
        device: where to.
    """
    model.to_empty(device=device)
    model.tie_weights()
    parameters = list(model.parameters())
    for parameter in parameters:
        setattr(parameter, _ALREADY_INITIALISED, True)
    drawn: set[int] = set()
    with torch.no_grad():
        for name, module in model.named_modules():
            if module._parameters or module._buffers:
                _initialise_module(model, name, module, seed=seed, device=device, drawn=drawn)
    for parameter in parameters:
        delattr(parameter, _ALREADY_INITIALISED)


def _initialise_module(
    model: PreTrainedModel,
    name: str,
    module: nn.Module,
    *,
    seed: int,
    device: torch.device,
    drawn: set[int],
) -> None:
    """Initialise what `module` owns itself; a weight tied to one drawn before stays as it is."""
    own = {
        key: parameter
        for key, parameter in module._parameters.items()
        if parameter is not None and id(parameter) not in drawn
    }
    drawn.update(map(id, own.values()))
    for key, parameter in own.items():
        module._parameters[key] = nn.Parameter(
            torch.empty(parameter.shape, dtype=parameter.dtype, device=device), requires_grad=False
        )
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            model._init_weights(module)
        full = {key: module._parameters[key] for key in own}
    finally:
        module._parameters.update(own)
    for key, parameter in own.items():
        value = full[key]
        assert value is not None
        if isinstance(parameter, DTensor):
            # src_data_rank=None: every rank has the full value, so nothing is sent.
            shard = distribute_tensor(
                value.detach(), parameter.device_mesh, parameter.placements, src_data_rank=None
            )
            parameter.to_local().copy_(shard.to_local())
        else:
            parameter.copy_(value)
