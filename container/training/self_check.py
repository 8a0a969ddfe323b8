"""python self_check.py

Prints which PyTorch, CUDA and NCCL the training image runs, and from which file NCCL is loaded.
Exits 1 where they do not belong together. Run while the image is built, so no GPU is needed.
"""

from __future__ import annotations

import sys
from pathlib import Path


def loaded_nccl(maps: str) -> list[str]:
    """Files of NCCL itself in the text of /proc/PID/maps, without repetition."""
    paths = [line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/")]
    return sorted({path for path in paths if Path(path).name.startswith("libnccl.so")})


def problems(*, cuda: str | None, nccl_files: list[str], prefix: str) -> list[str]:
    """What is wrong, one sentence each.

    Args:
        cuda: the CUDA version that PyTorch was built with; None for a CPU build.
        nccl_files: as `loaded_nccl` gives them.
        prefix: the virtual environment whose NCCL is to run.
    """
    found = []
    if cuda is None:
        found.append("PyTorch is built without CUDA; install it with --torch-backend=cu130")
    elif not nccl_files:
        found.append("PyTorch has loaded no NCCL")
    found += [
        f"NCCL is loaded from {path} and not from {prefix}; is LD_PRELOAD set?"
        for path in nccl_files
        if not path.startswith(f"{prefix}/")
    ]
    return found


def main() -> int:
    """Import PyTorch as the trainer does and look at what came with it."""
    import torch

    cuda = torch.version.cuda
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if cuda else "none"
    files = loaded_nccl(Path("/proc/self/maps").read_text())
    print(f"PyTorch {torch.__version__}, CUDA {cuda}, NCCL {nccl} from {', '.join(files)}")
    found = problems(cuda=cuda, nccl_files=files, prefix=sys.prefix)
    for sentence in found:
        print(f"self-check failed: {sentence}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
