"""Builds the descriptions that the emulated EKS answers with.

Used by `eks` and `eks_inside` only. Pure: request parameters in, response members out.
"""

from __future__ import annotations

import copy
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
# When all of these were in extended support, and none newer were known here.
_LATER = "2027-11-01"

_ADDON_VERSIONS = {
    "vpc-cni": "v1.21.1-eksbuild.1",
    "coredns": "v1.13.1-eksbuild.1",
    "kube-proxy": "v1.35.0-eksbuild.2",
    "aws-fsx-csi-driver": "v1.8.0-eksbuild.1",
    "aws-ebs-csi-driver": "v1.54.0-eksbuild.1",
    "aws-efs-csi-driver": "v2.2.0-eksbuild.1",
    "eks-pod-identity-agent": "v1.3.10-eksbuild.1",
    "eks-node-monitoring-agent": "v1.5.0-eksbuild.1",
    "amazon-cloudwatch-observability": "v4.8.0-eksbuild.1",
    "metrics-server": "v0.8.0-eksbuild.6",
}


def _arn(emulation: Emulation, rest: str) -> str:
    return f"arn:aws:eks:{emulation.region}:{emulation.account_id}:{rest}"


def new_cluster(params: dict[str, Any], *, emulation: Emulation, vpc_id: str) -> dict[str, Any]:
    """Return a cluster in CREATING; it has no endpoint yet."""
    name = params["name"]
    identity = uuid.uuid4().hex.upper()
    return {
        "name": name,
        "arn": _arn(emulation, f"cluster/{name}"),
        "createdAt": datetime.now(UTC),
        "version": params.get("version", DEFAULT_VERSION),
        "roleArn": params["roleArn"],
        "resourcesVpcConfig": {
            "endpointPublicAccess": True,
            "endpointPrivateAccess": False,
            "securityGroupIds": [],
            "publicAccessCidrs": ["0.0.0.0/0"],
            **params["resourcesVpcConfig"],
            "vpcId": vpc_id,
        },
        "kubernetesNetworkConfig": {
            "serviceIpv4Cidr": "172.20.0.0/16",
            "ipFamily": "ipv4",
            **params.get("kubernetesNetworkConfig", {}),
        },
        "logging": params.get("logging", {"clusterLogging": []}),
        "accessConfig": {
            "authenticationMode": "API_AND_CONFIG_MAP",
            **params.get("accessConfig", {}),
        },
        "encryptionConfig": params.get("encryptionConfig", []),
        "identity": {
            "oidc": {"issuer": f"https://oidc.eks.{emulation.region}.amazonaws.com/id/{identity}"}
        },
        "status": "CREATING",
        "health": {"issues": []},
        "platformVersion": "eks.1",
        "certificateAuthority": {},
        "upgradePolicy": params.get("upgradePolicy", {"supportType": "EXTENDED"}),
        "tags": dict(params.get("tags", {})),
    }


def new_node_group(
    params: dict[str, Any], *, emulation: Emulation, version: str, instance_type: str
) -> dict[str, Any]:
    """Return a node group in CREATING."""
    cluster, name, identity = params["clusterName"], params["nodegroupName"], str(uuid.uuid4())
    now = datetime.now(UTC)
    described = {
        "nodegroupName": name,
        "nodegroupArn": _arn(emulation, f"nodegroup/{cluster}/{name}/{identity}"),
        "clusterName": cluster,
        "version": params.get("version", version),
        "releaseVersion": params.get("releaseVersion", f"{version}.0-20261101"),
        "createdAt": now,
        "modifiedAt": now,
        "status": "CREATING",
        "capacityType": params.get("capacityType", "ON_DEMAND"),
        "scalingConfig": {
            "minSize": 1,
            "maxSize": 2,
            "desiredSize": 2,
            **params.get("scalingConfig", {}),
        },
        "instanceTypes": params.get("instanceTypes") or [instance_type],
        "subnets": params["subnets"],
        "amiType": params.get("amiType", "AL2023_x86_64_STANDARD"),
        "nodeRole": params["nodeRole"],
        "labels": dict(params.get("labels", {})),
        "taints": list(params.get("taints", [])),
        "resources": {"autoScalingGroups": [{"name": f"eks-{name}-{identity}"}]},
        "diskSize": params.get("diskSize", 20),
        "health": {"issues": []},
        "updateConfig": params.get("updateConfig", {"maxUnavailable": 1}),
        "tags": dict(params.get("tags", {})),
    }
    for key in ("launchTemplate", "nodeRepairConfig"):
        if key in params:
            described[key] = params[key]
    return described


def new_addon(params: dict[str, Any], *, emulation: Emulation) -> dict[str, Any]:
    """Return an add-on in CREATING."""
    cluster, name = params["clusterName"], params["addonName"]
    now = datetime.now(UTC)
    described = {
        "addonName": name,
        "clusterName": cluster,
        "status": "CREATING",
        "addonVersion": params.get("addonVersion", _ADDON_VERSIONS[name]),
        "health": {"issues": []},
        "addonArn": _arn(emulation, f"addon/{cluster}/{name}/{uuid.uuid4()}"),
        "createdAt": now,
        "modifiedAt": now,
        "tags": dict(params.get("tags", {})),
    }
    for key in ("serviceAccountRoleArn", "configurationValues", "podIdentityAssociations"):
        if key in params:
            described[key] = params[key]
    return described


