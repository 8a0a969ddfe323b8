"""The stager's settings: the variables that its Jobs set (`stationmaster.jobs.staging`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from stationmaster.domain.datasets import S3Source, read_dataset
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.restoring import RestoringOrder
from stationmaster.domain.staged_data import LookingOrder, StagingOrder
from stationmaster.relay.variables import not_understood, region, required

_STAGING: Final = "STATIONMASTER_STAGING_ORDER"
_LOOKING: Final = "STATIONMASTER_LOOKING_ORDER"
_RESTORING: Final = "STATIONMASTER_RESTORING_ORDER"
_SETTER: Final = "the stager's Job"


class StagingConfig(BaseModel):
    """What to bring, and where to."""

    model_config = ConfigDict(frozen=True)

    order: StagingOrder
    source: S3Source
    region: str
    directory: Path
    """The directory of all data; each data set has a directory below it."""

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> StagingConfig:
        """Read STATIONMASTER_STAGING_ORDER, STATIONMASTER_DATA_DIRECTORY and AWS_REGION.

        Raises:
            PermanentError: naming the variable that is missing, empty or not understood.
        """
        text = required(variables, _STAGING, setter=_SETTER)
        try:
            order = StagingOrder.model_validate_json(text)
            source = read_dataset(order.dataset)
        except ValidationError as exc:
            raise not_understood(_STAGING, exc, setter=_SETTER) from exc
        except BadParameter as exc:
            raise not_understood(_STAGING, str(exc), setter=_SETTER) from exc
        if not isinstance(source, S3Source):
            problem = f'dataset "{order.dataset}" is no address of S3'
            raise not_understood(_STAGING, problem, setter=_SETTER)
        return cls(
            order=order,
            source=source,
            region=region(variables, setter=_SETTER),
            directory=Path(required(variables, "STATIONMASTER_DATA_DIRECTORY", setter=_SETTER)),
        )


class LookingConfig(BaseModel):
    """What to look at."""

    model_config = ConfigDict(frozen=True)

    order: LookingOrder
    mount: Path
    """The file system's mount."""

    @property
    def path(self) -> Path:
        return Path(self.order.path)

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> LookingConfig:
        """Read STATIONMASTER_LOOKING_ORDER and STATIONMASTER_SHARED_DIRECTORY.

        Raises:
            PermanentError: naming the variable that is missing, empty or not understood.
        """
        text = required(variables, _LOOKING, setter=_SETTER)
        try:
            order = LookingOrder.model_validate_json(text)
        except ValidationError as exc:
            raise not_understood(_LOOKING, exc, setter=_SETTER) from exc
        mount = Path(required(variables, "STATIONMASTER_SHARED_DIRECTORY", setter=_SETTER))
        if not Path(order.path).is_relative_to(mount):
            problem = f"{order.path} is not below {mount}"
            raise not_understood(_LOOKING, problem, setter=_SETTER)
        return cls(order=order, mount=mount)


class RestoringConfig(BaseModel):
    """What to bring back of other runs' results, and where to."""

    model_config = ConfigDict(frozen=True)

    order: RestoringOrder
    bucket: str
    region: str
    directory: Path
    """The trainer's output directory of the run that needs it."""

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> RestoringConfig:
        """Read STATIONMASTER_RESTORING_ORDER, ..._ARTIFACTS_BUCKET, ..._RUN_DIRECTORY, AWS_REGION.

        Raises:
            PermanentError: naming the variable that is missing, empty or not understood.
        """
        text = required(variables, _RESTORING, setter=_SETTER)
        try:
            order = RestoringOrder.model_validate_json(text)
        except ValidationError as exc:
            raise not_understood(_RESTORING, exc, setter=_SETTER) from exc
        return cls(
            order=order,
            bucket=required(variables, "STATIONMASTER_ARTIFACTS_BUCKET", setter=_SETTER),
            region=region(variables, setter=_SETTER),
            directory=Path(required(variables, "STATIONMASTER_RUN_DIRECTORY", setter=_SETTER)),
        )
