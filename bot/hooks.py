"""Answers to a request's `response_url`: only to Slack's own hooks, or to the local Slack's.

The URL comes with the request, so whoever can sign a request could otherwise make the function call
any address. Other addresses are logged and not called; redirects are not followed.
"""

from __future__ import annotations

import json
import logging
import re
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from bot.blocks.elements import Content

logger = logging.getLogger(f"stationmaster.{__name__}")

_SLACK: Final = "https://hooks.slack.com/"
# GovSlack is a separate Slack on a domain of its own.
_GOV_SLACK: Final = "https://hooks.slack-gov.com/"
# What follows the host: no @ : \ # or space, which readers of URLs disagree about.
_PATH: Final = re.compile(r"[A-Za-z0-9/_.~%?&=+-]+")
# Slack shows a warning beside the button after 3 s; the answer may still come.
_TIMEOUT_S: Final = 5


class Hooks:
    """Posts ephemeral answers; which addresses are called depends on which Slack is configured."""

    def __init__(self, slack_api_url: str) -> None:
        self.base = hooks_base(slack_api_url)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if self.base.startswith("http:"):
            # The local Slack is on this machine, never behind a proxy.
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def allows(self, url: str) -> bool:
        """Say whether `url` is an address below the hooks' base, written in the one plain way."""
        return url.startswith(self.base) and bool(_PATH.fullmatch(url.removeprefix(self.base)))

    def post(self, url: str | None, content: Content) -> None:
        """Show `content` to the person who clicked; a failure is logged, the click still counts."""
        if url is None or not self.allows(url):
            logger.warning("response_url not called", extra={"response_url": repr(url)[:200]})
            return
        answer: dict[str, Any] = {
            "text": content.text,
            "blocks": content.blocks,
            "response_type": "ephemeral",
            "replace_original": False,
        }
        request = urllib.request.Request(
            url,
            data=json.dumps(answer).encode(),
            headers={"Content-Type": "application/json;charset=utf-8"},
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S):
                pass
        except (OSError, HTTPException) as exc:
            logger.warning("response_url failed", extra={"error": repr(exc)})


def hooks_base(slack_api_url: str) -> str:
    """Derive the hooks' address, ending in a slash, from the address of a Slack's Web API."""
    api = urlsplit(slack_api_url)
    if api.scheme == "http" and api.hostname in ("127.0.0.1", "localhost"):
        return f"http://{api.netloc}/"
    return _GOV_SLACK if api.hostname == "slack-gov.com" else _SLACK


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Return None, which makes the redirect an HTTPError."""
