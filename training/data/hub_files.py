"""Data sets of the Hugging Face hub: which files one has, and reading them over the network.

A data set's card may name configurations with the files of each split; without, file names say what
is for training. Everything is read at one commit, so that a data set that changes under a run does
not change the run. HF_ENDPOINT and HF_TOKEN are honoured.
"""

from __future__ import annotations

import fnmatch
import io
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # not in an __all__
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from stationmaster.domain.data_files import ROW_FILES, is_table
from stationmaster.domain.errors import BadParameter, PermanentError, StationmasterError
from training.data.corpus import Corpus, split_files

_TIMEOUT_S: Final = 20.0
_STREAMING_BUFFER_BYTES: Final = 4 * 2**20
_JUMPING_BUFFER_BYTES: Final = 2**20
# About two minutes: a hub that restarts is back, and longer would look like a hanging run.
_WAITS_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
_ADDRESS: Final = re.compile(
    r"hf://datasets/(?P<repository>[^@]+)@(?P<revision>[^/]+)/(?P<file>.+)"
)
_HELD_OUT_SPLITS: Final = ("validation", "test")
_DISCONNECTED: Final = (
    "allow outbound HTTPS to the hub, or train on dataset=python-code or a directory that every "
    "node can read"
)

_Answer = TypeVar("_Answer")

logger = logging.getLogger(__name__)


def find_on_hub(dataset: str, name: str, *, revision: str) -> Corpus:
    """List the files of ORG/NAME[/CONFIG] at a commit, the newest unless one is given.

    Raises:
        BadParameter: there is no such data set or configuration, it is gated, or it has no files
            of rows.
        PermanentError: the hub cannot be reached.
    """
    parts = name.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise BadParameter(
            f'dataset="{dataset}" is not accepted: expected hub:ORG/NAME or hub:ORG/NAME/CONFIG'
        )
    repository = "/".join(parts[:2])
    info = _look_up(repository, revision=revision or None)
    names = [sibling.rfilename for sibling in info.siblings or ()]
    files = sorted(name for name in names if is_table(name))
    card: Mapping[str, Any] = info.card_data.to_dict() if info.card_data else {}
    configurations = [one for one in card.get("configs") or () if one.get("data_files")]
    config = parts[2] if len(parts) == 3 else None
    if configurations:
        training, held_out = _configured(dataset, configurations, config, files)
    else:
        within = [file for file in files if config is None or file.startswith(f"{config}/")]
        training, held_out = split_files(within)
    if not training:
        raise BadParameter(
            f'dataset="{dataset}" has no files for training that end in {ROW_FILES}; see '
            f"https://huggingface.co/datasets/{repository}/tree/main"
        )

    def addresses(files: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"hf://datasets/{repository}@{info.sha}/{file}" for file in files)

    return Corpus(
        dataset=dataset,
        revision=str(info.sha),
        files=addresses(training),
        held_out=addresses(held_out),
    )


def sizes_on_hub(corpus: Corpus) -> dict[str, int]:
    """List the bytes of the files of a corpus, by address, where the hub says them.

    Raises:
        BadParameter, PermanentError: as `find_on_hub`.
    """
    match = _ADDRESS.fullmatch(corpus.files[0])
    assert match is not None
    repository, revision = match["repository"], match["revision"]
    info = _look_up(repository, revision=revision, files_metadata=True)
    return {
        f"hf://datasets/{repository}@{revision}/{sibling.rfilename}": sibling.size
        for sibling in info.siblings or ()
        if sibling.size is not None
    }


def _look_up(repository: str, **wanted: Any) -> huggingface_hub.DatasetInfo:
    api = huggingface_hub.HfApi(endpoint=_endpoint(), token=huggingface_hub.get_token())
    try:
        return api.dataset_info(repository, timeout=_TIMEOUT_S, **wanted)
    except (OSError, errors.HTTPError) as exc:  # type: ignore[attr-defined]  # not in an __all__
        raise _refused(repository, exc) from exc


def open_on_hub(
    address: str,
    *,
    seekable: bool,
    wait: Callable[[float], None] = time.sleep,
) -> io.BufferedReader:
    """Open a file of a `Corpus` for reading.

    Every read is a request of its own for a range of the file. One long response would be dropped:
    a training run takes hours to consume what a connection may carry in seconds. A request that
    fails is repeated after `wait` seconds, for about two minutes, and nothing read before is lost.

    Args:
        address: as in `Corpus.files`.
        seekable: whether the reader jumps about, so that reading far ahead would be in vain.
        wait: called with the seconds to wait before asking again.

    Raises:
        OSError: the hub refuses, or does not answer for that long; so does reading.
    """
    match = _ADDRESS.fullmatch(address)
    assert match is not None
    url = huggingface_hub.hf_hub_url(
        match["repository"],
        match["file"],
        repo_type="dataset",
        revision=match["revision"],
        endpoint=_endpoint(),
    )
    ahead = _JUMPING_BUFFER_BYTES if seekable else _STREAMING_BUFFER_BYTES
    return io.BufferedReader(_RangedFile(url, wait=wait), ahead)


