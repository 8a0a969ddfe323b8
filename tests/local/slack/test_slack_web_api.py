"""The Web API of the local workspace, driven by the real slack_sdk client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import httpx
import pytest
from slack_fixtures import HERE, PNG_1X1, local_slack, page_cookies, refused, say, web_client
from slack_sdk import WebClient

from stationmaster.local.slack.records import GENERAL_CHANNEL_ID, OPERATOR_ID, ApiCall
from stationmaster.local.slack.server import LocalSlack


@pytest.fixture
def slack() -> Iterator[LocalSlack]:
    with local_slack() as workspace:
        yield workspace


@pytest.fixture
def client(slack: LocalSlack) -> WebClient:
    return web_client(slack)


def test_token_wrong_or_missing_is_refused(slack: LocalSlack) -> None:
    assert refused(web_client(slack, token="xoxb-other").auth_test) == "invalid_auth"
    missing = httpx.post(f"{slack.api_url}auth.test").json()
    assert missing == {"ok": False, "error": "not_authed"}


def test_unknown_method_is_refused(client: WebClient) -> None:
    assert refused(client.api_call, "canvases.create") == "unknown_method"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"channel": "C404"}, "channel_not_found"),
        ({"channel": GENERAL_CHANNEL_ID}, "not_in_channel"),
        ({"text": " "}, "no_text"),
        ({"text": "x" * 40_001}, "msg_too_long"),
        ({"thread_ts": "1.0"}, "thread_not_found"),
        ({"blocks": "not json"}, "invalid_blocks_format"),
        ({"metadata": '{"event_type": "run"}'}, "invalid_metadata_schema"),
    ],
)
def test_post_message_bad_arguments_are_refused_in_slacks_words(
    slack: LocalSlack, client: WebClient, changes: dict, error: str
) -> None:
    arguments = {"channel": HERE, "text": "x", **changes}

    assert refused(client.api_call, "chat.postMessage", params=arguments) == error
    assert slack.messages() == []


def test_update_of_unknown_or_foreign_message_is_refused(
    slack: LocalSlack, client: WebClient
) -> None:
    httpx.post(
        f"{slack.url}/local/send",
        cookies=page_cookies(slack),
        json={"user": OPERATOR_ID, "channel": HERE, "text": "mine"},
    )
    [foreign] = slack.messages()

    update = partial(refused, client.chat_update, channel=HERE, text="x")
    assert update(ts="1.000000") == "message_not_found"
    assert update(ts=foreign.ts) == "cant_update_message"
    assert slack.messages()[0].text == "mine"


def test_update_without_blocks_keeps_them_and_with_empty_ones_removes_them(
    slack: LocalSlack, client: WebClient
) -> None:
    blocks = [{"type": "divider"}]
    posted = client.chat_postMessage(channel=HERE, text="a", blocks=blocks)

    client.chat_update(channel=HERE, ts=posted["ts"], text="b")
    kept = slack.messages()[0].blocks
    client.chat_update(channel=HERE, ts=posted["ts"], text="c", blocks=[])

    assert [block["type"] for block in kept] == ["divider"]
    assert slack.messages()[0].blocks == []


def test_files_upload_v2_shares_the_bytes_in_the_thread(
    slack: LocalSlack, client: WebClient
) -> None:
    parent = say(slack, "card")

    client.files_upload_v2(
        channel=HERE,
        thread_ts=parent,
        content=PNG_1X1,
        filename="loss.png",
        title="Loss",
        initial_comment="the curve",
    )

    [_, reply] = slack.thread(HERE, parent)
    [file] = reply.files
    served = httpx.get(file["url_private"])
    assert (file["title"], file["original_w"], file["original_h"]) == ("Loss", 1, 1)
    assert reply.text == "the curve"
    assert served.content == PNG_1X1
    assert served.headers["content-type"] == "image/png"


def test_uploaded_svg_is_a_download_and_never_runs(slack: LocalSlack, client: WebClient) -> None:
    client.files_upload_v2(channel=HERE, content=b"<svg onload='x'/>", filename="x.svg")

    [message] = slack.messages()
    served = httpx.get(message.files[0]["url_private"])

    assert served.headers["content-type"] == "application/octet-stream"
    assert served.headers["content-disposition"] == "attachment"
    assert "sandbox" in served.headers["content-security-policy"]


def test_complete_upload_without_bytes_is_refused(client: WebClient) -> None:
    announced = client.files_getUploadURLExternal(filename="a.png", length=10)

    files = [{"id": announced["file_id"], "title": "a"}]
    complete = client.files_completeUploadExternal
    assert refused(complete, files=files, channel_id=HERE) == "file_not_found"


def test_subscribe_sees_what_changed_the_channel_and_nothing_else(
    slack: LocalSlack, client: WebClient
) -> None:
    calls: list[ApiCall] = []
    slack.subscribe(calls.append)

    ts = say(slack, "a")
    client.usergroups_users_list(usergroup="S000APPROVERS")
    client.chat_update(channel=HERE, ts=ts, text="b")
    refused(client.chat_postMessage, channel="C404", text="x")

    assert [(call.method, call.ts, call.text) for call in calls] == [
        ("chat.postMessage", ts, "a"),
        ("chat.update", ts, "b"),
    ]


def test_archived_channel_takes_no_post_no_edit_and_no_command(
    slack: LocalSlack, client: WebClient
) -> None:
    ts = say(slack, "step 1")

    slack.type_command("/archive")

    assert refused(say, slack, "step 2") == "is_archived"
    assert refused(client.chat_update, channel=HERE, ts=ts, text="step 2") == "is_inactive"
    assert slack.type_command("/train tiny-llama").error == "is_archived"


def test_people_and_threads_that_are_not_there_are_refused(
    slack: LocalSlack, client: WebClient
) -> None:
    assert 'nobody is called "@nobody"' in slack.type_command("/invite @nobody").text
    for method, arguments, error in (
        ("conversations.open", {"users": "U404"}, "user_not_found"),
        ("conversations.replies", {"channel": HERE, "ts": "1.0"}, "thread_not_found"),
    ):
        assert refused(client.api_call, method, params=arguments) == error
    group = client.usergroups_users_list(usergroup="S000APPROVERS")
    assert group["users"] == ["U000APPROVER"]
