"""Lambda function check-reach: a custom resource, as CloudFormation's requests.

It exists while the functions are outside of the network, so its creation is the question whether
they may leave. An error is raised, not answered: Lambda asks twice more, and then the resource's
time is over, which ends the deployment as a refusal does.
"""

import json
import urllib.request
from http.client import HTTPException
from typing import Any, Final, Literal

from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import BaseModel, Field, ValidationError

from lambdas.step import services
from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.outside import first_problem
from stationmaster.invocations import guarded
from stationmaster.steps.check_reach import check_reach

_TIMEOUT_S: Final = 20


class Request(BaseModel):
    """What CloudFormation asks. Source: its user guide, "Custom resource request objects"."""

    request_type: Literal["Create", "Update", "Delete"] = Field(alias="RequestType")
    response_url: str = Field(
        alias="ResponseURL", pattern=r"^https://[a-z0-9.-]+\.amazonaws\.com(\.cn)?/"
    )
    stack_id: str = Field(alias="StackId", min_length=1)
    request_id: str = Field(alias="RequestId", min_length=1)
    logical_id: str = Field(alias="LogicalResourceId", min_length=1)
    physical_id: str = Field(alias="PhysicalResourceId", default="check-reach", min_length=1)


def handler(event: Any, context: LambdaContext) -> None:
    """Answer CloudFormation, at the address that came with the request."""
    guarded(lambda: _answer(event), keys={"step": "check_reach"})


def _answer(event: Any) -> str:
    try:
        request = Request.model_validate(event)
    except ValidationError as exc:
        raise PermanentError(
            f"a request that is not CloudFormation's is not answered: {first_problem(exc)}"
        ) from exc
    # A deletion, also that of a rollback, is never refused.
    reason = check_reach(services()) if request.request_type == "Create" else ""
    body = {
        "Status": "FAILED" if reason else "SUCCESS",
        "Reason": reason,
        **request.model_dump(by_alias=True, exclude={"request_type", "response_url"}),
    }
    put = urllib.request.Request(
        request.response_url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": ""},  # none is signed, and urllib adds one where this is absent
        method="PUT",
    )
    try:
        with urllib.request.urlopen(put, timeout=_TIMEOUT_S):
            return reason
    except (OSError, HTTPException) as exc:
        raise TransientError(f"CloudFormation did not take the answer: {exc}") from exc
