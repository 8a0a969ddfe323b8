"""The Web API of the local workspace, driven by the real slack_sdk client."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from slack_fixtures import BOT_TOKEN, local_slack, page_cookies, web_client
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError

from stationmaster.local.slack import (
    BOT_USER_ID,
    GENERAL_CHANNEL_ID,
    OPERATOR_ID,
    PRIVATE_CHANNEL_ID,
    TRAINING_CHANNEL_ID,
    ApiCall,
    LocalSlack,
)

PNG_1X1 = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)


@pytest.fixture
def slack() -> Iterator[LocalSlack]:
    with local_slack() as workspace:
        yield workspace


@pytest.fixture
def client(slack: LocalSlack) -> WebClient:
    return web_client(slack)


def error_of(refused: pytest.ExceptionInfo[SlackApiError]) -> str:
    return refused.value.response["error"]


def test_auth_test_names_the_app_and_its_workspace(client: WebClient) -> None:
    answer = client.auth_test()

    assert answer["user_id"] == BOT_USER_ID
    assert answer["team_id"].startswith("T")
    assert answer["bot_id"].startswith("B")


def test_auth_test_empty_json_body_is_accepted(slack: LocalSlack) -> None:
    answer = httpx.post(
        f"{slack.api_url}auth.test",
        content=b"",
        headers={
            "Authorization": f"Bearer {BOT_TOKEN}",
            "Content-Type": "application/json;charset=utf-8",
        },
    )

    assert answer.json()["ok"] is True


def test_token_wrong_or_missing_is_refused(slack: LocalSlack) -> None:
    with pytest.raises(SlackApiError) as refused:
        web_client(slack, token="xoxb-other").auth_test()
    assert error_of(refused) == "invalid_auth"

    missing = httpx.post(f"{slack.api_url}auth.test").json()
    assert missing == {"ok": False, "error": "not_authed"}


def test_unknown_method_is_refused_and_shown_in_the_traffic(
    slack: LocalSlack, client: WebClient
) -> None:
    with pytest.raises(SlackApiError) as refused:
        client.api_call("canvases.create")

    assert error_of(refused) == "unknown_method"
    assert [(entry.method, entry.error) for entry in slack.traffic] == [
        ("canvases.create", "unknown_method")
    ]


def test_post_update_delete_change_one_message_in_place(
    slack: LocalSlack, client: WebClient
) -> None:
    posted = client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="step 1")

    client.chat_update(channel=posted["channel"], ts=posted["ts"], text="step 2")

    [message] = slack.messages(TRAINING_CHANNEL_ID)
    assert (message.ts, message.text) == (posted["ts"], "step 2")
    assert message.edited_ts is not None
    client.chat_delete(channel=posted["channel"], ts=posted["ts"])
    assert slack.messages(TRAINING_CHANNEL_ID) == []


def test_post_by_channel_name_reaches_the_channel(slack: LocalSlack, client: WebClient) -> None:
    client.chat_postMessage(channel="#training", text="by name")

    assert [message.text for message in slack.messages()] == ["by name"]


def test_post_to_user_id_opens_the_direct_conversation(
    slack: LocalSlack, client: WebClient
) -> None:
    opened = client.conversations_open(users=[OPERATOR_ID])["channel"]["id"]

    posted = client.chat_postMessage(channel=OPERATOR_ID, text="just you")

    assert posted["channel"] == opened
    assert [message.text for message in slack.messages(opened)] == ["just you"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"channel": "C404", "text": "x"}, "channel_not_found"),
        ({"channel": GENERAL_CHANNEL_ID, "text": "x"}, "not_in_channel"),
        ({"channel": TRAINING_CHANNEL_ID, "text": " "}, "no_text"),
        ({"channel": TRAINING_CHANNEL_ID, "text": "x" * 40_001}, "msg_too_long"),
        ({"channel": TRAINING_CHANNEL_ID, "text": "x", "thread_ts": "1.0"}, "thread_not_found"),
        (
            {"channel": TRAINING_CHANNEL_ID, "text": "x", "blocks": "not json"},
            "invalid_blocks_format",
        ),
        (
            {"channel": TRAINING_CHANNEL_ID, "text": "x", "metadata": '{"event_type": "run"}'},
            "invalid_metadata_schema",
        ),
    ],
)
def test_post_message_bad_arguments_are_refused_in_slacks_words(
    slack: LocalSlack, client: WebClient, arguments: dict, error: str
) -> None:
    with pytest.raises(SlackApiError) as refused:
        client.api_call("chat.postMessage", params=arguments)

    assert error_of(refused) == error
    assert slack.messages() == []


def test_join_lets_the_app_post(slack: LocalSlack, client: WebClient) -> None:
    client.conversations_join(channel=GENERAL_CHANNEL_ID)

    client.chat_postMessage(channel=GENERAL_CHANNEL_ID, text="here now")

    assert [message.text for message in slack.messages(GENERAL_CHANNEL_ID)] == ["here now"]


def test_update_of_unknown_or_foreign_message_is_refused(
    slack: LocalSlack, client: WebClient
) -> None:
    httpx.post(
        f"{slack.url}/local/send",
        cookies=page_cookies(slack),
        json={"user": OPERATOR_ID, "channel": TRAINING_CHANNEL_ID, "text": "mine"},
    )
    [foreign] = slack.messages()

    with pytest.raises(SlackApiError) as missing:
        client.chat_update(channel=TRAINING_CHANNEL_ID, ts="1.000000", text="x")
    with pytest.raises(SlackApiError) as not_ours:
        client.chat_update(channel=TRAINING_CHANNEL_ID, ts=foreign.ts, text="x")

    assert error_of(missing) == "message_not_found"
    assert error_of(not_ours) == "cant_update_message"
    assert slack.messages()[0].text == "mine"


def test_update_without_blocks_keeps_them_and_with_empty_ones_removes_them(
    slack: LocalSlack, client: WebClient
) -> None:
    blocks = [{"type": "divider"}]
    posted = client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="a", blocks=blocks)

    client.chat_update(channel=TRAINING_CHANNEL_ID, ts=posted["ts"], text="b")
    kept = slack.messages()[0].blocks
    client.chat_update(channel=TRAINING_CHANNEL_ID, ts=posted["ts"], text="c", blocks=[])

    assert [block["type"] for block in kept] == ["divider"]
    assert slack.messages()[0].blocks == []


def test_thread_replies_stay_out_of_the_channel_and_are_counted(client: WebClient) -> None:
    parent = client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="card")["ts"]
    for text in ("one", "two"):
        client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text=text, thread_ts=parent)

    history = client.conversations_history(channel=TRAINING_CHANNEL_ID)["messages"]
    replies = client.conversations_replies(channel=TRAINING_CHANNEL_ID, ts=parent)["messages"]

    assert [(message["text"], message["reply_count"]) for message in history] == [("card", 2)]
    assert [message["text"] for message in replies] == ["card", "one", "two"]


def test_replies_of_unknown_thread_is_refused(client: WebClient) -> None:
    with pytest.raises(SlackApiError) as refused:
        client.conversations_replies(channel=TRAINING_CHANNEL_ID, ts="1.000000")

    assert error_of(refused) == "thread_not_found"


def test_history_pages_newest_first(client: WebClient) -> None:
    for number in range(5):
        client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text=str(number))

    pages = [
        [message["text"] for message in page["messages"]]
        for page in client.conversations_history(channel=TRAINING_CHANNEL_ID, limit=2)
    ]

    assert pages == [["4", "3"], ["2", "1"], ["0"]]


def test_history_carries_metadata_only_when_asked(client: WebClient) -> None:
    metadata = {"event_type": "run", "event_payload": {"run_id": "r1"}}
    client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x", metadata=metadata)

    plain = client.conversations_history(channel=TRAINING_CHANNEL_ID)["messages"][0]
    full = client.conversations_history(channel=TRAINING_CHANNEL_ID, include_all_metadata=True)

    assert "metadata" not in plain
    assert full["messages"][0]["metadata"] == metadata


def test_post_ephemeral_is_seen_by_one_user_and_not_in_history(
    slack: LocalSlack, client: WebClient
) -> None:
    client.chat_postEphemeral(channel=TRAINING_CHANNEL_ID, user=OPERATOR_ID, text="psst")

    assert [message.text for message in slack.ephemerals(user=OPERATOR_ID)] == ["psst"]
    assert slack.ephemerals(user="U000APPROVER") == []
    assert client.conversations_history(channel=TRAINING_CHANNEL_ID)["messages"] == []


def test_files_upload_v2_shares_the_bytes_in_the_thread(
    slack: LocalSlack, client: WebClient
) -> None:
    parent = client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="card")["ts"]

    client.files_upload_v2(
        channel=TRAINING_CHANNEL_ID,
        thread_ts=parent,
        content=PNG_1X1,
        filename="loss.png",
        title="Loss",
        initial_comment="the curve",
    )

    [file] = slack.files(TRAINING_CHANNEL_ID)
    [_, reply] = slack.thread(TRAINING_CHANNEL_ID, parent)
    served = httpx.get(reply.files[0]["url_private"])
    assert (file.title, file.width, file.height) == ("Loss", 1, 1)
    assert reply.text == "the curve"
    assert served.content == PNG_1X1
    assert served.headers["content-type"] == "image/png"
    assert client.files_info(file=file.id)["file"]["size"] == len(PNG_1X1)


def test_uploaded_svg_is_a_download_and_never_runs(slack: LocalSlack, client: WebClient) -> None:
    client.files_upload_v2(
        channel=TRAINING_CHANNEL_ID, content=b"<svg onload='x'/>", filename="x.svg"
    )

    [message] = slack.messages()
    served = httpx.get(message.files[0]["url_private"])

    assert served.headers["content-type"] == "application/octet-stream"
    assert served.headers["content-disposition"] == "attachment"
    assert "sandbox" in served.headers["content-security-policy"]


def test_complete_upload_without_bytes_is_refused(client: WebClient) -> None:
    announced = client.files_getUploadURLExternal(filename="a.png", length=10)

    with pytest.raises(SlackApiError) as refused:
        client.files_completeUploadExternal(
            files=[{"id": announced["file_id"], "title": "a"}], channel_id=TRAINING_CHANNEL_ID
        )

    assert error_of(refused) == "file_not_found"


def test_reactions_are_counted_and_not_doubled(client: WebClient) -> None:
    ts = client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x")["ts"]
    client.reactions_add(channel=TRAINING_CHANNEL_ID, timestamp=ts, name="eyes")

    with pytest.raises(SlackApiError) as refused:
        client.reactions_add(channel=TRAINING_CHANNEL_ID, timestamp=ts, name="eyes")

    assert error_of(refused) == "already_reacted"
    answer = client.reactions_get(channel=TRAINING_CHANNEL_ID, timestamp=ts)
    assert answer["message"]["reactions"] == [{"name": "eyes", "users": [BOT_USER_ID], "count": 1}]


def test_permalink_leads_to_the_page(slack: LocalSlack, client: WebClient) -> None:
    ts = client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x")["ts"]

    link = client.chat_getPermalink(channel=TRAINING_CHANNEL_ID, message_ts=ts)["permalink"]

    assert link == f"{slack.url}/archives/{TRAINING_CHANNEL_ID}/p{ts.replace('.', '')}"
    assert (
        httpx.get(link, cookies=page_cookies(slack)).headers["content-type"].startswith("text/html")
    )


def test_directory_methods_answer_as_the_sdk_expects(client: WebClient) -> None:
    channels = client.conversations_list(types="public_channel")["channels"]

    assert {channel["name"] for channel in channels} == {"training", "general"}
    assert client.conversations_info(channel=TRAINING_CHANNEL_ID)["channel"]["is_member"] is True
    members = client.conversations_members(channel=TRAINING_CHANNEL_ID)["members"]
    assert {OPERATOR_ID, BOT_USER_ID} < set(members)
    assert client.users_info(user=OPERATOR_ID)["user"]["real_name"] == "Operator"
    assert len(client.users_list()["members"]) == 3
    assert client.bots_info(bot="B000LOCAL")["bot"]["user_id"] == BOT_USER_ID
    assert client.team_info()["team"]["domain"] == "local"
    assert client.usergroups_users_list(usergroup="S1")["users"] == []


def test_subscribe_sees_what_changed_the_channel_and_nothing_else(
    slack: LocalSlack, client: WebClient
) -> None:
    calls: list[ApiCall] = []
    slack.subscribe(calls.append)

    ts = client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="a")["ts"]
    client.users_list()
    client.chat_update(channel=TRAINING_CHANNEL_ID, ts=ts, text="b")
    with pytest.raises(SlackApiError):
        client.chat_postMessage(channel="C404", text="x")

    assert [(call.method, call.ts, call.text) for call in calls] == [
        ("chat.postMessage", ts, "a"),
        ("chat.update", ts, "b"),
    ]


def test_private_channel_exists_for_the_app_once_it_is_invited(
    slack: LocalSlack, client: WebClient
) -> None:
    for method in ("chat.postMessage", "conversations.info", "conversations.history"):
        with pytest.raises(SlackApiError) as refused:
            client.api_call(method, params={"channel": PRIVATE_CHANNEL_ID, "text": "x"})
        assert error_of(refused) == "channel_not_found"

    slack.type_command("/invite @Stationmaster", channel=PRIVATE_CHANNEL_ID)
    client.chat_postMessage(channel=PRIVATE_CHANNEL_ID, text="let in")

    assert [message.text for message in slack.messages(PRIVATE_CHANNEL_ID)] == ["let in"]
    listed = client.conversations_list(types="private_channel")["channels"]
    assert [(channel["name"], channel["is_private"]) for channel in listed] == [("research", True)]


def test_app_that_was_removed_can_neither_post_nor_edit(
    slack: LocalSlack, client: WebClient
) -> None:
    ts = client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="step 1")["ts"]

    slack.type_command("/remove @stationmaster")

    for call in (client.chat_postMessage, client.chat_update):
        with pytest.raises(SlackApiError) as refused:
            call(channel=TRAINING_CHANNEL_ID, ts=ts, text="step 2")
        assert error_of(refused) == "not_in_channel"
    assert [message.text for message in slack.messages()] == ["step 1"]


def test_archived_channel_takes_no_post_no_edit_and_no_command(
    slack: LocalSlack, client: WebClient
) -> None:
    ts = client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="step 1")["ts"]

    slack.type_command("/archive")

    with pytest.raises(SlackApiError) as refused:
        client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="step 2")
    assert error_of(refused) == "is_archived"
    with pytest.raises(SlackApiError) as refused:
        client.chat_update(channel=TRAINING_CHANNEL_ID, ts=ts, text="step 2")
    assert error_of(refused) == "is_inactive"
    assert client.conversations_info(channel=TRAINING_CHANNEL_ID)["channel"]["is_archived"]
    assert slack.type_command("/train tiny-llama").error == "is_archived"


def test_restricted_channel_refuses_the_app(slack: LocalSlack, client: WebClient) -> None:
    slack.restrict_posting(TRAINING_CHANNEL_ID)

    with pytest.raises(SlackApiError) as refused:
        client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x")

    assert error_of(refused) == "restricted_action"


def test_invite_of_an_unknown_member_is_explained(slack: LocalSlack) -> None:
    result = slack.type_command("/invite @nobody")

    assert 'nobody is called "@nobody"' in result.text
