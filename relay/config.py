"""The relay's settings: the few variables that its Deployment sets.

Read by relay/__main__.py from the mapping it is given. The relay does not use
`stationmaster.settings.Settings`, because that demands what only the Lambda functions know (the
table, the state machines); a pod in a run's cluster gets no more than it needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from stationmaster.domain import names
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import RunId


class RelayConfig(BaseModel):
    """Which attempt at which run to watch, and where to report it."""

    model_config = ConfigDict(frozen=True)

    run_id: RunId
    job: str
    """Name of the PyTorchJob of the attempt that is watched."""
    bus_name: str
    region: str
    namespace: str = names.NAMESPACE

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> RelayConfig:
        """Read STATIONMASTER_RUN_ID, STATIONMASTER_JOB, STATIONMASTER_BUS_NAME and AWS_REGION.

        Raises:
            PermanentError: naming the variable that is missing or empty.
        """
        region = "AWS_REGION" if variables.get("AWS_REGION") else "AWS_DEFAULT_REGION"
        return cls(
            run_id=RunId(_required(variables, "STATIONMASTER_RUN_ID")),
            job=_required(variables, "STATIONMASTER_JOB"),
            bus_name=_required(variables, "STATIONMASTER_BUS_NAME"),
            region=_required(variables, region),
        )


def _required(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(name, "")
    if not value:
        raise PermanentError(
            f"variable {name} is {'empty' if name in variables else 'missing'}; "
            "the relay's Deployment must set it"
        )
    return value
