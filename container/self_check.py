"""python self_check.py IMAGE [--libraries DIRECTORY --machine amd64|arm64]

Prints what a container image runs, and exits 1 with a sentence for each thing that is wrong:
modules that do not import, NCCL from another place than intended, aws-ofi-nccl that NCCL would not
find, versions that are known to be bad, root, caches that cannot be written. It is run while the
image is built, without a GPU, and in a cluster, where it also looks at the GPU:

    kubectl run self-check --restart=Never --image=... -- \\
        python /usr/local/lib/stationmaster/self_check.py training

With --libraries it only looks whether the shared libraries in a directory are for the machine, and
runs nothing of them. It takes the standard library of Python 3.10 alone, and `defects.py` beside
it, because the images are built on those of others and have whatever they have.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CACHES: Final = ("HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
_GPU_CACHES: Final = (*CACHES, "TRITON_CACHE_DIR")


@dataclass(frozen=True)
class Expected:
    """What an image is to have."""

    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    nccl: str = ""
    """The directory from below which NCCL is to be loaded; "" where the image has none."""
    caches: tuple[str, ...] = ()
    """Variables that name directories to write to."""
    may_be_root: bool = False


_TRAINER: Final = ("torch", "transformers", "training.trainer", "stationmaster.domain")
_IN_ITS_OWN_PYTHON: Final = sys.prefix
# Where NVIDIA's images have the libraries of Debian packages.
_OF_THE_SYSTEM: Final = "/usr/lib"


def _gpu(
    modules: Sequence[str], *, nccl: str = _IN_ITS_OWN_PYTHON, launcher: str = "torchrun"
) -> Expected:
    programs = tuple(filter(None, (launcher, "fi_info")))
    return Expected(modules=tuple(modules), programs=programs, nccl=nccl, caches=_GPU_CACHES)


IMAGES: Final = {
    "training": _gpu((*_TRAINER, "torchao.float8")),
    "dlc": _gpu((*_TRAINER, "torchao.float8")),
    "megatron": _gpu(
        (
            *("torch", "transformers", "megatron.core"),
            *("megatron.core.datasets.helpers_cpp", "megatron.training"),
        ),
        nccl=_OF_THE_SYSTEM,
    ),
    "nemo": _gpu(("torch", "megatron.core", "megatron.bridge"), nccl=_OF_THE_SYSTEM, launcher=""),
    "nemo2": _gpu(("torch", "megatron.core", "nemo.collections.llm"), nccl=_OF_THE_SYSTEM),
    "torchtitan": _gpu(("torch", "huggingface_hub", "torchtitan.models.llama3.config_registry")),
    "nccl-tests": Expected(
        programs=("/opt/nccl-tests/build/all_reduce_perf", "mpirun", "fi_info"),
        nccl="/opt/nccl/build",
        may_be_root=True,
    ),
    "cpu": Expected(modules=_TRAINER, programs=("torchrun",), caches=CACHES),
    "relay": Expected(
        modules=tuple(
            f"stationmaster.relay.{name}"
            for name in ("watching", "metrics", "save", "stage", "restore", "look")
        )
    ),
}

# e_machine of an ELF header. Source: System V ABI, chapter 4; elf.h.
_MACHINES: Final = {"amd64": 62, "arm64": 183}
_PLUGIN_VERSION: Final = re.compile(rb"aws-ofi-nccl (\d{1,4}(?:\.\d{1,4}){1,3})")


def mapped_files(maps: str, prefix: str) -> list[str]:
    """Files whose names begin with `prefix` in the text of /proc/PID/maps, without repetition."""
    paths = [line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/")]
    return sorted({path for path in paths if Path(path).name.startswith(prefix)})


def nccl_problems(files: Sequence[str], *, directory: str) -> list[str]:
    """Say what is wrong with the files NCCL is loaded from; `directory` is "" for no NCCL."""
    if not directory:
        return [f"NCCL is loaded from {path}, and this image needs none" for path in files]
    if not files:
        return ["no NCCL is loaded; is PyTorch built without CUDA?"]
    return [
        f"NCCL is loaded from {path} and not from {directory}; is LD_PRELOAD set?"
        for path in files
        if not path.startswith(f"{directory}/")
    ]


def plugin_names(asked: str) -> tuple[str, ...]:
    """Return the libraries that NCCL tries as its network plugin, in order.

    `asked` is NCCL_NET_PLUGIN, "" where it is not set.
    Source: NVIDIA/nccl, src/plugin/plugin_open.cc (2026-08).
    """
    if not asked:
        return ("libnccl-net.so",)
    whole = "/" in asked or (asked.startswith("lib") and asked.endswith(".so"))
    return (asked,) if whole else (asked, f"libnccl-net-{asked}.so")


def plugin_version(library: bytes) -> str:
    """Return the version that a library of aws-ofi-nccl states; "" where it is another library."""
    found = _PLUGIN_VERSION.search(library)
    return found[1].decode() if found else ""


def nccl_version(number: int) -> str:
    """Return 2.29.7 for 22907, as NCCL numbers itself from 2.9 on."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def is_built_for(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Say whether code for `built_for` (sm_80, compute_90, sm_90a) runs on this capability.

    Machine code runs on its own major version from its minor version on, PTX on every later one.
    Source: NVIDIA, CUDA C++ programming guide, application compatibility.
    """
    for name in built_for:
        kind, _, digits = name.partition("_")
        number = re.match(r"\d+", digits)
        if number is None:
            continue
        version = divmod(int(number[0]), 10)
        if kind == "compute" and version <= capability:
            return True
        if kind == "sm" and version[0] == capability[0] and version[1] <= capability[1]:
            return True
    return False


def machine_of(header: bytes) -> int | None:
    """Return e_machine of the first bytes of a file; None where it is no ELF file."""
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return None
    return int.from_bytes(header[18:20], "big" if header[5] == 2 else "little")


def cache_problems(names: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Caches that are not set, or cannot be written to."""
    for name in names:
        path = variables.get(name)
        if not path:
            yield f"{name} is not set, so its cache goes to a home directory"
            continue
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as exc:
            yield f"{name} cannot be written to: {exc}"


