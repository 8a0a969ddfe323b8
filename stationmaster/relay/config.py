"""The relay's settings: the few variables that its Deployment sets.

It does not use `stationmaster.settings.Settings`, because that demands what only the Lambda
functions know: a pod in a run's cluster gets no more than it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict, SecretStr

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import NAMESPACE, RELAY_KEY_VARIABLE
from stationmaster.relay.variables import namespace, region, required

_SETTER: Final = "the relay's Deployment"


class RelayConfig(BaseModel):
    """Which attempt at which run to watch, and where to report it."""

    model_config = ConfigDict(frozen=True)

    run_id: RunId
    job: str
    """The name of the job of the watched attempt."""
    job_kind: JobKind = JobKind.PYTORCH_JOB
    """The kind of the job in Kubernetes."""
    bus_name: str
    key: SecretStr
    """The key of this run alone, which signs what it reports."""
    bucket: str
    """The bucket of results, for the logs of pods that have ended."""
    region: str
    namespace: str = NAMESPACE
    """The namespace that it runs in, set where it is not the product's usual one."""
    lease: str = ""
    """The Lease by which several relays agree on who sends; empty for a single one."""
    pod: str
    """Its own name, for the lease, its logs and those that it keeps."""

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> RelayConfig:
        """Read STATIONMASTER_RUN_ID, _JOB, _BUS_NAME, _RELAY_KEY, _ARTIFACTS_BUCKET, _POD,
        AWS_REGION.

        STATIONMASTER_JOB_KIND, _NAMESPACE and _LEASE may be set as well.

        Raises:
            PermanentError: naming the variable that is missing, empty or of no known value.
        """
        return cls(
            run_id=RunId(required(variables, "STATIONMASTER_RUN_ID", setter=_SETTER)),
            job=required(variables, "STATIONMASTER_JOB", setter=_SETTER),
            job_kind=_job_kind(variables.get("STATIONMASTER_JOB_KIND", JobKind.PYTORCH_JOB)),
            bus_name=required(variables, "STATIONMASTER_BUS_NAME", setter=_SETTER),
            key=SecretStr(required(variables, RELAY_KEY_VARIABLE, setter=_SETTER)),
            bucket=required(variables, "STATIONMASTER_ARTIFACTS_BUCKET", setter=_SETTER),
            region=region(variables, setter=_SETTER),
            namespace=namespace(variables),
            lease=variables.get("STATIONMASTER_LEASE", ""),
            pod=required(variables, "STATIONMASTER_POD", setter=_SETTER),
        )


def _job_kind(text: str) -> JobKind:
    try:
        return JobKind(text)
    except ValueError:
        known = " or ".join(JobKind)
        message = f'STATIONMASTER_JOB_KIND is "{text}", and {_SETTER} has to set it to {known}'
        raise PermanentError(message) from None
