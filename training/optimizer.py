"""The optimizer of a recipe: AdamW or SGD with momentum, decaying matrices only.

It must not know ranks: sharded parameters are updated shard by shard, each rank its own.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from stationmaster.domain.catalogue.training_config import TrainingConfig
from stationmaster.domain.errors import BadParameter


def build_optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    """Build the optimizer over every parameter that is trained, tied ones once.

    Weight decay pulls matrices and convolutions (two dimensions and more) towards zero, not the
    gains and biases of norms. The learning rate is set before each step by the schedule. Updates
    are fused, one kernel over all parameters, on GPUs and CPUs; but those of SGD only where weights
    are not sharded, because torch has no rule for sharded ones (`aten._fused_sgd_`).

    Raises:
        BadParameter: the model has no parameter to train.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise BadParameter("the model has no parameter to train; use weights that are not frozen")
    groups = [
        {
            "params": [parameter for parameter in trained if parameter.ndim >= 2],
            "weight_decay": training.weight_decay,
        },
        {
            "params": [parameter for parameter in trained if parameter.ndim < 2],
            "weight_decay": 0.0,
        },
    ]
    groups = [group for group in groups if group["params"]]
    if training.optimizer == "sgd":
        sharded = any(isinstance(parameter, DTensor) for parameter in trained)
        return torch.optim.SGD(
            groups,
            lr=training.learning_rate,
            momentum=training.momentum,
            fused=not sharded,
            foreach=False,
        )
    return torch.optim.AdamW(
        groups,
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        fused=True,
    )
