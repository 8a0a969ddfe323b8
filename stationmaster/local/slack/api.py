"""The Web API dispatcher: token, rate limit, method, answer.

`web.py` calls it for `POST|GET /api/<method>`. The methods themselves are in `methods.py`; they see
an `Endpoint` and the call's arguments.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import JSONResponse

from stationmaster.local.slack.arguments import Arguments
from stationmaster.local.slack.endpoint import Endpoint
from stationmaster.local.slack.limits import RateLimiter
from stationmaster.local.slack.records import Json, SlackRefusal

# The one method that takes the app's token, and not the bot's.
_OF_APP_TOKEN = "apps.connections.open"

Method = Callable[[Endpoint, Arguments], Json]


class WebApi:
    """Answers Web API calls as Slack would."""

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        methods: dict[str, Method],
        bot_token: str,
        app_token: str,
        rates: RateLimiter | None,
    ) -> None:
        self._endpoint = endpoint
        self._methods = methods
        self.bot_token = bot_token
        self._app_token = app_token
        self._rates = rates

    def call(self, method: str, values: Json, *, bearer: str | None) -> JSONResponse:
        """Answer one call; `bearer` is the token of the Authorization header, if it came."""
        token = bearer or str(values.get("token") or "")
        if not token:
            return _refused("not_authed")
        wanted = self._app_token if method == _OF_APP_TOKEN else self.bot_token
        if token != wanted:
            is_other = token in (self.bot_token, self._app_token)
            return _refused("not_allowed_token_type" if is_other else "invalid_auth")
        known = self._methods.get(method)
        if known is None:
            return _refused("unknown_method", {"req_method": method})
        if self._rates is not None:
            channel = self._channel_id(str(values.get("channel") or ""))
            retry_after_s = self._rates.retry_after_s(method, channel=channel)
            if retry_after_s:
                headers = {"Retry-After": str(retry_after_s)}
                limited = {"ok": False, "error": "ratelimited"}
                return JSONResponse(limited, status_code=429, headers=headers)
        try:
            return JSONResponse({"ok": True, **known(self._endpoint, Arguments(values))})
        except SlackRefusal as refusal:
            return _refused(refusal.error, refusal.extra)

    def _channel_id(self, reference: str) -> str:
        """Return the id of a channel called by id or name, so that both count as one."""
        try:
            return self._endpoint.workspace.find_channel(reference).id
        except SlackRefusal:
            return reference


def _refused(error: str, extra: Json | None = None) -> JSONResponse:
    return JSONResponse({"ok": False, "error": error, **(extra or {})})
