"""python -m stationmaster.relay.save

Saves the result of a run: a Job of the run's cluster (`rendering.saver_job`), with the
file system mounted. Credentials come from Pod Identity, Kubernetes access from the service account,
or from $KUBECONFIG where that is set. Standard output carries JSON lines of the kinds `saving` and,
at the end, `saved`; where it fails, the last line is one sentence. It may be killed and started
again at any point.

Exit codes: 0 saved, 1 not saved but worth another try, 2 a bad setting, 3 refused: a right or the
bucket is missing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from kubernetes.config import ConfigException

from stationmaster.domain.errors import PermanentError, StationmasterError
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import SavedLine, SavingLine, results_uri
from stationmaster.relay.cluster import ClusterApi
from stationmaster.relay.job_output import ByteProgress, fail, print_line, start_logging
from stationmaster.relay.saving.bucket import ResultsBucket, SavingRefused
from stationmaster.relay.saving.config import SavingConfig
from stationmaster.relay.saving.pod_logs import PodLogs
from stationmaster.relay.saving.result import Saved, save_result
from stationmaster.relay.saving.sources import RunDirectory
from stationmaster.relay.saving.uploads import FILES_AT_ONCE, PARTS_AT_ONCE


def main(variables: Mapping[str, str]) -> int:
    """Save, and turn every ending into a last line and an exit code."""
    start_logging()
    try:
        config = SavingConfig.from_variables(variables)
    except PermanentError as error:
        return fail(str(error), EXIT_MISUNDERSTOOD)
    began = time.monotonic()
    try:
        saved = _save(config, variables)
    except SavingRefused as error:
        return fail(str(error), EXIT_REFUSED)
    except PermanentError as error:
        return fail(str(error), EXIT_MISUNDERSTOOD)
    except (StationmasterError, OSError) as error:
        return fail(str(error), EXIT_NOT_DONE)
    run_id = config.facts.run_id
    print_line(
        SavedLine(
            run_id=run_id,
            at=datetime.now(UTC),
            uri=results_uri(config.bucket, run_id),
            num_files=len(saved.manifest.files),
            num_bytes=saved.manifest.num_bytes,
            manifest_sha256=saved.manifest_sha256,
            seconds=round(time.monotonic() - began, 3),
        )
    )
    return 0


def _save(config: SavingConfig, variables: Mapping[str, str]) -> Saved:
    facts = config.facts
    try:
        api = ClusterApi.connect(variables.get("KUBECONFIG"))
    except ConfigException as exc:
        raise PermanentError(
            f"the cluster's API is not known: {exc}; the saver's pod needs its service account"
        ) from exc
    return save_result(
        facts,
        directory=RunDirectory(config.directory),
        logs=PodLogs(api, namespace=config.namespace, run_id=facts.run_id),
        bucket=ResultsBucket.connect(
            bucket=config.bucket,
            run_id=facts.run_id,
            region=config.region,
            connections=PARTS_AT_ONCE + FILES_AT_ONCE,
        ),
        report=_Report(facts.run_id),
    )


class _Report:
    """Prints progress, for `relay.saving`."""

    def __init__(self, run_id: RunId) -> None:
        self._progress = ByteProgress(
            lambda done, total: SavingLine(
                run_id=run_id, at=datetime.now(UTC), saved_bytes=done, total_bytes=total
            )
        )

    def expect(self, num_bytes: int) -> None:
        self._progress.expect(num_bytes)

    def saved(self, num_bytes: int) -> None:
        self._progress.add(num_bytes)


if __name__ == "__main__":
    sys.exit(main(os.environ))
