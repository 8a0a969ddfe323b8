"""What a request takes: the actions and resources that AWS asks IAM about for the call itself.

What a service checks besides, in the caller's name, is in `on_behalf`. An operation that is not
listed here takes the action of its own name on all resources, which is right for the listing ones;
a policy that names resources does not allow it then, and the refusal says so.

Source of each row: Service Authorization Reference, the page of the service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from stationmaster.local.aws.iam.account import ID_OF_PART, Account
from stationmaster.local.aws.iam.parameters import request_tags
from stationmaster.local.aws.iam.policies import Check

Parameters = Mapping[str, Any]
Rule = Callable[[Account, Parameters], Iterator[Check]]

# IAM's prefixes of services whose signing name is another.
PREFIXES: Final = {"monitoring": "cloudwatch", "tagging": "tag"}


def checks_of(account: Account, service: str, operation: str, given: Parameters) -> list[Check]:
    """Return what IAM is asked about a request."""
    own = f"{PREFIXES.get(service, service)}:{operation}"
    rule = _RULES.get(own)
    return [Check(own)] if rule is None else list(rule(account, given))


def created(account: Account, given: Parameters, action: str, resource: str) -> Check:
    """Return a check that knows the tags of the request."""
    tags = {f"aws:RequestTag/{key}": value for key, value in request_tags(given).items()}
    return Check(action, account.arn(resource), tags)


def held(account: Account, action: str, resource: str) -> Check:
    """Return a check that knows the tags of a resource."""
    arn = account.arn(resource)
    tags = account.tags_of(arn)
    context = {f"aws:ResourceTag/{key}": value for key, value in (tags or {}).items()}
    return Check(action, arn, context, is_missing=tags is None)


def key_of(account: Account, name: str, service: str, *actions: str) -> Iterator[Check]:
    """Yield the use of the key that encrypts a table, bucket or secret, through its service."""
    if name in account.keys:
        via = {"kms:ViaService": f"{service}.{account.region}.amazonaws.com"}
        for action in actions:
            yield Check(action, account.keys[name], via)


# -- rules ----------------------------------------------------------------------------------------


def _plain(action: str, *resources: str) -> Rule:
    """Return one action on resources that the parameters name."""

    def rule(account: Account, given: Parameters) -> Iterator[Check]:
        for resource in resources:
            yield Check(action, account.arn(resource.format_map(_Named(given))))

    return rule


def _creating(action: str, *resources: str) -> Rule:
    """Return the same with the request's tags; EKS and FSx ask for the right to tag as well."""

    def rule(account: Account, given: Parameters) -> Iterator[Check]:
        for resource in resources:
            yield created(account, given, action, resource.format_map(_Named(given)))
        if request_tags(given):
            service = action.partition(":")[0]
            made = _MADE[action].format_map(_Named(given))
            yield created(account, given, f"{service}:TagResource", made)

    return rule


def _letting_in(account: Account, given: Parameters) -> Iterator[Check]:
    """Yield an access entry; EKS also says whom it is for."""
    whom = {"eks:principalArn": str(given.get("principalArn", ""))}
    entry, *tagging = _creating("eks:CreateAccessEntry", _CLUSTER)(account, given)
    yield Check(entry.action, entry.resource, {**entry.context, **whom})
    yield from tagging


def _giving_policy(account: Account, given: Parameters) -> Iterator[Check]:
    """Yield one of EKS's access policies: which, to whom, and where in the cluster."""
    context = {
        "eks:accessScope": str(given.get("accessScope", {}).get("type", "")),
        "eks:policyArn": str(given.get("policyArn", "")),
        "eks:principalArn": str(given.get("principalArn", "")),
    }
    entry = account.arn(_ENTRY.format_map(_Named(given)))
    yield Check("eks:AssociateAccessPolicy", entry, context)


