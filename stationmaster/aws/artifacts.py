"""S3: what runs have left in the artifacts bucket, verified from outside and downloaded.

A result is complete when its manifest is there, which the saver writes last. Everything here only
reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stationmaster.aws.calls import AwsConflict, AwsNotFound, aws_call, make_client
from stationmaster.domain.errors import (
    PermanentError,
    ResultDamaged,
    ResultMissing,
    TransientError,
)
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import (
    MANIFEST_FILE,
    ResultFile,
    ResultManifest,
    manifest_sha256,
    read_manifest,
    results_prefix,
    results_uri,
    unlike_recorded,
)

# A connection pool of botocore has 10; some are left for whoever else uses the client.
_NUM_LOOKS: Final = 8
_NUM_DOWNLOADS: Final = 4
# A download continues where it broke off, this often for each file.
_NUM_TRIES: Final = 5
_PIECE_BYTES: Final = 2**20


@dataclass(frozen=True)
class SavedResult:
    """A result whose manifest has been read."""

    uri: str
    manifest: ResultManifest
    manifest_sha256: str
    """The SHA-256 in hex of this very manifest."""
    text: bytes
    """The manifest as it is in the bucket."""


class Artifacts:
    """Reads one bucket. Threads may share it."""

    def __init__(self, bucket: str, client: Any) -> None:
        self._bucket = bucket
        self._client = client

    @classmethod
    def connect(cls, bucket: str) -> Artifacts:
        """Connect to the bucket with the credentials and the region of the environment."""
        return cls(bucket, make_client("s3", region=None))

    def read(self, run_id: RunId, *, recorded: str | None = None) -> SavedResult:
        """Read what the run has saved, by its manifest; its files are not looked at.

        Args:
            recorded: the SHA-256 of the manifest that was verified; None where nobody knows it.

        Raises:
            ResultMissing: there is no manifest: nothing was saved, or the saving has not ended.
            ResultDamaged: it is another manifest than was recorded.
            PermanentError: the manifest cannot be read, or is of another run.
        """
        uri = results_uri(self._bucket, run_id)
        try:
            with aws_call(f"reading {uri}{MANIFEST_FILE}"):
                found = self._client.get_object(**self._place(run_id, MANIFEST_FILE))
                text = found["Body"].read()
        except AwsNotFound as exc:
            raise ResultMissing(
                f"run {run_id} has no complete result: {uri}{MANIFEST_FILE} is not there"
            ) from exc
        if recorded is not None and (
            why := unlike_recorded(text, recorded, uri=f"{uri}{MANIFEST_FILE}")
        ):
            raise ResultDamaged(why)
        manifest = read_manifest(text, uri=f"{uri}{MANIFEST_FILE}")
        if manifest.run_id != run_id:
            raise PermanentError(f"{uri}{MANIFEST_FILE} is of run {manifest.run_id}, not {run_id}")
        return SavedResult(uri, manifest, manifest_sha256(text), text)

    def verify(self, run_id: RunId, *, recorded: str | None = None) -> SavedResult:
        """Read the run's result, and compare S3's own size and checksum of each file with it.

        Nothing is downloaded: S3 computed the checksums when it took the files in.

        Raises:
            ResultMissing: the manifest, or a file that it lists, is missing.
            ResultDamaged: a file has another size or checksum; names it.
            PermanentError: as `read`.
        """
        result = self.read(run_id, recorded=recorded)
        _each(
            result.manifest.files,
            lambda file: self._verify_file(run_id, file),
            num_threads=_NUM_LOOKS,
        )
        return result

    def link(self, run_id: RunId, path: str, *, seconds: int) -> str:
        """Make an address that downloads one file of the result, for whoever has it.

        It is valid for `seconds`, and no longer than the credentials that signed it.
        """
        # A browser saves the file and shows none of it.
        name = path.rpartition("/")[2]
        saved_as = {"ResponseContentDisposition": f'attachment; filename="{name}"'}
        address: str = self._client.generate_presigned_url(
            "get_object", Params=self._place(run_id, path) | saved_as, ExpiresIn=seconds
        )
        return address

    def end_of(self, run_id: RunId, path: str, num_bytes: int) -> bytes:
        """Read the last bytes of one file of the result, or all of a smaller one.

        Raises:
            ResultMissing: it is not in the bucket.
        """
        uri = results_uri(self._bucket, run_id) + path
        place = self._place(run_id, path)
        try:
            with aws_call(f"reading {uri}"):
                found = self._client.get_object(**place, Range=f"bytes=-{num_bytes}")
                text: bytes = found["Body"].read()
        except AwsNotFound as exc:
            raise ResultMissing(f"{uri} is not in the bucket") from exc
        return text

    def _place(self, run_id: RunId, path: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": results_prefix(run_id) + path}

    def _verify_file(self, run_id: RunId, file: ResultFile) -> None:
        uri = results_uri(self._bucket, run_id) + file.path
        try:
            with aws_call(f"looking at {uri}"):
                place = self._place(run_id, file.path)
                found = self._client.head_object(**place, ChecksumMode="ENABLED")
        except AwsNotFound as exc:
            raise ResultMissing(f"{uri} is in the manifest and not in the bucket") from exc
        difference = _difference(file, found)
        if difference is not None:
            raise ResultDamaged(f"{uri} {difference}")

    def download(
        self,
        run_id: RunId,
        to: Path,
        *,
        recorded: str | None = None,
        on_file: Callable[[ResultFile, bool], None] = lambda _file, _fetched: None,
    ) -> SavedResult:
        """Download the run's result into the folder `to`, and check each file's SHA-256.

        A file appears under its name only when it is whole and right. One that is there already and
        right is kept; one that broke off is continued. The manifest is written last. `on_file` is
        called for each file, from several threads, with whether it was fetched.

        Raises:
            ResultMissing, ResultDamaged: a file in the bucket is missing or not what the manifest
                says; names it.
            TransientError: S3 kept breaking off; the next call continues.
            PermanentError: as `read`, or `to` cannot be written.
        """
        result = self.read(run_id, recorded=recorded)

        def bring(file: ResultFile) -> None:
            on_file(file, self._bring(run_id, file, to / file.path))

        try:
            _each(result.manifest.files, bring, num_threads=_NUM_DOWNLOADS)
            partial = to / f".{MANIFEST_FILE}.part"
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(result.text)
            partial.replace(to / MANIFEST_FILE)
        except OSError as exc:
            raise PermanentError(f"cannot write {exc.filename or to}: {exc.strerror}") from exc
        return result

    def _bring(self, run_id: RunId, file: ResultFile, path: Path) -> bool:
        """Bring a file; say whether it had to be fetched."""
        if path.is_file() and _sha256(path) == file.sha256:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.part")
        was_begun = partial.exists()
        self._fetch(run_id, file, partial)
        if was_begun and _sha256(partial) != file.sha256:
            # It was begun with another version of the file: once more, from nothing.
            partial.unlink()
            self._fetch(run_id, file, partial)
        if _sha256(partial) != file.sha256:
            partial.unlink()
            uri = results_uri(self._bucket, run_id) + file.path
            raise ResultDamaged(f"{uri} is damaged: its SHA-256 is not {file.sha256}")
        partial.replace(path)
        return True

    def _fetch(self, run_id: RunId, file: ResultFile, partial: Path) -> None:
        for left in reversed(range(_NUM_TRIES)):
            try:
                self._continue(run_id, file, partial)
                return
            except TransientError:
                if not left:
                    raise

    def _continue(self, run_id: RunId, file: ResultFile, partial: Path) -> None:
        """Append to `partial` what it lacks of the file."""
        have = partial.stat().st_size if partial.exists() else 0
        if have > file.num_bytes:
            partial.unlink()
            have = 0
        with partial.open("ab") as written:
            if have == file.num_bytes:
                return
            uri = results_uri(self._bucket, run_id) + file.path
            try:
                with aws_call(f"downloading {uri}", "InvalidRange"):
                    place = self._place(run_id, file.path)
                    found = self._client.get_object(**place, Range=f"bytes={have}-")
                    for piece in found["Body"].iter_chunks(_PIECE_BYTES):
                        written.write(piece)
            except AwsNotFound as exc:
                raise ResultMissing(f"{uri} is in the manifest and not in the bucket") from exc
            except AwsConflict as exc:
                raise ResultDamaged(f"{uri} ends before byte {have} of {file.num_bytes}") from exc


def _each(
    files: Iterable[ResultFile], act: Callable[[ResultFile], None], *, num_threads: int
) -> None:
    """Call `act` for all files, in threads; the first error ends it, and drops what waits."""
    with ThreadPoolExecutor(num_threads) as pool:
        for future in as_completed([pool.submit(act, file) for file in files]):
            error = future.exception()
            if error is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                raise error


def _difference(file: ResultFile, found: Mapping[str, Any]) -> str | None:
    """Say how an object differs from what the manifest says of it, or None."""
    if found["ContentLength"] != file.num_bytes:
        return f"has {found['ContentLength']} bytes and the manifest says {file.num_bytes}"
    checksum = found.get("ChecksumSHA256")
    if checksum is None:
        return "has no SHA-256 checksum of S3's, so it was not written by the saver"
    if checksum != file.s3_checksum:
        return f"has the checksum {checksum} and the manifest says {file.s3_checksum}"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
