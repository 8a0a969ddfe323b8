"""A click is answered at Slack's hooks or at the configured local Slack, and nowhere else."""

from __future__ import annotations

import json
import logging
import urllib.request
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bot.blocks.refusals import refusal
from bot.hooks import Hooks, hooks_base

SLACK = Hooks("https://slack.com/api/")
ANSWER = refusal("no", suggestion=None)
OTHER = "http://127.0.0.1:1/response/1"


@pytest.mark.parametrize(
    ("api", "base"),
    [
        ("https://slack.com/api/", "https://hooks.slack.com/"),
        ("https://slack-gov.com/api/", "https://hooks.slack-gov.com/"),
        ("https://proxy.example.com/slack/", "https://hooks.slack.com/"),
        ("http://10.0.0.7/api/", "https://hooks.slack.com/"),
        ("http://127.0.0.1:4000/api/", "http://127.0.0.1:4000/"),
        ("http://localhost:4000/api/", "http://localhost:4000/"),
    ],
)
def test_hooks_belong_to_the_slack_that_is_configured(api, base):
    assert hooks_base(api) == base


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://hooks.slack.com",
        "https://hooks.slack.com/",
        "https://HOOKS.slack.com/a",
        "https://hooks.slack.com:8443/a",
        "https://user@hooks.slack.com/a",
        "https://hooks.slack.com@evil.example/a",
        "https://hooks.slack.com.evil.example/a",
        "https://evil.example/hooks.slack.com/a",
        "https://hooks.slack.com/\\@evil.example/a",
        "https://hooks.slack.com/a\r\nHost: evil.example",
        "https://hooks.slack.com/a b",
        "https://hooks.slack.com/a#b",
        "https://hooks.slack.com/a\n",
        "https://hooks.slack\u3002com/a",
        "https://hooks.slack-gov.com/a",
        "//hooks.slack.com/a",
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1/a",
    ],
)
def test_hook_of_slack_is_called_and_any_other_address_is_not(url):
    for kind in ("actions/T0123/456/abcDEF", "commands/T0/4/abc-_~.%2F?a=b&c=d", "app/T0/4/abc"):
        assert SLACK.allows(f"https://hooks.slack.com/{kind}")
    assert not SLACK.allows(url)


pieces = st.sampled_from(
    [
        *("https", "http", "://", "//", "/", "hooks.slack.com", "evil.example", "[::1]", "443"),
        *("@", ":", "\\", "#", "?", ".", "\t", "\n", " ", "%2f", "%40", "a", "\u3002", "\uff0f"),
    ]
)


@given(st.lists(pieces, max_size=8).map("".join) | st.text(max_size=30))
@example("/x")
@example("@evil.example/a")
def test_allowed_address_is_at_the_hooks_for_every_reader(tail):
    for url in (tail, f"https://hooks.slack.com{tail}", f"https://hooks.slack.com/{tail}"):
        if SLACK.allows(url):
            request = urllib.request.Request(url)
            assert (request.type, request.host) == ("https", "hooks.slack.com")
            assert urlsplit(url).netloc == "hooks.slack.com"
            assert httpx.URL(url).netloc == b"hooks.slack.com"


@pytest.mark.parametrize("more", [{}, {"response_url": None}, {"response_url": OTHER}])
def test_signed_click_with_no_or_a_foreign_address_counts_and_calls_nobody(
    person, story, services, slack, caplog, monkeypatch, more
):
    if not more:
        monkeypatch.setenv("STATIONMASTER_SLACK_API_URL", "https://slack.com/api/")
    story.begin()
    caplog.set_level(logging.WARNING)

    answer = person.press("stop_run", json.dumps({"run_id": story.run_id}), **more)

    assert answer["statusCode"] == 200
    assert services.runs.load(story.run_id).stop_requested_by is not None
    assert (slack.responses, slack.visits) == ([], [])
    assert "response_url not called" in caplog.messages


def test_redirect_of_a_hook_is_not_followed(slack, caplog):
    Hooks(slack.api_url).post(f"{slack.url}/redirect/1", ANSWER)

    assert (slack.responses, slack.visits) == ([], [])
    assert "response_url failed" in caplog.messages
