"""Image classifiers: transformers' ResNet and EfficientNet, their first weights and their loss.

It must not know ranks: batch norm takes its statistics from the rows of one rank's micro-batch, as
torch's DistributedDataParallel leaves it, and the running means that evaluation uses are rank 0's.

Shape legend: B images of a micro-batch, H and W pixels a side, C three colours, K classes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import torch
from torch import nn
from torch.nn import functional
from transformers.models.efficientnet.configuration_efficientnet import EfficientNetConfig
from transformers.models.efficientnet.modeling_efficientnet import (
    EfficientNetForImageClassification,
)
from transformers.models.resnet.configuration_resnet import ResNetConfig
from transformers.models.resnet.modeling_resnet import (
    ResNetBottleNeckLayer,
    ResNetForImageClassification,
)

from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import ImageTraining
from training.task import IGNORED_LABEL, Batch, BatchSource, Forward

Classifier: TypeAlias = ResNetForImageClassification | EfficientNetForImageClassification

# Mean and standard deviation of ImageNet's colours, of 0 to 255.
# Source: every published ResNet; (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225) of 0 to 1.
_PIXEL_MEAN: Final = (123.675, 116.28, 103.53)
_PIXEL_STD: Final = (58.395, 57.12, 57.375)
# How much a batch moves EfficientNet's running means. Source: its authors' decay of 0.99 in
# TensorFlow's convention. transformers hands that number to torch, where it says the opposite.
_EFFICIENTNET_NORM_MOMENTUM: Final = 0.01
# Source: Goyal et al., "Accurate, Large Minibatch SGD" (2017), section 5.1.
_HEAD_STD: Final = 0.01


class ImageTask:
    """A classifier that learns from a folder of images."""

    def __init__(self, recipe: Recipe, source: BatchSource, *, device: torch.device) -> None:
        assert isinstance(recipe.model, ImageModel)
        assert isinstance(recipe.training, ImageTraining)
        self.model: Classifier = build_model(recipe.model, image_size=recipe.training.image_size)
        self.blocks: Sequence[nn.Module] = _blocks(self.model)
        self.source = source
        self._seed = recipe.training.seed
        self._label_smoothing = recipe.training.label_smoothing
        self._num_classes = recipe.model.num_classes
        self._mean_C11 = torch.tensor(_PIXEL_MEAN, device=device).view(3, 1, 1)
        self._std_C11 = torch.tensor(_PIXEL_STD, device=device).view(3, 1, 1)

    def initialise(self, *, device: torch.device) -> None:
        """Give every parameter and buffer its memory and first value."""
        initialise(self.model, seed=self._seed, device=device)

    def forward(self, model: nn.Module, batch: Batch) -> Forward:
        """Pass (B, C, H, W) uint8 pixels through, and count right first and five guesses.

        The loss to go backward from is smoothed over the classes; the reported one is not.
        """
        pixels_BCHW = (batch.inputs.float() - self._mean_C11) / self._std_C11
        logits_BK = model(pixels_BCHW).logits.float()
        loss_sum = functional.cross_entropy(
            logits_BK,
            batch.targets,
            ignore_index=IGNORED_LABEL,
            label_smoothing=self._label_smoothing,
            reduction="sum",
        )
        with torch.no_grad():
            reported_sum = loss_sum.detach()
            if self._label_smoothing:
                reported_sum = functional.cross_entropy(
                    logits_BK, batch.targets, ignore_index=IGNORED_LABEL, reduction="sum"
                )
            # No guess equals IGNORED_LABEL, so that a row without a target is never right.
            guesses_BN = logits_BK.topk(min(5, self._num_classes)).indices
            right_BN = guesses_BN == batch.targets[:, None]
            correct = {"top1": right_BN[:, 0].sum(), "top5": right_BN.sum()}
        return Forward(loss_sum=loss_sum, reported_sum=reported_sum, correct=correct)


def build_model(shape: ImageModel, *, image_size: int) -> Classifier:
    """Build the classifier on the meta device, as published where transformers' differs.

    Args:
        shape: architecture and sizes.
        image_size: pixels a side; EfficientNet pads by it.
    """
    with torch.device("meta"):
        if shape.architecture == "resnet":
            return ResNetForImageClassification(
                ResNetConfig(
                    embedding_size=shape.stem_width,
                    hidden_sizes=list(shape.stage_widths),
                    depths=list(shape.stage_depths),
                    num_labels=shape.num_classes,
                )
            )
        config = EfficientNetConfig(
            width_coefficient=shape.width_coefficient,
            depth_coefficient=shape.depth_coefficient,
            hidden_dim=round(1280 * shape.width_coefficient),
            image_size=image_size,
            dropout_rate=shape.dropout,
            num_labels=shape.num_classes,
            batch_norm_momentum=_EFFICIENTNET_NORM_MOMENTUM,
        )
        config.depthwise_padding = _odd_sized_blocks(config)
        model = EfficientNetForImageClassification(config)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = _EFFICIENTNET_NORM_MOMENTUM
        for block in model.efficientnet.encoder.blocks:
            block.projection.dropout = DropPath(block.projection.dropout.p)
        return model


class DropPath(nn.Module):
    """Leaves out a residual branch for some images of a batch, and scales the others to make up.

    transformers drops single activations here. Source: Huang et al., "Deep Networks with Stochastic
    Depth" (2016), as in EfficientNet's own code (`drop_connect`).
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.p = probability

    def forward(self, branch_BCHW: torch.Tensor) -> torch.Tensor:
        """Return zero, or the branch divided by its chance; in evaluation, the branch itself."""
        if not self.training or self.p == 0.0:
            return branch_BCHW
        kept = 1.0 - self.p
        mask_B111 = branch_BCHW.new_empty(branch_BCHW.shape[0], 1, 1, 1).bernoulli_(kept)
        return branch_BCHW * (mask_B111 / kept)


