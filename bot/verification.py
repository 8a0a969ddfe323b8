"""Verifies that a request comes from Slack: its signature over the bytes that arrived.

`lambda_handler` calls it before anything else reads the request. It parses, raises and calls
nothing, whatever a request holds. Source:
https://docs.slack.dev/authentication/verifying-requests-from-slack
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

# Slack's own advice: a request that is older may be a recorded one that is sent again.
MAX_AGE_S: Final = 300

# ASCII only: int() and str.isdigit() also accept other digits, signs, spaces and underscores.
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_SIGNATURE: Final = re.compile(r"v0=[0-9a-f]{64}")


def verified_body(event: Mapping[str, Any], *, signing_secret: str, now: datetime) -> bytes | None:
    """Return the body of an API Gateway event; None unless Slack signed it.

    Args:
        event: payload format 2.0; the body is text, or base64 where `isBase64Encoded` says so.
    """
    timestamp = _header(event, "x-slack-request-timestamp", _TIMESTAMP)
    signature = _header(event, "x-slack-signature", _SIGNATURE)
    body = _body(event)
    if timestamp is None or signature is None or body is None:
        return None
    if abs(now.timestamp() - int(timestamp)) > MAX_AGE_S:
        return None
    signed = b"v0:" + timestamp.encode() + b":" + body
    expected = "v0=" + hmac.new(signing_secret.encode(), signed, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected, signature):
        return None
    return body


def _header(event: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str | None:
    """Return the header's value if it is there once and matches; repeats are joined by commas."""
    headers = event.get("headers")
    if not isinstance(headers, Mapping):
        return None
    values = [value for key, value in headers.items() if str(key).lower() == name]
    if len(values) != 1 or not isinstance(values[0], str) or not pattern.fullmatch(values[0]):
        return None
    return values[0]


def _body(event: Mapping[str, Any]) -> bytes | None:
    body = event.get("body")
    if not isinstance(body, str):
        return None
    try:
        if event.get("isBase64Encoded"):
            return base64.b64decode(body, validate=True)
        return body.encode()
    except (binascii.Error, ValueError):
        # Not base64, or half a surrogate pair.
        return None