def _creating_in_ec2(action: str, resource: str, *others: str) -> Rule:
    """EC2 asks for ec2:CreateTags, which policies limit by the call that tags."""

    def rule(account: Account, given: Parameters) -> Iterator[Check]:
        yield created(account, given, action, resource.format_map(_Named(given)))
        for other in others:
            yield Check(action, account.arn(other.format_map(_Named(given))))
        if request_tags(given):
            tagging = created(account, given, "ec2:CreateTags", resource.format_map(_Named(given)))
            by = {"ec2:CreateAction": action.removeprefix("ec2:")}
            yield Check(tagging.action, tagging.resource, {**tagging.context, **by})

    return rule


def _on_held(action: str, resource: str) -> Rule:
    """Return one action on a resource whose tags policies may ask for."""

    def rule(account: Account, given: Parameters) -> Iterator[Check]:
        yield held(account, action, resource.format_map(_Named(given)))

    return rule


def _launch_template_deletion(account: Account, given: Parameters) -> Iterator[Check]:
    identity = str(given.get("LaunchTemplateId", ""))
    template = account.launch_template(
        {"id": identity, "name": given.get("LaunchTemplateName", "")}
    )
    named = identity if template is None else template.id
    yield held(account, "ec2:DeleteLaunchTemplate", f"ec2:launch-template/{named}")


def _terminations(account: Account, given: Parameters) -> Iterator[Check]:
    for key, identity in given.items():
        if key.startswith("InstanceId."):
            yield held(account, "ec2:TerminateInstances", f"ec2:instance/{identity}")


def _scaling_termination(account: Account, given: Parameters) -> Iterator[Check]:
    """Yield the Auto Scaling group of an instance, named and tagged by EKS."""
    instance = held(account, "", f"ec2:instance/{given.get('InstanceId', '')}")
    tags = {key: value for key, value in instance.context.items() if "/eks:" in key}
    group = f"eks-{tags.get('aws:ResourceTag/eks:nodegroup-name', '')}-{ID_OF_PART}"
    arn = account.arn(f"autoscaling:autoScalingGroup:{ID_OF_PART}:autoScalingGroupName/{group}")
    action = "autoscaling:TerminateInstanceInAutoScalingGroup"
    yield Check(action, arn, tags, is_missing=instance.is_missing)


def _events(account: Account, given: Parameters) -> Iterator[Check]:
    for entry in given.get("Entries", []):
        bus = str(entry.get("EventBusName", "default"))
        context = {
            "events:source": str(entry.get("Source", "")),
            "events:detail-type": str(entry.get("DetailType", "")),
        }
        arn = bus if bus.startswith("arn:") else account.arn(f"events:event-bus/{bus}")
        yield Check("events:PutEvents", arn, context)


def _token(action: str) -> Rule:
    def rule(account: Account, given: Parameters) -> Iterator[Check]:
        machine = account.machine_of(str(given.get("taskToken", "")))
        if machine is not None:  # Step Functions answers to a token that nobody has by itself
            yield Check(action, machine)

    return rule


def _secret(account: Account, given: Parameters) -> Iterator[Check]:
    arn = account.secret_arn(str(given.get("SecretId", "")))
    yield Check("secretsmanager:GetSecretValue", arn)
    yield from key_of(account, "secretsmanager", "secretsmanager", "kms:Decrypt")


def _on_table(action: str, *key_actions: str) -> Rule:
    def rule(account: Account, given: Parameters) -> Iterator[Check]:
        yield from _table(account, action, given, *key_actions)

    return rule


def _table(account: Account, action: str, given: Parameters, *key_actions: str) -> Iterator[Check]:
    table = str(given.get("TableName", ""))
    index = f"/index/{given['IndexName']}" if given.get("IndexName") else ""
    yield Check(action, account.arn(f"dynamodb:table/{table}{index}"))
    yield from key_of(account, table, "dynamodb", *key_actions)


_READ_KEY: Final = ("kms:Decrypt", "kms:DescribeKey")
_WRITE_KEY: Final = (*_READ_KEY, "kms:Encrypt", "kms:GenerateDataKey")
_IN_TRANSACTION: Final = {
    "Put": "dynamodb:PutItem",
    "Update": "dynamodb:UpdateItem",
    "Delete": "dynamodb:DeleteItem",
    "ConditionCheck": "dynamodb:ConditionCheckItem",
    "Get": "dynamodb:GetItem",
}


