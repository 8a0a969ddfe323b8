"""Secrets Manager: the Slack app's credentials, the Hugging Face token of pods, relays' keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import BaseModel, Field, SecretStr, ValidationError

from stationmaster.aws.calls import Adapter, AwsNotFound, aws_call
from stationmaster.domain.bus import relay_key
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import RunId
from stationmaster.domain.trackers import VARIABLES

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


# Their tokens have room in one secret, which takes 64 KiB.
MOST_TEAMS: Final = 100


class BotToken(Frozen):
    """What an installation of the app has given."""

    bot_token: SecretStr
    refresh_token: SecretStr | None = None
    """Where tokens rotate: good for one more bot token, and for one use."""
    expires_at: int = 0
    """When the bot token ends, in seconds since the epoch; 0 where nobody has rotated it yet."""


class SlackCredentials(BotToken):
    """The fields of the Slack secret's JSON; printing them shows asterisks.

    The token beside the others is the first team's.
    """

    signing_secret: SecretStr
    app_token: SecretStr | None = None
    """Opens Socket Mode; only the bot that uses it needs one."""
    client_id: str = ""
    client_secret: SecretStr | None = None
    """Of the app; both are needed where tokens rotate, and to install it in more teams."""
    installs: tuple[str, ...] = ()
    """The other teams that may install the app."""
    team_id: str = ""
    """The first team; known before there are others."""
    teams: dict[str, BotToken] = Field(default_factory=dict)
    """Of the other teams."""

    def of(self, team: str) -> BotToken:
        """Return the token of a team; "" is the first one.

        Raises:
            PermanentError: the app is not installed there.
        """
        if team and team not in self.teams:
            raise PermanentError(f"the app is not installed in {team}")
        return self.teams[team] if team else self


class HuggingFaceCredentials(Frozen):
    """The fields of the Hugging Face secret's JSON; an empty one means none."""

    token: SecretStr
    # Of trackers, under the names of their variables.
    WANDB_API_KEY: SecretStr = SecretStr("")
    WANDB_BASE_URL: SecretStr = SecretStr("")
    MLFLOW_TRACKING_URI: SecretStr = SecretStr("")
    MLFLOW_TRACKING_TOKEN: SecretStr = SecretStr("")


# Of a secret that is there; AWS has one error code for both.
_NO_VALUE: Final = "can't find the specified secret value"


class _NotFilledIn(PermanentError):
    """A secret as it is deployed: without a value."""


class RelayCredentials(Frozen):
    """The fields of the relays' generated secret: the key of which relays' keys are made."""

    key: SecretStr = Field(min_length=32)


Fields = TypeVar("Fields", bound=BaseModel)


