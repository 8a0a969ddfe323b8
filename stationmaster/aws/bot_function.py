"""The bot function of a deployment, as whoever may invoke it reaches it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from stationmaster.aws.calls import AwsNotFound, aws_call, make_client
from stationmaster.aws.proofs import sign
from stationmaster.domain.errors import BadCommand, PermanentError, TransientError, UserError
from stationmaster.domain.outside import first_problem
from stationmaster.domain.remote import FIELD, Answer, Envelope


class BotFunction:
    """Invokes it with the credentials of this process; IAM decides whether they may."""

    def __init__(self, deployment: str, *, name: str) -> None:
        self._deployment = deployment
        self._name = name
        self._client = make_client("lambda", region=None)

    def ask(self, text: str) -> dict[str, Any]:
        """Hand over an `Ask` as JSON, and return the value of the answer.

        Raises:
            UserError: there is no such deployment, or the bot refuses.
            TransientError: asking again is expected to help.
            PermanentError: IAM does not allow it, or the bot failed.
        """
        envelope = Envelope(ask=text, proof=sign(text, deployment=self._deployment))
        payload = json.dumps({FIELD: envelope.model_dump()}).encode()
        try:
            with aws_call(f"asking {self._name}"):
                invoked = self._client.invoke(FunctionName=self._name, Payload=payload)
                body = invoked["Payload"].read()
        except AwsNotFound as exc:
            raise BadCommand(
                f'there is no deployment "{self._deployment}" in {self._client.meta.region_name} '
                f"of this account ({exc}); its name is in cdk.json, and AWS_REGION names the region"
            ) from exc
        if invoked.get("FunctionError"):
            raise TransientError(f"{self._name} failed: {body[:300].decode(errors='replace')}")
        return self._value(body)

    def _value(self, body: bytes) -> dict[str, Any]:
        try:
            answer = Answer.model_validate_json(body)
        except ValidationError as exc:
            raise PermanentError(
                f"{self._name} does not answer programs ({first_problem(exc)}); deploy the version "
                "of Stationmaster that this is"
            ) from exc
        if answer.refused:
            raise UserError(answer.refused, suggestion=answer.suggestion)
        if answer.failed or answer.value is None:
            kind = TransientError if answer.is_transient else PermanentError
            raise kind(answer.failed or f"{self._name} answers nothing")
        return answer.value
