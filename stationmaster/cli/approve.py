"""What `stationmaster approve` does: an identity of IAM agrees to what a run would buy.

Whose credentials may write to the deployment's table and start its workflow may approve.
"""

from __future__ import annotations

import argparse

from stationmaster.aws.calls import aws_call, make_client
from stationmaster.cli.deployed import bot_settings
from stationmaster.commands import Actor, approve_run
from stationmaster.commands.approving import BY_IAM
from stationmaster.domain.identities import identity_of
from stationmaster.domain.ids import RunId
from stationmaster.services import Services


def approve(arguments: argparse.Namespace) -> int:
    """Approve one run; 0 when it is approved.

    Raises:
        UserError: there is no such run, or it waits for nothing.
    """
    services = Services(bot_settings(arguments))
    with aws_call("asking who this is"):
        caller = make_client("sts", region=None).get_caller_identity()["Arn"]
    identity, session = identity_of(caller)
    run_id = RunId(arguments.run_id)
    channel_id = services.runs.load(run_id).request.channel_id
    words = f"stationmaster approve {run_id}"
    who = Actor(user_id=identity, channel_id=channel_id, user_name=session, via=BY_IAM, words=words)
    run = approve_run(services, run_id, who)
    starts = "it starts" if run.is_approved else "others have to agree as well"
    print(f"{run_id} is approved by {identity}; {starts}")
    return 0