def _transaction(account: Account, given: Parameters) -> Iterator[Check]:
    for item in given.get("TransactItems", []):
        for kind, of in item.items():
            keys = _READ_KEY if kind == "Get" else _WRITE_KEY
            yield from _table(account, _IN_TRANSACTION[kind], of, *keys)


def _batch(action: str, *key_actions: str) -> Rule:
    def rule(account: Account, given: Parameters) -> Iterator[Check]:
        for table in given.get("RequestItems", {}):
            yield from _table(account, action, {"TableName": table}, *key_actions)

    return rule


def _on_bucket(action: str) -> Rule:
    def rule(account: Account, given: Parameters) -> Iterator[Check]:
        prefix = {"s3:prefix": str(given["Prefix"])} if "Prefix" in given else {}
        yield Check(action, account.arn(f"s3:{given.get('Bucket', '')}"), prefix)

    return rule


def _on_object(action: str, *key_actions: str) -> Rule:
    def rule(account: Account, given: Parameters) -> Iterator[Check]:
        bucket = str(given.get("Bucket", ""))
        stated = f"{action}Version" if "VersionId" in given else action
        yield Check(stated, account.arn(f"s3:{bucket}/{given.get('Key', '')}"))
        if action == "s3:GetObject" and not account.has_object(bucket, str(given.get("Key", ""))):
            # S3 says that it is missing only to who may list the whole bucket.
            yield Check("s3:ListBucket", account.arn(f"s3:{bucket}"))
        yield from key_of(account, bucket, "s3", *key_actions)

    return rule


class _Named(dict[str, Any]):
    """Parameters for a template; what a request leaves out is every one of its kind."""

    def __missing__(self, name: str) -> str:
        return "*"


# Where AWS puts what a request creates: the resource of eks:TagResource and fsx:TagResource.
_MADE: Final = {
    "eks:CreateCluster": "eks:cluster/{name}",
    "eks:CreateNodegroup": f"eks:nodegroup/{{clusterName}}/{{nodegroupName}}/{ID_OF_PART}",
    "eks:CreateAddon": f"eks:addon/{{clusterName}}/{{addonName}}/{ID_OF_PART}",
    "eks:CreateAccessEntry": f"eks:access-entry/{{clusterName}}/role/0/any/{ID_OF_PART}",
    "eks:CreatePodIdentityAssociation": "eks:podidentityassociation/{clusterName}/a-new",
    "fsx:CreateFileSystem": "fsx:file-system/fs-new",
    "fsx:CreateDataRepositoryAssociation": "fsx:association/{FileSystemId}/dra-new",
}
_CLUSTER: Final = "eks:cluster/{clusterName}"
_ASSOCIATION: Final = "eks:podidentityassociation/{clusterName}/{associationId}"
_ENTRY: Final = f"eks:access-entry/{{clusterName}}/role/0/any/{ID_OF_PART}"
_ADDON: Final = f"eks:addon/{{clusterName}}/{{addonName}}/{ID_OF_PART}"
_NODE_GROUP: Final = f"eks:nodegroup/{{clusterName}}/{{nodegroupName}}/{ID_OF_PART}"
_SCHEDULE: Final = "scheduler:schedule/{GroupName}/{Name}"

