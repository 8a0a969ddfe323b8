"""The training image's self-check: which NCCL runs, and that it is PyTorch's own."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "container" / "training" / "self_check.py"
spec = spec_from_file_location("self_check", SCRIPT)
assert spec is not None
assert spec.loader is not None
self_check = module_from_spec(spec)
spec.loader.exec_module(self_check)

WHEEL = "/opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
PRELOADED = "/opt/nccl/build/lib/libnccl.so.2.30.4"
MAPS = "7f10-7f20 r--p 00000000 08:01 42                         {}\n"
OTHERS = "7f00-7f01 rw-p 00000000 00:00 0\n7f30-7f40 r--p 0 08:01 7 /opt/amazon/libnccl-net.so\n"


def test_loaded_nccl_is_found_once_and_without_its_plugins():
    assert self_check.loaded_nccl(MAPS.format(WHEEL) * 2 + OTHERS) == [WHEEL]
    assert self_check.loaded_nccl(OTHERS) == []


@pytest.mark.parametrize(
    ("cuda", "files", "sentence"),
    [
        (None, [], "built without CUDA"),
        ("13.0", [], "no NCCL"),
        ("13.0", [PRELOADED], f"loaded from {PRELOADED} and not from /opt/venv"),
        ("13.0", [PRELOADED, WHEEL], PRELOADED),
    ],
)
def test_problems_name_what_does_not_belong_to_the_image(cuda, files, sentence):
    (found,) = self_check.problems(cuda=cuda, nccl_files=files, prefix="/opt/venv")

    assert sentence in found


def test_problems_of_an_image_with_pytorchs_own_nccl_are_none():
    assert self_check.problems(cuda="13.0", nccl_files=[WHEEL], prefix="/opt/venv") == []


def test_self_check_of_a_cpu_build_prints_it_and_fails():
    ended = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, timeout=1800, check=False
    )

    assert ended.returncode == 1
    assert "PyTorch 2.13.0" in ended.stdout
    assert "CUDA None, NCCL none" in ended.stdout
    assert "built without CUDA" in ended.stderr