def library_problems(directory: Path, machine: str) -> Iterator[str]:
    """Shared libraries that are for another machine, and a directory that has none at all."""
    libraries = [path for path in directory.rglob("*.so*") if path.is_file()]
    if not libraries:
        yield f"{directory} has no shared library; is it the right directory?"
    for path in sorted(libraries):
        with path.open("rb") as file:
            found = machine_of(file.read(20))
        if found not in (None, _MACHINES[machine]):
            yield f"{path} is not for {machine}"


def _import(modules: Sequence[str]) -> Iterator[str]:
    for name in modules:
        try:
            importlib.import_module(name)
        # Whatever a module does when it is imported, the others are still looked at.
        except Exception as exc:
            yield f"{name} does not import: {type(exc).__name__}: {exc}"


def _judge_nccl(expected: Expected) -> Iterator[str]:
    files = mapped_files(Path("/proc/self/maps").read_text(), "libnccl.so")
    yield from nccl_problems(files, directory=expected.nccl)
    for path in files:
        number = ctypes.c_int()
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
        version = nccl_version(number.value)
        print(f"NCCL {version} from {path}")
        yield from _defects("nccl", version)


def _judge_plugin() -> Iterator[str]:
    """Open the plugin as NCCL does: what the linker then has mapped is what would run."""
    errors = []
    for name in plugin_names(os.environ.get("NCCL_NET_PLUGIN", "")):
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as exc:
            errors.append(str(exc))
            continue
        break
    files = mapped_files(Path("/proc/self/maps").read_text(), "libnccl-net")
    if not files:
        yield f"NCCL would find no network plugin: {'; '.join(errors)}"
    for path in files:
        version = plugin_version(Path(path).read_bytes())
        print(f"aws-ofi-nccl {version or 'of no version'} from {path}")
        if not version:
            yield f"{path} is not aws-ofi-nccl, so NCCL would not use EFA"
        yield from _defects("ofi", version)


def _defects(package: str, version: str) -> Iterator[str]:
    # Beside this file in every image; in the repository it has its place in the catalogue.
    from defects import defect_of  # type: ignore[import-not-found]

    if (defect := defect_of(package, version)) is not None:
        yield f"{defect.name} {version} {defect.what}; {defect.remedy} ({defect.source})"


def _judge_gpu() -> Iterator[str]:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    if not torch.cuda.is_available():
        return
    capability, built_for = torch.cuda.get_device_capability(), torch.cuda.get_arch_list()
    print(f"GPU {torch.cuda.get_device_name()}, compute capability {capability}")
    if not is_built_for(capability, built_for):
        yield f"PyTorch is built for {', '.join(built_for)} and not for this GPU"


def problems(expected: Expected) -> Iterator[str]:
    """Yield what is wrong with this image, one sentence each; prints what was found on the way."""
    if os.geteuid() == 0 and not expected.may_be_root:
        yield "it runs as root; expected another user"
    yield from cache_problems(expected.caches, os.environ)
    yield from (
        f"{program} is not there or not on the PATH"
        for program in expected.programs
        if shutil.which(program) is None
    )
    yield from _import(expected.modules)
    yield from _judge_nccl(expected)
    if expected.nccl:
        yield from _judge_plugin()
    yield from _judge_gpu()


def main(arguments: Sequence[str]) -> int:
    """Look, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="What a container image runs, and what is wrong.")
    parser.add_argument("image", choices=sorted(IMAGES))
    parser.add_argument("--libraries", type=Path, help="look at these shared libraries alone")
    parser.add_argument("--machine", choices=sorted(_MACHINES), help="what they are to be for")
    chosen = parser.parse_args(arguments)
    if bool(chosen.libraries) != bool(chosen.machine):
        parser.error("--libraries and --machine belong together; give both or neither")
    if chosen.libraries:
        found = list(library_problems(chosen.libraries, chosen.machine))
    else:
        found = list(problems(IMAGES[chosen.image]))
    for sentence in found:
        print(f"self-check failed: {sentence}", file=sys.stderr)
    if not found:
        print(f"self-check of {chosen.image} passed")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