_EKS: Final[Mapping[str, Rule]] = {
    "eks:CreateCluster": _creating("eks:CreateCluster", "eks:cluster/{name}"),
    "eks:CreateNodegroup": _creating("eks:CreateNodegroup", _CLUSTER),
    "eks:CreateAddon": _creating("eks:CreateAddon", _CLUSTER),
    "eks:CreateAccessEntry": _letting_in,
    "eks:CreatePodIdentityAssociation": _creating("eks:CreatePodIdentityAssociation", _CLUSTER),
    "eks:AssociateAccessPolicy": _giving_policy,
    "eks:DescribeCluster": _plain("eks:DescribeCluster", "eks:cluster/{name}"),
    "eks:DeleteCluster": _on_held("eks:DeleteCluster", "eks:cluster/{name}"),
    "eks:ListNodegroups": _plain("eks:ListNodegroups", _CLUSTER),
    "eks:ListAddons": _plain("eks:ListAddons", _CLUSTER),
    "eks:ListAccessEntries": _plain("eks:ListAccessEntries", _CLUSTER),
    "eks:ListPodIdentityAssociations": _plain("eks:ListPodIdentityAssociations", _CLUSTER),
    "eks:DescribeNodegroup": _plain("eks:DescribeNodegroup", _NODE_GROUP),
    "eks:UpdateNodegroupConfig": _plain("eks:UpdateNodegroupConfig", _NODE_GROUP),
    "eks:DeleteNodegroup": _on_held("eks:DeleteNodegroup", _NODE_GROUP),
    "eks:DescribeAddon": _plain("eks:DescribeAddon", _ADDON),
    "eks:DescribeAccessEntry": _plain("eks:DescribeAccessEntry", _ENTRY),
    "eks:DescribePodIdentityAssociation": _on_held(
        "eks:DescribePodIdentityAssociation", _ASSOCIATION
    ),
    "eks:DeletePodIdentityAssociation": _on_held("eks:DeletePodIdentityAssociation", _ASSOCIATION),
}


def _association(action: str) -> Rule:
    def rule(account: Account, given: Parameters) -> Iterator[Check]:
        identity = str(given.get("AssociationId", ""))
        for source in account.sources:
            for resource in source.iter_tagged_resources():
                if resource.arn.endswith(f"/{identity}"):
                    yield held(account, action, resource.arn)
                    return
        yield held(account, action, f"fsx:association/*/{identity}")

    return rule


