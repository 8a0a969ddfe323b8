"""Puts the stacks together, for `app.py` and the tests."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam

from lambdas.registry import FUNCTIONS
from stacks.bot import BotStack
from stacks.config import StageConfig
from stacks.data import DataStack
from stacks.image_builds import ImagesStack
from stacks.network import network_of
from stacks.observability import ObservabilityStack
from stacks.workflow import WorkflowStack
from stationmaster.domain.names import TAG_DEPLOYMENT


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
    cdk.Tags.of(app).add(TAG_DEPLOYMENT, prefix)
    for tag in config.tags:
        key, _, value = tag.partition("=")
        cdk.Tags.of(app).add(key, value)
    _limit_roles(app, config)


def _limit_roles(app: cdk.App, config: StageConfig) -> None:
    """Give every role of all stacks the path and the boundary that the account asks for.

    Functions make no roles. Those that services make for themselves take neither.
    """
    if config.role_path == "/" and not config.permissions_boundary:
        return
    for each in app.node.find_all():
        if isinstance(each, iam.CfnRole):
            each.path = config.role_path
            each.permissions_boundary = config.permissions_boundary or None
