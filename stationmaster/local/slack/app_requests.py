"""Delivery of what people do in the workspace to the app: signed over HTTP, or by Socket Mode.

Interactions call it; it knows the signing secret and the app's address, and nothing of messages.
Source of the signature: https://docs.slack.dev/authentication/verifying-requests-from-slack
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from urllib.parse import urlencode

import httpx

from stationmaster.local.slack.records import DeliveryResult, Json
from stationmaster.local.slack.socket_mode import Sockets

_MAX_CONCURRENT = 16


def sign(signing_secret: str, *, timestamp: str, body: str) -> str:
    """Return the `X-Slack-Signature` of a request body."""
    base = f"v0:{timestamp}:{body}".encode()
    return "v0=" + hmac.new(signing_secret.encode(), base, hashlib.sha256).hexdigest()


class AppRequests:
    """Sends signed requests, or envelopes, and waits for the app's answer; Slack waits 3 s."""

    def __init__(
        self,
        *,
        signing_secret: str,
        delivery_url: Callable[[], str] | str,
        clock: Callable[[], float],
        answer_within_s: float,
        sockets: Sockets,
    ) -> None:
        self._sockets = sockets
        self._answer_within_s = answer_within_s
        self._signing_secret = signing_secret
        self._delivery_url = delivery_url
        self._clock = clock
        # trust_env=False: the app is on this machine, never behind a proxy.
        self._client = httpx.Client(trust_env=False, timeout=answer_within_s + 1)
        self._pool = ThreadPoolExecutor(_MAX_CONCURRENT, thread_name_prefix="slack-delivery")

    def close(self) -> None:
        """Wait for what is in progress and close the connections."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def send(self, kind: str, payload: Json, *, retry_num: int = 0) -> DeliveryResult:
        """Deliver a payload; say what Slack would make of the answer.

        `kind` is that of the envelope: `slash_commands`, `interactive` or `events_api`.
        """
        if self._sockets.is_open:
            future = self._pool.submit(self._hand_over, kind, payload, retry_num)
        else:
            future = self._pool.submit(self._post, *_http_body(kind, payload), retry_num)
        text, error = _outcome(future, within_s=self._answer_within_s)
        return DeliveryResult(error, text)

    def _hand_over(self, kind: str, payload: Json, retry_num: int) -> tuple[int, str]:
        within_s = self._answer_within_s
        answer = self._sockets.deliver(kind, payload, retry_num=retry_num, within_s=within_s)
        return 200, answer

    def _post(self, content_type: str, body: str, retry_num: int) -> tuple[int, str]:
        url = self._delivery_url if isinstance(self._delivery_url, str) else self._delivery_url()
        timestamp = str(int(self._clock()))
        headers = {
            "Content-Type": content_type,
            "User-Agent": "Slackbot 1.0 (+https://api.slack.com/robots)",
            "X-Slack-Request-Timestamp": timestamp,
            "X-Slack-Signature": sign(self._signing_secret, timestamp=timestamp, body=body),
        }
        if retry_num:
            headers |= {
                "X-Slack-Retry-Num": str(retry_num),
                "X-Slack-Retry-Reason": "http_timeout",
            }
        answer = self._client.post(url, content=body.encode(), headers=headers)
        return answer.status_code, answer.text


def _http_body(kind: str, payload: Json) -> tuple[str, str]:
    """Return the content type and the body of a payload that is posted."""
    if kind == "events_api":
        return "application/json", json.dumps(payload)
    fields = payload if kind == "slash_commands" else {"payload": json.dumps(payload)}
    return "application/x-www-form-urlencoded", urlencode(fields)


def _outcome(future: Future[tuple[int, str]], *, within_s: float) -> tuple[str, str | None]:
    """Return the body text and Slack's error code of a post in progress."""
    try:
        # The client's own timeout bounds each read; this bounds the whole of it.
        status, text = future.result(timeout=within_s)
    except (FutureTimeoutError, httpx.TimeoutException):
        future.cancel()
        return f"no answer within {within_s:g} s", "operation_timeout"
    except (httpx.HTTPError, ConnectionError) as exc:
        return f"{type(exc).__name__}: {exc}", "dispatch_failed"
    return text, None if status == 200 else "dispatch_failed"
