"""The images' self-check: what it finds, and that it passes where everything is right."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from pydantic_core import _pydantic_core

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "container" / "self_check.py"
DEFECTS = ROOT / "stationmaster" / "domain" / "catalogue" / "defects.py"
spec = spec_from_file_location("self_check", SCRIPT)
assert spec is not None
assert spec.loader is not None
self_check = module_from_spec(spec)
sys.modules["self_check"] = self_check
spec.loader.exec_module(self_check)

WHEEL = "/opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
PRELOADED = "/opt/nccl/build/lib/libnccl.so.2.30.4"
PLUGIN = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
MAPS = "7f10-7f20 r--p 00000000 08:01 42                         {}\n"
OTHERS = f"7f00-7f01 rw-p 00000000 00:00 0\n7f30-7f40 r--p 0 08:01 7 {PLUGIN}\n"


def test_every_image_has_expectations_and_no_other():
    folders = {path.parent.name for path in (ROOT / "container").glob("*/Dockerfile")}

    assert set(self_check.IMAGES) == folders


def test_mapped_files_are_found_once_and_by_the_beginning_of_their_names():
    maps = MAPS.format(WHEEL) * 2 + OTHERS

    assert self_check.mapped_files(maps, "libnccl.so") == [WHEEL]
    assert self_check.mapped_files(maps, "libnccl-net") == [PLUGIN]
    assert self_check.mapped_files(OTHERS, "libnccl.so") == []


@pytest.mark.parametrize(
    ("files", "directory", "sentence"),
    [
        ([], "/opt/venv", "no NCCL is loaded"),
        ([PRELOADED], "/opt/venv", f"loaded from {PRELOADED} and not from /opt/venv"),
        ([PRELOADED, WHEEL], "/opt/venv", PRELOADED),
        (["/opt/venvs/libnccl.so"], "/opt/venv", "/opt/venvs"),
        ([WHEEL], "", "needs none"),
    ],
)
def test_nccl_from_another_place_is_named(files, directory, sentence):
    (found,) = self_check.nccl_problems(files, directory=directory)

    assert sentence in found


def test_nccl_from_its_place_is_no_problem():
    assert self_check.nccl_problems([WHEEL], directory="/opt/venv") == []
    assert self_check.nccl_problems([], directory="") == []


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("", ("libnccl-net.so",)),
        ("ofi", ("ofi", "libnccl-net-ofi.so")),
        ("libnccl-net-ofi.so", ("libnccl-net-ofi.so",)),
        (PLUGIN, (PLUGIN,)),
    ],
)
def test_plugin_is_looked_for_as_nccl_does(asked, names):
    assert self_check.plugin_names(asked) == names


def test_versions_are_read_from_the_libraries():
    assert self_check.plugin_version(b"\0NET/OFI Initializing aws-ofi-nccl 1.21.1\0") == "1.21.1"
    assert self_check.plugin_version(b"\0aws-ofi-nccl GitHub-dev\0") == ""
    assert self_check.nccl_version(22907) == "2.29.7"
    assert self_check.nccl_version(23102) == "2.31.2"


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80", "sm_100"], False),
        ((9, 0), ["sm_90a"], True),
        ((12, 0), ["sm_80", "compute_90"], True),
        ((8, 0), ["compute_90", "sm_x"], False),
    ],
)
def test_gpu_code_runs_where_nvidia_says(capability, built_for, runs):
    assert self_check.is_built_for(capability, built_for) is runs


def test_libraries_of_another_machine_are_named(tmp_path, capsys):
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (3).to_bytes(2, "little")
    (tmp_path / "pydantic_core.so").write_bytes(header + (183).to_bytes(2, "little"))
    (tmp_path / "text.so").write_text("no library")
    found = [*self_check.library_problems(tmp_path, "amd64")]

    assert found == [f"{tmp_path}/pydantic_core.so is not for amd64"]
    assert self_check.main(["relay", "--libraries", str(tmp_path), "--machine", "arm64"]) == 0
    assert self_check.main(["relay", "--libraries", str(tmp_path), "--machine", "amd64"]) == 1
    assert "is not for amd64" in capsys.readouterr().err
    (empty := tmp_path / "empty").mkdir()
    assert "no shared library" in next(self_check.library_problems(empty, "amd64"))


def test_caches_that_are_missing_or_closed_are_named(tmp_path):
    (tmp_path / "file").touch()
    variables = {"HF_HOME": str(tmp_path / "new"), "TORCH_HOME": str(tmp_path / "file")}

    missing, closed = self_check.cache_problems(["HF_HOME", "XDG", "TORCH_HOME"], variables)

    assert "TORCH_HOME cannot be written to" in closed
    assert missing == "XDG is not set, so its cache goes to a home directory"


@pytest.fixture
def installed(tmp_path):
    """The script beside the table of defects, as in an image, and its caches."""
    for path in (SCRIPT, DEFECTS):
        shutil.copy(path, tmp_path)
    caches = {name: str(tmp_path / "cache") for name in self_check.CACHES}
    places = {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return tmp_path / SCRIPT.name, os.environ | caches | places


@pytest.mark.parametrize("image", ["cpu", "relay"])
def test_self_check_passes_with_what_is_installed_here(installed, image):
    script, variables = installed
    ended = subprocess.run(
        [sys.executable, script, image],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env=variables,
    )

    # As root nothing else may be wrong.
    root = os.geteuid() == 0
    assert (
        ended.stderr.splitlines()
        == ["self-check failed: it runs as root; expected another user"] * root
    )
    assert ended.returncode == int(root)
    assert ("PyTorch 2.13.0" in ended.stdout) == (image == "cpu")


@pytest.mark.parametrize(
    ("stated", "asked", "sentence"),
    [
        ("aws-ofi-nccl 1.18.0", "ofi", "1.18.0 hangs in large broadcasts"),
        ("aws-ofi-nccl 1.21.1", "spcx", "NCCL would find no network plugin: spcx: cannot open"),
        ("hpcx-plugin 2.1", "ofi", "libnccl-net-ofi.so is not aws-ofi-nccl"),
        ("aws-ofi-nccl 1.21.1", "ofi", ""),
    ],
)
def test_plugin_that_the_linker_finds_is_judged(installed, stated, asked, sentence):
    script, variables = installed
    # Any library does: only its name and what it says of itself count.
    library = Path(_pydantic_core.__file__).read_bytes()
    plugin = script.parent / "libnccl-net-ofi.so"
    plugin.write_bytes(library + f"\0{stated}\0".encode())
    ended = subprocess.run(
        [sys.executable, script, "nccl-tests"],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env=variables | {"LD_LIBRARY_PATH": str(script.parent), "NCCL_NET_PLUGIN": asked},
    )

    assert "no NCCL is loaded" in ended.stderr
    assert ("plugin" in ended.stderr or "aws-ofi-nccl" in ended.stderr) == bool(sentence)
    assert sentence in ended.stderr
    assert (f"{stated} from {plugin}" in ended.stdout) == (asked == "ofi" and "aws" in stated)


@pytest.mark.parametrize("path", [SCRIPT, DEFECTS], ids=lambda path: path.stem)
def test_python_of_every_base_can_read_the_check(path):
    # Ubuntu 22.04's is 3.10.
    tree = ast.parse(path.read_text(), feature_version=(3, 10))

    imported = {
        (each.module if isinstance(each, ast.ImportFrom) else each.names[0].name).partition(".")[0]
        for each in ast.walk(tree)
        if isinstance(each, ast.Import | ast.ImportFrom)
    }
    assert imported <= sys.stdlib_module_names | {"defects"}
