"""What `stationmaster approve` does: an identity of IAM agrees to what a run or cluster would buy.

Whose credentials may write to the deployment's table and start its workflow may approve.
"""

from __future__ import annotations

import argparse

from stationmaster.aws.calls import aws_call, make_client
from stationmaster.cli.deployed import bot_settings
from stationmaster.commands import Actor, approving, channel_of
from stationmaster.domain.identities import identity_of
from stationmaster.services import Services


def approve(arguments: argparse.Namespace) -> int:
    """Approve a run, its larger budget, a kept cluster or its change; 0 when it is approved.

    Raises:
        UserError: there is no such thing, or it waits for nothing.
    """
    services = Services(bot_settings(arguments))
    with aws_call("asking who this is"):
        caller = make_client("sts", region=None).get_caller_identity()["Arn"]
    identity, session = identity_of(caller)
    name = arguments.name
    channel_id = channel_of(services, name)
    words, via = f"stationmaster approve {name}", approving.BY_IAM
    who = Actor(
        user_id=identity,
        channel_id=channel_id,
        user_name=session,
        via=via,
        words=words,
    )
    asked = approving.approve(services, name, who).approval
    what, starts = name, "it begins"
    if asked is not None and asked.is_of_budget:
        what, starts = f"a larger budget for {name}", "it holds from now on"
    starts = starts if asked is None or asked.is_given else "others have to agree as well"
    print(f"{what} is approved by {identity}; {starts}")
    return 0
