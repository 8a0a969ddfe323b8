"""A full disk is recognised whatever library wrote, and the sentence says what to do."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.full_disk import full_disk


def caused_by(cause: BaseException) -> RuntimeError:
    error = RuntimeError("unexpected pos 704 vs 598")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        caused_by(OSError(errno.ENOSPC, "No space left on device")),
        RuntimeError("IoError(Os { code: 28, kind: StorageFull }): (os error 28)"),
    ],
)
def test_full_disk_is_said_with_its_place_and_what_to_do(error: Exception) -> None:
    said = str(full_disk(error, directory=Path("/fsx/data")))

    assert said.startswith("the disk of /fsx/data is full (")
    assert said.endswith("use a larger file system, then start again to continue")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), PermanentError("disk is full")])
def test_other_errors_and_sentences_stay_as_they_are(error: Exception) -> None:
    assert full_disk(error) is None
