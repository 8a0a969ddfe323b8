"""Image folders: what is listed, what is refused, and which images each rank gets when."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stationmaster.domain.errors import BadParameter, PermanentError
from training.config import TrainerConfig, parse_config
from training.data.image_lists import ImageList, list_images, prepare_images
from training.data.image_source import ImageSource, central_box, decode, open_images, training_box
from training.task import IGNORED_LABEL, Batch

CLASSES = ("buffer", "platform", "signal", "track")
TRAIN_IMAGES = 20
VALIDATION_IMAGES = 12


def _colour(number: int) -> tuple[int, int, int]:
    return (number, 255 - number, 128)


def _write_images(root: Path) -> None:
    """Images of one colour each, which no crop or flip changes: the red part is their number."""
    for split, count in (("train", TRAIN_IMAGES), ("val", VALIDATION_IMAGES)):
        for number in range(count):
            folder = root / split / CLASSES[number % len(CLASSES)]
            folder.mkdir(parents=True, exist_ok=True)
            size = (20 + number, 40 - number)
            Image.new("RGB", size, _colour(number)).save(folder / f"{number:02}.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    _write_images(root)
    return root


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("image-cache")


def _config(dataset: Path | str, cache: Path, *overrides: str) -> TrainerConfig:
    return parse_config(
        ["resnet50", "preset=smoke", f"dataset={dataset}", *overrides, "--output-dir", str(cache)],
        {"STATIONMASTER_CACHE_DIR": str(cache)},
    )


def _source(
    folder: Path, cache: Path, *overrides: str, rank: int = 0, world_size: int = 1
) -> ImageSource:
    config = _config(folder, cache, "image_size=16", *overrides)
    return open_images(prepare_images(config), config, rank=rank, world_size=world_size)


def _shapes(cache: Path, *overrides: str, rank: int = 0, world_size: int = 1) -> ImageSource:
    config = _config("shapes", cache, *overrides)
    return open_images(prepare_images(config), config, rank=rank, world_size=world_size)


def _numbers(batches: list[Batch]) -> list[int]:
    """The numbers of the images that have a target."""
    return [
        int(image[0, 0, 0])
        for batch in batches
        for image, target in zip(batch.inputs, batch.targets, strict=True)
        if int(target) != IGNORED_LABEL
    ]


def test_images_module_is_loaded_without_torch() -> None:
    program = "import sys, training.data.image_lists; print('torch' in sys.modules)"

    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert answer.stdout == "False\n"


def test_list_images_numbers_classes_by_sorted_names_and_skips_other_files(
    tmp_path: Path, cache: Path
) -> None:
    for name in ("b/2.JPEG", "b/1.png", "a/3.jpg", "a/notes.txt", "a/.hidden.jpg", ".c/4.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    images = list_images(tmp_path, listings=cache, dataset="test")

    assert images.classes == ("a", "b")
    assert [images.path(i) for i in range(len(images))] == [
        tmp_path / name for name in ("a/3.jpg", "b/1.png", "b/2.JPEG")
    ]
    assert [images.label(i) for i in range(len(images))] == [0, 1, 1]


def test_list_images_by_many_at_once_is_written_once_and_anew_when_a_folder_changed(
    tmp_path: Path,
) -> None:
    _write_images(tmp_path)
    listings = tmp_path / "listings"
    listings.mkdir()

    def listed(_number: int = 0) -> ImageList:
        return list_images(tmp_path / "train", listings=listings, dataset="test")

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(listed, range(8))
    written = [path.name.partition("-")[0] for path in listings.iterdir() if path.is_dir()]
    Image.new("RGB", (8, 8)).save(tmp_path / "train" / "track" / "new.png")
    changed = listed()

    assert written == ["images"]
    assert (len(first), len(changed)) == (TRAIN_IMAGES, TRAIN_IMAGES + 1)
    assert {each.sha256 for each in others} == {first.sha256} != {changed.sha256}


def test_prepare_images_finds_the_layout_of_the_imagenet_archive(
    tmp_path: Path, cache: Path
) -> None:
    _write_images(tmp_path / "ILSVRC/Data/CLS-LOC")

    prepared = prepare_images(_config(tmp_path, cache))

    assert len(prepared.train) == TRAIN_IMAGES
    assert prepared.validation is not None
    assert len(prepared.validation) == VALIDATION_IMAGES


def _add_class(root: Path, split: str) -> None:
    (root / split / "tunnel").mkdir()
    Image.new("RGB", (8, 8)).save(root / split / "tunnel" / "1.png")


def _empty_a_class(root: Path) -> None:
    for image in (root / "train" / "signal").iterdir():
        image.unlink()


def _mix_validation_images(root: Path) -> None:
    for image in list((root / "val").rglob("*.png")):
        image.rename(root / "val" / image.name)
    for name in CLASSES:
        (root / "val" / name).rmdir()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (shutil.rmtree, "is not a directory on this machine; expected shapes"),
        (
            lambda root: (root / "train").rename(root / "training"),
            "has no folder train; expected shapes or the path",
        ),
        (
            lambda root: _add_class(root, "train"),
            r"has 5 classes in .*train, .*resnet50 has 4",
        ),
        (
            lambda root: _add_class(root, "val"),
            '4 classes in train and 5 in val, "tunnel" is in one',
        ),
        (_empty_a_class, r"train/signal holds no images; expected files that"),
        (_mix_validation_images, r"no class folders in .*val; move each image into a"),
        (lambda root: (root / "val").rename(root / "v"), "no folder val .* or use eval_every=0"),
    ],
)
def test_prepare_images_names_what_is_not_as_expected(
    tmp_path: Path, cache: Path, spoil: Callable[[Path], object], sentence: str
) -> None:
    _write_images(tmp_path / "data")
    spoil(tmp_path / "data")

    with pytest.raises(BadParameter, match=sentence):
        prepare_images(_config(tmp_path / "data", cache))


def test_prepare_images_needs_no_validation_folder_for_a_run_without_evaluation(
    tmp_path: Path, cache: Path
) -> None:
    _write_images(tmp_path)
    (tmp_path / "val").rename(tmp_path / "set-aside")

    assert prepare_images(_config(tmp_path, cache, "eval_every=0")).validation is None


def test_shapes_are_four_equal_classes_and_the_same_everywhere(tmp_path: Path) -> None:
    first, second = (
        prepare_images(_config("shapes", tmp_path / name, "image_size=32")) for name in "ab"
    )

    assert first.train.classes == ("circle", "cross", "square", "triangle")
    for images, each in ((first.train, 64), (first.validation, 16)):
        assert images is not None
        labels = Counter(images.label(i) for i in range(len(images)))
        assert labels == dict.fromkeys(range(4), each)
    drawn = [[p.train.path(i).read_bytes() for i in (0, 100, 255)] for p in (first, second)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3


def test_micro_batches_changing_number_of_ranks_sees_each_image_of_an_epoch_once(
    folder: Path, cache: Path
) -> None:
    seen: list[int] = []
    for step, world_size in enumerate((2, 1, 3, 2, 1)):
        for rank in range(world_size):
            source = _source(folder, cache, "global_batch_size=4", rank=rank, world_size=world_size)
            seen += _numbers(list(source.micro_batches(4 * step)))

    assert sorted(seen) == list(range(TRAIN_IMAGES))


def test_micro_batches_more_ranks_cut_each_image_the_same_way(tmp_path: Path) -> None:
    keys = ("global_batch_size=6", "micro_batch_size=2")

    alone, *ranks = (
        {
            (image.numpy().tobytes(), int(target))
            for batch in _shapes(tmp_path, *keys, rank=rank, world_size=world_size).micro_batches(
                600
            )
            for image, target in zip(batch.inputs, batch.targets, strict=True)
        }
        for rank, world_size in ((0, 1), (0, 3), (1, 3), (2, 3))
    )

    assert len(alone) == 6
    assert set().union(*ranks) == alone
    assert [len(rank) for rank in ranks] == [2, 2, 2]


def test_micro_batches_from_the_middle_of_an_epoch_go_on_exactly(tmp_path: Path) -> None:
    uninterrupted = _shapes(tmp_path, "data_workers=0")
    steps = [list(uninterrupted.micro_batches(16 * step)) for step in range(5)]

    resumed = _shapes(tmp_path, "data_workers=2")
    resumed.restore(uninterrupted.state())
    again = [list(resumed.micro_batches(16 * step)) for step in (3, 4)]

    for before, after in zip(steps[3:], again, strict=True):
        for one, other in zip(before, after, strict=True):
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.targets, other.targets)
    assert not torch.equal(steps[3][0].inputs, steps[4][0].inputs)


def test_micro_batches_of_the_next_epoch_are_cut_anew(tmp_path: Path) -> None:
    source = _shapes(tmp_path, "global_batch_size=256", "micro_batch_size=256")

    first, second = (next(source.micro_batches(256 * epoch)) for epoch in range(2))

    assert sorted(first.targets.tolist()) == sorted(second.targets.tolist())
    same = {image.numpy().tobytes() for image in first.inputs} & {
        image.numpy().tobytes() for image in second.inputs
    }
    assert len(same) <= 5  # crops from the inside of a shape, which have one colour only


def test_micro_batches_have_uint8_pixels_laid_out_channels_last(folder: Path, cache: Path) -> None:
    source = _source(folder, cache, "global_batch_size=6", "micro_batch_size=4")

    batches = list(source.micro_batches(0))

    assert [tuple(batch.inputs.shape) for batch in batches] == [(3, 3, 16, 16)] * 2
    assert {batch.inputs.dtype for batch in batches} == {torch.uint8}
    assert all(b.inputs.is_contiguous(memory_format=torch.channels_last) for b in batches)
    for batch in batches:
        assert [int(image[0, 0, 0]) % 4 for image in batch.inputs] == batch.targets.tolist()


def test_micro_batches_all_gap_repeats_the_images_before(folder: Path, cache: Path) -> None:
    # 13 images on 2 ranks in micro-batches of at most 3: 7 rows become 3 micro-batches of 3, and
    # the rank with 6 has nothing left for its last.
    source = _source(
        folder, cache, "global_batch_size=13", "micro_batch_size=3", rank=1, world_size=2
    )

    batches = list(source.micro_batches(0))

    assert [batch.count_targets() for batch in batches] == [3, 3, 0]
    assert {int(target) for target in batches[2].targets} == {IGNORED_LABEL}
    assert torch.equal(batches[2].inputs, batches[1].inputs)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (("global_batch_size=2",), "global_batch_size=2 leaves ranks without an image"),
        (
            ("global_batch_size=6", "norm_batch_size=3"),
            "a step has 2, and there are 3; use fewer nodes",
        ),
    ],
)
def test_open_images_refuses_more_ranks_than_have_something_to_do(
    folder: Path, cache: Path, keys: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(BadParameter, match=sentence):
        _source(folder, cache, *keys, world_size=3)


@pytest.mark.parametrize("world_size", [3, 5])
def test_evaluation_batches_count_every_validation_image_once(
    folder: Path, cache: Path, world_size: int
) -> None:
    keys = ("eval_samples=0", "micro_batch_size=2", "global_batch_size=6")
    ranks = [
        list(_source(folder, cache, *keys, rank=r, world_size=world_size).evaluation_batches())
        for r in range(world_size)
    ]

    numbers = [number for batches in ranks for number in _numbers(batches)]
    assert sorted(numbers) == list(range(VALIDATION_IMAGES))
    assert len({len(batches) for batches in ranks}) == 1
    assert {tuple(b.inputs.shape) for batches in ranks for b in batches} == {(2, 3, 16, 16)}


def test_evaluation_batches_of_few_samples_mix_the_classes(tmp_path: Path) -> None:
    keys = ("eval_samples=12", "data_workers=2")

    first, again = (list(_shapes(tmp_path, *keys).evaluation_batches()) for _ in range(2))
    idle = list(_shapes(tmp_path, *keys, rank=15, world_size=16).evaluation_batches())

    assert sum(batch.count_targets() for batch in first) == 12
    assert len({int(t) for batch in first for t in batch.targets} - {IGNORED_LABEL}) == 4
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again, strict=True))
    assert [batch.count_targets() for batch in idle] == [0]


@pytest.mark.parametrize(("damage", "workers"), [("truncated", 0), ("text", 2)])
def test_micro_batches_damaged_image_is_named(tmp_path: Path, damage: str, workers: int) -> None:
    _write_images(tmp_path)
    path = tmp_path / "train" / "track" / "03.png"
    content = path.read_bytes()
    # A PNG of one colour is all header but for its last bytes.
    path.write_bytes({"truncated": content[:50], "text": b"not an image"}[damage])
    source = _source(
        tmp_path, tmp_path, "global_batch_size=20", "steps=1", f"data_workers={workers}"
    )

    with pytest.raises(
        PermanentError, match=r"image .*train/track/03\.png cannot be read: .+; put"
    ):
        list(source.micro_batches(0))


@pytest.mark.parametrize("mode", ["CMYK", "L", "LA", "P", "RGBA", "1"])
def test_decode_any_mode_gives_three_colours(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("image.jpg" if mode == "CMYK" else "image.png")
    Image.new("RGB", (30, 20), (255, 255, 255)).convert(mode).save(path)

    pixels = decode(path, size=8, choose_box=lambda width, height: (0, 0, width, height))

    assert pixels.shape == (8, 8, 3)
    assert int(pixels.min()) >= 250


@pytest.mark.parametrize("size", [(40, 30), (1603, 1201)])
def test_decode_takes_the_chosen_part_at_any_resolution(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    # The large one is decoded at a fraction of its size, to which the box has to be brought.
    width, height = size
    image = Image.new("RGB", size, (255, 0, 0))
    image.paste((0, 0, 255), (width // 2, 0, width, height))
    image.save(tmp_path / "halves.jpg", quality=95)

    def part(left: float, right: float) -> list[int]:
        box = (left * width, 0.0, right * width, height)
        pixels = decode(tmp_path / "halves.jpg", size=16, choose_box=lambda *_: box)
        return [round(float(c)) for c in pixels[:, (0, -1)].mean(axis=0).flatten()]

    assert part(0.0, 0.4) == pytest.approx([255, 0, 0, 255, 0, 0], abs=6)
    assert part(0.6, 1.0) == pytest.approx([0, 0, 255, 0, 0, 255], abs=6)
    assert part(0.0, 1.0) == pytest.approx([255, 0, 0, 0, 0, 255], abs=6)


@given(
    width=st.integers(1, 3000),
    height=st.integers(1, 3000),
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=40, max_size=40),
)
def test_training_box_lies_inside_the_image(width: int, height: int, draws: list[float]) -> None:
    left, top, right, bottom = training_box(width, height, draws=draws)

    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert (right - left) / (bottom - top) <= 4 / 3 * (1 + 1 / (bottom - top)) + 0.5


def test_training_box_covers_8_to_100_percent_of_the_area() -> None:
    areas = []
    for step in range(100):
        left, top, right, bottom = training_box(400, 400, draws=[step / 100, 0.5, 0.5, 0.5] * 10)
        areas.append((right - left) * (bottom - top) / 160_000)

    assert min(areas) == pytest.approx(0.08, abs=0.002)
    assert max(areas) == pytest.approx(0.99, abs=0.01)


@pytest.mark.parametrize(("size", "part"), [(224, 224 / 256), (600, 600 / 632), (32, 7 / 8)])
def test_central_box_is_the_published_part_of_the_shorter_side(size: int, part: float) -> None:
    left, top, right, bottom = central_box(1000, 800, size=size)

    assert right - left == bottom - top == pytest.approx(800 * part)
    assert (left + right, top + bottom) == (1000, 800)


def test_micro_batches_of_a_norm_batch_size_are_the_same_on_any_number_of_ranks(
    folder: Path, cache: Path
) -> None:
    keys = ("global_batch_size=6", "norm_batch_size=2")
    (alone,) = (list(_source(folder, cache, *keys).micro_batches(6)),)

    shared = [
        list(_source(folder, cache, *keys, rank=rank, world_size=2).micro_batches(6))
        for rank in range(2)
    ]

    # Three passes: the first and the third, and the second and one that counts for nothing.
    assert [[b.count_targets() for b in batches] for batches in shared] == [[2, 2], [2, 0]]
    for one, other in zip(alone, (shared[0][0], shared[1][0], shared[0][1]), strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