def new_access_entry(params: dict[str, Any], *, emulation: Emulation) -> dict[str, Any]:
    """Return an access entry without policies."""
    cluster, principal = params["clusterName"], params["principalArn"]
    now = datetime.now(UTC)
    return {
        "clusterName": cluster,
        "principalArn": principal,
        "kubernetesGroups": params.get("kubernetesGroups", []),
        "accessEntryArn": _arn(
            emulation, f"access-entry/{cluster}/{principal.rsplit('/', 1)[-1]}/{uuid.uuid4()}"
        ),
        "createdAt": now,
        "modifiedAt": now,
        "tags": dict(params.get("tags", {})),
        "username": params.get("username", principal),
        "type": params.get("type", "STANDARD"),
    }


def new_pod_identity(params: dict[str, Any], *, emulation: Emulation) -> dict[str, Any]:
    """Return a pod identity association."""
    association_id = f"a-{uuid.uuid4().hex[:17]}"
    now = datetime.now(UTC)
    return {
        "clusterName": params["clusterName"],
        "namespace": params["namespace"],
        "serviceAccount": params["serviceAccount"],
        "roleArn": params["roleArn"],
        "associationArn": _arn(
            emulation, f"podidentityassociation/{params['clusterName']}/{association_id}"
        ),
        "associationId": association_id,
        "tags": dict(params.get("tags", {})),
        "createdAt": now,
        "modifiedAt": now,
    }


def is_version(text: str) -> bool:
    """Return whether EKS has had clusters of a Kubernetes version."""
    return any(text == row[0] for row in _CALENDAR)


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


def is_addon(name: str) -> bool:
    """Return whether EKS offers an add-on of this name."""
    return name in _ADDON_VERSIONS


def update(params: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a change that took effect at once."""
    changed = copy.deepcopy({k: v for k, v in params.items() if k not in ("name", "clusterName")})
    return {
        "id": str(uuid.uuid4()),
        "status": "Successful",
        "type": "ConfigUpdate",
        "params": [{"type": key, "value": str(value)} for key, value in changed.items()],
        "createdAt": datetime.now(UTC),
        "errors": [],
    }


def _day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def no_capacity(node_group: Mapping[str, Any], *, zone: str) -> dict[str, Any]:
    """Return the health issue of a node group whose instances AWS does not have in a zone.

    Source: https://github.com/aws/containers-roadmap/issues/2204; of spot instances,
    https://github.com/mludvig/aws-ethereum-miner/issues/23
    """
    if node_group["capacityType"] == "SPOT":
        return _not_launched(
            node_group,
            "UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration. "
            "Please adjust your request and try again.",
        )
    kind = node_group["instanceTypes"][0]
    return _not_launched(
        node_group,
        f"InsufficientInstanceCapacity - We currently do not have sufficient {kind} capacity in "
        f"the Availability Zone you requested ({zone}). Our system will be working on provisioning "
        "additional capacity.",
    )


def not_in_reservation(node_group: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Return the health issue of a node group whose reservation lacks its instances.

    Source: https://github.com/aws/karpenter-provider-aws/issues/7976
    """
    return _not_launched(node_group, why)


def quota_reached(node_group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the health issue of a node group that the account's quota of vCPUs does not allow.

    Source: https://github.com/klothoplatform/klotho/pull/311
    """
    if node_group["capacityType"] == "SPOT":
        # Source: https://github.com/aws-deepracer-community/deepracer-on-the-spot/issues/55
        return _not_launched(
            node_group, "MaxSpotInstanceCountExceeded - Max spot instance count exceeded."
        )
    return _not_launched(
        node_group,
        "VcpuLimitExceeded - You have requested more vCPU capacity than your current vCPU limit of "
        "0 allows for the instance bucket that the specified instance type belongs to. Please "
        "visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this "
        "limit.",
    )


def not_started(node_group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the health issue of a node group whose instances end while they start.

    Source: EC2 Auto Scaling user guide, "EC2 instance launch failures": Client.InternalError.
    """
    return _not_launched(node_group, "Client.InternalError: Client error on launch.")


def not_deleted(group_id: str) -> dict[str, Any]:
    """Return the health issue of a node group whose deletion failed.

    Source: https://github.com/hashicorp/terraform-provider-aws/issues/20405
    """
    return {
        "code": "Ec2SecurityGroupDeletionFailure",
        "message": "DependencyViolation - resource has a dependent object",
        "resourceIds": [group_id],
    }


def _not_launched(node_group: Mapping[str, Any], why: str) -> dict[str, Any]:
    bought = "Spot" if node_group["capacityType"] == "SPOT" else "On-Demand"
    return {
        "code": "AsgInstanceLaunchFailures",
        "message": f"Could not launch {bought} Instances. {why} Launching EC2 instance failed.",
        "resourceIds": [node_group["resources"]["autoScalingGroups"][0]["name"]],
    }
