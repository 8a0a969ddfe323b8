"""What container/build.sh asks of Docker, which a stand-in writes down."""

from __future__ import annotations

import os
import subprocess
from itertools import chain
from pathlib import Path

import pytest

from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.rendering.placing import from_copies
from stationmaster.rendering.rendezvous import render_etcd

SCRIPT = Path(__file__).parents[2] / "container" / "build.sh"
REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
DIGEST = f"sha256:{'ab' * 32}"
# Answers with a digest, except for images of NVIDIA's registry.
DOCKER = """#!/bin/sh
echo "docker $*" >> "$CALLS"
case "$*" in
  *"imagetools inspect"*/copies:etcd-*) ;;
  *"imagetools inspect"*/copies:*) exit 1 ;;
  *"imagetools inspect"*nvcr.io*) echo "no access" >&2; exit 1 ;;
  *"imagetools inspect"*) echo {digest} ;;
esac
"""
AWS = '#!/bin/sh\necho "aws $*" >> "$CALLS"\n'


@pytest.fixture
def build(tmp_path: Path):
    """Run the script; its exit code, its errors, and each call of docker and aws."""
    calls = tmp_path / "calls"
    calls.touch()
    for name, text in {"docker": DOCKER.format(digest=DIGEST), "aws": AWS}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(*arguments: str) -> tuple[int, str, list[str]]:
        variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)}
        ended = subprocess.run(
            ["bash", SCRIPT, *arguments],
            capture_output=True,
            text=True,
            env=variables,
            check=False,
            timeout=120,
        )
        return ended.returncode, ended.stderr, calls.read_text().splitlines()

    return run


def test_every_deployments_images_are_built_and_pushed(build) -> None:
    code, errors, calls = build("1.2", REGISTRY)

    assert (code, errors) == (0, "")
    pushed = [call.split()[-1] for call in calls if call.startswith("docker push")]
    name = f"{REGISTRY}/stationmaster"
    assert pushed == [f"{name}/training:1.2", f"{name}/relay:1.2-amd64", f"{name}/relay:1.2-arm64"]
    assert calls[-1] == (
        f"docker buildx imagetools create --tag {name}/relay:1.2 {pushed[1]} {pushed[2]}"
    )
    built = [call for call in calls if "buildx build" in call]
    platforms = [call.partition("--platform ")[2].split()[0] for call in built]
    assert platforms == ["linux/amd64", "linux/amd64", "linux/arm64"]
    assert all(f"@{DIGEST}" in call for call in built)
    assert "--build-arg=TORCH_BACKEND=cu130" in built[0]
    assert "DLC_BASE" not in " ".join(calls)


def test_images_of_others_are_copied_once_with_all_their_machines(build) -> None:
    code, errors, calls = build("1.2", REGISTRY)

    assert (code, errors) == (0, "")
    copied = [call.partition("--tag ")[2].split() for call in calls if "/copies:" in call]
    upstream = "602401143452.dkr.ecr.us-west-2.amazonaws.com"
    # etcd's is there already; a tag cannot be pushed twice.
    assert [each for each in copied if each] == [
        [f"{REGISTRY}/stationmaster/copies:{tag}", image]
        for tag, image in (
            (
                "training-operator-v1-93c5489",
                "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489",
            ),
            ("mpi-operator-0.8.0", "mpioperator/mpi-operator:0.8.0"),
            ("k8s-device-plugin-v0.20.0", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"),
            (
                "aws-efa-k8s-device-plugin-v0.5.20",
                f"{upstream}/eks/aws-efa-k8s-device-plugin:v0.5.20",
            ),
        )
    ]
    logins = [call.split()[-1] for call in calls if call.startswith("docker login")]
    assert logins == [REGISTRY, upstream]


def test_what_is_copied_is_what_clusters_start_and_where_they_look() -> None:
    lines = (SCRIPT.parent / "copied.txt").read_text().splitlines()
    plugins = ("training-operator", "mpi-operator", "nvidia-device-plugin", "efa-device-plugin")
    objects = [*chain.from_iterable(map(load_manifests, plugins)), *render_etcd("run", job="job")]

    theirs, ours = (
        {
            container["image"]
            for item in from_copies(objects, repository)
            if "template" in item.get("spec", {})
            for container in item["spec"]["template"]["spec"]["containers"]
        }
        for repository in ("", "ecr/copies")
    )
    copied = {line for line in lines if not line.startswith("#")}
    assert theirs == copied
    assert ours == {f"ecr/copies:{each.rpartition('/')[2].replace(':', '-')}" for each in copied}


def test_one_image_is_built_and_stays_here(build) -> None:
    code, errors, calls = build("1.2", "", "nemo")

    (built,) = [call for call in calls if "buildx build" in call]
    assert code == 0
    # Without a digest the tag decides, and that is said.
    assert "no digest was found for nvcr.io/nvidia/nemo:26.06; its tag decides" in errors
    assert "--build-arg=NEMO_BASE=nvcr.io/nvidia/nemo:26.06 " in built
    assert built.endswith("--file container/nemo/Dockerfile --tag stationmaster/nemo:1.2 .")
    assert not [call for call in calls if "push" in call or call.startswith("aws")]


def test_image_that_does_not_exist_is_refused_before_anything_is_built(build) -> None:
    code, errors, calls = build("1.2", "", "cpu", "gpu")

    assert (code, calls) == (2, [])
    assert errors.startswith('build.sh: there is no image "gpu"; expected one of: cpu dlc ')
