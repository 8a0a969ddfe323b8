"""The settings of a deployment that a command line acts on, or of a local mode that runs."""

from __future__ import annotations

import argparse
from typing import Final

from stationmaster.aws.calls import make_client
from stationmaster.aws.dead_letters import Functions
from stationmaster.cli.state_directory import DEFAULT_STATE_DIR, enter_local_mode
from stationmaster.settings import Settings

# The function's name in local mode; a deployment's has its own name before it.
BOT: Final = "bot"


def bot_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of the bot, but for the rules of channels: here IAM decides who may.

    Raises:
        BadCommand, PermanentError: as deployed_settings.
    """
    return deployed_settings(arguments).model_copy(update={"rules_file": ""})


def deployed_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of the bot.

    The deployment is named with --deployment, and reached with the credentials of whoever types it;
    --state-dir is that of a local mode.

    Raises:
        BadCommand: no deployment is named, and no local mode runs.
        PermanentError: there is no such deployment.
    """
    if arguments.deployment:
        functions = Functions(make_client("lambda", region=None))
        variables = functions.variables(f"{arguments.deployment}-{BOT}")
        return Settings.from_environment(variables)
    return local_settings(arguments)


def bot_function(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return the names of the deployment and of its bot function, without asking AWS anything.

    Raises:
        BadCommand: no deployment is named, and no local mode runs.
    """
    if arguments.deployment:
        return str(arguments.deployment), f"{arguments.deployment}-{BOT}"
    return local_settings(arguments).deployment, BOT


def local_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of a local mode that runs, and let this process speak to it.

    Raises:
        BadCommand: none runs, and no deployment is named.
    """
    enter_local_mode(
        arguments.state_dir or DEFAULT_STATE_DIR,
        or_else="no deployment is named and {missing}; give --deployment or --state-dir",
    )
    return Settings.from_environment()
