"""Lambda function check-reach: a custom resource, as CloudFormation's requests.

It exists while the functions are outside of the network, so to create it is to ask whether they may
leave. An error is not answered: Lambda tries twice more, then the resource's time is over. A
cluster that is made meanwhile is not seen; `kubernetes.connect` refuses it, with the same remedy.
"""

import json
import urllib.request
from typing import Any, Literal

from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_pascal

from lambdas.step import services
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.outside import first_problem
from stationmaster.invocations import guarded
from stationmaster.services import Services


class Request(BaseModel):
    """What CloudFormation asks. Source: its user guide, "Custom resource request objects"."""

    model_config = ConfigDict(alias_generator=to_pascal)

    request_type: Literal["Create", "Update", "Delete"]
    url: str = Field(alias="ResponseURL", pattern=r"^https://[a-z0-9.-]+\.amazonaws\.com(\.cn)?/")
    stack_id: str
    request_id: str
    logical_resource_id: str
    physical_resource_id: str = "check-reach"


def handler(event: Any, context: LambdaContext) -> None:
    """Answer CloudFormation, at the address that came with the request."""
    guarded(lambda: _answer(event), keys={"step": "check_reach"})


def _answer(event: Any) -> str:
    try:
        request = Request.model_validate(event)
    except ValidationError as exc:
        problem = first_problem(exc)
        raise PermanentError(f"this is no request of CloudFormation, {problem}") from exc
    # A deletion, also that of a rollback, is never refused.
    reason = check_reach(services()) if request.request_type == "Create" else ""
    answer = {"Status": "FAILED" if reason else "SUCCESS", "Reason": reason}
    answer |= request.model_dump(by_alias=True, exclude={"request_type", "url"})
    # The address is signed without a type, and urllib adds one where none is given.
    put = urllib.request.Request(
        request.url, json.dumps(answer).encode(), {"Content-Type": ""}, method="PUT"
    )
    with urllib.request.urlopen(put, timeout=20):
        return reason


def check_reach(services: Services) -> str:
    """Say why the functions cannot leave the network, "" where they can."""
    planes = (
        (cluster.label, services.control_plane(cluster.cluster_id))
        for cluster in services.cluster_states.list_open()
    )
    return refusal([label for label, plane in planes if plane is not None and plane.is_closed])


def refusal(closed: list[str]) -> str:
    """Write the sentence for living clusters whose API is closed, "" without any."""
    if not closed:
        return ""
    return (
        "this deployment takes the functions out of the network, and only from there they reach "
        f"the Kubernetes APIs of living clusters, {len(closed)} in all: {', '.join(closed[:5])}; "
        "expected none: finish their runs and delete them, or set "
        '"public_api": false or "api_cidrs": ["0.0.0.0/0"] in cdk.json, then deploy again'
    )
