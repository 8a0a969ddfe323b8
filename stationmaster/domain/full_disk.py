"""Recognises writes that failed because a disk is full, whatever library wrote."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Final

from stationmaster.domain.errors import PermanentError, StationmasterError

# Libraries in Rust (safetensors, tokenizers) raise errors of their own with the system's words.
_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded|os error (?:28|122)\b")


def is_disk_full(error: BaseException | None) -> bool:
    """Say whether an error, or its cause, is a lack of space or of quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if _FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def full_disk(error: BaseException, *, directory: Path | None = None) -> PermanentError | None:
    """Make the error of a write, below a directory, that failed because a disk is full.

    Returns None for any other error, and for one that has its sentence.
    """
    if isinstance(error, StationmasterError) or not is_disk_full(error):
        return None
    why = (str(error).splitlines() or [type(error).__name__])[0][:300]
    of = f" of {directory}" if directory is not None else ""
    return PermanentError(
        f"the disk{of} is full ({why}); delete what is not needed there or use a larger file "
        "system, then start again to continue"
    )
