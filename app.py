"""The CDK application: `make synth` writes the templates, `npx aws-cdk@2.1148.1 deploy` deploys.

The only reader of CDK context: that of cdk.json, which the CDK's command line adds to. It looks
nothing up: neither an account nor the network.
"""

from __future__ import annotations

import sys
from pathlib import Path

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks

from stacks.application import add_stacks
from stacks.chosen_settings import chosen_config
from stacks.config import read_context

try:
    app = cdk.App(
        outdir="cdk.out",
        # Run by itself, synthesis installs no wheels; the command line asks for them to deploy.
        context={"aws:cdk:bundling-stacks": [], **read_context(Path("cdk.json"))},
        # What CloudFormation would refuse ends the synthesis; without this it is a warning.
        post_cli_context={"@aws-cdk/core:validateAgainstDefaultRules": True},
    )
    config = chosen_config(app.node.try_get_context)
except ValueError as error:
    sys.exit(str(error))
add_stacks(app, config)
cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
app.synth()
