"""The shape of a Job whose program is started again when it fails, unless that cannot help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_REFUSED
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import metadata

# Pods that fail are started again this many times: a node may be lost, S3 may be away for minutes.
_RETRIES: Final = 3


def retried_job(
    name: str,
    labels: Mapping[str, str],
    pod: Mapping[str, Any],
    *,
    container: str,
    deadline_s: int,
    number: int | None = None,
) -> KubernetesObject:
    """The Job of a pod specification; `number` pods work side by side, one without it.

    `container` is the one whose exit code counts.
    """
    side_by_side = {} if number is None else {"parallelism": number, "completions": number}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(dict(labels), name=name),
        "spec": {
            **side_by_side,
            "backoffLimit": _RETRIES * (number or 1),
            "activeDeadlineSeconds": deadline_s,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": container,
                            "operator": "In",
                            "values": [EXIT_MISUNDERSTOOD, EXIT_REFUSED],
                        },
                    }
                ]
            },
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 10, **pod},
            },
        },
    }
