"""The CDK application: `make synth` writes the templates, `npx aws-cdk@2.1148.1 deploy` deploys.

The only reader of CDK context. It looks nothing up: neither an account nor the network.
"""

from __future__ import annotations

import sys

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks

from stacks.application import add_stacks
from stacks.config import read_config

# Run by itself, synthesis installs no wheels; the CDK's command line asks for them when it deploys.
app = cdk.App(outdir="cdk.out", context={"aws:cdk:bundling-stacks": []})
try:
    config = read_config(app.node.try_get_context("stationmaster"))
except ValueError as error:
    sys.exit(str(error))
add_stacks(app, config)
cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
app.synth()
