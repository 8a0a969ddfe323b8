"""Image files to batches, and a ResNet-50 step on this machine's CPU.

Photographs cannot be shipped, so the files are drawn: 500 x 375 pixels and 110 kB of JPEG each, the
average of ImageNet. CPU time is what counts for decoding: threads decode side by side.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image

from bench.figures import Figure
from stationmaster.domain.catalogue.training_config import ImageTraining
from stationmaster.domain.planning.recipe_lookup import get_recipe
from training.data.image_source import ImageSource
from training.data.images import PreparedImages, list_images
from training.models.image import ImageTask
from training.task import Batch

ROUNDS: Final = 3
_SIZE: Final = (500, 375)
_FILES: Final = 16
_QUALITY: Final = 92


def measure_images() -> list[Figure]:
    """Return the images a second on a core of reading training images, and of training."""
    recipe = get_recipe("resnet50")
    with tempfile.TemporaryDirectory(prefix="bench-images-") as name:
        directory = Path(name)
        num_bytes = _write_photographs(directory / "train" / "class")
        images = PreparedImages(
            train=list_images(directory / "train", listings=directory, dataset=name),
            validation=None,
        )
        figures = []
        for size in (224, 64):
            training = recipe.with_overrides(
                {
                    "image_size": str(size),
                    "data_workers": "0",
                    "global_batch_size": "32",
                    "micro_batch_size": "32",
                }
            ).training
            assert isinstance(training, ImageTraining)
            source = ImageSource(images, training=training, rank=0, world_size=1)
            rates = [_reading(source, first=turn * 320, steps=10) for turn in range(ROUNDS)]
            figures.append(
                Figure(
                    name=f"image decode, cut and scale to {size}",
                    value=statistics.median(rates),
                    unit="images/s",
                    note=f"median of {ROUNDS} x 320 files of {num_bytes // 1000} kB, on a core",
                )
            )
        task = ImageTask(recipe, source, device=torch.device("cpu"))
    return [*figures, _training(task)]


def _write_photographs(directory: Path) -> int:
    """Write noise at many scales, which compresses like a photograph; return the mean bytes."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    width, height = _SIZE
    for number in range(_FILES):
        pixels = rng.normal(scale=14.0, size=(height, width, 3))
        for scale in (4, 16, 64):
            coarse = rng.normal(scale=20.0, size=(-(-height // scale), -(-width // scale), 3))
            pixels += coarse.repeat(scale, axis=0).repeat(scale, axis=1)[:height, :width]
        image = Image.fromarray((pixels + 128.0).clip(0, 255).astype(np.uint8))
        image.save(directory / f"{number:02}.jpg", quality=_QUALITY)
    return sum(path.stat().st_size for path in directory.iterdir()) // _FILES


def _reading(source: ImageSource, *, first: int, steps: int) -> float:
    began, num_images = time.process_time(), 0
    for step in range(steps):
        for batch in source.micro_batches(first + 32 * step):
            num_images += len(batch.targets)
    return num_images / (time.process_time() - began)


def _training(task: ImageTask) -> Figure:
    """Forward and backward of the whole ResNet-50, 8 images of 64 pixels, one thread."""
    task.initialise(device=torch.device("cpu"))
    pixels = torch.randint(0, 256, (8, 64, 64, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    batch = Batch(inputs=pixels, targets=torch.arange(8))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rates = []
    for _ in range(6):
        began = time.process_time()
        torch.autograd.backward(task.forward(task.model, batch).loss_sum)
        rates.append(8 / (time.process_time() - began))
    torch.set_num_threads(threads)
    return Figure(
        name="resnet50 step on the CPU",
        value=statistics.median(rates[1:]),
        unit="images/s",
        note="forward and backward, 8 images of 64 pixels, fp32, one thread; median of 5",
    )
