"""Matrix products of linear layers in float8, by torchao; everything else stays as it is.

Weights keep their names, shapes and float32: a layer casts what it multiplies, by a scale for each
tensor that makes its largest element fit (e4m3; gradients of results: e5m2). So checkpoints and
models do not depend on it. FSDP gathers weights in bfloat16, as without it: torchao can gather
float8, but its weights are then tensors of a class of its own, in checkpoints, too.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from stationmaster.domain.catalogue.sharing import (
    FLOAT8,
    FLOAT8_GPUS,
    FLOAT8_MULTIPLE,
    TYPED_FLOAT8,
)
from stationmaster.domain.catalogue.training_config import TrainingConfig
from stationmaster.domain.errors import BadParameter

if TYPE_CHECKING:
    import torch
    from torch import nn

_CAPABILITY: Final = (8, 9)


def prepare_torchao(training: TrainingConfig) -> None:
    """Refuse float8 where torchao is not installed; keep it from being loaded where nobody asks.

    transformers imports torchao wherever it finds it, which takes seconds.

    Raises:
        BadParameter: naming what to install.
    """
    if training.precision != FLOAT8:
        sys.modules.setdefault("torchao", None)  # type: ignore[arg-type]  # "not found", in Python
    elif importlib.util.find_spec("torchao") is None:
        raise BadParameter(
            f"{TYPED_FLOAT8} needs the package torchao, which is not installed here; install it "
            "with pip install torchao, or use precision=bf16"
        )


def multiply_in_float8(
    blocks: Iterable[nn.Module], *, device: torch.device, emulated: bool = False
) -> None:
    """Replace the linear layers of blocks, in place, where their sizes are multiples of 16.

    The head, which is in no block, stays: its errors would go straight into the loss.

    Args:
        blocks: on the meta device or any other.
        device: what they will be computed on.
        emulated: round to float8, and multiply in float32, on any device.

    Raises:
        BadParameter: the device does not compute products in float8.
    """
    if not emulated:
        _check(device)
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=emulated)
    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=_fits, config=config)


def _fits(module: nn.Module, _name: str) -> bool:
    sizes = (getattr(module, "in_features", 1), getattr(module, "out_features", 1))
    return all(size % FLOAT8_MULTIPLE == 0 for size in sizes)


def _check(device: torch.device) -> None:
    import torch

    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY:
        return
    here = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    raise BadParameter(
        f"{TYPED_FLOAT8} needs {FLOAT8_GPUS}, and this machine has {here}; use precision=bf16"
    )
