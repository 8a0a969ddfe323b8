"""The repositories of the container images, and a project that builds and pushes them.

The project runs `container/build.sh` on the files of this deployment, so that nobody needs Docker.
A person starts it: CloudFormation could only do so with a custom resource, and would wait for half
an hour. The repositories are deleted with the stack, so that their names are free again.
"""

from __future__ import annotations

from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from stacks.acknowledgements import accept, accept_wildcard
from stacks.config import StageConfig
from stacks.constructs.statements import Statement, allow, arn
from stacks.packages import ROOT
from stationmaster.domain.images import COPIES

# What the Dockerfiles copy, and the script; everything else of the repository stays at home.
BUILT_FROM: Final = (
    "container",
    "stationmaster",
    "training",
    "LICENSE",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
)


# What every deployment takes; `more_images` of its configuration are built besides.
NEEDED: Final = ("training", "relay")

_NOT_IN_IMAGES: Final = ("stationmaster/cli", "stationmaster/install", "stationmaster/local")

# Has EKS's registries. Source: EKS user guide, "View Amazon container image registries for Amazon
# EKS add-ons".
_EKS_ACCOUNT: Final = "602401143452"


class ImagesStack(cdk.Stack):
    """A repository for each image; tags are immutable, so its tag identifies a run's image."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: StageConfig, **kwargs: Any
    ) -> None:
        super().__init__(scope, construct_id, **kwargs)
        # Each once, in an order that the configuration's does not change.
        images = (*NEEDED, *sorted(set(config.more_images)))
        repositories = {image: self._repository(image, config) for image in images}
        # By name: a reference would be an export, and keep the repository from going again.
        self.registry = f"{cdk.Aws.ACCOUNT_ID}.dkr.ecr.{cdk.Aws.REGION}.{cdk.Aws.URL_SUFFIX}"
        self.built = {
            image: f"{self.registry}/{config.deployment}/{image}:{config.image_tag}"
            for image in images
        }
        self.copies = f"{self.registry}/{config.deployment}/{COPIES}"
        self._add_builder(config, repositories)

    def _add_builder(self, config: StageConfig, repositories: dict[str, ecr.Repository]) -> None:
        source = assets.Asset(
            self,
            "Source",
            path=str(ROOT),
            exclude=[
                "/*",
                *(f"!/{name}" for name in BUILT_FROM),
                "__pycache__",
                *(f"/{each}" for each in _NOT_IN_IMAGES),
            ],
            ignore_mode=cdk.IgnoreMode.GIT,
        )
        log_group = logs.LogGroup(
            self,
            "BuilderLogs",
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        command = f"bash container/build.sh {config.image_tag} {self.registry}"
        builder = codebuild.Project(
            self,
            "Builder",
            project_name=f"{config.deployment}-images",
            description="Builds the images of training and relay pods and pushes them",
            source=codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            build_spec=codebuild.BuildSpec.from_object(
                {
                    "version": "0.2",
                    "phases": {"build": {"commands": [" ".join((command, *repositories))]}},
                }
            ),
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_7_0,
                # Each image with CUDA needs about 100 GiB of disk. These types have 128 and 824.
                compute_type=(
                    codebuild.ComputeType.X2_LARGE
                    if config.more_images
                    else codebuild.ComputeType.LARGE
                ),
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
        for repository in (*repositories.values(), self._repository(COPIES, config)):
            repository.grant_pull_push(builder)
        assert isinstance(builder.role, iam.Role)
        accept(
            builder,
            "CloudFormation-Validate::E3050",
            "the role is named by its ARN; the rule takes that for the name where it has a path",
        )
        published = arn("ecr", "repository", "eks/*", region="*", account=_EKS_ACCOUNT)
        pulls = ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
        why = "EKS publishes it in one region, for all"
        allow(builder.role, Statement(pulls, (published,), why))
        for action in ("s3:GetObject*", "s3:GetBucket*", "s3:List*"):
            accept(
                builder.role, f"IAM5[Action::{action}]", "reads its source, as the CDK grants it"
            )
        accept_wildcard(builder.role, "*", "ecr:GetAuthorizationToken is not granted on resources")
        accept_wildcard(
            builder.role,
            arn("logs", "log-group", f"/aws/codebuild/{builder.project_name}:*", sep=":"),
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
            # 20 tags: each of the relay's is three, one for each machine and their index.
            lifecycle_rules=[ecr.LifecycleRule(max_image_count=60)],
            # Images are built again in half an hour; a name that stays fails the next deployment.
            removal_policy=cdk.RemovalPolicy.DESTROY,
            empty_on_delete=True,
        )
