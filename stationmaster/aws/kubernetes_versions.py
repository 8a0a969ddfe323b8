"""The Kubernetes versions that EKS makes clusters of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import aws_call
from stationmaster.domain.catalogue.kubernetes_versions import OfferedVersion, Support

if TYPE_CHECKING:
    from mypy_boto3_eks import EKSClient
    from mypy_boto3_eks.type_defs import ClusterVersionInformationTypeDef

# AWS grants it on all resources or none.
VERSION_ACTIONS: Final = ("eks:DescribeClusterVersions",)


def offered_versions(client: EKSClient) -> list[OfferedVersion]:
    """List all versions in standard or extended support.

    Raises:
        TransientError, PermanentError: EKS does not answer, or refuses to.
    """
    with aws_call("reading the Kubernetes versions of EKS"):
        pages = client.get_paginator("describe_cluster_versions").paginate()
        listed = [each for page in pages for each in page["clusterVersions"]]
    supported = {each.value for each in Support}
    return [_offered(each) for each in listed if each.get("versionStatus") in supported]


def _offered(found: ClusterVersionInformationTypeDef) -> OfferedVersion:
    ends = found.get("endOfStandardSupportDate")
    return OfferedVersion(
        version=found["clusterVersion"],
        support=Support(found["versionStatus"]),
        is_default=found.get("defaultVersion", False),
        standard_support_ends=ends.date() if ends is not None else None,
    )
