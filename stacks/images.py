"""The repositories of the two container images, and a project that builds and pushes them.

The project runs `container/build.sh` on the files of this deployment, so that nobody needs Docker.
"""

from __future__ import annotations

from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from stacks.acknowledgements import accept, accept_wildcard
from stacks.config import StageConfig
from stacks.packages import ROOT

# What the Dockerfiles copy, and the script; everything else of the repository stays at home.
BUILT_FROM: Final = (
    "container",
    "relay",
    "stationmaster",
    "training",
    "LICENSE",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
)


class ImagesStack(cdk.Stack):
    """One repository an image; tags are immutable, so its tag identifies a run's image."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: StageConfig, **kwargs: Any
    ) -> None:
        super().__init__(scope, construct_id, **kwargs)
        repositories = {image: self._repository(image, config) for image in ("training", "relay")}
        self.training_image, self.relay_image = (
            each.repository_uri_for_tag(config.image_tag) for each in repositories.values()
        )
        self._add_builder(config, [*repositories.values()])

    def _add_builder(self, config: StageConfig, repositories: list[ecr.Repository]) -> None:
        source = assets.Asset(
            self,
            "Source",
            path=str(ROOT),
            exclude=["/*", *(f"!/{name}" for name in BUILT_FROM), "__pycache__"],
            ignore_mode=cdk.IgnoreMode.GIT,
        )
        log_group = logs.LogGroup(
            self,
            "BuilderLogs",
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        registry = f"{self.account}.dkr.ecr.{self.region}.{self.url_suffix}"
        builder = codebuild.Project(
            self,
            "Builder",
            project_name=f"{config.deployment}-images",
            description="Builds the images of training and relay pods and pushes them",
            source=codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            build_spec=codebuild.BuildSpec.from_object(
                {
                    "version": "0.2",
                    "phases": {
                        "build": {
                            "commands": [f"bash container/build.sh {config.image_tag} {registry}"]
                        }
                    },
                }
            ),
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_7_0,
                # The training image needs about 100 GiB of disk; this type has 128.
                compute_type=codebuild.ComputeType.LARGE,
                privileged=True,
            ),
            environment_variables={
                "STATIONMASTER_DEPLOYMENT": codebuild.BuildEnvironmentVariable(
                    value=config.deployment
                )
            },
            timeout=cdk.Duration.hours(3),
            grant_report_group_permissions=False,
            logging=codebuild.LoggingOptions(
                cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=log_group)
            ),
        )
        for repository in repositories:
            repository.grant_pull_push(builder)
        assert builder.role is not None
        for action in ("s3:GetObject*", "s3:GetBucket*", "s3:List*"):
            accept(
                builder.role, f"IAM5[Action::{action}]", "reads its source, as the CDK grants it"
            )
        accept_wildcard(builder.role, "*", "ecr:GetAuthorizationToken is not granted on resources")
        accept_wildcard(
            builder.role,
            self.format_arn(
                service="logs",
                resource="log-group",
                resource_name=f"/aws/codebuild/{builder.project_name}:*",
                arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
            ),
            "the streams of its own log group are named by build",
        )
        accept(
            builder, "CB3", "images are built by Docker, which CodeBuild gives to privileged builds"
        )
        accept(builder, "CB4", "a build leaves nothing but the images, which ECR encrypts")
        cdk.CfnOutput(
            self,
            "ImagesProjectName",
            value=builder.project_name,
            description="aws codebuild start-build --project-name NAME builds the images",
        )

    def _repository(self, image: str, config: StageConfig) -> ecr.Repository:
        return ecr.Repository(
            self,
            image.capitalize(),
            repository_name=f"{config.deployment}/{image}",
            image_scan_on_push=True,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            lifecycle_rules=[ecr.LifecycleRule(max_image_count=20)],
            # Images are built again in half an hour; a name that stays fails the next deployment.
            removal_policy=cdk.RemovalPolicy.DESTROY,
            empty_on_delete=True,
        )
