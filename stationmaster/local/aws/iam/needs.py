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
from stationmaster.local.aws.iam.policies import Check

Parameters = Mapping[str, Any]
Rule = Callable[[Account, Parameters, str], Iterator[Check]]
"""Yields what is asked about a request; its text is the action of the operation's own name."""

# IAM's prefixes of services whose signing name is another.
PREFIXES: Final = {"monitoring": "cloudwatch", "tagging": "tag"}


def checks_of(account: Account, service: str, operation: str, given: Parameters) -> list[Check]:
    """Return what IAM is asked about a request."""
    own = f"{PREFIXES.get(service, service)}:{operation}"
    rule = _RULES.get(own)
    return [Check(own)] if rule is None else list(rule(account, given, own))


def request_tags(given: Parameters) -> dict[str, str]:
    """Return the tags that a request puts on what it creates, as conditions know them."""
    stated = given.get("tags") or given.get("Tags") or []
    if isinstance(stated, Mapping):
        stated = [{"Key": key, "Value": value} for key, value in stated.items()]
    of_parts = [tag for each in given.get("TagSpecifications", []) for tag in each.get("Tags", [])]
    return {
        f"aws:RequestTag/{tag['Key']}": str(tag.get("Value", "")) for tag in [*stated, *of_parts]
    }


def _created(account: Account, given: Parameters, action: str, resource: str, **more: str) -> Check:
    """Return a check that knows the tags of the request."""
    return Check(action, _arn(account, given, resource), {**request_tags(given), **more})


def _held(account: Account, action: str, resource: str) -> Check:
    """Return a check that knows the tags of a resource."""
    arn = account.arn(resource)
    tags = account.tags_of(arn)
    context = {f"aws:ResourceTag/{key}": value for key, value in (tags or {}).items()}
    return Check(action, arn, context, is_missing=tags is None)


def _key_of(account: Account, name: str, service: str, *actions: str) -> Iterator[Check]:
    """Yield the use of the key that encrypts a table, bucket or secret, through its service."""
    if name in account.keys:
        via = {"kms:ViaService": f"{service}.{account.region}.amazonaws.com"}
        for action in actions:
            yield Check(action, account.keys[name], via)


class _Named(dict[str, Any]):
    """Parameters for a template; what a request leaves out is every one of its kind."""

    def __missing__(self, name: str) -> str:
        return "*"


def _arn(account: Account, given: Parameters, resource: str) -> str:
    return account.arn(resource.format_map(_Named(given)))


# -- rules ----------------------------------------------------------------------------------------


def _plain(resource: str) -> Rule:
    """Return the action on a resource that the parameters name."""

    def rule(account: Account, given: Parameters, own: str) -> Iterator[Check]:
        yield Check(own, _arn(account, given, resource))

    return rule


def _on_held(resource: str) -> Rule:
    """Return the action on a resource whose tags policies may ask for."""

    def rule(account: Account, given: Parameters, own: str) -> Iterator[Check]:
        yield _held(account, own, resource.format_map(_Named(given)))

    return rule


def _creating(made: str, *resources: str) -> Rule:
    """Return the same with the request's tags; EKS and FSx ask for the right to tag as well.

    `made` is where AWS puts what the request creates: the resource of the right to tag.
    """

    def rule(account: Account, given: Parameters, own: str) -> Iterator[Check]:
        for resource in resources or (made,):
            yield _created(account, given, own, resource)
        if request_tags(given):
            yield _created(account, given, f"{own.partition(':')[0]}:TagResource", made)

    return rule


