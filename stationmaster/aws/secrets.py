"""Secrets Manager: the Slack app's credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from stationmaster.aws.calls import AwsNotFound, aws_call
from stationmaster.domain.errors import PermanentError

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


class SlackCredentials(BaseModel):
    """Fields of the Slack secret's JSON; printing them shows asterisks."""

    model_config = ConfigDict(frozen=True)

    bot_token: SecretStr
    signing_secret: SecretStr


class Secrets:
    """Reads secrets, once for each warm function."""

    def __init__(self, slack_secret_id: str, client: SecretsManagerClient) -> None:
        self._slack_secret_id = slack_secret_id
        self._client = client
        self._slack: SlackCredentials | None = None

    def slack(self) -> SlackCredentials:
        """The Slack app's bot token and signing secret.

        Raises:
            PermanentError: the secret is missing or is not the JSON that is expected.
        """
        if self._slack is None:
            self._slack = self._read_slack()
        return self._slack

    def _read_slack(self) -> SlackCredentials:
        secret_id = self._slack_secret_id
        try:
            with aws_call("reading the Slack secret"):
                text = self._client.get_secret_value(SecretId=secret_id)["SecretString"]
        except AwsNotFound as exc:
            raise PermanentError(
                f'secret "{secret_id}" does not exist; deploy the data stack and fill it in'
            ) from exc
        try:
            return SlackCredentials.model_validate_json(text)
        except ValidationError as exc:
            # The validation error would repeat the secret's text, so it is not chained.
            fields = ", ".join(str(error["loc"][0]) for error in exc.errors() if error["loc"])
            raise PermanentError(
                f'secret "{secret_id}" is not JSON with bot_token and signing_secret; '
                f"check {fields or 'its text'}"
            ) from None
