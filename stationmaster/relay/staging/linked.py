"""Objects that FSx shows as files: compared with what S3 lists, and not read.

FSx reads an object when its file is first read, so contents cannot be compared before. It is
checked that every object is there as a file of its size that the trainer may read. FSx imports
names after it has linked, so missing ones are waited for.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from pathlib import Path
from typing import Final

from stationmaster.domain.datasets import SourceObject
from stationmaster.domain.staged_data import CheckedBy, DataFile
from stationmaster.relay.s3 import Refused

# How long FSx may import nothing further before it is given up.
STALLED_S: Final = 900.0
_LOOK_EVERY_S: Final = 5.0
_LOOKS_AT_ONCE: Final = 16
# The user of the training image.
_TRAINER: Final = 1000


def wait_for_files(
    root: Path,
    objects: Sequence[SourceObject],
    *,
    uri: str,
    on_shown: Callable[[int], None],
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[DataFile]:
    """Wait until each object is a file below `root`; return what a manifest says of each.

    `on_shown` is called with the number of further bytes whose files are shown.

    Raises:
        Refused: one is not what S3 lists, may not be read, or does not come.
        OSError: the file system cannot be read.
    """
    missing, changed_at = list(objects), clock()
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        while True:
            shown = list(pool.map(lambda each: _look(root, each, uri), missing))
            there = list(compress(missing, shown))
            on_shown(sum(each.num_bytes for each in there))
            missing = [each for each, is_there in zip(missing, shown, strict=True) if not is_there]
            if not missing:
                return [
                    DataFile(path=each.path, num_bytes=each.num_bytes, checked_by=CheckedBy.SIZE)
                    for each in objects
                ]
            if there:
                changed_at = clock()
            if clock() - changed_at > STALLED_S:
                raise Refused(
                    f"the file system shows {len(objects) - len(missing):,} of {len(objects):,} "
                    f"objects of {uri}, and no more for {STALLED_S / 60:.0f} min; "
                    f"{missing[0].path} is missing"
                )
            pause(_LOOK_EVERY_S)


def point_to(link: Path, target: Path) -> None:
    """Make `link` a symbolic link to a directory of the same file system, by a relative path."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)


def _look(root: Path, found: SourceObject, uri: str) -> bool:
    """Say whether the object is a file.

    Raises:
        Refused: it is another one than S3 lists, or the trainer may not read it.
    """
    try:
        seen = (root / found.path).stat()
    except FileNotFoundError:
        return False
    if seen.st_size != found.num_bytes or not stat.S_ISREG(seen.st_mode):
        raise Refused(
            f"{uri}{found.path} has {found.num_bytes:,} bytes, and the file system shows "
            f"{seen.st_size:,}: it has changed while it was linked"
        )
    is_own = seen.st_uid == _TRAINER and seen.st_mode & stat.S_IRUSR
    if not is_own and not seen.st_mode & stat.S_IROTH:
        raise Refused(
            f"the trainer may not read {uri}{found.path}: its object's metadata gives the file "
            f"the permissions {stat.S_IMODE(seen.st_mode):o}"
        )
    return True
