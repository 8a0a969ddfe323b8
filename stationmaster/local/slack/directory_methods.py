"""auth, users, usergroups and views: who is who, and modals.

The dispatcher calls these; `METHODS` is the whole of the Web API that this endpoint has.
"""

from __future__ import annotations

from stationmaster.local.slack import chat_methods, file_methods
from stationmaster.local.slack.api import Method
from stationmaster.local.slack.arguments import Arguments
from stationmaster.local.slack.endpoint import Endpoint
from stationmaster.local.slack.records import (
    APP_ID,
    BOT_ID,
    BOT_USER_ID,
    TEAM_ID,
    TEAM_NAME,
    Json,
    SlackRefusal,
)
from stationmaster.local.slack.views import OpenView, checked_view
from stationmaster.local.slack.workspace import Change


def auth_test(endpoint: Endpoint, arguments: Arguments) -> Json:
    del arguments
    return {
        "url": f"{endpoint.base_url()}/",
        "team": TEAM_NAME,
        "team_id": TEAM_ID,
        "user": endpoint.workspace.users[BOT_USER_ID].name,
        "user_id": BOT_USER_ID,
        "bot_id": BOT_ID,
        "app_id": APP_ID,
        "is_enterprise_install": False,
    }


def open_connection(endpoint: Endpoint, arguments: Arguments) -> Json:
    del arguments
    return {"url": endpoint.sockets.new_address()}


def list_usergroup_users(endpoint: Endpoint, arguments: Arguments) -> Json:
    members = endpoint.workspace.groups.get(arguments.required("usergroup"))
    if members is None:
        raise SlackRefusal("no_such_subteam")
    return {"users": members}


def open_view(endpoint: Endpoint, arguments: Arguments) -> Json:
    view = checked_view(arguments.json("view", error="invalid_arguments"))
    user = endpoint.triggers.redeem(arguments.required("trigger_id"))
    return {"view": show_view(endpoint, endpoint.views.put(view, user=user))}


def update_view(endpoint: Endpoint, arguments: Arguments) -> Json:
    view = checked_view(arguments.json("view", error="invalid_arguments"))
    view_id = arguments.required("view_id")
    replaced = endpoint.views.replace(view_id, view, seen=arguments.text("hash"))
    return {"view": show_view(endpoint, replaced)}


def publish_view(endpoint: Endpoint, arguments: Arguments) -> Json:
    view = checked_view(arguments.json("view", error="invalid_arguments"))
    user = arguments.required("user_id")
    if user not in endpoint.workspace.users:
        raise SlackRefusal("user_not_found")
    described = endpoint.views.publish(view, user=user).to_json()
    endpoint.workspace.announce(Change("home", described, audience=user))
    return {"view": described}


def show_view(endpoint: Endpoint, opened: OpenView) -> Json:
    """Put an open modal on its user's page; return it as Slack describes it."""
    described = opened.to_json()
    endpoint.workspace.announce(Change("view", described, audience=opened.user))
    return described


METHODS: dict[str, Method] = {
    "apps.connections.open": open_connection,
    "auth.test": auth_test,
    "chat.delete": chat_methods.delete,
    "chat.postEphemeral": chat_methods.post_ephemeral,
    "chat.postMessage": chat_methods.post_message,
    "chat.update": chat_methods.update,
    "conversations.history": chat_methods.history,
    "conversations.open": chat_methods.open_conversation,
    "conversations.replies": chat_methods.replies,
    "files.completeUploadExternal": file_methods.complete_upload,
    "files.getUploadURLExternal": file_methods.get_upload_url,
    "usergroups.users.list": list_usergroup_users,
    "views.open": open_view,
    "views.publish": publish_view,
    "views.update": update_view,
}
