"""What can be known of the images without building them: the rules that each Dockerfile keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from stacks.config import StageConfig
from stationmaster.diagnosis.lint.versions import defects_of
from stationmaster.rendering.nccl_tests import IMAGE as NCCL_TESTS_IMAGE

ROOT = Path(__file__).parents[2]
IMAGES = sorted(path.parent.name for path in (ROOT / "container").glob("*/Dockerfile"))
# BuildKit gives these to every Dockerfile that asks.
GIVEN = {"BUILDARCH", "BUILDPLATFORM", "TARGETARCH"}
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|(?:ACCESS|API|PRIVATE)_?KEY")
SELF_CHECK = "/usr/local/lib/stationmaster/self_check.py"
every_image = pytest.mark.parametrize("image", IMAGES)


@dataclass(frozen=True)
class Instruction:
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return self.text.split()


@cache
def instructions(image: str) -> tuple[Instruction, ...]:
    """Those of a Dockerfile, each on one line, without comments."""
    lines = (ROOT / "container" / image / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    whole = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return tuple(Instruction(*line.split(maxsplit=1)) for line in whole)


def of(image: str, name: str) -> list[Instruction]:
    return [each for each in instructions(image) if each.name == name]


@cache
def versions() -> dict[str, str]:
    lines = (ROOT / "container" / "versions.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def arguments(image: str) -> set[str]:
    return {each.text for each in of(image, "ARG")} - GIVEN


def sources(image: str) -> list[str]:
    """What an image takes from the repository: copied, or read by a RUN."""
    copied = [
        word
        for each in of(image, "COPY")
        if not each.text.startswith("--from")
        for word in each.words[:-1]
    ]
    bound = re.findall(
        r"type=bind,source=([^,\s]+)", " ".join(each.text for each in of(image, "RUN"))
    )
    return copied + bound


def is_sent(path: str, rules: list[str]) -> bool:
    """Whether a Dockerfile.dockerignore lets a path in: the last rule for it decides."""
    sent = True
    for rule in rules:
        pattern = rule.removeprefix("!")
        if pattern == "*" or path == pattern or path.startswith(f"{pattern}/"):
            sent = rule.startswith("!")
    return sent


@every_image
def test_image_takes_files_that_exist_and_are_sent_to_the_build(image: str) -> None:
    rules = (ROOT / "container" / image / "Dockerfile.dockerignore").read_text().split()

    taken = sources(image)

    assert taken
    assert [path for path in taken if not (ROOT / path).exists()] == []
    assert [path for path in taken if not is_sent(path, rules)] == []
    let_in = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    assert [
        name for name in let_in if not any(is_sent(path, ["*", f"!{name}"]) for path in taken)
    ] == []


@every_image
def test_image_is_built_from_the_versions_of_the_one_file(image: str) -> None:
    stages = {each.words[-1] for each in of(image, "FROM") if " AS " in each.text}
    bases = {
        word
        for each in of(image, "FROM")
        for word in each.words[:1] + each.words[1:2]
        if not word.startswith("--") and word != "AS" and word not in stages
    }

    assert arguments(image) <= set(versions())
    assert {base.strip("${}") for base in bases} <= arguments(image)
    assert all(base.startswith("${") for base in bases)


def test_each_image_that_not_all_deployments_need_can_be_asked_for() -> None:
    further = [image for image in IMAGES if image not in ("training", "relay")]

    assert StageConfig.model_validate({"more_images": further}).more_images == tuple(further)


def test_each_version_is_used_and_names_one_thing_for_all_time() -> None:
    used = set().union(*(arguments(image) for image in IMAGES))

    assert used == set(versions())
    for name, value in versions().items():
        assert re.search(r"\d", value.rpartition(":")[2]), f"{name}={value} has no version"
    assert re.fullmatch("[0-9a-f]{40}", versions()["MEGATRON_LM_COMMIT"])
    assert re.fullmatch("[0-9a-f]{128}", versions()["AWS_OFI_NCCL_SHA512"])


def test_no_version_has_a_known_defect() -> None:
    named = [value for value in versions().values() if "/" in value]

    assert len(named) >= 6
    assert [defect for image in named for defect in defects_of(image)] == []
    assert defects_of(f"aws/plugin:ofi{versions()['AWS_OFI_NCCL']}") == []


def test_versions_agree_with_what_else_names_them() -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )

    assert versions()["EFA_BASE"] == NCCL_TESTS_IMAGE
    assert versions()["UV"].endswith(f":{pins['uv']}")
    assert f":{pins['torch'].rpartition('.')[0]}-" in versions()["DLC_BASE"]


@every_image
def test_image_runs_its_self_check_as_the_user_that_pods_are(image: str) -> None:
    names = [each.name for each in instructions(image)]
    checks = [
        index
        for index, each in enumerate(instructions(image))
        if each.name == "RUN" and f"{SELF_CHECK} {image}" in each.text
    ]

    assert len(checks) == 1
    if image == "nccl-tests":  # the MPI operator starts sshd in it
        assert "USER" not in names
        return
    assert names[: checks[0]].count("USER") == 1
    assert all(re.fullmatch("[1-9][0-9]*", each.text) for each in of(image, "USER"))
    assert "USER" in names[len(names) - names[::-1].index("FROM") :]


@every_image
def test_image_has_no_secret_and_nothing_unchecked_from_the_network(image: str) -> None:
    runs = " ".join(each.text for each in of(image, "RUN"))
    scripts = [(ROOT / path).read_text() for path in sources(image) if path.endswith(".sh")]

    named = [each.text for name in ("ARG", "ENV") for each in of(image, name)]
    assert [text for text in named if SECRET.search(text)] == []
    assert of(image, "ADD") == []
    assert "curl" not in runs
    assert "wget" not in runs
    for script in scripts:
        assert script.count("curl") == script.count("sha512sum --check --strict")
    fetched = re.findall(r"git (?:fetch|clone).*?\"\$\{(\w+)\}\"", runs)
    assert runs.count("git fetch") + runs.count("git clone") == len(fetched)
    assert all(name.endswith("_COMMIT") for name in fetched)


@every_image
def test_image_installs_versions_that_are_pinned(image: str) -> None:
    commands = [part.strip() for each in of(image, "RUN") for part in each.text.split("&&")]
    installs = [part for part in commands if "pip install" in part]

    for install in installs:
        pinned = "--constraint constraints.txt" in install or "--no-deps" in install
        assert pinned, install
    for path in sources(image):
        if path.endswith("requirements.txt"):
            lines = [row for row in (ROOT / path).read_text().splitlines() if row[0] != "#"]
            assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+\w*", row) for row in lines), path
    # A pipe hides the failure of what is before it.
    assert [part for part in commands if "|" in part] == []


@every_image
def test_image_starts_something_that_exists(image: str) -> None:
    for command in of(image, "CMD"):
        words = re.findall(r'"([^"]*)"', command.text)
        assert words[0] == "python"
        module = words[words.index("-m") + 1] if "-m" in words else None
        assert find_spec(module) if module else words[1:] == [SELF_CHECK, image]
