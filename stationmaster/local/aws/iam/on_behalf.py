"""What services check with the caller's rights, besides the call itself.

No trace of calls shows these, so each row has its source above it. A caller without one of them is
refused as if the call itself were not allowed, in words of the service where it has its own.

SAR is the Service Authorization Reference, docs.aws.amazon.com/service-authorization/latest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stationmaster.local.aws.iam.account import Account
from stationmaster.local.aws.iam.needs import Parameters, request_tags
from stationmaster.local.aws.iam.policies import Check

Checks = Callable[[Account, Parameters], Iterable[Check]]
"""What a service looks at before it does what it is asked for."""


@dataclass(frozen=True)
class Worded:
    """Checks after which a service answers in words of its own; {denied} is IAM's sentence."""

    checks: Checks
    words: str
    code: str = ""
    """"" for IAM's own."""


@dataclass(frozen=True)
class Passed:
    """A role that a request hands to a service: the caller needs the right, the service the trust.

    Source: IAM user guide, "Grant a user permissions to pass a role to an AWS service".
    """

    roles: Callable[[Parameters], Iterable[str]]
    service: str
    """To whom it is passed, iam:PassedToService."""
    distrust: str
    """What the service answers when the role does not trust it."""
    trusted: str = ""
    """Who takes it on, whom its trust policy has to name; "" for the service."""


def _describe(*kinds: str) -> Checks:
    def checks(_account: Account, _given: Parameters) -> Iterator[Check]:
        for kind in kinds:
            yield Check(f"ec2:Describe{kind}")

    return checks


def _on_role(action: str, parameter: str) -> Checks:
    def checks(_account: Account, given: Parameters) -> Iterator[Check]:
        yield Check(action, str(given.get(parameter, "")))

    return checks


def _linked(service: str, name: str) -> Checks:
    """Check that the caller may make a service's role, as its first use in an account does."""

    def checks(account: Account, _given: Parameters) -> Iterator[Check]:
        if service not in account.linked:
            arn = account.arn(f"iam:role/aws-service-role/{service}/{name}")
            yield Check("iam:CreateServiceLinkedRole", arn, {"iam:AWSServiceName": service})

    return checks


def _node_group_role(account: Account, _given: Parameters) -> Iterator[Check]:
    where = f"iam:role/aws-service-role/{NODE_GROUPS}/AWSServiceRoleForAmazonEKSNodegroup"
    yield Check("iam:GetRole", account.arn(where))


def _launch(account: Account, given: Parameters) -> Iterator[Check]:
    """Yield what RunInstances asks about everything that is launched from a template."""
    stated = given.get("launchTemplate")
    template = account.launch_template(stated) if stated else None
    if template is None:
        return
    arn = account.arn(f"ec2:launch-template/{template.id}")
    data = template.latest_version().data
    launched = [
        *("instance/i-new", "network-interface/eni-new", "volume/vol-new"),
        f"launch-template/{template.id}",
        *(f"subnet/{subnet}" for subnet in given.get("subnets", [])),
        *(f"security-group/{group}" for group in _groups(data)),
    ]
    if placement := data.get("Placement", {}).get("GroupName"):
        launched.append(f"placement-group/{placement}")
    context = {"ec2:LaunchTemplate": arn}
    yield Check("ec2:RunInstances", f"arn:aws:ec2:{account.region}::image/ami-eks", context)
    for each in launched:
        yield Check("ec2:RunInstances", account.arn(f"ec2:{each}"), context)


def _launch_tags(account: Account, given: Parameters) -> Iterator[Check]:
    stated = given.get("launchTemplate")
    template = account.launch_template(stated) if stated else None
    specifications = template.latest_version().data.get("TagSpecifications", []) if template else []
    for each in specifications:
        if each["ResourceType"] not in _LAUNCHED:
            continue  # moto keeps the template's own tags there as well
        tags = {f"aws:RequestTag/{tag['Key']}": tag["Value"] for tag in each.get("Tags", [])}
        where = account.arn(f"ec2:{each['ResourceType']}/new")
        yield Check("ec2:CreateTags", where, {**tags, "ec2:CreateAction": "RunInstances"})


