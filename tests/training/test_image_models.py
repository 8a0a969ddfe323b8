"""Image classifiers: published shapes, real first weights, the loss, and that they learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hub_lone import NoData
from torch import nn
from torch.nn import functional

from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import TrainingConfig
from stationmaster.domain.planning.recipe_lookup import get_recipe
from training.config import parse_config
from training.data.image_lists import prepare_images
from training.data.image_source import open_images
from training.models.image import DropPath, ImageTask, build_model, initialise
from training.optimizer import build_optimizer
from training.schedule import learning_rate
from training.task import Batch, BatchSource

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


class Answers(nn.Module):
    """In a model's place: remembers the pixels and gives fixed logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, pixels: torch.Tensor) -> SimpleNamespace:
        self.pixels = pixels
        return SimpleNamespace(logits=self.logits)


def _recipe(name: str, **overrides: str) -> Recipe:
    return get_recipe(name).with_overrides({"preset": "smoke", **overrides})


def _shape(recipe: Recipe) -> ImageModel:
    assert isinstance(recipe.model, ImageModel)
    return recipe.model


def _task(name: str, **overrides: str) -> ImageTask:
    return ImageTask(_recipe(name, **overrides), NoData(), device=CPU)


@pytest.mark.parametrize(
    ("name", "overrides", "num_parameters"),
    [
        # Source: torchvision's and the papers' models of these names.
        ("resnet50", {}, 25_557_032),
        ("efficientnet-b7", {}, 66_347_960),
        ("resnet50", {"preset": "smoke"}, 10_484),
        ("efficientnet-b7", {"preset": "smoke"}, 124_896),
    ],
)
def test_build_model_has_the_published_number_of_parameters(
    name: str, overrides: Mapping[str, str], num_parameters: int
) -> None:
    shape = _shape(get_recipe(name).with_overrides(overrides))

    model = build_model(shape, image_size=shape.native_image_size)

    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert sum(p.numel() for p in model.parameters()) == num_parameters == shape.num_parameters


def test_build_model_efficientnet_b7_is_as_published() -> None:
    shape = _shape(get_recipe("efficientnet-b7"))

    model = build_model(shape, image_size=600)

    assert {m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {0.01}
    # Source: google/efficientnet-b7's configuration lists block 18, where 75 pixels become 38.
    assert model.config.depthwise_padding == [18]
    drops = [block.projection.dropout for block in model.efficientnet.encoder.blocks]
    assert all(isinstance(drop, DropPath) for drop in drops)
    assert [drops[i].p for i in (0, 54)] == [0.0, pytest.approx(0.2 * 54 / 55)]
    assert len(drops) == 55
    assert model.classifier.in_features == 2560
    with torch.device("meta"):
        features = model.efficientnet(torch.empty(1, 3, 600, 600)).last_hidden_state
    assert features.shape == (1, 2560, 19, 19)


@pytest.mark.parametrize("image_size", [50, 66])
def test_build_model_efficientnet_halves_any_size_rounding_up(image_size: int) -> None:
    model = build_model(_shape(_recipe("efficientnet-b7")), image_size=image_size)

    with torch.device("meta"):
        features = model.efficientnet(torch.empty(2, 3, image_size, image_size)).last_hidden_state

    size = image_size // 2
    for _ in range(4):
        size = math.ceil(size / 2)
    assert features.shape[-2:] == (size, size)


@pytest.mark.parametrize("name", ["resnet50", "efficientnet-b7"])
def test_initialise_leaves_nothing_as_memory_had_it(name: str) -> None:
    task = _task(name)

    # In this mode torch fills new memory with NaN, and with the largest integer.
    torch.use_deterministic_algorithms(True)
    try:
        task.initialise(device=CPU)
    finally:
        torch.use_deterministic_algorithms(False)

    assert {p.device.type for p in (*task.model.parameters(), *task.model.buffers())} == {"cpu"}
    assert all(p.isfinite().all() for p in task.model.parameters())
    norms = [m for m in task.model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        assert torch.equal(norm.running_mean, torch.zeros_like(norm.running_mean))
        assert torch.equal(norm.running_var, torch.ones_like(norm.running_var))
        assert int(norm.num_batches_tracked) == 0
    assert len(list(task.model.buffers())) == 3 * len(norms)


def test_initialise_draws_convolutions_with_the_published_spread() -> None:
    shape = _shape(get_recipe("efficientnet-b7"))
    shallow = shape.model_copy(update={"width_coefficient": 1.0, "depth_coefficient": 0.25})
    model = build_model(shallow, image_size=600)

    initialise(model, seed=1, device=CPU)

    blocks = model.efficientnet.encoder.blocks
    depthwise = blocks[-1].depthwise_conv.depthwise_conv
    assert depthwise.weight.shape == (1152, 1, 3, 3)
    # Of a depthwise convolution, too, the fan-out is outputs x 3 x 3, as in EfficientNet's code.
    assert float(depthwise.weight.detach().std()) == pytest.approx(
        math.sqrt(2 / (1152 * 9)), rel=0.02
    )
    top = model.efficientnet.encoder.top_conv
    assert float(top.weight.detach().std()) == pytest.approx(math.sqrt(2 / 1280), rel=0.02)
    assert float(model.classifier.weight.detach().std()) == pytest.approx(0.01, rel=0.02)


def test_initialise_resnet_blocks_pass_their_input_on() -> None:
    task = _task("resnet50")
    task.initialise(device=CPU)
    block = task.model.resnet.encoder.stages[0].layers[0]
    features = torch.randn(2, 16, 8, 8)

    passed = block(features)

    assert torch.equal(passed, functional.relu(block.shortcut(features)))


def test_initialise_depends_on_the_seed_and_on_nothing_else() -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        model = build_model(_shape(_recipe("resnet50")), image_size=32)
        torch.rand(3)
        initialise(model, seed=seed, device=CPU)
        return list(model.parameters())

    first, again, other = weights(1), weights(1), weights(2)

    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True) if a.ndim == 4)
    assert not torch.equal(first[0].flatten()[:16], first[3].flatten()[:16])


