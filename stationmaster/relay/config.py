"""The settings of the relay's programs: the few variables that their Deployment or Job sets.

They do not use `stationmaster.settings.Settings`, because that demands what only the Lambda
functions know: a pod in a run's cluster gets no more than it needs. Each field names the variable
that it is read from.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, IPvAnyAddress, Json, SecretStr, ValidationError

from stationmaster.domain.datasets import S3Source, read_dataset
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import NAMESPACE, RELAY_KEY_VARIABLE
from stationmaster.domain.restoring import RestoringOrder
from stationmaster.domain.results import RunFacts
from stationmaster.domain.staged_data import LookingOrder, StagingOrder

_Bucket = Annotated[str, Field(validation_alias="STATIONMASTER_ARTIFACTS_BUCKET")]
_Region = Annotated[str, Field(validation_alias="AWS_REGION")]
_Namespace = Annotated[str, Field(validation_alias="STATIONMASTER_NAMESPACE")]
"""The namespace that a program runs in, set where it is not the product's usual one."""
_RunDirectory = Annotated[Path, Field(validation_alias="STATIONMASTER_RUN_DIRECTORY")]
"""The trainer's output directory of the run."""


class Config(Frozen):
    """The settings of one program."""

    setter: ClassVar[str] = "the stager's Job"
    """What sets the variables; errors name it."""

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> Self:
        """Read the variables; an empty one counts as missing.

        Raises:
            PermanentError: naming the variable that is missing, empty or not understood.
        """
        try:
            return cls.model_validate({name: value for name, value in variables.items() if value})
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
            name, *place = map(str, first["loc"])
            state = f"not understood: {': '.join([*place, first['msg']])}"
            if first["type"] == "missing" and not place:
                state = "empty" if name in variables else "missing"
            raise PermanentError(f"variable {name} is {state}; {cls.setter} must set it") from exc


class RelayConfig(Config):
    """Which attempt at which run to watch, and where to report it."""

    setter = "the relay's Deployment"

    run_id: RunId = Field(validation_alias="STATIONMASTER_RUN_ID")
    job: str = Field(validation_alias="STATIONMASTER_JOB")
    """The name of the job of the watched attempt."""
    job_kind: JobKind = Field(JobKind.PYTORCH_JOB, validation_alias="STATIONMASTER_JOB_KIND")
    """The kind of the job in Kubernetes."""
    bus_name: str = Field(validation_alias="STATIONMASTER_BUS_NAME")
    key: SecretStr = Field(validation_alias=RELAY_KEY_VARIABLE)
    """The key of this run alone, which signs what it reports."""
    bucket: _Bucket
    """The bucket of results, for the logs of pods that have ended."""
    region: _Region
    namespace: _Namespace = NAMESPACE
    lease: str = Field("", validation_alias="STATIONMASTER_LEASE")
    """The Lease by which several relays agree on who sends; empty for a single one."""
    pod: str = Field(validation_alias="STATIONMASTER_POD")
    """Its own name, for the lease, its logs and those that it keeps."""
    address: IPvAnyAddress = Field(
        IPv4Address("127.0.0.1"), validation_alias="STATIONMASTER_POD_IP"
    )
    """Of the pod; a loopback address where pods are processes of one machine."""


class SavingConfig(Config):
    """What to save, where to, and what the manifest says of the run."""

    setter = "the saver's Job"

    facts: Json[RunFacts] = Field(validation_alias="STATIONMASTER_RUN_FACTS")
    bucket: _Bucket
    region: _Region
    directory: _RunDirectory
    namespace: _Namespace = NAMESPACE


class StagingConfig(Config):
    """What to bring, and where to."""

    order: Json[StagingOrder] = Field(validation_alias="STATIONMASTER_STAGING_ORDER")
    region: _Region
    directory: Path = Field(validation_alias="STATIONMASTER_DATA_DIRECTORY")
    """The directory of all data; each data set has a directory below it."""

    @property
    def source(self) -> S3Source:
        """The address of the data; there is an order for no other kind."""
        source = read_dataset(self.order.dataset)
        assert isinstance(source, S3Source)
        return source


class LookingConfig(Config):
    """What to look at."""

    order: Json[LookingOrder] = Field(validation_alias="STATIONMASTER_LOOKING_ORDER")
    mount: Path = Field(validation_alias="STATIONMASTER_SHARED_DIRECTORY")
    """The file system's mount."""


class RestoringConfig(Config):
    """What to bring back of other runs' results, and where to."""

    order: Json[RestoringOrder] = Field(validation_alias="STATIONMASTER_RESTORING_ORDER")
    bucket: _Bucket
    region: _Region
    directory: _RunDirectory