_FSX: Final[Mapping[str, Rule]] = {
    "fsx:CreateFileSystem": _creating("fsx:CreateFileSystem", "fsx:file-system/fs-new"),
    "fsx:DeleteFileSystem": _on_held("fsx:DeleteFileSystem", "fsx:file-system/{FileSystemId}"),
    "fsx:CreateDataRepositoryAssociation": _creating(
        "fsx:CreateDataRepositoryAssociation",
        "fsx:association/{FileSystemId}/dra-new",
        "fsx:file-system/{FileSystemId}",
    ),
    "fsx:DeleteDataRepositoryAssociation": _association("fsx:DeleteDataRepositoryAssociation"),
}
_GROUP: Final = "ec2:security-group/{GroupId}"
_EC2: Final[Mapping[str, Rule]] = {
    "ec2:CreateSecurityGroup": _creating_in_ec2(
        "ec2:CreateSecurityGroup", "ec2:security-group/sg-new", "ec2:vpc/{VpcId}"
    ),
    "ec2:CreateLaunchTemplate": _creating_in_ec2(
        "ec2:CreateLaunchTemplate", "ec2:launch-template/lt-new"
    ),
    "ec2:CreatePlacementGroup": _creating_in_ec2(
        "ec2:CreatePlacementGroup", "ec2:placement-group/{GroupName}"
    ),
    **{
        f"ec2:{call}": _on_held(f"ec2:{call}", _GROUP)
        for call in (
            "AuthorizeSecurityGroupIngress",
            "AuthorizeSecurityGroupEgress",
            "RevokeSecurityGroupIngress",
            "RevokeSecurityGroupEgress",
            "DeleteSecurityGroup",
        )
    },
    "ec2:DeleteLaunchTemplate": _launch_template_deletion,
    "ec2:DeletePlacementGroup": _on_held(
        "ec2:DeletePlacementGroup", "ec2:placement-group/{GroupName}"
    ),
    "ec2:TerminateInstances": _terminations,
    "ec2:DeleteVolume": _on_held("ec2:DeleteVolume", "ec2:volume/{VolumeId}"),
    "ec2:DeleteNetworkInterface": _on_held(
        "ec2:DeleteNetworkInterface", "ec2:network-interface/{NetworkInterfaceId}"
    ),
}
_OTHERS: Final[Mapping[str, Rule]] = {
    "autoscaling:TerminateInstanceInAutoScalingGroup": _scaling_termination,
    "events:PutEvents": _events,
    "logs:DeleteLogGroup": _on_held("logs:DeleteLogGroup", "logs:log-group:{logGroupName}"),
    "scheduler:CreateSchedule": _plain("scheduler:CreateSchedule", _SCHEDULE),
    "scheduler:UpdateSchedule": _plain("scheduler:UpdateSchedule", _SCHEDULE),
    "scheduler:DeleteSchedule": _plain(
        "scheduler:DeleteSchedule", "scheduler:schedule/{GroupName}/{Name}"
    ),
    "scheduler:GetSchedule": _plain(
        "scheduler:GetSchedule", "scheduler:schedule/{GroupName}/{Name}"
    ),
    "secretsmanager:GetSecretValue": _secret,
    "states:StartExecution": _plain("states:StartExecution", "{stateMachineArn}"),
    "states:DescribeExecution": _plain("states:DescribeExecution", "{executionArn}"),
    "states:StopExecution": _plain("states:StopExecution", "{executionArn}"),
    **{
        f"states:SendTask{end}": _token(f"states:SendTask{end}")
        for end in ("Success", "Failure", "Heartbeat")
    },
    "sts:GetCallerIdentity": lambda _account, _given: iter(()),  # needs no permission
}
_DYNAMODB: Final[Mapping[str, Rule]] = {
    **{
        f"dynamodb:{call}": _on_table(f"dynamodb:{call}", *_READ_KEY)
        for call in ("GetItem", "Query", "Scan")
    },
    **{
        f"dynamodb:{call}": _on_table(f"dynamodb:{call}", *_WRITE_KEY)
        for call in ("PutItem", "UpdateItem", "DeleteItem")
    },
    "dynamodb:BatchGetItem": _batch("dynamodb:BatchGetItem", *_READ_KEY),
    "dynamodb:BatchWriteItem": _batch("dynamodb:BatchWriteItem", *_WRITE_KEY),
    "dynamodb:TransactWriteItems": _transaction,
    "dynamodb:TransactGetItems": _transaction,
}
# Source: Amazon S3 user guide, "Required permissions for Amazon S3 API operations"; of a missing
# object: Amazon S3 API reference, GetObject and HeadObject, Permissions; the key's are in "Using
# server-side encryption with AWS KMS keys".
_S3: Final[Mapping[str, Rule]] = {
    **{
        f"s3:{call}": _on_object("s3:GetObject", "kms:Decrypt")
        for call in ("GetObject", "HeadObject", "GetObjectAttributes")
    },
    "s3:PutObject": _on_object("s3:PutObject", "kms:GenerateDataKey"),
    "s3:CreateMultipartUpload": _on_object("s3:PutObject", "kms:GenerateDataKey"),
    **{
        f"s3:{call}": _on_object("s3:PutObject", "kms:GenerateDataKey", "kms:Decrypt")
        for call in ("UploadPart", "CompleteMultipartUpload")
    },
    "s3:AbortMultipartUpload": _on_object("s3:AbortMultipartUpload"),
    "s3:ListParts": _on_object("s3:ListMultipartUploadParts"),
    "s3:DeleteObject": _on_object("s3:DeleteObject"),
    "s3:ListMultipartUploads": _on_bucket("s3:ListBucketMultipartUploads"),
    **{
        f"s3:{call}": _on_bucket("s3:ListBucket")
        for call in ("ListObjects", "ListObjectsV2", "HeadBucket")
    },
    **{
        f"s3:{call}": _on_bucket(f"s3:{call}")
        for call in ("GetBucketLocation", "GetBucketAcl", "GetBucketPolicy")
    },
}
_RULES: Final[Mapping[str, Rule]] = {**_EKS, **_FSX, **_EC2, **_DYNAMODB, **_S3, **_OTHERS}
