"""What `stationmaster results` shows and downloads of a run: its files, once they are verified.

The bucket is that of a deployment (--bucket, or STATIONMASTER_ARTIFACTS_BUCKET) or that of a local
mode that runs: its state directory says how to reach it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from stationmaster.aws.artifacts import Artifacts, SavedResult
from stationmaster.cli.state_directory import DEFAULT_STATE_DIR, enter_local_mode
from stationmaster.domain.errors import BadCommand, PermanentError
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.resume_from import NEWEST
from stationmaster.domain.restoring import saved_step
from stationmaster.domain.results import ResultFile, is_backup
from stationmaster.domain.sizes import size_text
from stationmaster.services import Services
from stationmaster.settings import PREFIX, Settings, artifacts_bucket

_RUN_ID: Final = re.compile(r"[a-z][a-z0-9-]{0,44}")
# For the newest that has left something.
_MOST_SEARCHED: Final = 50


def results(arguments: argparse.Namespace) -> int:
    """List what a run has left, or download it; raises where it is missing or damaged."""
    named = None if arguments.run_id == NEWEST else _run_id(arguments.run_id)
    artifacts = _artifacts(arguments)
    run_id = named or _newest()
    recorded = _recorded(run_id)
    to: Path | None = arguments.to
    if to is None:
        found = artifacts.verify(run_id, recorded=recorded)
    else:
        progress = _Progress(quiet=arguments.json)
        found = artifacts.download(run_id, to, recorded=recorded, on_file=progress)
    if arguments.json:
        print(json.dumps(files_of(found), indent=2))
        return 0
    if to is None:
        _print_table(found)
    manifest = found.manifest
    total = f"{len(manifest.files)} files, {size_text(manifest.num_bytes)}"
    done = "as S3 has them" if to is None else f"verified in {to}"
    print(f"{found.uri}: {total}, {done}")
    if recorded is None:
        print(
            "Nothing was compared with what was recorded when the result was verified: "
            f"{PREFIX}TABLE_NAME names no table with this run."
        )
    if is_backup(manifest):
        print(
            f"This is a backup of while the run trained: a checkpoint of step "
            f"{saved_step(manifest)}, and no model; /train resume {run_id} continues from it."
        )
    return 0


def files_of(found: SavedResult) -> list[dict[str, Any]]:
    """Return the files of a result, as `--json` prints them."""
    return [
        {"path": file.path, "num_bytes": file.num_bytes, "sha256": file.sha256}
        for file in found.manifest.files
    ]


class _Progress:
    """A line for each file, from whatever thread."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._guard = threading.Lock()

    def __call__(self, file: ResultFile, fetched: bool) -> None:
        if not self._quiet:
            word = "fetched" if fetched else "kept   "
            with self._guard:
                print(f"{word} {size_text(file.num_bytes):>9}  {file.path}", flush=True)


def _print_table(found: SavedResult) -> None:
    table = Table("file", box=None)
    table.add_column("size", justify="right")
    table.add_column("SHA-256")
    for file in found.manifest.files:
        table.add_row(file.path, size_text(file.num_bytes), file.sha256)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _run_id(text: str) -> RunId:
    if not _RUN_ID.fullmatch(text):
        raise BadCommand(
            f'"{text}" is no run; expected an id as in the channel, tiny-llama-775214b0'
        )
    return RunId(text)


def _newest() -> RunId:
    """Return the newest run that has left a result.

    Raises:
        BadCommand: none has, or no table is named.
    """
    try:
        newest = Services(Settings.from_environment()).runs.list_newest()
    except PermanentError:
        raise BadCommand(
            f"{NEWEST} is not known here: {PREFIX}TABLE_NAME names no table of runs; give an id"
        ) from None
    found = next((run for run in islice(newest, _MOST_SEARCHED) if run.results is not None), None)
    if found is None:
        raise BadCommand("no run has left a result yet; start one with /train RECIPE")
    return found.run_id


def _recorded(run_id: RunId) -> str | None:
    """Return what was recorded of the run's manifest; None without a table, or for no run."""
    try:
        settings = Settings.from_environment()
    except PermanentError:
        return None
    run = Services(settings).runs.find(run_id)
    return run.saved_manifest if run is not None else None


def _artifacts(arguments: argparse.Namespace) -> Artifacts:
    state_dir: Path | None = arguments.state_dir
    bucket = arguments.bucket or artifacts_bucket()
    if state_dir is None and bucket:
        return Artifacts.connect(bucket)
    enter_local_mode(
        state_dir or DEFAULT_STATE_DIR,
        or_else="no bucket is named and {missing}; give --bucket NAME, the output "
        "ArtifactsBucketName of the deployment, or --state-dir DIR",
    )
    return Artifacts.connect(artifacts_bucket())
