"""What `stationmaster approve` does: an identity of IAM agrees to what a run would buy.

The deployment is named with --deployment, and reached with the credentials of whoever types it: who
may write to its table and start its workflow may approve. Without a name it is that of a local mode
that runs.
"""

from __future__ import annotations

import argparse

from stationmaster.aws.calls import aws_call, make_client
from stationmaster.aws.dead_letters import Functions
from stationmaster.cli.state_directory import DEFAULT_STATE_DIR, enter_local_mode
from stationmaster.commands import Actor, approve_run
from stationmaster.commands.approving import BY_IAM
from stationmaster.domain.ids import RunId
from stationmaster.services import Services
from stationmaster.settings import Settings


def approve(arguments: argparse.Namespace) -> int:
    """Approve one run; 0 when it is approved.

    Raises:
        UserError: there is no such run, or it waits for nothing.
    """
    services = Services(_settings(arguments))
    with aws_call("asking who this is"):
        identity = make_client("sts", region=None).get_caller_identity()["Arn"]
    run_id = RunId(arguments.run_id)
    channel_id = services.runs.load(run_id).request.channel_id
    words = f"stationmaster approve {run_id}"
    who = Actor(user_id=identity, channel_id=channel_id, via=BY_IAM, words=words)
    run = approve_run(services, run_id, who)
    starts = "it starts" if run.is_approved else "others have to agree as well"
    print(f"{run_id} is approved by {identity}; {starts}")
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    """Return the bot's settings, but for the rules of channels: here IAM decides who may."""
    if arguments.deployment:
        functions = Functions(make_client("lambda", region=None))
        variables = functions.variables(f"{arguments.deployment}-bot")
        settings = Settings.from_environment(variables)
    else:
        enter_local_mode(
            arguments.state_dir or DEFAULT_STATE_DIR,
            or_else="no deployment is named and {missing}; give --deployment or --state-dir",
        )
        settings = Settings.from_environment()
    return settings.model_copy(update={"rules_file": ""})
