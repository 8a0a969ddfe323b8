"""Slack on this machine: a subset of the Web API with Slack's limits, and a page to use it from.

`LocalSlack` is the whole of it; the local mode composes it with the shipped bot, which cannot see
it from slack.com but for the base URL.
"""

from stationmaster.local.slack.config import (
    ArgumentHint,
    Choice,
    SampleCommand,
    SlackAppConfig,
    SlashCommand,
)
from stationmaster.local.slack.records import (
    APPROVER_ID,
    GENERAL_CHANNEL_ID,
    OPERATOR_ID,
    PRIVATE_CHANNEL_ID,
    TEAM_ID,
    TRAINING_CHANNEL_ID,
    ApiCall,
    SlackRefusal,
)
from stationmaster.local.slack.server import LocalSlack

__all__ = [
    "APPROVER_ID",
    "GENERAL_CHANNEL_ID",
    "OPERATOR_ID",
    "PRIVATE_CHANNEL_ID",
    "TEAM_ID",
    "TRAINING_CHANNEL_ID",
    "ApiCall",
    "ArgumentHint",
    "Choice",
    "LocalSlack",
    "SampleCommand",
    "SlackAppConfig",
    "SlackRefusal",
    "SlashCommand",
]