@pytest.mark.parametrize("name", ["resnet50", "efficientnet-b7"])
def test_gradients_lie_in_memory_as_their_weights_do(name: str) -> None:
    task = _task(name)
    task.initialise(device=CPU)
    # As the source gives them: colours last in memory.
    pixels = torch.zeros(4, 64, 64, 3, dtype=torch.uint8).permute(0, 3, 1, 2)

    task.forward(task.model, Batch(inputs=pixels, targets=torch.arange(4))).loss_sum.backward()

    # DDP copies, and warns about, every gradient that is laid out otherwise.
    convolutions = [p for p in task.model.parameters() if p.ndim == 4]
    assert [p.grad.stride() for p in convolutions] == [p.stride() for p in convolutions]


def test_drop_path_leaves_out_whole_images_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    drop = DropPath(0.25)
    branch = torch.ones(4000, 2, 3, 3)

    dropped = drop(branch)
    kept = dropped.flatten(1)

    assert sorted(set(kept[:, 0].tolist())) == pytest.approx([0.0, 1 / 0.75])
    assert torch.equal(kept, kept[:, :1].expand_as(kept))
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.03)
    assert torch.equal(drop.eval()(branch), branch)


def test_forward_sums_the_loss_and_counts_right_guesses_of_rows_with_a_target() -> None:
    recipe = get_recipe("resnet50").with_overrides({"image_size": "64"})
    task = ImageTask(recipe, NoData(), device=CPU)
    # The first row's target is guessed first, the next one's fifth, then sixth, and one has none.
    logits_BK = -torch.arange(1000.0).repeat(4, 1)
    batch = Batch(
        inputs=torch.zeros(4, 3, 8, 8, dtype=torch.uint8), targets=torch.tensor([0, 4, 5, -100])
    )

    forward = task.forward(Answers(logits_BK), batch)

    expected = -float(logits_BK[0].log_softmax(0)[[0, 4, 5]].sum())
    assert forward.loss_sum.item() == pytest.approx(expected)
    assert float(forward.reported_sum) == pytest.approx(expected)
    assert {name: int(count) for name, count in forward.correct.items()} == {"top1": 1, "top5": 2}


