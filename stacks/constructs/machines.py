"""The three state machines by name, for the workflow stack and for the committed definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from stacks.constructs import cluster_states, teardown_states, train_states


@dataclass(frozen=True)
class Machine:
    """A state machine: its states, what it is for, and how long an execution may live."""

    states: Callable[[Construct, Mapping[str, lambda_.IFunction]], sfn.IChainable]
    comment: str
    limit: cdk.Duration


MACHINES: Final = {
    "cluster": Machine(
        cluster_states.cluster_states, cluster_states.COMMENT, cluster_states.MACHINE_LIMIT
    ),
    "train": Machine(train_states.train_states, train_states.COMMENT, train_states.MACHINE_LIMIT),
    "teardown": Machine(
        teardown_states.teardown_states, teardown_states.COMMENT, teardown_states.MACHINE_LIMIT
    ),
}
