"""python -m training.push --model DIR --repository ORG/NAME --run-id RUN

Pushes a trained model to a private repository of the Hugging Face hub, in one commit, and compares
what the hub says of each file with the file: its size, and its SHA-256 or git's hash. It may be
killed and started again: what the hub holds is not sent again, whole files of at most 5 GB each.
HF_TOKEN must be allowed to write there; HF_ENDPOINT is honoured. The last line is JSON, or one
sentence where it fails.

Exit codes: 0 pushed, 1 not pushed but worth another try, 2 a bad setting, 3 refused.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from stationmaster.domain.errors import PermanentError, StationmasterError, TransientError
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import PushedLine

# Made by the hub with each repository.
_OF_THE_HUB: Final = frozenset({".gitattributes"})
_PIECE_BYTES: Final = 2**20


class PushRefused(PermanentError):
    """The hub, or what the repository has, does not allow it."""


class NotPushed(TransientError):
    """The hub did not take it; another start may succeed."""


def main(argv: Sequence[str]) -> int:
    """Push, and turn every ending into a last line and an exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    arguments = _parser().parse_args(argv)
    try:
        line = push(
            arguments.model, repository=arguments.repository, run_id=RunId(arguments.run_id)
        )
    except PushRefused as error:
        return _fail(error, EXIT_REFUSED)
    except PermanentError as error:
        return _fail(error, EXIT_MISUNDERSTOOD)
    except (StationmasterError, OSError) as error:
        return _fail(error, EXIT_NOT_DONE)
    sys.stdout.write(line.text() + "\n")
    return 0


def push(model: Path, *, repository: str, run_id: RunId) -> PushedLine:
    """Commit every file of `model`, and verify the commit.

    Raises:
        PushRefused: the token may not write there, or the repository is public or another model's.
        NotPushed: the hub does not answer, or has other bytes than were sent.
        PermanentError: there is no model, or no token.
    """
    files = _files(model)
    token = os.environ.get("HF_TOKEN", "")
    if not token:
        raise PermanentError("HF_TOKEN is not set: the deployment's secret has no token")
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for each request otherwise
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
    _call(repository, lambda: api.create_repo(repository, private=True, exist_ok=True))
    _check(_info(api, repository, None), repository, files)
    operations = [
        CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in files.items()
    ]
    revision = _call(
        repository,
        lambda: (
            api.create_commit(
                repository,
                operations,
                commit_message=f"Add the model of run {run_id}",
                num_threads=2,
            ).oid
        ),
    )
    _verify(_info(api, repository, revision), repository, files)
    return PushedLine(
        run_id=run_id,
        at=datetime.now(UTC),
        repository=repository,
        revision=revision,
        num_files=len(files),
        num_bytes=sum(path.stat().st_size for path in files.values()),
    )


def _files(model: Path) -> dict[str, Path]:
    paths = sorted(path for path in model.rglob("*") if path.is_file())
    if not paths:
        raise PermanentError(f"there is no trained model in {model}")
    return {path.relative_to(model).as_posix(): path for path in paths}


def _info(api: Any, repository: str, revision: str | None) -> Any:
    return _call(
        repository, lambda: api.repo_info(repository, revision=revision, files_metadata=True)
    )


def _check(info: Any, repository: str, files: Mapping[str, Path]) -> None:
    """Check that a push publishes nothing, and mixes no two models."""
    if not info.private:
        raise PushRefused(
            f"{repository} is a public repository; make it private, or push to another name"
        )
    known = {each.rfilename for each in info.siblings or ()}
    others = sorted(known - files.keys() - _OF_THE_HUB)
    if others:
        raise PushRefused(
            f"{repository} has other files already, such as {others[0]}; push to another name, or "
            "delete them there"
        )


def _verify(info: Any, repository: str, files: Mapping[str, Path]) -> None:
    """Compare size and hash of each file with what the hub says."""
    found = {each.rfilename: each for each in info.siblings or ()}
    for name, path in files.items():
        there = found.get(name)
        if there is None:
            raise NotPushed(f"{repository} does not have {name} after the commit")
        size = path.stat().st_size
        lfs = there.lfs
        expected, stated = (
            (_digest(path, hashlib.sha256()), lfs.sha256)
            if lfs is not None
            # Git hashes a file with its kind and size before it. Source: git's manual, hash-object.
            else (_digest(path, hashlib.sha1(f"blob {size}\0".encode())), there.blob_id)
        )
        if (there.size, stated) != (size, expected):
            raise NotPushed(
                f"{repository} has other bytes of {name} than were sent: {there.size} bytes with "
                f"hash {stated}, expected {size} with {expected}"
            )


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            digest.update(piece)
    return str(digest.hexdigest())


def _call(repository: str, call: Any) -> Any:
    """Turn what the hub answers into our errors."""
    from huggingface_hub import errors

    try:
        return call()
    except errors.HfHubHTTPError as exc:
        status = exc.response.status_code
        said = _first_line(exc.server_message or str(exc))
        if status in (400, 401, 403, 404, 409, 422):
            raise PushRefused(
                f"the Hugging Face hub refuses to push to {repository}: HTTP {status}: {said}; "
                "check that the deployment's token may write there"
            ) from exc
        raise NotPushed(f"pushing to {repository}: the hub answers HTTP {status}: {said}") from exc
    except ValueError as exc:  # a name or a model card that the hub does not take
        raise PushRefused(f"pushing to {repository}: {_first_line(str(exc))}") from exc
    # The hub's client lets errors of its HTTP library through when a connection is cut off.
    except (OSError, RuntimeError, errors.HTTPError) as exc:  # type: ignore[attr-defined]  # not in an __all__
        raise NotPushed(
            f"pushing to {repository}: {_first_line(str(exc.__cause__ or exc))}"
        ) from exc


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no explanation"])[0][:300]


def _fail(error: Exception, code: int) -> int:
    sys.stdout.write(" ".join(str(error).split()) + "\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.push", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the trained model")
    parser.add_argument("--repository", required=True, help="ORG/NAME")
    parser.add_argument("--run-id", required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