def test_forward_smooths_the_loss_to_learn_from_and_not_the_reported_one() -> None:
    task = _task("resnet50", label_smoothing="0.2")
    logits_BK = torch.tensor([[2.0, 1.0, 0.0, -1.0], [5.0, 5.0, 5.0, 5.0]])
    batch = Batch(
        inputs=torch.zeros(2, 3, 8, 8, dtype=torch.uint8), targets=torch.tensor([0, -100])
    )

    forward = task.forward(Answers(logits_BK), batch)

    log_p = logits_BK[0].log_softmax(0)
    assert float(forward.reported_sum) == pytest.approx(-float(log_p[0]))
    assert forward.loss_sum.item() == pytest.approx(
        -float(0.8 * log_p[0] + 0.2 * log_p.mean()), rel=1e-6
    )
    assert forward.loss_sum.requires_grad
    assert not forward.reported_sum.requires_grad


def test_forward_brings_pixels_to_imagenets_mean_and_spread() -> None:
    task = _task("resnet50")
    model = Answers(torch.zeros(2, 4))
    colours = torch.tensor([[0, 0, 0], [255, 128, 64]], dtype=torch.uint8)
    batch = Batch(
        inputs=colours[:, :, None, None].expand(2, 3, 4, 4), targets=torch.zeros(2).long()
    )

    task.forward(model, batch)

    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (colours / 255 - mean) / std
    assert torch.allclose(model.pixels[:, :, 0, 0], expected, atol=1e-5)


def test_resnet_on_shapes_learns_within_thirty_steps(tmp_path: Path) -> None:
    words = ["resnet50", "preset=smoke", "steps=30", "eval_samples=0"]
    config = parse_config(
        [*words, "--output-dir", str(tmp_path)], {"STATIONMASTER_CACHE_DIR": str(tmp_path)}
    )
    source = open_images(prepare_images(config), config, rank=0, world_size=1)
    task = ImageTask(config.recipe, source, device=CPU)
    task.initialise(device=CPU)
    before = _top1(task, source)

    losses = _train(task, source, config.recipe.training)

    assert losses[0] == pytest.approx(math.log(4), rel=0.15)
    assert sum(losses[-5:]) / 5 < 0.6
    assert before < 0.5
    assert _top1(task, source) > 0.8  # 0.25 by chance


def _train(task: ImageTask, source: BatchSource, training: TrainingConfig) -> list[float]:
    """Train to the last step, as one rank does; the loss of each step."""
    optimizer = build_optimizer(task.model, training)
    torch.manual_seed(0)
    losses = []
    for step in range(training.steps):
        loss_sum = 0.0
        for batch in source.micro_batches(step * training.global_batch_size):
            forward = task.forward(task.model, batch)
            (forward.loss_sum / training.global_batch_size).backward()
            loss_sum += float(forward.reported_sum)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step + 1, training)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss_sum / training.global_batch_size)
    return losses


def _top1(task: ImageTask, source: BatchSource) -> float:
    task.model.eval()
    with torch.no_grad():
        batches = list(source.evaluation_batches())
        right = sum(int(task.forward(task.model, batch).correct["top1"]) for batch in batches)
    task.model.train()
    return right / sum(batch.count_targets() for batch in batches)


@pytest.mark.parametrize(
    ("name", "overrides", "rate"),
    [
        ("resnet50", {}, 0.4),  # 0.1 for 256 images
        ("resnet50", {"global_batch_size": "256"}, 0.1),
        ("resnet50", {"global_batch_size": "256", "learning_rate": "0.3"}, 0.3),
        ("efficientnet-b7", {"global_batch_size": "256"}, 0.1),
    ],
)
def test_recipe_learning_rate_follows_the_batch_unless_given(
    name: str, overrides: dict[str, str], rate: float
) -> None:
    training = get_recipe(name).with_overrides(overrides).training

    assert training.learning_rate == pytest.approx(rate)


def test_recipe_resnet50_rate_falls_to_a_tenth_every_thirty_epochs() -> None:
    training = get_recipe("resnet50").training
    epoch = 1_281_167 // training.global_batch_size

    rates = [learning_rate(number * epoch, training) for number in (5, 29, 31, 61, 89)]

    assert training.steps == 90 * epoch
    assert rates == pytest.approx([0.4, 0.4, 0.04, 0.004, 0.004])