class Secrets(Adapter):
    """Reads secrets, once for each warm function."""

    _client: SecretsManagerClient
    _slack: SlackCredentials | None = None
    _relay: RelayCredentials | None = None

    def slack(self) -> SlackCredentials:
        """Read the Slack app's bot token and signing secret.

        Raises:
            PermanentError: the secret is missing or is not the JSON that is expected.
        """
        if self._slack is None:
            self._slack = self._read(self._settings.slack_secret_id, SlackCredentials)
        return self._slack

    def reload_bot_token(self, team: str = "") -> str:
        """Read a team's bot token again, because Slack does not take the one that is kept.

        Raises:
            PermanentError: as `slack`.
        """
        self._slack = None
        return self.slack().of(team).bot_token.get_secret_value()

    def keep(self, team: str, new: Mapping[str, object]) -> None:
        """Write fields of a team, such as its token; a team without any is left out. Others stay.

        It is called in turn (`turn`), as `fill_in` of this secret, or one could undo another.

        Raises:
            PermanentError, TransientError: it is not written.
        """
        with aws_call("keeping a bot token"):
            secret_id = self._settings.slack_secret_id
            fields = json.loads(self._client.get_secret_value(SecretId=secret_id)["SecretString"])
            (fields.setdefault("teams", {}).setdefault(team, {}) if team else fields).update(new)
            if not new:
                del fields["teams"][team]
            if len(fields.get("teams", ())) > MOST_TEAMS:
                raise PermanentError(f"one deployment serves at most {MOST_TEAMS} more workspaces")
            self._client.put_secret_value(SecretId=secret_id, SecretString=json.dumps(fields))
        self._slack = None

    def fill_in(
        self, secret_id: str, new: Mapping[str, object], kind: type[BaseModel]
    ) -> dict[str, str]:
        """Write fields of a secret, leave its others, and say of each what was done.

        Raises:
            PermanentError: there is no such secret, what it has is no JSON, or it would lack a
                field; nothing is written then.
        """
        what = f'filling in secret "{secret_id}"'
        try:
            with aws_call(what):
                text = self._client.get_secret_value(SecretId=secret_id)["SecretString"]
        except AwsNotFound as exc:
            if _NO_VALUE not in str(exc):
                raise PermanentError(str(exc)) from exc
            text = json.dumps({"token": ""} if kind is HuggingFaceCredentials else {})
        try:
            before = json.loads(text)
            fields = {**before, **new}
            kind.model_validate(fields)
        except ValidationError as exc:
            wrong = ", ".join(str(error["loc"][0]) for error in exc.errors() if error["loc"])
            raise PermanentError(f"{what}: {wrong} would be missing or malformed") from None
        except (ValueError, TypeError):
            raise PermanentError(f"{what}: what it has is no JSON object; empty it first") from None
        done = {
            name: "added" if name not in before else "as it was" if before[name] == value else "set"
            for name, value in new.items()
        }
        if set(done.values()) != {"as it was"}:
            with aws_call(what):
                self._client.put_secret_value(SecretId=secret_id, SecretString=json.dumps(fields))
        return done

    def hugging_face_token(self) -> SecretStr | None:
        """Read the token for gated models; None when nobody has set one.

        It is not kept: a token that is filled in counts for the next run.

        Raises:
            PermanentError: the secret is missing or is not the JSON that is expected.
        """
        found = self._hugging_face()
        return found.token if found is not None and found.token.get_secret_value() else None

    def tracking(self) -> dict[str, SecretStr]:
        """Read what the deployment has of trackers, by the names of their variables.

        Raises:
            PermanentError: as `hugging_face_token`.
        """
        found = self._hugging_face()
        values = {name: getattr(found, name) for name in VARIABLES} if found is not None else {}
        return {name: value for name, value in values.items() if value.get_secret_value()}

    def _hugging_face(self) -> HuggingFaceCredentials | None:
        if not self._settings.hugging_face_secret_id:
            return None
        try:
            return self._read(self._settings.hugging_face_secret_id, HuggingFaceCredentials)
        except _NotFilledIn:
            return None

    def relay_key(self, run_id: RunId) -> SecretStr:
        """Make the key with which the relays of a run sign their reports.

        Raises:
            PermanentError: the secret is missing or is not the JSON that is expected.
        """
        if self._relay is None:
            self._relay = self._read(self._settings.relay_secret_id, RelayCredentials)
        return relay_key(self._relay.key, run_id)

    def _read(self, secret_id: str, fields: type[Fields]) -> Fields:
        if not secret_id:
            raise PermanentError(
                f"no setting names the secret with {_required(fields)}; deploy the stacks again"
            )
        try:
            with aws_call(f'reading secret "{secret_id}"'):
                text = self._client.get_secret_value(SecretId=secret_id)["SecretString"]
        except AwsNotFound as exc:
            if _NO_VALUE in str(exc):
                raise _NotFilledIn(
                    f'secret "{secret_id}" has no value yet; fill it in, see docs/deploy.md'
                ) from exc
            raise PermanentError(
                f'secret "{secret_id}" does not exist; deploy the data stack and fill it in'
            ) from exc
        try:
            return fields.model_validate_json(text)
        except ValidationError as exc:
            # The validation error would repeat the secret's text, so it is not chained.
            wrong = ", ".join(str(error["loc"][0]) for error in exc.errors() if error["loc"])
            raise PermanentError(
                f'secret "{secret_id}" is not JSON with {_required(fields)}; '
                f"check {wrong or 'its text'}"
            ) from None


def _required(fields: type[BaseModel]) -> str:
    required = [name for name, field in fields.model_fields.items() if field.is_required()]
    return " and ".join(required)
