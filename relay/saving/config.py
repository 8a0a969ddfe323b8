"""The saver's settings: the variables that its Job sets (`stationmaster.rendering.saving`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from stationmaster.domain import names
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.results import RunFacts


class SavingConfig(BaseModel):
    """What to save, where to, and what the manifest says of the run."""

    model_config = ConfigDict(frozen=True)

    facts: RunFacts
    bucket: str
    region: str
    directory: Path
    """The trainer's output directory."""
    namespace: str = names.NAMESPACE

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> SavingConfig:
        """Read STATIONMASTER_RUN_ID, _ARTIFACTS_BUCKET, _RUN_DIRECTORY, _RUN_FACTS and AWS_REGION.

        Raises:
            PermanentError: naming the variable that is missing, empty or not understood.
        """
        region = "AWS_REGION" if variables.get("AWS_REGION") else "AWS_DEFAULT_REGION"
        run_id = _required(variables, "STATIONMASTER_RUN_ID")
        try:
            facts = RunFacts.model_validate_json(_required(variables, "STATIONMASTER_RUN_FACTS"))
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the text"
            raise PermanentError(
                f"variable STATIONMASTER_RUN_FACTS is not understood: {place}: {first['msg']}; "
                "the saver's Job must set it"
            ) from exc
        if facts.run_id != run_id:
            raise PermanentError(
                f"variable STATIONMASTER_RUN_FACTS is of run {facts.run_id}, expected {run_id}; "
                "the saver's Job must set it"
            )
        return cls(
            facts=facts,
            bucket=_required(variables, "STATIONMASTER_ARTIFACTS_BUCKET"),
            region=_required(variables, region),
            directory=Path(_required(variables, "STATIONMASTER_RUN_DIRECTORY")),
        )


def _required(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(name, "")
    if not value:
        raise PermanentError(
            f"variable {name} is {'empty' if name in variables else 'missing'}; "
            "the saver's Job must set it"
        )
    return value
