"""Data sets of the Hugging Face hub: which files one has, and reading them over the network.

Called by `corpus` only. A data set's card may name configurations with the files of each split;
without, file names say what is for training. Everything is read at one commit, so that a data set
that changes under a run does not change the run. HF_ENDPOINT and HF_TOKEN are honoured.
"""

from __future__ import annotations

import fnmatch
import io
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, cast

import huggingface_hub
from huggingface_hub import errors

from stationmaster.domain.errors import BadParameter, PermanentError, StationmasterError
from training.data.corpus import TABLES, Corpus, split_files

_TIMEOUT_S: Final = 20.0
_HELD_OUT_SPLITS: Final = ("validation", "test")
_DISCONNECTED: Final = (
    "allow outbound HTTPS to the hub, or train on dataset=python-stdlib or a directory that every "
    "node can read"
)


def find_on_hub(dataset: str, name: str, *, revision: str) -> Corpus:
    """The files of ORG/NAME[/CONFIG] at a commit, the newest unless one is given.

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
    api = huggingface_hub.HfApi(endpoint=_endpoint(), token=huggingface_hub.get_token())
    try:
        info = api.dataset_info(repository, revision=revision or None, timeout=_TIMEOUT_S)
    except (OSError, errors.HTTPError) as exc:  # type: ignore[attr-defined]  # not in an __all__
        raise _refused(repository, exc) from exc
    names = [sibling.rfilename for sibling in info.siblings or ()]
    files = sorted(name for name in names if name.endswith(TABLES))
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
            f'dataset="{dataset}" has no files for training that end in {", ".join(TABLES)}; see '
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


def open_on_hub(address: str, *, seekable: bool) -> IO[bytes]:
    """Open an hf:// address for reading: from start to end, or anywhere, by ranges.

    Raises:
        OSError: the hub does not answer, or refuses.
    """
    files = huggingface_hub.HfFileSystem(endpoint=_endpoint(), token=huggingface_hub.get_token())
    try:
        # Ranges of 1 MiB: a column of one row group in a few requests, without holding much.
        opened = files.open(address, "rb", block_size=2**20 if seekable else 0)
    except errors.HTTPError as exc:  # type: ignore[attr-defined]  # not in an __all__
        raise ConnectionError(_first_line(exc)) from exc
    remote = _HubFile(opened, seekable=seekable)
    return cast("IO[bytes]", remote) if seekable else io.BufferedReader(remote, 2**20)


class _HubFile(io.RawIOBase):
    """A file of the hub's client whose network errors are all OSError."""

    def __init__(self, opened: Any, *, seekable: bool) -> None:
        self._opened = opened
        self._seekable = seekable

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._opened.seek(offset, whence)
        return int(self._opened.tell())

    def tell(self) -> int:
        return int(self._opened.tell())

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._opened.read(len(buffer))
        except errors.HTTPError as exc:  # type: ignore[attr-defined]  # not in an __all__
            raise ConnectionError(_first_line(exc)) from exc
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._opened.close()
        super().close()


def _configured(
    dataset: str, configurations: Sequence[Mapping[str, Any]], wanted: str | None, files: list[str]
) -> tuple[list[str], list[str]]:
    """The files for training and evaluation that the data set's card gives for a configuration."""
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
    """Patterns of each split; a card gives one pattern, a list, or a list of splits with paths."""
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
        mend = "with the account of HF_TOKEN" if has_token else "and set HF_TOKEN to a read token"
        return BadParameter(f"data set {repository} is gated: accept its terms at {where} {mend}")
    if isinstance(exc, errors.RepositoryNotFoundError):
        mend = "HF_TOKEN may not read it" if has_token else "it is private and HF_TOKEN is not set"
        return BadParameter(
            f"data set {repository} is not on the Hugging Face hub, or {mend}; check {where}"
        )
    if isinstance(exc, errors.RevisionNotFoundError):
        return BadParameter(f"data set {repository}: {exc}; start without the old checkpoints")
    return PermanentError(
        f"the Hugging Face hub did not answer for data set {repository} ({_first_line(exc)}); "
        f"{_DISCONNECTED}"
    )


def _first_line(exc: Exception) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0][:200]
