"""First values of a transformers model that was built without memory, sharded or not.

Called by the language task. A model's buffers (rotary tables above all) are in no checkpoint and no
sharding: giving them memory without values trains on whatever was there, often NaN. So memory is
marked first, and every module is initialised by transformers' own rule for it, children before
parents as transformers does it, on full-sized stand-ins, of which each rank keeps its shards. A
parent's rule fills what its children's left (Falcon-H1's multipliers, Qwen3-Next's routers).
`unfilled` names what no rule and no checkpoint has given a value.

What some architectures do beyond that to the weights of a module's children (GPT-2 narrows those
that end a residual branch) is left out: it matters to random first weights of these only.

Each module is drawn from its own seed, made of the run's seed and the module's name: the weights
are the same for any number of ranks, and a rank never holds more than one full module, and what no
rule has filled yet, besides its shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_utils import PreTrainedModel

_ALREADY_INITIALISED = "_is_hf_initialized"  # transformers leaves tensors alone that carry this


def initialise(model: PreTrainedModel, *, seed: int, device: torch.device) -> None:
    """Give every parameter and buffer memory, and its first value where there is a rule for it.

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
    missing: dict[int, tuple[nn.Module, str, nn.Parameter]] = {}
    seen: set[int] = set()
    with torch.no_grad():
        for tensor in [*parameters, *model.buffers()]:
            _mark(_local(tensor))
        for owner, name, module in _children_first(model, model, ""):
            for key, parameter in module._parameters.items():
                # A weight tied to one that was met before stays as it is.
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    missing[id(parameter)] = (module, key, parameter)
            inside = set(map(id, module.modules()))
            wanted = [one for one in missing.values() if id(one[0]) in inside]
            for parameter in _draw(owner, name, module, wanted, seed=seed, device=device):
                del missing[id(parameter)]
    for parameter in parameters:
        delattr(parameter, _ALREADY_INITIALISED)


@torch.no_grad()
def unfilled(model: nn.Module) -> list[str]:
    """List parameters and buffers with the mark of `initialise` still in them, on this rank."""
    named = [*model.named_parameters(), *model.named_buffers()]
    # Not detached: shards that will be offloaded cannot be on the device, where they are still.
    return [name for name, tensor in named if _is_marked(_local(tensor))]


def _children_first(
    owner: PreTrainedModel, module: nn.Module, name: str
) -> Iterator[tuple[PreTrainedModel, str, nn.Module]]:
    """Yield each module with the innermost model it is part of, whose rules are those for it."""
    for key, child in module.named_children():
        inner = child if isinstance(child, PreTrainedModel) else owner
        yield from _children_first(inner, child, f"{name}.{key}" if name else key)
    yield owner, name, module


def _draw(
    owner: PreTrainedModel,
    name: str,
    module: nn.Module,
    wanted: list[tuple[nn.Module, str, nn.Parameter]],
    *,
    seed: int,
    device: torch.device,
) -> list[nn.Parameter]:
    """Apply the rule for `module` to its buffers and to `wanted`; returns those that it filled."""
    for part, key, parameter in wanted:
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        _mark(full)
        part._parameters[key] = nn.Parameter(full, requires_grad=False)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            owner._init_weights(module)
        drawn = [part._parameters[key] for part, key, _ in wanted]
    finally:
        for part, key, parameter in wanted:
            part._parameters[key] = parameter
    filled = []
    for (_, _, parameter), value in zip(wanted, drawn, strict=True):
        assert value is not None
        if _is_marked(value):
            continue
        filled.append(parameter)
        fill(parameter, value.detach())
    return filled


def fill(tensor: torch.Tensor, full: torch.Tensor) -> None:
    """Copy a value into a tensor, or this rank's shard of it; `full` is the same on every rank."""
    if isinstance(tensor, DTensor):
        # src_data_rank=None: every rank has the full value, so nothing is sent.
        full = distribute_tensor(
            full, tensor.device_mesh, tensor.placements, src_data_rank=None
        ).to_local()
    _local(tensor).copy_(full)


def _mark(tensor: torch.Tensor) -> None:
    """Fill memory with what no rule and no checkpoint holds."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(torch.nan)
    elif tensor.dtype != torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def _is_marked(tensor: torch.Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    if tensor.dtype in (torch.bool, torch.uint8):
        return False
    return bool((tensor == torch.iinfo(tensor.dtype).min).any())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
