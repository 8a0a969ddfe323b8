"""The local workspace is for this machine and its own page only."""

from __future__ import annotations

import errno
import json
import socket

import httpx
import pytest
from slack_fixtures import local_slack, page_cookies, page_socket, web_client
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from stationmaster.local.slack.records import OPERATOR_ID, TRAINING_CHANNEL_ID
from stationmaster.local.slack.server import LocalSlack
from tests.support.patience import PATIENCE_S


def socket_url(slack: LocalSlack) -> str:
    return f"{slack.url}/local/socket?user={OPERATOR_ID}".replace("http:", "ws:")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_post_of_a_kind_that_any_form_can_send_is_refused(slack: LocalSlack, kind: str) -> None:
    """A browser that sends no Origin still asks before it posts JSON elsewhere."""
    typed = {"user": OPERATOR_ID, "channel": TRAINING_CHANNEL_ID, "text": "typed by nobody"}

    answer = httpx.post(
        f"{slack.url}/local/send",
        content=json.dumps(typed),
        headers={"Content-Type": kind},
        cookies=page_cookies(slack),
    )

    assert answer.status_code == 415
    assert "typed by nobody" not in [message.text for message in slack.messages()]


@pytest.mark.parametrize("cookie", ["", "stationmaster-page-{port}=guessed"])
def test_page_without_its_key_shows_and_does_nothing(slack: LocalSlack, cookie: str) -> None:
    """Any user of the machine reaches the port, and command= may run a shell as its owner."""
    headers = {"Cookie": cookie.format(port=slack.url.rpartition(":")[2])} if cookie else {}
    typed = {"user": OPERATOR_ID, "channel": TRAINING_CHANNEL_ID, "text": "typed by a stranger"}

    answers = [
        httpx.post(f"{slack.url}/local/send", json=typed, headers=headers),
        *(httpx.get(f"{slack.url}{path}", headers=headers) for path in ("/", "/?key=", "/?key=a")),
    ]
    with pytest.raises(InvalidStatus) as refused:
        connect(socket_url(slack), additional_headers=headers)

    assert refused.value.response.status_code == 403
    for answer in answers:
        assert (answer.status_code, "needs its key" in answer.json()["error"]) == (403, True)
    assert "typed by a stranger" not in [message.text for message in slack.messages()]


def test_page_allows_nothing_from_elsewhere(slack: LocalSlack) -> None:
    page = httpx.get(slack.page_url, follow_redirects=True)

    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert page.headers["cross-origin-resource-policy"] == "same-origin"


def test_static_serves_the_pages_files_and_nothing_else(slack: LocalSlack) -> None:
    assert httpx.get(f"{slack.url}/static/main.js").status_code == 200
    for name in ("../server.py", "%2e%2e/server.py", "README.md", "/etc/passwd"):
        assert httpx.get(f"{slack.url}/static/{name}").status_code == 404


def test_listens_on_one_loopback_address_only(slack: LocalSlack) -> None:
    port = int(slack.url.rpartition(":")[2])

    # A server on every address of the machine would take this one too.
    with pytest.raises(OSError, match=r"refused|timed out|assign"):
        socket.create_connection(("127.0.0.2", port), timeout=2)


def test_port_taken_says_which(slack: LocalSlack) -> None:
    port = int(slack.url.rpartition(":")[2])

    with (
        pytest.raises(OSError, match=rf"port {port} of 127\.0\.0\.1 is taken"),
        local_slack(host_port=port),
    ):
        pass


def test_port_of_the_privileged_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind)

    with (
        pytest.raises(PermissionError, match=r"port 1 needs privileges .*; choose 1024 or above"),
        local_slack(host_port=1),
    ):
        pass


def test_socket_never_shows_an_ephemeral_to_somebody_else(slack: LocalSlack) -> None:
    with page_socket(slack, "U000APPROVER") as page:
        page.recv(timeout=PATIENCE_S)
        client = web_client(slack)
        client.chat_postEphemeral(channel=TRAINING_CHANNEL_ID, user=OPERATOR_ID, text="secret")
        client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="public")
        received: list[str] = []
        while not received or '"public"' not in received[-1]:
            received.append(str(page.recv(timeout=PATIENCE_S)))

    assert not any('"secret"' in text and '"message"' in text[:20] for text in received)
    with page_socket(slack, "U000APPROVER") as page:
        messages = json.loads(page.recv(timeout=PATIENCE_S))["payload"]["messages"]
    assert "secret" not in [message["text"] for message in messages]