class _RangedFile(io.RawIOBase):
    """A file of the hub, each read a request for a range of it."""

    def __init__(self, url: str, *, wait: Callable[[float], None]) -> None:
        self._url = url
        self._wait = wait
        self._position = 0
        self._size = self._patiently(self._ask_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        data = self._patiently(lambda: self._ask_range(self._position, end))
        buffer[: len(data)] = data
        self._position = end
        return len(data)

    def readall(self) -> bytes:
        # The base class would ask for 8 KiB at a time.
        return b"".join(iter(lambda: self.read(_STREAMING_BUFFER_BYTES) or b"", b""))

    def _ask_size(self) -> int:
        found = huggingface_hub.get_hf_file_metadata(
            self._url, token=huggingface_hub.get_token(), timeout=_TIMEOUT_S, endpoint=_endpoint()
        )
        if found.size is None:
            raise ConnectionError(f"the hub does not say how large {self._url} is")
        return found.size

    def _ask_range(self, start: int, end: int) -> bytes:
        response = get_session().get(
            self._url,
            # Ranges are counted in the file as it is: not packed for the way.
            headers=build_hf_headers(token=huggingface_hub.get_token())
            | {"Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"},
            timeout=_TIMEOUT_S,
            follow_redirects=True,
        )
        hf_raise_for_status(response)
        data = bytes(response.content)
        if len(data) != end - start:
            raise ConnectionError(f"the hub gave {len(data)} bytes of {end - start}")
        return data

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        for wait_s in (*_WAITS_S, None):
            try:
                return ask()
            except (OSError, errors.HTTPError) as exc:  # type: ignore[attr-defined]  # no __all__
                refused = isinstance(exc, errors.HfHubHTTPError) and not _may_pass(exc)
                if wait_s is None or refused:
                    raise ConnectionError(_first_line(exc)) from exc
                logger.warning("asking again in %.0f s: %s", wait_s, _first_line(exc))
                self._wait(wait_s)
        raise AssertionError("the last round returns or raises")


def _may_pass(exc: errors.HfHubHTTPError) -> bool:
    """Say whether it is a time-out, a rate limit, or a server in trouble."""
    status = exc.response.status_code
    return status in (408, 429) or status >= 500


def _configured(
    dataset: str, configurations: Sequence[Mapping[str, Any]], wanted: str | None, files: list[str]
) -> tuple[list[str], list[str]]:
    """List the files for training and evaluation that the card gives for a configuration."""
    by_name = {str(one["config_name"]): one for one in configurations}
    if wanted is None:
        default = [name for name, one in by_name.items() if one.get("default")]
        wanted = (default or ["default"])[0]
        if len(by_name) == 1:
            (wanted,) = by_name
    if wanted not in by_name:
        raise BadParameter(
            f'dataset="{dataset}" has the configurations {", ".join(by_name)[:400]}; name one as '
            "hub:ORG/NAME/CONFIG"
        )
    splits = _splits(by_name[wanted]["data_files"])
    held_out = next((splits[name] for name in _HELD_OUT_SPLITS if name in splits), [])
    return _matching(files, splits.get("train", [])), _matching(files, held_out)


def _splits(data_files: Any) -> dict[str, list[str]]:
    """Collect the patterns of each split: one, a list, or a list of splits with paths."""
    splits: dict[str, list[str]] = {}
    for one in data_files if isinstance(data_files, list) else [data_files]:
        split, path = (one["split"], one["path"]) if isinstance(one, dict) else ("train", one)
        splits.setdefault(str(split), []).extend([path] if isinstance(path, str) else path)
    return splits


def _matching(files: list[str], patterns: list[str]) -> list[str]:
    return [file for file in files if any(_matches(file, pattern) for pattern in patterns)]


def _matches(file: str, pattern: str) -> bool:
    # A single star stays within its folder, on the hub; fnmatch's does not.
    if "**" not in pattern and file.count("/") != pattern.count("/"):
        return False
    return fnmatch.fnmatchcase(file, pattern)


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _refused(repository: str, exc: Exception) -> StationmasterError:
    where = f"https://huggingface.co/datasets/{repository}"
    has_token = huggingface_hub.get_token() is not None
    if isinstance(exc, errors.GatedRepoError):
        advice = "with the account of HF_TOKEN" if has_token else "and set HF_TOKEN to a read token"
        return BadParameter(f"data set {repository} is gated: accept its terms at {where} {advice}")
    if isinstance(exc, errors.RepositoryNotFoundError):
        reason = (
            "HF_TOKEN may not read it" if has_token else "it is private and HF_TOKEN is not set"
        )
        return BadParameter(
            f"data set {repository} is not on the Hugging Face hub, or {reason}; check {where}"
        )
    if isinstance(exc, errors.RevisionNotFoundError):
        return BadParameter(f"data set {repository}: {exc}; start without the old checkpoints")
    return PermanentError(
        f"the Hugging Face hub did not answer for data set {repository} ({_first_line(exc)}); "
        f"{_DISCONNECTED}"
    )


def _first_line(exc: Exception) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0][:200]