def _groups(data: Mapping[str, Any]) -> set[str]:
    of_interfaces = [
        group for each in data.get("NetworkInterfaces", []) for group in each.get("Groups", [])
    ]
    return {*data.get("SecurityGroupIds", []), *of_interfaces}


def _network_of_file_system(account: Account, given: Parameters) -> Iterator[Check]:
    for subnet in given.get("SubnetIds", [])[:1]:
        if vpc := account.vpc_of(subnet):
            yield Check("ec2:GetSecurityGroupsForVpc", account.arn(f"ec2:vpc/{vpc}"))


def _linked_bucket(account: Account, given: Parameters) -> Iterator[Check]:
    bucket = str(given.get("DataRepositoryPath", "")).removeprefix("s3://").partition("/")[0]
    through = {"aws:ViaAWSService": "true"}
    for action in (
        "s3:ListBucket",
        "s3:GetBucketLocation",
        "s3:GetBucketAcl",
        "s3:GetBucketPolicy",
        "s3:GetBucketNotification",
        "s3:GetEncryptionConfiguration",
    ):
        yield Check(action, account.arn(f"s3:{bucket}"), through)
    for action in ("s3:GetObject", "s3:PutObject"):
        yield Check(action, account.arn(f"s3:{bucket}/any"), through)


def _link_role(account: Account, _given: Parameters) -> Iterator[Check]:
    arn = account.arn(f"iam:role/aws-service-role/{S3_OF_FSX}/AWSServiceRoleForFSxS3Access_fs-new")
    yield Check("iam:CreateServiceLinkedRole", arn, {"iam:AWSServiceName": S3_OF_FSX})
    yield Check("iam:AttachRolePolicy", arn)
    yield Check("iam:PutRolePolicy", arn)


def _associations_of_addon(account: Account, given: Parameters) -> Iterator[Check]:
    for association in given.get("podIdentityAssociations", []):
        cluster = given.get("clusterName", "")
        where = account.arn(f"eks:cluster/{cluster}")
        yield Check("eks:CreatePodIdentityAssociation", where, request_tags(given))
        yield Check("iam:GetRole", str(association.get("roleArn", "")))


_LAUNCHED: Final = frozenset({"instance", "volume", "network-interface", "spot-instances-request"})
NODE_GROUPS: Final = "eks-nodegroup.amazonaws.com"
S3_OF_FSX: Final = "s3.data-source.lustre.fsx.amazonaws.com"

_NO_LAUNCH: Final = "You are not authorized to launch instances with this launch template. {denied}"
_INVALID: Final = "InvalidRequestException"
ON_BEHALF: Final[Mapping[str, tuple[Checks | Worded, ...]]] = {
    "eks:CreateCluster": (
        # EKS validates subnets and groups of a new cluster: EKS user guide, "Amazon EKS networking
        # requirements for VPC and subnets"; for the caller's rights, as CreateNodegroup below.
        _describe("Subnets", "Vpcs", "SecurityGroups"),
        # EKS user guide, "Using roles for Amazon EKS clusters", service-linked role permissions.
        _linked("eks.amazonaws.com", "AWSServiceRoleForAmazonEKS"),
    ),
    "eks:CreateNodegroup": (
        # Step Functions developer guide, "IAM policies for Amazon EKS", CreateNodeGroup;
        # https://github.com/terraform-aws-modules/terraform-aws-eks/issues/2018
        _on_role("iam:GetRole", "nodeRole"),
        # https://github.com/aws-controllers-k8s/community/issues/2164
        _on_role("iam:ListAttachedRolePolicies", "nodeRole"),
        Worded(
            _describe("Subnets"),
            "You are not authorized to perform ec2:DescribeSubnets. {denied}",
        ),
        # https://github.com/terraform-aws-modules/terraform-aws-eks/issues/823
        Worded(
            _node_group_role,
            "Failed to validate if SLR: AWSServiceRoleForAmazonEKSNodegroup already exists due to "
            "missing permissions for 'iam:GetRole'. {denied}",
            _INVALID,
        ),
        # EKS user guide, "Using roles for Amazon EKS node groups", service-linked role permissions.
        _linked(NODE_GROUPS, "AWSServiceRoleForAmazonEKSNodegroup"),
        # https://github.com/rancher/docs/pull/3127
        _describe("LaunchTemplateVersions"),
        # https://github.com/aws-samples/terraform-eks-code/issues/13; the resources: SAR, EC2,
        # RunInstances.
        Worded(_launch, _NO_LAUNCH, _INVALID),
        # SAR, EC2, RunInstances, dependent action ec2:CreateTags; EC2 user guide, "Grant permission
        # to tag Amazon EC2 resources during creation".
        Worded(_launch_tags, _NO_LAUNCH, _INVALID),
    ),
    # SAR, EKS, CreateAddon (resource type podidentityassociation); for the role, as
    # CreatePodIdentityAssociation.
    "eks:CreateAddon": (_associations_of_addon,),
    # EKS user guide, "Assign an IAM role to a Kubernetes service account", prerequisites.
    "eks:CreatePodIdentityAssociation": (_on_role("iam:GetRole", "roleArn"),),
    "fsx:CreateFileSystem": (
        # SAR, FSx, CreateFileSystem, dependent action ec2:GetSecurityGroupsForVpc.
        _network_of_file_system,
        # FSx for Lustre user guide, "Using service-linked roles for Amazon FSx"; the interfaces are
        # created with that role, and not with the caller's rights.
        _linked("fsx.amazonaws.com", "AWSServiceRoleForAmazonFSx"),
    ),
    "fsx:CreateDataRepositoryAssociation": (
        # FSx for Lustre user guide, "Unable to validate access to an S3 bucket".
        _linked_bucket,
        # FSx for Lustre user guide, "Adding permissions to use data repositories in Amazon S3".
        _link_role,
    ),
}


