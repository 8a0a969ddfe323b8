"""Images to batches: which images a step trains on, cut, scaled and flipped, for one rank.

The same global counter and seeded permutation as for text decide which image comes next, and the
counter with the seed decides how it is cut: neither depends on the number of ranks or threads. So a
run continues exactly in the middle of an epoch with only the counter.

Shape legend: B images of a micro-batch, H and W pixels a side, C three colours.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from stationmaster.domain.catalogue.training_config import ImageTraining, steps_over
from stationmaster.domain.errors import BadParameter, PermanentError
from training.config import TrainerConfig
from training.data.image_lists import PreparedImages
from training.data.order import SampleOrder, micro_batch_shape, rank_counters
from training.task import IGNORED_LABEL, Batch, DataState

# Steps and evaluation batches that are decoded ahead of the one in use: while a step computes the
# next is being read, and a slow file is caught up with. 2 x 128 images of 224 pixels are 39 MB.
_AHEAD: Final = 2
# Source: Inception's crops, as in "Going deeper with convolutions" (2014), section 6, and in every
# published ResNet schedule since: 8 to 100 % of the area, 3:4 to 4:3, whole image after 10 misses.
_CROP_AREA: Final = (0.08, 1.0)
_CROP_RATIO: Final = (3 / 4, 4 / 3)
_CROP_ATTEMPTS: Final = 10
# Keeps the draws for crops apart from those for the order of samples, which has the same seed.
_CROP_STREAM: Final = 1 << 32
# What Pillow's decoders raise about a damaged file.
_DAMAGED: Final = (
    OSError,
    EOFError,
    SyntaxError,
    ValueError,
    IndexError,
    struct.error,
    Image.DecompressionBombError,
)

Pixels = npt.NDArray[np.uint8]
Box = tuple[float, float, float, float]
"""The left, top, right and bottom in pixels of the stored image."""
Read = Callable[[], tuple[Pixels, int]]
"""A call that gives an image (H, W, C) and its label, decoded by then or now."""


class ImageSource:
    """A rank's images: a `BatchSource` of uint8 pixels.

    Batch norm looks at every row of a micro-batch, also at those that count for nothing. So where
    the batch does not divide among ranks and micro-batches, images of this rank's own step fill the
    gap, without a target; blank ones never do.
    """

    def __init__(
        self, prepared: PreparedImages, *, training: ImageTraining, rank: int, world_size: int
    ) -> None:
        batch = training.global_batch_size
        if batch < world_size:
            raise BadParameter(
                f"global_batch_size={batch} leaves ranks without an image, there are {world_size}; "
                f"use {world_size} or more, or fewer nodes"
            )
        size = training.norm_batch_size
        if size * world_size > batch:
            raise BadParameter(
                f"norm_batch_size={size} leaves ranks without a forward pass: a step has "
                f"{batch // size}, and there are {world_size}; use fewer nodes, or norm_batch_size="
                f"{batch // world_size} or less"
            )
        self.num_micro_batches, self.micro_batch_size = (
            (-(-batch // size // world_size), size)
            if size
            else micro_batch_shape(
                -(-batch // world_size), micro_batch_size=training.micro_batch_size
            )
        )
        self.identity = prepared.train.sha256
        self.samples_per_epoch = len(prepared.train)
        self._steps = steps_over(training, len(prepared.train))
        self._train = prepared.train
        self._validation = prepared.validation
        self._training = training
        self._rank = rank
        self._world_size = world_size
        self._order = SampleOrder(num_samples=len(prepared.train), seed=training.seed)
        self._pool = (
            ThreadPoolExecutor(training.data_workers, thread_name_prefix="images")
            if training.data_workers
            else None
        )
        self._started: dict[int, list[Read]] = {}

    def micro_batches(self, samples_seen: int) -> Iterator[Batch]:
        """Yield the micro-batches of the step after `samples_seen` samples, on the CPU.

        inputs: (B, C, H, W) uint8, channels last in memory; targets: (B,) int64.

        Raises:
            PermanentError: an image cannot be read.
        """
        batch = self._training.global_batch_size
        wanted = [samples_seen + ahead * batch for ahead in range(_AHEAD + 1)]
        end = self._steps * batch
        self._started = {
            start: self._started.get(start) or self._start_step(start)
            for start in wanted
            if start < end or start == samples_seen
        }
        reads = self._started.pop(samples_seen)
        size = self.micro_batch_size
        filler: list[tuple[Pixels, int]] = []
        for first in range(0, self.num_micro_batches * size, size):
            rows = [read() for read in reads[first : first + size]]
            filler = rows or filler
            yield _batch(rows, filler=filler, size=size)

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield this rank's part of the validation images, in the middle and unflipped.

        They are the first `eval_samples` of a seeded order that mixes the classes, or all for 0.
        """
        if self._validation is None:
            return
        total = len(self._validation)
        chosen = min(self._training.eval_samples or total, total)
        order = SampleOrder(num_samples=total, seed=self._training.seed)
        size = self.micro_batch_size
        num_batches = -(-chosen // (self._world_size * size))
        indices = order.indices(range(self._rank, chosen, self._world_size)).tolist()
        waiting = (
            [self._submit(partial(self._read_validation, index)) for index in part]
            for part in (
                indices[first : first + size] for first in range(0, num_batches * size, size)
            )
        )
        started = list(islice(waiting, _AHEAD))
        filler: list[tuple[Pixels, int]] = []
        while started:
            rows = [read() for read in started.pop(0)]
            started += islice(waiting, 1)
            # A rank without any image of its own reads one that another counts.
            filler = rows or filler or [self._read_validation(order.index(0))]
            yield _batch(rows, filler=filler, size=size)

    def facts(self) -> dict[str, str | int]:
        """Return what the `started` line says about the data."""
        return {
            "image_size": self._training.image_size,
            "dataset_images": len(self._train),
            "dataset_classes": len(self._train.classes),
            "evaluation_images": len(self._validation) if self._validation else 0,
        }

    def state(self) -> DataState:
        """Return nothing: the counter decides alone."""
        return {}

    def restore(self, state: DataState) -> None:
        """Restore nothing: the counter is enough to continue."""

    def _start_step(self, start: int) -> list[Read]:
        return [
            self._submit(partial(self._read_training, counter, index))
            for counters in self._counters(start)
            # The order is asked for here, not in the threads: it remembers what it computed last.
            for counter, index in zip(counters, self._order.indices(counters).tolist(), strict=True)
        ]

    def _counters(self, start: int) -> list[range]:
        """List which samples of a step are this rank's: every so many, or those of whole passes.

        With norm_batch_size the passes of a step are the same for any number of ranks, and dealt
        out among them: where that does not come out even, a rank's last pass counts for nothing.
        """
        batch, size = self._training.global_batch_size, self._training.norm_batch_size
        cut = partial(rank_counters, start=start, global_batch_size=batch)
        if not size:
            return [cut(rank=self._rank, world_size=self._world_size)]
        passes = batch // size
        own = range(self._rank, passes, self._world_size)
        return [cut(rank=number, world_size=passes) for number in own]

    def _submit(self, read: Read) -> Read:
        return read if self._pool is None else self._pool.submit(read).result

    def _read_training(self, counter: int, index: int) -> tuple[Pixels, int]:
        size = self._training.image_size
        draws = _draws(self._training.seed, counter)
        pixels = decode(
            self._train.path(index), size=size, choose_box=partial(training_box, draws=draws)
        )
        flipped = draws[-1] < 0.5
        return (pixels[:, ::-1] if flipped else pixels), self._train.label(index)

    def _read_validation(self, index: int) -> tuple[Pixels, int]:
        assert self._validation is not None
        size = self._training.image_size
        pixels = decode(
            self._validation.path(index), size=size, choose_box=partial(central_box, size=size)
        )
        return pixels, self._validation.label(index)


def open_images(
    prepared: PreparedImages, config: TrainerConfig, *, rank: int, world_size: int
) -> ImageSource:
    """Open one rank's part of the images.

    Raises:
        BadParameter: the batch has fewer images than there are ranks.
    """
    assert isinstance(config.recipe.training, ImageTraining)
    return ImageSource(prepared, training=config.recipe.training, rank=rank, world_size=world_size)


def decode(path: Path, *, size: int, choose_box: Callable[[int, int], Box]) -> Pixels:
    """Read an image and scale a part of it to (size, size, 3), bilinear with antialiasing.

    Anything that Pillow reads will do: ImageNet has CMYK, grey and misnamed files.

    Args:
        path: of the image.
        size: pixels a side of what is returned.
        choose_box: from the stored width and height, the part to take.

    Raises:
        PermanentError: the file is missing or damaged, naming it.
    """
    try:
        with Image.open(path) as stored:
            width, height = stored.size
            left, top, right, bottom = choose_box(width, height)
            # JPEG can decode to 1/2, 1/4 or 1/8 of its size, which is much faster: to the smallest
            # that leaves the part `size` pixels or more.
            stored.draft(
                None,
                (
                    math.ceil(width * size / (right - left)),
                    math.ceil(height * size / (bottom - top)),
                ),
            )
            image = stored.convert("RGB")
        across, down = image.width / width, image.height / height
        box = (left * across, top * down, right * across, bottom * down)
        return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
    except _DAMAGED as exc:
        raise PermanentError(
            f"image {path} cannot be read: {str(exc) or type(exc).__name__}; put a readable copy "
            "in its place and start again, training continues from the last checkpoint"
        ) from exc


def training_box(width: int, height: int, *, draws: Sequence[float]) -> Box:
    """Draw a part of an image: of 8 to 100 % of its area and a shape near a square.

    Args:
        width: of the image.
        height: of the image.
        draws: four numbers in [0, 1) for each of ten attempts.
    """
    for attempt in range(_CROP_ATTEMPTS):
        area_draw, ratio_draw, left_draw, top_draw = draws[4 * attempt : 4 * attempt + 4]
        low, high = _CROP_AREA
        area = width * height * (low + (high - low) * area_draw)
        low, high = map(math.log, _CROP_RATIO)
        ratio = math.exp(low + (high - low) * ratio_draw)
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left = int(left_draw * (width - across + 1))
            top = int(top_draw * (height - down + 1))
            return (left, top, left + across, top + down)
    narrowest, widest = _CROP_RATIO
    across = min(width, round(height * widest))
    down = min(height, round(width / narrowest))
    left, top = (width - across) // 2, (height - down) // 2
    return (left, top, left + across, top + down)


def central_box(width: int, height: int, *, size: int) -> Box:
    """Return the square in the middle for evaluation: 7/8 of the shorter side, or more.

    Source: ResNet's 224 of 256 pixels and EfficientNet's 600 of 632 (a border of 32 pixels in all).
    """
    side = min(width, height) * max(7 / 8, size / (size + 32))
    left, top = (width - side) / 2, (height - side) / 2
    return (left, top, left + side, top + side)


def _draws(seed: int, counter: int) -> list[float]:
    """Draw random numbers in [0, 1) for one sample; numpy promises Philox's raw stream for ever."""
    raw = np.random.Philox(key=[_CROP_STREAM + seed, counter]).random_raw(4 * _CROP_ATTEMPTS + 1)
    return list((raw >> np.uint64(11)) * 2.0**-53)


def _batch(
    rows: Sequence[tuple[Pixels, int]], *, filler: Sequence[tuple[Pixels, int]], size: int
) -> Batch:
    """Stack `rows` and, up to `size` of them, `filler` over and over, without targets."""
    pixels = [image for image, _ in rows]
    pixels += [filler[row % len(filler)][0] for row in range(size - len(rows))]
    targets_B = torch.full((size,), IGNORED_LABEL)
    targets_B[: len(rows)] = torch.tensor([label for _, label in rows], dtype=torch.int64)
    # (B, H, W, C) in memory, which is what channels_last means and convolutions like.
    return Batch(inputs=torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2), targets=targets_B)
