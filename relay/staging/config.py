"""The stager's settings: the variables that its Job sets (`stationmaster.rendering.staging`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from stationmaster.domain.datasets import S3Source, StagingOrder, read_s3_source
from stationmaster.domain.errors import BadParameter, PermanentError


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
        region = "AWS_REGION" if variables.get("AWS_REGION") else "AWS_DEFAULT_REGION"
        text = _required(variables, "STATIONMASTER_STAGING_ORDER")
        try:
            order = StagingOrder.model_validate_json(text)
            source = read_s3_source(order.dataset)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the text"
            raise _not_understood(f"{place}: {first['msg']}") from exc
        except BadParameter as exc:
            raise _not_understood(str(exc)) from exc
        if source is None:
            raise _not_understood(f'dataset "{order.dataset}" is no address of S3')
        return cls(
            order=order,
            source=source,
            region=_required(variables, region),
            directory=Path(_required(variables, "STATIONMASTER_DATA_DIRECTORY")),
        )


def _not_understood(what: str) -> PermanentError:
    return PermanentError(
        f"variable STATIONMASTER_STAGING_ORDER is not understood: {what}; the stager's Job must "
        "set it"
    )


def _required(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(name, "")
    if not value:
        raise PermanentError(
            f"variable {name} is {'empty' if name in variables else 'missing'}; "
            "the stager's Job must set it"
        )
    return value
