"""Builds the descriptions that the emulated EKS answers with.

Used by `eks` and `eks_inside` only. Pure: request parameters in, response members out.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from stationmaster.local.aws.emulation import Emulation

# (version, release, end of standard support, end of extended support)
# Source: Amazon EKS user guide, "Kubernetes versions", release calendar as of November 2026.
_TODAY = "2026-11-01"
_CALENDAR = (
    ("1.30", "2024-05-23", "2025-07-23", "2026-07-23"),
    ("1.31", "2024-09-26", "2025-11-26", "2026-11-26"),
    ("1.32", "2025-01-23", "2026-03-23", "2027-03-23"),
    ("1.33", "2025-05-29", "2026-07-29", "2027-07-29"),
    ("1.34", "2025-10-02", "2026-12-02", "2027-12-02"),
    ("1.35", "2026-01-27", "2027-03-27", "2028-03-27"),
    ("1.36", "2026-05-20", "2027-07-20", "2028-07-20"),
)
DEFAULT_VERSION = "1.35"
VERSIONS = {row[0] for row in _CALENDAR}
# When all of these were in extended support, and none newer were known here.
_LATER = "2027-11-01"

ADDON_VERSIONS = {
    "vpc-cni": "v1.21.1-eksbuild.1",
    "coredns": "v1.13.1-eksbuild.1",
    "kube-proxy": "v1.35.0-eksbuild.2",
    "aws-fsx-csi-driver": "v1.8.0-eksbuild.1",
    "eks-pod-identity-agent": "v1.3.10-eksbuild.1",
    "eks-node-monitoring-agent": "v1.5.0-eksbuild.1",
    "amazon-cloudwatch-observability": "v4.8.0-eksbuild.1",
    "metrics-server": "v0.8.0-eksbuild.6",
}


def _arn(emulation: Emulation, rest: str) -> str:
    return f"arn:aws:eks:{emulation.region}:{emulation.account_id}:{rest}"


def _made(params: dict[str, Any], **members: Any) -> dict[str, Any]:
    """Return what was asked for as EKS shows it: under the same names, with what EKS adds."""
    now = datetime.now(UTC)
    added = {"createdAt": now, "modifiedAt": now, "health": {"issues": []}}
    return {"tags": {}, **params, **added, **members}


def new_cluster(params: dict[str, Any], *, emulation: Emulation, vpc_id: str) -> dict[str, Any]:
    """Return a cluster in CREATING; it has no endpoint yet."""
    return _made(
        {"version": DEFAULT_VERSION, **params},
        arn=_arn(emulation, f"cluster/{params['name']}"),
        resourcesVpcConfig={
            "endpointPublicAccess": True,
            "endpointPrivateAccess": False,
            "securityGroupIds": [],
            "publicAccessCidrs": ["0.0.0.0/0"],
            **params["resourcesVpcConfig"],
            "vpcId": vpc_id,
        },
        accessConfig={
            "authenticationMode": "API_AND_CONFIG_MAP",
            **params.get("accessConfig", {}),
        },
        status="CREATING",
    )


def new_node_group(
    params: dict[str, Any], *, emulation: Emulation, version: str, instance_type: str
) -> dict[str, Any]:
    """Return a node group in CREATING."""
    cluster, name, identity = params["clusterName"], params["nodegroupName"], str(uuid.uuid4())
    sizes = {"minSize": 1, "maxSize": 2, "desiredSize": 2}
    return _made(
        {
            "version": version,
            "capacityType": "ON_DEMAND",
            "amiType": "AL2023_x86_64_STANDARD",
            "labels": {},
            "taints": [],
            **params,
        },
        nodegroupArn=_arn(emulation, f"nodegroup/{cluster}/{name}/{identity}"),
        status="CREATING",
        scalingConfig=sizes | params.get("scalingConfig", {}),
        instanceTypes=params.get("instanceTypes") or [instance_type],
        resources={"autoScalingGroups": [{"name": f"eks-{name}-{identity}"}]},
    )


def new_addon(params: dict[str, Any], *, emulation: Emulation) -> dict[str, Any]:
    """Return an add-on in CREATING."""
    name = params["addonName"]
    where = f"addon/{params['clusterName']}/{name}/{uuid.uuid4()}"
    return _made(
        {"addonVersion": ADDON_VERSIONS[name], **params},
        addonArn=_arn(emulation, where),
        status="CREATING",
    )


def new_access_entry(params: dict[str, Any], *, emulation: Emulation) -> dict[str, Any]:
    """Return an access entry without policies."""
    principal = params["principalArn"]
    where = f"{params['clusterName']}/{principal.rsplit('/', 1)[-1]}/{uuid.uuid4()}"
    return _made(
        {"kubernetesGroups": [], "username": principal, "type": "STANDARD", **params},
        accessEntryArn=_arn(emulation, f"access-entry/{where}"),
    )


def new_pod_identity(params: dict[str, Any], *, emulation: Emulation) -> dict[str, Any]:
    """Return a pod identity association."""
    identity = f"a-{uuid.uuid4().hex[:17]}"
    where = f"podidentityassociation/{params['clusterName']}/{identity}"
    return _made(params, associationArn=_arn(emulation, where), associationId=identity)


def versions(*, later: bool = False) -> list[dict[str, Any]]:
    """Return the Kubernetes versions that EKS supports, newest first; `later` a year from now."""
    today = _LATER if later else _TODAY
    return [
        {
            "clusterVersion": version,
            "clusterType": "eks",
            "defaultPlatformVersion": "eks.1",
            "defaultVersion": version == DEFAULT_VERSION,
            "releaseDate": _day(release),
            "endOfStandardSupportDate": _day(standard),
            "endOfExtendedSupportDate": _day(extended),
            "status": "standard-support" if today < standard else "extended-support",
            "versionStatus": "STANDARD_SUPPORT" if today < standard else "EXTENDED_SUPPORT",
        }
        for version, release, standard, extended in reversed(_CALENDAR)
        if today < extended
    ]


def _day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def no_capacity(node_group: Mapping[str, Any], *, zone: str) -> dict[str, Any]:
    """Return the health issue of a node group whose instances AWS does not have in a zone.

    Source: https://github.com/aws/containers-roadmap/issues/2204; of spot instances,
    https://github.com/mludvig/aws-ethereum-miner/issues/23
    """
    kind = node_group["instanceTypes"][0]
    return not_launched(
        node_group,
        f"InsufficientInstanceCapacity - We currently do not have sufficient {kind} capacity in "
        f"the Availability Zone you requested ({zone}). Our system will be working on provisioning "
        "additional capacity.",
        spot="UnfulfillableCapacity - Unable to fulfill capacity due to your request "
        "configuration. Please adjust your request and try again.",
    )


def quota_reached(node_group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the health issue of a node group that the account's quota of vCPUs does not allow.

    Source: https://github.com/klothoplatform/klotho/pull/311; of spot instances,
    https://github.com/aws-deepracer-community/deepracer-on-the-spot/issues/55
    """
    return not_launched(
        node_group,
        "VcpuLimitExceeded - You have requested more vCPU capacity than your current vCPU limit of "
        "0 allows for the instance bucket that the specified instance type belongs to. Please "
        "visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this "
        "limit.",
        spot="MaxSpotInstanceCountExceeded - Max spot instance count exceeded.",
    )


def fail(described: dict[str, Any], status: str, why: dict[str, Any]) -> None:
    """Give a resource a status, and say why."""
    described["status"] = status
    described["health"] = {"issues": [why]}


def issue(code: str, message: str, resource_id: str) -> dict[str, Any]:
    """Return a health issue of a resource."""
    return {"code": code, "message": message, "resourceIds": [resource_id]}


def not_launched(node_group: Mapping[str, Any], why: str, *, spot: str = "") -> dict[str, Any]:
    """Return the health issue of a node group whose instances are not launched; why of `spot`."""
    is_spot = node_group["capacityType"] == "SPOT"
    bought, reason = ("Spot", spot or why) if is_spot else ("On-Demand", why)
    return issue(
        "AsgInstanceLaunchFailures",
        f"Could not launch {bought} Instances. {reason} Launching EC2 instance failed.",
        node_group["resources"]["autoScalingGroups"][0]["name"],
    )
