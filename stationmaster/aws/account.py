"""Asks what an account may use and has: quotas, offers, images, buckets.

Clients are made with the object, in one thread, so that several threads may ask at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from botocore.config import Config

from stationmaster.aws.calls import AwsConflict, AwsNotFound, aws_call, listed, make_client
from stationmaster.aws.clusters import VERSION_ACTIONS, offered_versions
from stationmaster.aws.subnets import zones_of, zones_offering
from stationmaster.domain.catalogue.instances import CATALOGUE
from stationmaster.domain.catalogue.kubernetes_versions import OfferedVersion
from stationmaster.domain.catalogue.quotas import VcpuQuota
from stationmaster.domain.errors import PermanentError

# What the questions take; AWS grants them on all resources or none, but for images and buckets.
ACCOUNT_ACTIONS: Final = (
    "servicequotas:GetServiceQuota",
    "servicequotas:GetAWSDefaultServiceQuota",
    "ec2:DescribeInstances",
    "ec2:DescribeSubnets",
    "ec2:DescribeInstanceTypeOfferings",
    *VERSION_ACTIONS,
)
IMAGE_ACTIONS: Final = ("ecr:DescribeImages",)

_ECR_IMAGE: Final = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<repository>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
# S3 answers HeadBucket without a body, and so without a code.
_FORBIDDEN: Final = "403"


@dataclass(frozen=True)
class EcrImage:
    """An image in a registry of ECR, named by `tag` or `digest`."""

    account_id: str
    region: str
    repository: str
    tag: str
    digest: str


def read_ecr_image(image: str) -> EcrImage | None:
    """Read the parts of an image's address; None where it is in no private registry of ECR."""
    found = _ECR_IMAGE.fullmatch(image)
    if found is None:
        return None
    digest = found["digest"] or ""
    return EcrImage(
        account_id=found["account"],
        region=found["region"],
        repository=found["repository"],
        tag=found["tag"] or ("" if digest else "latest"),
        digest=digest,
    )


class Account:
    """Asks AWS: TransientError or PermanentError where it does not answer, or refuses to."""

    def __init__(self, *, region: str, config: Config) -> None:
        def client(service: str) -> Any:
            return make_client(service, region=region, config=config)

        self.region = region
        self._quotas = client("service-quotas")
        self._ec2 = client("ec2")
        self._ecr = client("ecr")
        self._s3 = client("s3")
        self._eks = client("eks")

    def kubernetes_versions(self) -> list[OfferedVersion]:
        """List the Kubernetes versions of which EKS makes clusters in the region."""
        return offered_versions(self._eks)

    def quota(self, service: str, code: str) -> int:
        """Return what a quota allows; AWS's default where nobody has asked for more."""
        for what, ask in (
            ("the quota", self._quotas.get_service_quota),
            ("the default of quota", self._quotas.get_aws_default_service_quota),
        ):
            with suppress(AwsNotFound), aws_call(f"reading {what} {code}"):
                return int(ask(ServiceCode=service, QuotaCode=code)["Quota"]["Value"])
        raise PermanentError(f"Service Quotas does not know the quota {code}")

    def vcpus_in_use(self, quota: VcpuQuota) -> int:
        """Count the vCPUs of a quota in use; those of capacity blocks count towards none."""
        states = {"Name": "instance-state-name", "Values": ["pending", "running"]}
        what = "listing running instances"
        found = listed(self._ec2, "describe_instances", "Reservations", what, Filters=[states])
        return sum(
            _vcpus(each)
            for reservation in found
            for each in reservation["Instances"]
            if quota.counts(each["InstanceType"])
            and each.get("InstanceLifecycle") == ("spot" if quota.is_spot else None)
        )

    def zones_of(self, subnet_ids: Iterable[str]) -> dict[str, str]:
        """List the availability zone of each subnet, by its id.

        Raises:
            TransientError, PermanentError: one does not exist, or EC2 does not answer.
        """
        return zones_of(self._ec2, [*subnet_ids])

    def zones_offering(self, instance_type: str) -> set[str]:
        """List the region's zones in which EC2 offers an instance type at all."""
        return zones_offering(self._ec2, instance_type)

    def has_image(self, image: EcrImage) -> bool:
        """Say whether a registry has an image."""
        named = {"imageDigest": image.digest} if image.digest else {"imageTag": image.tag}
        with suppress(AwsNotFound), aws_call(f"looking for image {image.repository}"):
            self._ecr.describe_images(
                registryId=image.account_id, repositoryName=image.repository, imageIds=[named]
            )
            return True
        return False

    def bucket_problem(self, bucket: str) -> str:
        """Say why a bucket cannot be used: "does not exist" or "may not be listed"; else "".

        Raises:
            TransientError, PermanentError: S3 does not answer.
        """
        try:
            with aws_call(f"looking at bucket {bucket}", _FORBIDDEN):
                self._s3.head_bucket(Bucket=bucket)
        except AwsNotFound:
            return "does not exist"
        except AwsConflict:
            return "may not be listed"
        return ""


def _vcpus(instance: dict[str, Any]) -> int:
    """Count the vCPUs of an instance's type, whatever its CPU options say."""
    known = CATALOGUE.get(instance["InstanceType"])
    if known is not None:
        return known.vcpus
    options = instance.get("CpuOptions", {})
    return int(options.get("CoreCount", 1)) * int(options.get("ThreadsPerCore", 1))