def initialise(model: Classifier, *, seed: int, device: torch.device) -> None:
    """Give every parameter and buffer memory on `device` and its first value.

    Convolutions are drawn from N(0, 2 / fan_out), the head from N(0, 0.01^2), biases begin at zero
    and norms at one, but for the last norm of ResNet's residual branches, which begins at zero so
    that each block passes its input on. Running means are 0, variances 1, batches counted 0: what
    to_empty leaves there would be whatever was in memory. Each weight has a generator of its own,
    seeded by the run's seed and its name.

    Source: He et al., "Delving Deep into Rectifiers" (2015); Goyal et al. (2017), section 5.1.
    """
    model.to_empty(device=device)
    passing_on = {
        id(module.layer[-1].normalization)
        for module in model.modules()
        if isinstance(module, ResNetBottleNeckLayer)
    }
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
                module.weight.fill_(0.0 if id(module) in passing_on else 1.0)
                module.bias.zero_()
            elif isinstance(module, nn.Conv2d | nn.Linear):
                std = _HEAD_STD
                if isinstance(module, nn.Conv2d):
                    height, width = module.kernel_size
                    std = math.sqrt(2.0 / (module.out_channels * height * width))
                module.weight.copy_(_normal(f"{name}.weight", module.weight.shape, std, seed=seed))
                if module.bias is not None:
                    module.bias.zero_()
            else:
                assert not module._parameters, f"no rule for the first values of {name}"
    # The layout that tensor cores want and CPUs like. Pixels arrive in it, so gradients have it
    # too, and DDP need not copy them.
    model.to(memory_format=torch.channels_last)


def _normal(name: str, shape: torch.Size, std: float, *, seed: int) -> torch.Tensor:
    """Draw on the CPU, so that the first weights do not depend on the device either."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)


def _blocks(model: Classifier) -> list[nn.Module]:
    if isinstance(model, ResNetForImageClassification):
        return [layer for stage in model.resnet.encoder.stages for layer in stage.layers]
    return list(model.efficientnet.encoder.blocks)


def _odd_sized_blocks(config: EfficientNetConfig) -> list[int]:
    """List the blocks that halve an odd number of pixels and so pad both sides alike.

    google/efficientnet-b7 lists 18 for 600 pixels (75 to 38); it depends on the size of the images.
    """
    found = []
    size = config.image_size // 2
    block = 0
    for repeats, stride in zip(config.num_block_repeats, config.strides, strict=True):
        if stride == 2:
            if size % 2:
                found.append(block)
            size = math.ceil(size / 2)
        block += math.ceil(config.depth_coefficient * repeats)
    return found
