"""Puts the stacks together, for `app.py` and the tests."""

from __future__ import annotations

import aws_cdk as cdk

from lambdas.registry import FUNCTIONS
from stacks.bot import BotStack
from stacks.config import StageConfig
from stacks.data import DataStack
from stacks.image_builds import ImagesStack
from stacks.network import network_of
from stacks.observability import ObservabilityStack
from stacks.workflow import WorkflowStack


def add_stacks(app: cdk.App, config: StageConfig) -> None:
    """Add all stacks of one deployment to `app`; account and region are the deployer's own."""
    prefix = config.deployment
    network = network_of(app, f"{prefix}-network", config=config)
    data = DataStack(app, f"{prefix}-data")
    images = ImagesStack(app, f"{prefix}-images", config=config)
    workflow = WorkflowStack(
        app, f"{prefix}-workflow", config=config, network=network, data=data, images=images
    )
    workflow.add_stack_dependency(images)  # which it knows by names only
    bot = BotStack(app, f"{prefix}-bot", config=config, data=data, workflow=workflow)
    ObservabilityStack(
        app,
        f"{prefix}-observability",
        config=config,
        machine_arns=workflow.granted.machine_arns,
        functions=[function.name for function in FUNCTIONS],
        alarmed=[workflow, bot],
    )
    cdk.Tags.of(app).add("stationmaster:deployment", prefix)
