"""An emulated account with what the bot function touches, as a process of its own.

    python -m bench.bot_account         (started by bench.bot; ends when its standard input does)

Prints one JSON object: the environment that makes a function use this account. Apart from the
functions, so that the emulation's work does not run in their interpreter.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Final

from local.aws import (
    DeploymentSpec,
    InProcessRuntime,
    LocalAws,
    StateMachineSpec,
    TableSpec,
)
from stationmaster.aws import table
from stationmaster.settings import Settings

SIGNING_SECRET: Final = "a-secret-of-this-benchmark-alone"
TABLE: Final = "runs"
# The workflow itself is no part of answering a command: starting it is.
_ENDS_AT_ONCE: Final = {"StartAt": "Done", "States": {"Done": {"Type": "Pass", "End": True}}}


def main() -> None:
    """Serve until standard input ends."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-aws-") as state,
        LocalAws(state_dir=Path(state), invoker=InProcessRuntime(), handlers=[]) as aws,
    ):
        aws.deploy(
            DeploymentSpec(
                tables=[
                    TableSpec(
                        name=TABLE,
                        partition_key=table.PARTITION_KEY,
                        sort_key=table.SORT_KEY,
                        indexes=table.INDEXES,
                    )
                ],
                secrets={
                    "slack": json.dumps(
                        {"bot_token": "xoxb-bench", "signing_secret": SIGNING_SECRET}
                    )
                },
                state_machines=[
                    StateMachineSpec(name="train", definition=json.dumps(_ENDS_AT_ONCE))
                ],
            )
        )
        settings = Settings(
            region=aws.region,
            table_name=TABLE,
            bus_name="default",
            train_state_machine_arn=aws.state_machine_arn("train"),
            slack_secret_id="slack",
        )
        print(json.dumps(settings.to_environment() | aws.environment()), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
