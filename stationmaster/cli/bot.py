"""What `stationmaster bot --socket` does: serves a workspace that reaches no address of ours.

It acts on the table and the workflows of a deployment with the credentials of whoever types it. It
ends with its parent process, on Ctrl-C and on SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import time

from bot.socket_mode import connected
from stationmaster.cli.deployed import deployed_settings
from stationmaster.domain.errors import BadCommand
from stationmaster.services import Services
from stationmaster.settings import Settings, read_rules

_LOOK_EVERY_S = 0.5


def serve(arguments: argparse.Namespace) -> int:
    """Serve until it is ended.

    Raises:
        BadCommand: there is no such deployment or local mode, or its rules are not given.
        StationmasterError: the secret has no app token, or Slack does not take it.
    """
    parent = os.getppid()
    services = Services.create(_settings(arguments))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with connected(services):
            print("connected to Slack by Socket Mode; Ctrl-C ends it", flush=True)
            while os.getppid() == parent:
                time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        pass
    print("disconnected", flush=True)
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    settings = deployed_settings(arguments)
    rules = arguments.rules
    if rules is None:
        if arguments.deployment and settings.rules_file:
            raise BadCommand(
                f"deployment {arguments.deployment} has rules for its channels, which lie beside "
                'its functions; give them as well: --rules FILE, with {"channels": ...} of cdk.json'
            )
        return settings
    try:
        read_rules(rules)
    except (OSError, ValueError) as exc:
        raise BadCommand(f"--rules {rules} cannot be read: {exc}") from exc
    return settings.model_copy(update={"rules_file": str(rules.absolute())})
