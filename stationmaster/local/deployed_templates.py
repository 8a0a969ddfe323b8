"""Deploys the product onto the local account from the templates that `make synth` has written.

Used by `local.mode` in place of the registry where `--templates` names a folder. Code runs from
the working tree all the same. Secrets are filled in as a person does after a deployment, and what
only this machine knows (addresses, images, the pace) takes the place of the templates' values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stationmaster.local.aws import LocalAws
from stationmaster.local.aws.template import read_templates
from stationmaster.local.aws.template_deployment import TemplateDeployment
from stationmaster.local.aws.template_kinds import NOTHING_TO_EMULATE
from stationmaster.settings import Settings


@dataclass(frozen=True)
class Deployed:
    """What came of the templates: the functions' settings, and what nothing was made of."""

    settings: Settings
    left_out: list[str]


def read_deployment(folder: Path, *, region: str) -> TemplateDeployment:
    """Read the templates for the local account; nothing is made yet.

    Raises:
        TemplateError: a template has what local mode does not make.
    """
    return TemplateDeployment(read_templates(folder), account_id=LocalAws.account_id, region=region)


def deploy_templates(
    aws: LocalAws,
    deployment: TemplateDeployment,
    *,
    ours: Mapping[str, Any],
    slack_secret: Mapping[str, str],
    hugging_face_secret: Mapping[str, str],
) -> Deployed:
    """Create all that the templates have; `ours` are settings by name in place of theirs.

    Raises:
        TemplateError: a template has what local mode does not make.
        ValueError: a setting is malformed.
    """
    deployment.know(aws.deploy(deployment.base()))
    theirs = Settings.from_environment(deployment.variables())
    settings = Settings.model_validate({**theirs.model_dump(), **ours})
    _give_roles(aws, deployment)
    _fill_in(aws, settings.slack_secret_id, slack_secret)
    _fill_in(aws, settings.hugging_face_secret_id, hugging_face_secret)
    before, after = theirs.to_environment(), settings.to_environment()
    changed = {
        name: after.get(name)  # without one where it is the default
        for name in before | after
        if before.get(name) != after.get(name)
    }
    aws.deploy(deployment.product({**changed, **aws.environment()}))
    return Deployed(
        settings,
        [
            f"{number} x {kind}: {NOTHING_TO_EMULATE[kind]}"
            for kind, number in deployment.left_out.items()
        ],
    )


def _give_roles(aws: LocalAws, deployment: TemplateDeployment) -> None:
    """Make a principal of each role, with the policies that the templates attach to it."""
    aws.identities.account.keys |= deployment.keys()
    for role in deployment.roles():
        functions = role.functions or ("",)
        for function in functions:
            aws.identities.add(
                function or role.arn,
                role_arn=role.arn,
                role=role.document,
                values={},
                function=function,
            )


def _fill_in(aws: LocalAws, secret_id: str, fields: Mapping[str, str]) -> None:
    """Fill a secret in, as `docs/deploy.md` tells people to."""
    client = aws.client("secretsmanager")
    client.put_secret_value(SecretId=secret_id, SecretString=json.dumps(dict(fields)))
