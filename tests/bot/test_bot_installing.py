"""Another workspace installs the app: from its link to a working command."""

import json
import re
from typing import Any

import boto3
import pytest
from bot_world import BOT_TOKEN, REGION, SECRET, TEAM, Person, keep_secret, seen
from recording_slack import Refusal

from bot import lambda_handler
from bot.installing import GOOD_FOR, install

APP = SECRET | {"client_id": "1.2", "client_secret": "c", "installs": ["T0SECOND", "E0ORG"]}
ORG = {"enterprise_id": "E0ORG", "is_enterprise_install": "true"}
OF_ORG = {"enterprise": {"id": "E0ORG"}, "is_enterprise_install": True}


def visit(path: str, *cookies: str, **query: str) -> dict[str, Any]:
    """What API Gateway makes of a browser's visit."""
    about = {"routeKey": f"GET /slack/{path}", "rawPath": f"/slack/{path}"}
    return about | {"cookies": [*cookies], "queryStringParameters": query}


def came_back(page: str, cookie: str) -> dict[str, Any]:
    """The visit that follows a link, once somebody has agreed in Slack."""
    (state,) = re.findall(r"/oauth/v2/authorize\?state=([0-9a-f-]{36})&(?:amp;)?client", page)
    return visit("oauth_redirect", cookie.partition(";")[0], state=state, code="c1")


@pytest.mark.parametrize(
    ("installed", "asks", "team"),
    [
        ({"team": {"id": "T0SECOND"}}, {}, "T0SECOND"),
        (OF_ORG, ORG, "E0ORG"),
        ({"team": {"id": TEAM}}, {"team_id": TEAM}, ""),
    ],
)
def test_link_leads_to_a_working_command(person, slack, installed, asks, team):
    keep_secret(APP)
    person.type("tiny-llama")  # by a function that is warm then
    slack.installed = installed
    link = lambda_handler.handler(visit("install"), None)
    done = lambda_handler.handler(came_back(link["body"], link["headers"]["set-cookie"]), None)

    assert (done["statusCode"], "Thank you" in done["body"]) == (200, True)
    found = boto3.client("secretsmanager", REGION).get_secret_value(SecretId="slack")
    secret = json.loads(found["SecretString"])
    new = secret["teams"][team] if team else secret
    assert (new["bot_token"], new["refresh_token"], secret["team_id"]) == ("xoxb-2", "xoxe-2", TEAM)
    assert secret["bot_token"] == (BOT_TOKEN if team else "xoxb-2")
    other = Person(slack, team="T0SECOND")
    assert "Train from this channel" in seen(other.type("help", **asks))
    other.type("tiny-llama seed=2", **asks)
    assert slack.cards[-1].token == "xoxb-2" or not team


def test_state_is_good_once_for_ten_minutes_and_for_one_browser(services, clock, slack):
    assert lambda_handler.handler(visit("install"), None)["statusCode"] == 404  # no client_id
    keep_secret(APP)
    links = [install(services, visit("install")) for _ in range(4)]
    used, late, others, third = (came_back(x.body, x.first_headers()["set-cookie"]) for x in links)

    slack.installed = {"team": {"id": "T0THIRD"}}
    assert install(services, third).status == 500  # the secret does not let it
    assert "has not installed" in Person(slack, team="T0THIRD").type("help")["body"]
    slack.installed = {"team": {"id": "T0SECOND"}}
    assert install(services, used).status == 200
    assert install(services, used).status == 401
    assert install(services, others | {"cookies": []}).status == 400
    clock.advance(GOOD_FOR.total_seconds())
    assert install(services, late).status == 401
    assert len(slack.of("oauth.v2.access")) == 2


REVOKED = {"type": "tokens_revoked", "tokens": {"bot": ["U0BOT"]}}


@pytest.mark.parametrize(
    ("event", "error", "is_left"),
    [
        ({"type": "app_uninstalled"}, "account_inactive", False),
        (REVOKED, "token_revoked", False),
        (REVOKED | {"tokens": {"oauth": ["U1"]}}, "token_revoked", True),  # of a person
        ({"type": "app_uninstalled"}, None, True),  # it came late: the app is there again
    ],
)
def test_team_that_removes_the_app_is_taken_out_of_the_secret(
    slack, settings, event, error, is_left
):
    keep_secret(APP | {"team_id": TEAM, "teams": {"T0SECOND": {"bot_token": "xoxb-2"}}})
    if error:
        slack.refuse("auth.test", Refusal(error=error))
    other = Person(slack, team="T0SECOND")

    for _ in range(2):
        answer = other.deliver_event(event)

    assert answer["statusCode"] == 200
    found = boto3.client("secretsmanager", REGION).get_secret_value(SecretId="slack")
    kept = {"T0SECOND": {"bot_token": "xoxb-2"}} if is_left else {}
    assert json.loads(found["SecretString"]) == APP | {"team_id": TEAM, "teams": kept}
    assert ("has not installed" in other.type("help")["body"]) is not is_left