def _named(parameter: str) -> Callable[[Parameters], Iterator[str]]:
    def roles(given: Parameters) -> Iterator[str]:
        if given.get(parameter):
            yield str(given[parameter])

    return roles


def _addon_roles(given: Parameters) -> Iterator[str]:
    for association in given.get("podIdentityAssociations", []):
        yield str(association.get("roleArn", ""))


_NOT_ASSUMABLE: Final = (
    "Role with arn: {role}, could not be assumed because it does not exist or the trusted entity "
    "is not correct"
)
_PODS: Final = "pods.eks.amazonaws.com"
_POD_TRUST: Final = "Trust policy of the role provided is invalid: {role}"
_OF_SCHEDULE: Final = Passed(
    lambda given: _named("RoleArn")(given.get("Target", {})),
    "scheduler.amazonaws.com",
    "The execution role you provide must allow AWS EventBridge Scheduler to assume the role: "
    "{role}",
)
PASSED: Final[Mapping[str, Passed]] = {
    # EKS user guide, "Amazon EKS identity-based policy examples", creating a cluster.
    "eks:CreateCluster": Passed(_named("roleArn"), "eks.amazonaws.com", _NOT_ASSUMABLE),
    # Step Functions developer guide, "IAM policies for Amazon EKS", CreateNodeGroup; instances take
    # the role on, so EC2 has to be trusted.
    "eks:CreateNodegroup": Passed(
        _named("nodeRole"), "eks.amazonaws.com", _NOT_ASSUMABLE, "ec2.amazonaws.com"
    ),
    # https://github.com/aws-samples/appmod-blueprints/pull/816
    "eks:CreatePodIdentityAssociation": Passed(_named("roleArn"), _PODS, _POD_TRUST),
    # As CreatePodIdentityAssociation, which CreateAddon stands for.
    "eks:CreateAddon": Passed(_addon_roles, _PODS, _POD_TRUST),
    # SAR, EventBridge Scheduler, dependent action iam:PassRole.
    "scheduler:CreateSchedule": _OF_SCHEDULE,
    "scheduler:UpdateSchedule": _OF_SCHEDULE,
}
# Which service an operation makes the service-linked role of, once it has succeeded.
LINKING: Final[Mapping[str, str]] = {
    "eks:CreateCluster": "eks.amazonaws.com",
    "eks:CreateNodegroup": NODE_GROUPS,
    "fsx:CreateFileSystem": "fsx.amazonaws.com",
}
