"""Verifies from outside its cluster that what a run has left is in the artifacts bucket."""

from __future__ import annotations

from stationmaster.domain.errors import ResultMissing
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import OUTPUT, is_backup
from stationmaster.domain.run.events import ResultsSaved, RunPhase
from stationmaster.services import Services


def verify_results(services: Services, run_id: RunId) -> None:
    """Compare the bucket with the result's manifest, and record that the result is saved.

    From then on the file system may go. A run without anything to save stays as it is, and so does
    one that began to train since save-results looked: conclude-run sends it back there.

    Raises:
        ResultMissing, ResultDamaged: the bucket has not what the manifest lists; names the file.
        TransientError, PermanentError: the bucket does not answer, or refuses to.
    """
    run = services.runs.load(run_id)
    if run.phase is not RunPhase.SAVING or not run.has_unsaved_results:
        return
    found = services.artifacts.verify(run_id)
    if is_backup(found.manifest):
        raise ResultMissing(f"{found.uri} has a backup of run {run_id} only, of before its end")
    event = ResultsSaved(
        **services.run_stamp(run_id, "results.saved", found.manifest_sha256),
        uri=found.uri,
        num_files=len(found.manifest.files),
        num_bytes=found.manifest.num_bytes,
        manifest_sha256=found.manifest_sha256,
        has_output=any(file.path.startswith(f"{OUTPUT}/") for file in found.manifest.files),
    )
    services.runs.record(run_id, [event])
