"""What `stationmaster redrive` does: lists the dead letters of a deployment, or sends them again.

The deployment is named with --deployment, and reached with the credentials of whoever types it;
without a name it is that of a local mode that runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from stationmaster.aws.calls import make_client
from stationmaster.aws.dead_letters import DeadLetterQueue, Functions
from stationmaster.aws.set_aside_store import SetAsideStore
from stationmaster.cli.deployed import local_settings
from stationmaster.domain.names import DEAD_LETTER_QUEUES
from stationmaster.redriving import Outcome, Redriven, Redriver
from stationmaster.settings import PREFIX

# Any function of a deployment knows its table; this one is also invoked.
_RECORDER: Final = "recorder"
_FAILED: Final = frozenset({Outcome.FAILED, Outcome.UNKNOWN})


def redrive(arguments: argparse.Namespace) -> int:
    """List or send again; 0 when nothing is left that failed."""
    redriver = _redriver(arguments)
    if arguments.dry_run:
        found = redriver.look()
    else:
        found = []
        for one in redriver.send_again():
            found.append(one)
            if not arguments.json:
                print(f"{one.outcome.value}: {one.what}{f': {one.error}' if one.error else ''}")
    if arguments.json:
        print(json.dumps([one.model_dump(mode="json") for one in found], indent=2))
    elif not found:
        print("no dead letters")
    elif arguments.dry_run:
        _print_table(found)
    return 1 if any(one.outcome in _FAILED for one in found) else 0


def _redriver(arguments: argparse.Namespace) -> Redriver:
    deployment = arguments.deployment
    if deployment:
        functions = Functions(_client("lambda"))
        prefix = f"{deployment}-"
        table = functions.variables(f"{prefix}{_RECORDER}").get(f"{PREFIX}TABLE_NAME", "")
    else:
        settings = local_settings(arguments)
        functions, prefix = Functions(_client("lambda")), ""
        deployment, table = settings.deployment, settings.table_name
    return Redriver(
        queues=[
            DeadLetterQueue(f"{deployment}-{name}", _client("sqs")) for name in DEAD_LETTER_QUEUES
        ],
        set_aside=SetAsideStore(table, _client("dynamodb")),
        functions=functions,
        streams=_client("dynamodbstreams"),
        prefix=prefix,
    )


def _client(service: str) -> Any:
    return make_client(service, region=None)


def _print_table(found: list[Redriven]) -> None:
    table = Table("since", "for", "what", "why", "where", box=None)
    for one in found:
        table.add_row(one.sent_at, one.function or "?", one.what, one.reason, one.where)
    Console(width=None if sys.stdout.isatty() else 200).print(table)
