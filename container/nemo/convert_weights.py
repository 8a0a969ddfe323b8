"""Convert published weights to a checkpoint of Megatron, once, on the file system of a cluster.

    python convert_weights.py ORG/MODEL --data-directory /fsx/data --run-id RUN

It runs in NVIDIA's NeMo image, where the product is not installed: the standard library, the hub's
client, and Megatron-Bridge, which converts. It needs one GPU (NCCL's single rank), memory for two
copies of the weights, and room on the file system for two.

    DATA/ID/files/latest_checkpointed_iteration.txt, iter_0000000/   what Megatron loads
    DATA/ID/manifest.json                                            written last

ID is named by repository, commit and how it was converted, as `stationmaster.domain.datasets` names
data; a later run finds it. What is begun lies in DATA/ID/partial and is removed by the next start.
Standard output carries JSON lines of the kinds `staging` and, at the end, `staged`; where it fails,
the last line is one sentence.

Exit codes: 0 done, 1 not done but worth another try, 3 the weights cannot be had or do not fit.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

EXIT_NOT_DONE: Final = 1
EXIT_REFUSED: Final = 3
# What decides the bytes besides the weights: another version may write other names.
SETTINGS: Final = {"converter": "Megatron-Bridge 0.5.0", "dtype": "bfloat16"}
PREPARATION: Final = "none"
# Safetensors once, not a second time below original/, and nothing that is pickled.
PATTERNS: Final = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
)
TRACKER: Final = "latest_checkpointed_iteration.txt"
# Source: Megatron-Bridge 0.5.0, examples/conversion/convert_checkpoints.py, `import`.
_IMPORT: Final = """
import sys, torch
from megatron.bridge import AutoBridge
AutoBridge.import_ckpt(sys.argv[1], sys.argv[2], torch_dtype=torch.bfloat16)
"""

Convert = Callable[[Path, Path], None]
"""From the directory of published weights to that of a checkpoint."""


class Refused(Exception):
    """Another try would fail in the same way."""


class NotDone(Exception):
    """Another try may succeed."""


def import_checkpoint(weights: Path, checkpoint: Path) -> None:
    """Convert in a process of its own, whose output is the pod's log.

    Raises:
        NotDone: it failed.
    """
    command = [sys.executable, "-c", _IMPORT, str(weights), str(checkpoint)]
    code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    if code:
        raise NotDone(
            f"Megatron-Bridge ended with exit code {code} while it converted the weights; its "
            "output is in the log of this pod"
        )


def main(
    argv: Sequence[str],
    *,
    convert: Convert = import_checkpoint,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    report_every_s: float = 5.0,
) -> int:
    """Convert, and turn every ending into a last line and an exit code."""
    parser = argparse.ArgumentParser(description="Convert published weights for Megatron, once.")
    parser.add_argument("repository", metavar="ORG/MODEL")
    parser.add_argument("--data-directory", type=Path, required=True, metavar="DIR")
    parser.add_argument("--run-id", required=True, metavar="RUN")
    arguments = parser.parse_args(argv)
    try:
        staged = _staged(
            arguments.repository,
            arguments.data_directory,
            run_id=arguments.run_id,
            convert=convert,
            free_bytes=free_bytes,
            report_every_s=report_every_s,
        )
    except Refused as error:
        return _fail(str(error), EXIT_REFUSED)
    except (NotDone, OSError) as error:
        return _fail(str(error), EXIT_NOT_DONE)
    _print("staged", arguments.run_id, staged)
    return 0


def _staged(
    repository: str,
    data: Path,
    *,
    run_id: str,
    convert: Convert,
    free_bytes: Callable[[Path], int],
    report_every_s: float,
) -> dict[str, Any]:
    began = time.monotonic()
    commit, num_bytes = _look_up(repository)
    name = _name(repository, commit)
    directory = data / name
    directory.mkdir(parents=True, exist_ok=True)
    with _alone(directory):
        manifest = _find(directory)
        was_there = manifest is not None
        if manifest is None:
            _check_room(repository, num_bytes, free_bytes(data))
            partial = directory / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(directory / "files", ignore_errors=True)
            partial.mkdir()
            with _reporting(partial, run_id, total=2 * num_bytes, every_s=report_every_s):
                with _asking(repository) as hub:
                    hub.snapshot_download(
                        repository,
                        revision=commit,
                        local_dir=partial / "published",
                        allow_patterns=list(PATTERNS),
                    )
                convert(partial / "published", partial / "checkpoint")
            _check_whole(partial / "checkpoint")
            os.sync()
            (partial / "checkpoint").rename(directory / "files")
            manifest = _manifest(repository, commit, name, directory / "files")
            _write_atomically(directory / "manifest.json", manifest)
            shutil.rmtree(partial)
    return {
        "data_id": name,
        "root": manifest["root"],
        "preparation": "none",
        "num_files": len(manifest["files"]),
        "num_bytes": sum(file["num_bytes"] for file in manifest["files"]),
        "counts": {},
        "was_there": was_there,
        "seconds": round(time.monotonic() - began, 3),
    }


def _look_up(repository: str) -> tuple[str, int]:
    """Return the newest commit of a repository, and the bytes of its weights."""
    with _asking(repository) as hub:
        commit = str(hub.model_info(repository).sha)
        sizes = [
            getattr(file, "size", 0)
            for file in hub.list_repo_tree(repository, revision=commit)
            if file.path.startswith("model") and file.path.endswith(".safetensors")
        ]
    if not sizes:
        raise Refused(
            f"{repository} has no model*.safetensors, the form that Megatron-Bridge is given here"
        )
    return commit, sum(sizes)


@contextmanager
def _asking(repository: str) -> Iterator[Any]:
    """Give the hub's client; what it raises becomes one sentence.

    Raises:
        Refused: the hub does not give it to this account.
        NotDone: the hub does not answer.
    """
    from huggingface_hub import HfApi, errors  # the image has it

    try:
        yield HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    except errors.GatedRepoError as exc:
        raise Refused(
            f"{repository} is gated: accept its licence on huggingface.co with the account whose "
            "token the deployment has"
        ) from exc
    except errors.RepositoryNotFoundError as exc:
        raise Refused(f"{repository} is not on the Hugging Face hub, or is private") from exc
    except Exception as exc:  # of the system, or of several HTTP libraries
        raise NotDone(f"{repository} could not be downloaded: {exc}") from exc


def _name(repository: str, commit: str) -> str:
    """Name it as `stationmaster.domain.datasets.data_id` does."""
    text = json.dumps([1, f"hub:{repository}", commit, PREPARATION, dict(sorted(SETTINGS.items()))])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _manifest(repository: str, commit: str, name: str, files: Path) -> dict[str, Any]:
    found = sorted(path for path in files.rglob("*") if path.is_file())
    return {
        "version": 1,
        "source": f"hub:{repository}",
        "source_version": commit,
        "preparation": PREPARATION,
        "settings": SETTINGS,
        "root": f"{name}/files",
        "files": [
            {"path": str(path.relative_to(files)), "num_bytes": path.stat().st_size}
            for path in found
        ],
    }


def _find(directory: Path) -> dict[str, Any] | None:
    """Find the manifest of a whole conversion; None where a file is missing or cut off."""
    path = directory / "manifest.json"
    if not path.exists():
        return None
    manifest: dict[str, Any] = json.loads(path.read_text())
    for file in manifest["files"]:
        found = directory / "files" / file["path"]
        if not found.is_file() or found.stat().st_size != file["num_bytes"]:
            path.unlink()
            return None
    return manifest


def _check_whole(checkpoint: Path) -> None:
    tracker = checkpoint / TRACKER
    step = tracker.read_text().strip() if tracker.is_file() else ""
    saved = checkpoint / f"iter_{int(step):07d}" if step.isdecimal() else None
    if saved is None or not any(saved.glob("*.distcp")) or not (saved / ".metadata").is_file():
        raise NotDone(
            f"Megatron-Bridge ended well and left no whole checkpoint: expected {TRACKER} and "
            "iter_N/*.distcp with .metadata"
        )


def _check_room(repository: str, num_bytes: int, free_bytes: int) -> None:
    if 2 * num_bytes > free_bytes:
        raise Refused(
            f"{repository} has {num_bytes / 1e9:,.1f} GB of weights, which are on the file system "
            f"twice while they are converted, and it has {free_bytes / 1e9:,.1f} GB free; use a "
            "larger file system"
        )


@contextmanager
def _reporting(directory: Path, run_id: str, *, total: int, every_s: float) -> Iterator[None]:
    """Print every few seconds how much is there."""
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(every_s):
            done = 0
            for path in directory.rglob("*"):
                try:
                    done += path.stat().st_size if path.is_file() else 0
                except FileNotFoundError:
                    continue  # a temporary file
            figures = {"staged_bytes": min(done, total), "total_bytes": total}
            _print("staging", run_id, figures)

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_atomically(path: Path, document: dict[str, Any]) -> None:
    begun = path.with_name(f".{path.name}.tmp")
    with begun.open("w") as out:
        json.dump(document, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    begun.replace(path)


def _print(kind: str, run_id: str, fields: dict[str, Any]) -> None:
    head = {"stationmaster": 1, "kind": kind, "run_id": run_id, "at": datetime.now(UTC).isoformat()}
    sys.stdout.write(json.dumps(head | fields) + "\n")
    sys.stdout.flush()


def _fail(sentence: str, code: int) -> int:
    sys.stdout.write(" ".join(sentence.split()) + "\n")
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
