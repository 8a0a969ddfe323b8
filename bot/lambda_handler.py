"""The entry point of the bot function: API Gateway HTTP API events in, Slack's answers out.

A program that invokes the function itself is answered by `bot.remote`.

Importing it touches the garbage collector only; the app is built on the first request and kept
while the function is warm.
"""

from __future__ import annotations

import gc

# The imports below make many objects and no garbage, so the collector would walk them in vain: a
# tenth of the cold start. Frozen, they are left out of later collections as well.
_collects = gc.isenabled()
gc.disable()

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from slack_bolt import App, BoltRequest, BoltResponse

from bot.announcement import Announcer
from bot.app import create_app, create_outbox
from bot.installing import install
from bot.payloads import read_body
from bot.verification import verified_body
from stationmaster.domain.census import Measure
from stationmaster.domain.remote import FIELD
from stationmaster.services import Services
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from bot.remote import Desk

gc.freeze()
if _collects:
    gc.enable()

logger = logging.getLogger(f"stationmaster.{__name__}")

Json = dict[str, Any]
_REFUSED: Final = (400, 401)


def handler(event: Json, _context: Any) -> Json:
    """Answer one request: 401 unless Slack signed it, 400 if what it signed makes no sense.

    An event with the one field of `bot.remote` is a program's; API Gateway makes none like that.
    """
    # Powertools, once: it would be a tenth of what importing this module takes.
    from stationmaster.invocations import about, send_figures

    settings = Settings.from_environment()
    # What a request is about is learnt while it is read, and forgotten with it.
    with about("request", {}):
        if list(event) == [FIELD]:
            answer = _desk(settings).answer(event[FIELD])
        elif event.get("routeKey", "").startswith("GET "):
            answer = _in_gateways_form(install(Services.create(settings), event))
        else:
            answer = _endpoint(settings).answer(event)
        is_refused = bool(answer.get("refused")) or answer.get("statusCode") in _REFUSED
        figure = Measure.REFUSED_REQUESTS if is_refused else Measure.REQUESTS
        send_figures({figure: 1}, deployment=settings.deployment)
        logger.info("request answered", extra={"status": answer.get("statusCode", "to a program")})
        return answer


@dataclass(frozen=True)
class Endpoint:
    """The app behind API Gateway; a request is verified before it is parsed or answered."""

    app: App
    signing_secret: str
    now: Callable[[], datetime]

    def answer(self, event: Json) -> Json:
        """Verify, read, dispatch; the answer is in API Gateway's form."""
        body = verified_body(event, signing_secret=self.signing_secret, now=self.now())
        if body is None:
            logger.info("request refused: not signed by Slack")
            return _refusal(401, "not signed by Slack")
        fields = read_body(body)
        if fields is None:
            logger.warning("request refused: signed and malformed")
            return _refusal(400, "no command, click, form or message")
        # Given as fields, because Bolt takes every body with the word "payload" for a click; it
        # trusts the signature of what comes as fields to whoever brings it.
        request = BoltRequest(body=fields, mode="socket_mode")
        return _in_gateways_form(self.app.dispatch(request))


@cache
def _endpoint(settings: Settings) -> Endpoint:
    services = Services.create(settings)
    secret = services.secrets.slack().signing_secret.get_secret_value()
    return Endpoint(create_app(services), signing_secret=secret, now=services.now)


@cache
def _desk(settings: Settings) -> Desk:
    # Imported where it is used: whoever types in Slack does not wait for it.
    from bot.remote import Desk

    services = Services.create(settings)
    return Desk(services, Announcer(services, create_outbox(services)))


def _in_gateways_form(response: BoltResponse) -> Json:
    # As Bolt's own adapter for Lambda, which would import boto3 before the first request.
    headers = response.first_headers()
    return {"statusCode": response.status, "headers": headers, "body": response.body}


def _refusal(status: int, reason: str) -> Json:
    return {"statusCode": status, "headers": {"content-type": "text/plain"}, "body": reason}
