"""The stager's settings: the variables that its Jobs set (`stationmaster.rendering.staging`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from stationmaster.domain.datasets import S3Source, StagingOrder, read_s3_source
from stationmaster.domain.errors import BadParameter, PermanentError
from stationmaster.domain.restoring import RestoringOrder

_STAGING: Final = "STATIONMASTER_STAGING_ORDER"
_RESTORING: Final = "STATIONMASTER_RESTORING_ORDER"


class StagingConfig(BaseModel):
    """What to bring, and where to."""

    model_config = ConfigDict(frozen=True)

    order: StagingOrder
    source: S3Source
    region: str
    directory: Path
    """Of all data; each data set has a directory below it."""

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> StagingConfig:
        """Read STATIONMASTER_STAGING_ORDER, STATIONMASTER_DATA_DIRECTORY and AWS_REGION.

        Raises:
            PermanentError: naming the variable that is missing, empty or not understood.
        """
        text = _required(variables, _STAGING)
        try:
            order = StagingOrder.model_validate_json(text)
            source = read_s3_source(order.dataset)
        except ValidationError as exc:
            raise _not_understood(_first_problem(exc)) from exc
        except BadParameter as exc:
            raise _not_understood(str(exc)) from exc
        if source is None:
            raise _not_understood(f'dataset "{order.dataset}" is no address of S3')
        return cls(
            order=order,
            source=source,
            region=_region(variables),
            directory=Path(_required(variables, "STATIONMASTER_DATA_DIRECTORY")),
        )


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
        text = _required(variables, _RESTORING)
        try:
            order = RestoringOrder.model_validate_json(text)
        except ValidationError as exc:
            raise _not_understood(_first_problem(exc), variable=_RESTORING) from exc
        return cls(
            order=order,
            bucket=_required(variables, "STATIONMASTER_ARTIFACTS_BUCKET"),
            region=_region(variables),
            directory=Path(_required(variables, "STATIONMASTER_RUN_DIRECTORY")),
        )


def _region(variables: Mapping[str, str]) -> str:
    name = "AWS_REGION" if variables.get("AWS_REGION") else "AWS_DEFAULT_REGION"
    return _required(variables, name)


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the text"
    return f"{place}: {first['msg']}"


def _not_understood(what: str, *, variable: str = _STAGING) -> PermanentError:
    return PermanentError(
        f"variable {variable} is not understood: {what}; the stager's Job must set it"
    )


def _required(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(name, "")
    if not value:
        raise PermanentError(
            f"variable {name} is {'empty' if name in variables else 'missing'}; "
            "the stager's Job must set it"
        )
    return value
