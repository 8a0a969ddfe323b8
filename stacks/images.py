"""The repositories of the two container images that `container/build.sh` builds and pushes."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from constructs import Construct

from stacks.config import StageConfig


class ImagesStack(cdk.Stack):
    """One repository an image; tags are immutable, so its tag identifies a run's image."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: StageConfig, **kwargs: Any
    ) -> None:
        super().__init__(scope, construct_id, **kwargs)
        self.training_image = self._repository("training", config)
        self.relay_image = self._repository("relay", config)

    def _repository(self, image: str, config: StageConfig) -> str:
        """Create the repository of `image` and return the image's address."""
        repository = ecr.Repository(
            self,
            image.capitalize(),
            repository_name=f"{config.deployment}/{image}",
            image_scan_on_push=True,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            lifecycle_rules=[ecr.LifecycleRule(max_image_count=20)],
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        return repository.repository_uri_for_tag(config.image_tag)