def _letting_in(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    """Yield an access entry; EKS also says whom it is for."""
    entry, *tagging = _creating(_ENTRY, _CLUSTER)(account, given, own)
    whom = {"eks:principalArn": str(given.get("principalArn", ""))}
    yield Check(entry.action, entry.resource, {**entry.context, **whom})
    yield from tagging


def _giving_policy(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    """Yield one of EKS's access policies: which, to whom, and where in the cluster."""
    context = {
        "eks:accessScope": str(given.get("accessScope", {}).get("type", "")),
        "eks:policyArn": str(given.get("policyArn", "")),
        "eks:principalArn": str(given.get("principalArn", "")),
    }
    yield Check(own, _arn(account, given, _ENTRY), context)


def _creating_in_ec2(resource: str, *others: str) -> Rule:
    """EC2 asks for ec2:CreateTags, which policies limit by the call that tags."""

    def rule(account: Account, given: Parameters, own: str) -> Iterator[Check]:
        yield _created(account, given, own, resource)
        for other in others:
            yield Check(own, _arn(account, given, other))
        if request_tags(given):
            by = {"ec2:CreateAction": own.removeprefix("ec2:")}
            yield _created(account, given, "ec2:CreateTags", resource, **by)

    return rule


def _launch_template_deletion(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    identity = str(given.get("LaunchTemplateId", ""))
    template = account.launch_template(
        {"id": identity, "name": given.get("LaunchTemplateName", "")}
    )
    named = identity if template is None else template.id
    yield _held(account, own, f"ec2:launch-template/{named}")


def _terminations(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    for identity in given.get("InstanceIds", []):
        yield _held(account, own, f"ec2:instance/{identity}")


def _scaling_termination(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    """Yield the Auto Scaling group of an instance, named and tagged by EKS."""
    instance = _held(account, "", f"ec2:instance/{given.get('InstanceId', '')}")
    tags = {key: value for key, value in instance.context.items() if "/eks:" in key}
    group = f"eks-{tags.get('aws:ResourceTag/eks:nodegroup-name', '')}-{ID_OF_PART}"
    arn = account.arn(f"autoscaling:autoScalingGroup:{ID_OF_PART}:autoScalingGroupName/{group}")
    yield Check(own, arn, tags, is_missing=instance.is_missing)


def _events(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    for entry in given.get("Entries", []):
        bus = str(entry.get("EventBusName", "default"))
        context = {
            "events:source": str(entry.get("Source", "")),
            "events:detail-type": str(entry.get("DetailType", "")),
        }
        arn = bus if bus.startswith("arn:") else account.arn(f"events:event-bus/{bus}")
        yield Check(own, arn, context)


def _token(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    machine = account.machine_of(str(given.get("taskToken", "")))
    if machine is not None:  # Step Functions answers to a token that nobody has by itself
        yield Check(own, machine)


def _secret(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    yield Check(own, account.secret_arn(str(given.get("SecretId", ""))))
    yield from _key_of(account, "secretsmanager", "secretsmanager", "kms:Decrypt")


def _secret_write(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    yield from _secret(account, given, own)
    yield from _key_of(account, "secretsmanager", "secretsmanager", "kms:GenerateDataKey")


_READ_KEY: Final = ("kms:Decrypt", "kms:DescribeKey")
_WRITE_KEY: Final = (*_READ_KEY, "kms:Encrypt", "kms:GenerateDataKey")
_IN_TRANSACTION: Final = {
    "Put": "dynamodb:PutItem",
    "Update": "dynamodb:UpdateItem",
    "Delete": "dynamodb:DeleteItem",
    "ConditionCheck": "dynamodb:ConditionCheckItem",
}
_READING: Final = frozenset(
    f"dynamodb:{call}" for call in ("GetItem", "BatchGetItem", "Query", "Scan")
)


def _table(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    table = str(given.get("TableName", ""))
    index = f"/index/{given['IndexName']}" if given.get("IndexName") else ""
    yield Check(own, account.arn(f"dynamodb:table/{table}{index}"))
    keys = _READ_KEY if own in _READING else _WRITE_KEY
    yield from _key_of(account, table, "dynamodb", *keys)


def _transaction(account: Account, given: Parameters, _own: str) -> Iterator[Check]:
    for item in given.get("TransactItems", []):
        for kind, of in item.items():
            yield from _table(account, of, _IN_TRANSACTION[kind])


def _batch(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    for table in given.get("RequestItems", {}):
        yield from _table(account, {"TableName": table}, own)


def _on_bucket(action: str = "") -> Rule:
    def rule(account: Account, given: Parameters, own: str) -> Iterator[Check]:
        prefix = {"s3:prefix": str(given["Prefix"])} if "Prefix" in given else {}
        yield Check(action or own, account.arn(f"s3:{given.get('Bucket', '')}"), prefix)

    return rule


def _on_object(action: str, *key_actions: str) -> Rule:
    def rule(account: Account, given: Parameters, _own: str) -> Iterator[Check]:
        bucket, key = str(given.get("Bucket", "")), str(given.get("Key", ""))
        stated = f"{action}Version" if "VersionId" in given else action
        yield Check(stated, account.arn(f"s3:{bucket}/{key}"))
        if action == "s3:GetObject" and not account.has_object(bucket, key):
            # S3 says that it is missing only to who may list the whole bucket.
            yield Check("s3:ListBucket", account.arn(f"s3:{bucket}"))
        yield from _key_of(account, bucket, "s3", *key_actions)

    return rule


_CLUSTER: Final = "eks:cluster/{clusterName}"
_ASSOCIATION: Final = "eks:podidentityassociation/{clusterName}/{associationId}"
_ENTRY: Final = f"eks:access-entry/{{clusterName}}/role/0/any/{ID_OF_PART}"
_ADDON: Final = f"eks:addon/{{clusterName}}/{{addonName}}/{ID_OF_PART}"
_NODE_GROUP: Final = f"eks:nodegroup/{{clusterName}}/{{nodegroupName}}/{ID_OF_PART}"


def _data_link(account: Account, given: Parameters, own: str) -> Iterator[Check]:
    identity = str(given.get("AssociationId", ""))
    known = [each.arn for source in account.sources for each in source.iter_tagged_resources()]
    found = [arn for arn in known if arn.endswith(f"/{identity}")]
    yield _held(account, own, found[0] if found else f"fsx:association/*/{identity}")


_BY_SERVICE: Final[Mapping[str, Mapping[str, Rule]]] = {
    "autoscaling": {"TerminateInstanceInAutoScalingGroup": _scaling_termination},
    "dynamodb": {
        "GetItem Query Scan PutItem UpdateItem DeleteItem": _table,
        "BatchGetItem": _batch,
        "TransactWriteItems": _transaction,
    },
    "ec2": {
        "CreateSecurityGroup": _creating_in_ec2("ec2:security-group/sg-new", "ec2:vpc/{VpcId}"),
        "CreateLaunchTemplate": _creating_in_ec2("ec2:launch-template/lt-new"),
        "CreatePlacementGroup": _creating_in_ec2("ec2:placement-group/{GroupName}"),
        "AuthorizeSecurityGroupIngress AuthorizeSecurityGroupEgress DeleteSecurityGroup": _on_held(
            "ec2:security-group/{GroupId}"
        ),
        "DeleteLaunchTemplate": _launch_template_deletion,
        "DeletePlacementGroup": _on_held("ec2:placement-group/{GroupName}"),
        "TerminateInstances": _terminations,
        "DeleteVolume": _on_held("ec2:volume/{VolumeId}"),
        "DeleteNetworkInterface": _on_held("ec2:network-interface/{NetworkInterfaceId}"),
    },
    "eks": {
        "CreateCluster": _creating("eks:cluster/{name}"),
        "CreateNodegroup": _creating(_NODE_GROUP, _CLUSTER),
        "CreateAddon": _creating(_ADDON, _CLUSTER),
        "CreateAccessEntry": _letting_in,
        "CreatePodIdentityAssociation": _creating(
            "eks:podidentityassociation/{clusterName}/a-new", _CLUSTER
        ),
        "AssociateAccessPolicy": _giving_policy,
        "DescribeCluster": _plain("eks:cluster/{name}"),
        "DeleteCluster": _on_held("eks:cluster/{name}"),
        "ListNodegroups ListPodIdentityAssociations": _plain(_CLUSTER),
        "DescribeNodegroup UpdateNodegroupConfig": _plain(_NODE_GROUP),
        "DeleteNodegroup": _on_held(_NODE_GROUP),
        "DescribeAddon": _plain(_ADDON),
        "DescribeAccessEntry": _plain(_ENTRY),
        "DescribePodIdentityAssociation": _plain(_ASSOCIATION),
        "DeletePodIdentityAssociation": _on_held(_ASSOCIATION),
    },
    "events": {"PutEvents": _events},
    "fsx": {
        "CreateFileSystem": _creating("fsx:file-system/fs-new"),
        "DeleteFileSystem": _on_held("fsx:file-system/{FileSystemId}"),
        "CreateDataRepositoryAssociation": _creating(
            "fsx:association/{FileSystemId}/dra-new",
            "fsx:association/{FileSystemId}/dra-new",
            "fsx:file-system/{FileSystemId}",
        ),
        "DeleteDataRepositoryAssociation": _data_link,
    },
    "logs": {"DeleteLogGroup": _on_held("logs:log-group:{logGroupName}")},
    # Source: Amazon S3 user guide, "Required permissions for Amazon S3 API operations"; of a
    # missing object: Amazon S3 API reference, GetObject and HeadObject, Permissions; the key's are
    # in "Using server-side encryption with AWS KMS keys".
    "s3": {
        "GetObject HeadObject GetObjectAttributes": _on_object("s3:GetObject", "kms:Decrypt"),
        "PutObject CreateMultipartUpload": _on_object("s3:PutObject", "kms:GenerateDataKey"),
        "UploadPart CompleteMultipartUpload": _on_object(
            "s3:PutObject", "kms:GenerateDataKey", "kms:Decrypt"
        ),
        "AbortMultipartUpload": _on_object("s3:AbortMultipartUpload"),
        "ListParts": _on_object("s3:ListMultipartUploadParts"),
        "DeleteObject": _on_object("s3:DeleteObject"),
        "ListMultipartUploads": _on_bucket("s3:ListBucketMultipartUploads"),
        "ListObjects ListObjectsV2 HeadBucket": _on_bucket("s3:ListBucket"),
        "GetBucketLocation GetBucketAcl GetBucketPolicy": _on_bucket(),
    },
    "sagemaker": {"DescribeCluster": _plain("sagemaker:cluster/000000000000")},  # its id is unknown
    "scheduler": {
        "CreateSchedule UpdateSchedule DeleteSchedule": _plain(
            "scheduler:schedule/{GroupName}/{Name}"
        )
    },
    "secretsmanager": {"GetSecretValue": _secret, "PutSecretValue": _secret_write},
    "states": {
        "StartExecution": _plain("{stateMachineArn}"),
        "DescribeExecution": _plain("{executionArn}"),
        "SendTaskSuccess SendTaskFailure SendTaskHeartbeat": _token,
    },
    "sts": {"GetCallerIdentity": lambda _account, _given, _own: iter(())},  # needs no permission
}
_RULES: Final = {
    f"{service}:{operation}": rule
    for service, rules in _BY_SERVICE.items()
    for operations, rule in rules.items()
    for operation in operations.split()
}
