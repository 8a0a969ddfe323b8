"""The saver's settings: the variables that its Job sets (`stationmaster.rendering.saver_job`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.names import NAMESPACE
from stationmaster.domain.results import RunFacts
from stationmaster.relay.variables import namespace, not_understood, region, required

_FACTS: Final = "STATIONMASTER_RUN_FACTS"
_SETTER: Final = "the saver's Job"


class SavingConfig(BaseModel):
    """What to save, where to, and what the manifest says of the run."""

    model_config = ConfigDict(frozen=True)

    facts: RunFacts
    bucket: str
    region: str
    directory: Path
    """The trainer's output directory."""
    namespace: str = NAMESPACE
    """The namespace that it runs in, set where it is not the product's usual one."""

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> SavingConfig:
        """Read STATIONMASTER_RUN_ID, _ARTIFACTS_BUCKET, _RUN_DIRECTORY, _RUN_FACTS and AWS_REGION.

        STATIONMASTER_NAMESPACE may be set as well.

        Raises:
            PermanentError: naming the variable that is missing, empty or not understood.
        """
        run_id = required(variables, "STATIONMASTER_RUN_ID", setter=_SETTER)
        try:
            facts = RunFacts.model_validate_json(required(variables, _FACTS, setter=_SETTER))
        except ValidationError as exc:
            raise not_understood(_FACTS, exc, setter=_SETTER) from exc
        if facts.run_id != run_id:
            raise PermanentError(
                f"variable {_FACTS} is of run {facts.run_id}, expected {run_id}; "
                f"{_SETTER} must set it"
            )
        return cls(
            facts=facts,
            bucket=required(variables, "STATIONMASTER_ARTIFACTS_BUCKET", setter=_SETTER),
            region=region(variables, setter=_SETTER),
            directory=Path(required(variables, "STATIONMASTER_RUN_DIRECTORY", setter=_SETTER)),
            namespace=namespace(variables),
        )
