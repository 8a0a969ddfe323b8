"""What `stationmaster preflight` shows: does an account have what a deployment and its starts need.

The deployment is that of STATIONMASTER_* variables, that of a local mode (--state-dir), or the one
whose bot runs in the account. Where there is none yet, the account alone is asked.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from stationmaster.aws.calls import AwsNotFound, aws_call, make_client
from stationmaster.cli.state_directory import enter_local_mode
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.commands.grammar import parse_requests
from stationmaster.preflight import examine_all
from stationmaster.preflight.findings import Finding, lacking
from stationmaster.preflight.subject import DEPLOYMENT, of_start
from stationmaster.services import Services
from stationmaster.settings import PREFIX, Settings

_DEADLINE_S: Final = 30.0
_MARKS: Final = {"error": "[red]lacking[/]", "warning": "[yellow]perhaps[/]", "info": "there"}


def preflight(arguments: argparse.Namespace, look_up: Callable[[str], LanguageModel]) -> int:
    """Print the findings; 0 where nothing lacks, 1 where something does."""
    starts = parse_requests(arguments.words, look_up=look_up)
    services = Services.create(_settings(arguments))
    subjects = [DEPLOYMENT, *(of_start(start) for start in starts)]
    found = examine_all(services, subjects, account=services.account, deadline_s=_DEADLINE_S)
    examined = [(subject.name, findings) for subject, findings in found]
    if arguments.json:
        print(json.dumps(rows_of(examined), indent=2))
    else:
        _print(examined)
    return 1 if any(lacking(findings) for _, findings in examined) else 0


def rows_of(examined: Sequence[tuple[str, Sequence[Finding]]]) -> list[dict[str, Any]]:
    """Return the findings as `--json` prints them."""
    return [
        {"subject": name, **finding.model_dump(mode="json")}
        for name, findings in examined
        for finding in findings
    ]


def _print(examined: Sequence[tuple[str, Sequence[Finding]]]) -> None:
    table = Table("", "check", "what", box=None)
    for name, findings in examined:
        table.add_row("", "", f"[bold]{name}[/]")
        for finding in findings:
            remedy = f"\n[dim]{finding.remedy}[/]" if finding.remedy else ""
            table.add_row(_MARKS[finding.severity], finding.check, finding.message + remedy)
    Console().print(table)


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.state_dir is not None:
        enter_local_mode(arguments.state_dir)
    elif f"{PREFIX}TABLE_NAME" not in os.environ:
        return _deployed(arguments.deployment)
    return Settings.from_environment()


def _deployed(deployment: str) -> Settings:
    """Read the settings of a deployment's bot; without a deployment, of the account alone."""
    client = make_client("lambda", region=None)
    region = client.meta.region_name
    name = f"{deployment}-bot"
    try:
        with aws_call(f"looking for function {name}"):
            found = client.get_function_configuration(FunctionName=name)
    except AwsNotFound:
        alone: Mapping[str, str] = {}
    else:
        alone = found.get("Environment", {}).get("Variables", {})
    needed = {f"{PREFIX}TABLE_NAME": "", f"{PREFIX}BUS_NAME": "", f"{PREFIX}REGION": region}
    return Settings.from_environment(needed | {**alone})
