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
from functools import partial

from kubernetes.config import ConfigException

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.results import SavedLine, SavingLine, results_uri
from stationmaster.relay.cluster import ClusterApi
from stationmaster.relay.config import SavingConfig
from stationmaster.relay.job_output import ByteProgress, run_program
from stationmaster.relay.saving.bucket import ResultsBucket
from stationmaster.relay.saving.pod_logs import PodLogs
from stationmaster.relay.saving.result import save_result
from stationmaster.relay.saving.sources import RunDirectory
from stationmaster.relay.saving.uploads import FILES_AT_ONCE, PARTS_AT_ONCE


def main(variables: Mapping[str, str]) -> int:
    """Save, and return the exit code."""
    return run_program(
        SavingConfig, partial(_save, kubeconfig=variables.get("KUBECONFIG")), variables
    )


def _save(config: SavingConfig, *, kubeconfig: str | None) -> SavedLine:
    began, run_id = time.monotonic(), config.facts.run_id
    try:
        api = ClusterApi.connect(kubeconfig)
    except ConfigException as exc:
        raise PermanentError(
            f"the cluster's API is not known: {exc}; the saver's pod needs its service account"
        ) from exc
    saved = save_result(
        config.facts,
        directory=RunDirectory(config.directory),
        logs=PodLogs(api, namespace=config.namespace, run_id=run_id),
        bucket=ResultsBucket.connect(
            bucket=config.bucket,
            run_id=run_id,
            region=config.region,
            connections=PARTS_AT_ONCE + FILES_AT_ONCE,
        ),
        report=ByteProgress(
            lambda done, total: SavingLine(
                run_id=run_id, at=datetime.now(UTC), saved_bytes=done, total_bytes=total
            )
        ),
    )
    return SavedLine(
        run_id=run_id,
        uri=results_uri(config.bucket, run_id),
        num_files=len(saved.manifest.files),
        num_bytes=saved.manifest.num_bytes,
        manifest_sha256=saved.manifest_sha256,
        seconds=round(time.monotonic() - began, 3),
    )


if __name__ == "__main__":
    sys.exit(main(os.environ))
