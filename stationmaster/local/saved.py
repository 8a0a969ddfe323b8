"""What outlives a local mode: one SQLite file in its state directory, written with each change.

A row is what is known of one thing of a kind, and its bytes. Each write is a transaction, so a
process that is killed leaves a file that can be read. The workspace and the account write to it;
it knows nothing of either.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from stationmaster.local.private import write_private

logger = logging.getLogger(__name__)

NAME: Final = "saved.sqlite3"
_VERSION: Final = 1
# What a start keeps of a kind, the newest: rows, and bytes of content.
MOST_ROWS: Final = 100_000
MOST_BYTES: Final = 2 * 1024**3
_LARGEST_CONTENT: Final = 512 * 1024**2
_TOO_MUCH: Final = """
    DELETE FROM saved WHERE rowid IN (
        SELECT id FROM (
            SELECT rowid AS id, COUNT(*) OVER newest AS num_rows,
                SUM(LENGTH(content)) OVER newest AS num_bytes
            FROM saved WINDOW newest AS (PARTITION BY kind ORDER BY rowid DESC)
        ) WHERE num_rows > ? OR num_bytes > ?
    )"""


class Saved:
    """The rows of the file; any thread may write."""

    def __init__(self, path: Path) -> None:
        """Open the file, or begin a new one; what cannot be read is moved aside."""
        self.path = path
        self.damage = ""
        """Why the file of the last start was not read, a sentence."""
        self.written_at: datetime | None = None
        """When the last start wrote last; None without one."""
        self._lock = threading.Lock()
        files = [file for file in (path, path.with_name(f"{NAME}-wal")) if file.exists()]
        if files:
            newest = max(file.stat().st_mtime for file in files)
            self.written_at = datetime.fromtimestamp(newest, UTC)
        try:
            self._connection = _open(path)
        except (sqlite3.DatabaseError, ValueError) as exc:
            self.move_aside(str(exc))

    def move_aside(self, why: str) -> None:
        """Keep what cannot be read under another name, and go on with nothing."""
        if hasattr(self, "_connection"):
            self._connection.close()
        aside = self.path.with_name(f"{NAME}.damaged")
        os.replace(self.path, aside)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(f"{NAME}{suffix}").unlink(missing_ok=True)
        self.damage = (
            f"runs and messages of earlier starts cannot be read ({why}): {self.path.name} is now "
            f"{aside.name}, and the start is empty"
        )
        self.written_at = None
        self._connection = _open(self.path)

    def put(
        self, kind: str, key: str, about: Mapping[str, Any] | None, content: bytes = b""
    ) -> None:
        """Write a row in place of the one with its key; None deletes it.

        A disk that is full takes nothing from who runs: it is logged, and the next start lacks it.
        """
        delete = about is None or len(content) > _LARGEST_CONTENT
        statement, values = "DELETE FROM saved WHERE kind = ? AND key = ?", [kind, key]
        if not delete:
            statement = "INSERT OR REPLACE INTO saved (kind, key, about, content) VALUES (?,?,?,?)"
            values += [json.dumps(about), content]  # type: ignore[list-item]
        try:
            with self._lock:
                self._connection.execute(statement, values)
        except sqlite3.Error:
            logger.exception("not saved", extra={"kind": kind, "key": key})

    def rows(self, kind: str) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield what was saved of a kind, in the order of writing.

        Raises:
            ValueError, sqlite3.DatabaseError: it is not what a start saves.
        """
        statement = "SELECT about, content FROM saved WHERE kind = ? ORDER BY rowid"
        for about, content in self._connection.execute(statement, [kind]):
            yield json.loads(about), content

    def close(self) -> None:
        """Close the file; what is written later is not saved."""
        with self._lock:
            self._connection.close()


def _open(path: Path) -> sqlite3.Connection:
    """Open the file with no more in it than a start keeps.

    Raises:
        ValueError: another version has written it.
        sqlite3.DatabaseError: it is damaged.
    """
    if not path.exists():
        write_private(path, b"")
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise ValueError(f"it has version {version}, expected {_VERSION}")
        ((found,),) = connection.execute("PRAGMA quick_check(1)")
        if found != "ok":
            raise ValueError(found)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS saved (kind TEXT, key TEXT, about TEXT NOT NULL,"
            " content BLOB NOT NULL, UNIQUE (kind, key))"
        )
        if connection.execute("SELECT 1 FROM saved WHERE NOT json_valid(about)").fetchone():
            raise ValueError("a row is not JSON")
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute(_TOO_MUCH, [MOST_ROWS, MOST_BYTES])
    except BaseException:
        connection.close()
        raise
    return connection
