"""Which types of resources local mode makes from templates, by which properties and names.

Used by `deployment`. A type or a property that is not here fails a deployment: whoever
adds one to a stack decides here what becomes of it in local mode.

Source: AWS CloudFormation template reference, "AWS resource and property types reference", for what
Ref and Fn::GetAtt return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support.templates.reading import Identity, Resolver, Resource

_NETWORK: Final = "pods and functions use this machine's network"
_ALARMS: Final = "no metrics are kept here"
_IMAGES: Final = "pods run as programs of this Python, and no image is built"
_RESOURCE_POLICIES: Final = "the local IAM evaluates the policies of roles only"

# Types of which nothing is made, and why; the deployment prints them.
NOTHING_TO_EMULATE: Final = {
    "AWS::CDK::Metadata": "it says which CDK was used",
    "AWS::CloudFormation::CustomResource": "it looks at clusters of the deployment before this one",
    "AWS::CloudWatch::Alarm": _ALARMS,
    "AWS::CloudWatch::Dashboard": _ALARMS,
    "AWS::Logs::MetricFilter": _ALARMS,
    "AWS::SNS::Subscription": _ALARMS,
    "AWS::SNS::Topic": _ALARMS,
    "AWS::SNS::TopicPolicy": _ALARMS,
    "AWS::Logs::LogGroup": "functions log to functions.log",
    "AWS::EC2::EIP": _NETWORK,
    "AWS::EC2::FlowLog": _NETWORK,
    "AWS::EC2::InternetGateway": _NETWORK,
    "AWS::EC2::NatGateway": _NETWORK,
    "AWS::EC2::Route": _NETWORK,
    "AWS::EC2::RouteTable": _NETWORK,
    "AWS::EC2::SubnetRouteTableAssociation": _NETWORK,
    "AWS::EC2::VPCEndpoint": _NETWORK,
    "AWS::EC2::VPCGatewayAttachment": _NETWORK,
    "AWS::CodeBuild::Project": _IMAGES,
    "AWS::ECR::Repository": _IMAGES,
    "AWS::KMS::Key": "nothing is encrypted here; policies name it all the same",
    "AWS::S3::BucketPolicy": _RESOURCE_POLICIES,
    "AWS::SQS::QueuePolicy": _RESOURCE_POLICIES,
}

# Properties by type: those that something is made of, and behind the bar those that nothing here
# depends on: tags, encryption, what is kept after a deletion, logs and traces, the functions' code
# (handlers run from the working tree) and interfaces, the time of a target's retries.
_PROPERTIES: Final = {
    "AWS::ApiGatewayV2::Api": "ProtocolType | Name Tags",
    "AWS::ApiGatewayV2::Integration": "ApiId IntegrationType IntegrationUri PayloadFormatVersion |",
    "AWS::ApiGatewayV2::Route": "ApiId AuthorizationType RouteKey Target |",
    "AWS::ApiGatewayV2::Stage": (
        "ApiId StageName | AccessLogSettings AutoDeploy DefaultRouteSettings Tags"
    ),
    "AWS::DynamoDB::Table": (
        "AttributeDefinitions BillingMode GlobalSecondaryIndexes KeySchema StreamSpecification"
        " TableName TimeToLiveSpecification"
        " | DeletionProtectionEnabled PointInTimeRecoverySpecification SSESpecification Tags"
    ),
    "AWS::EC2::Subnet": "AvailabilityZone CidrBlock Tags VpcId | MapPublicIpOnLaunch",
    "AWS::EC2::VPC": "CidrBlock Tags | EnableDnsHostnames EnableDnsSupport InstanceTenancy",
    "AWS::Events::EventBus": "Name | Description Tags",
    "AWS::Events::Rule": "EventBusName EventPattern Name State Targets | Tags",
    "AWS::IAM::ManagedPolicy": "PolicyDocument Roles | Description Path",
    "AWS::IAM::Policy": "PolicyDocument Roles | PolicyName",
    "AWS::IAM::Role": (
        "AssumeRolePolicyDocument ManagedPolicyArns Policies RoleName | Description Tags"
    ),
    "AWS::Lambda::EventInvokeConfig": (
        "DestinationConfig FunctionName MaximumRetryAttempts Qualifier |"
    ),
    "AWS::Lambda::EventSourceMapping": (
        "BatchSize BisectBatchOnFunctionError DestinationConfig EventSourceArn FunctionName"
        " FunctionResponseTypes MaximumRecordAgeInSeconds MaximumRetryAttempts"
        " ParallelizationFactor StartingPosition | Tags"
    ),
    "AWS::Lambda::Function": (
        "Environment FunctionName Handler MemorySize Role Timeout"
        " | Architectures Code LoggingConfig Runtime Tags TracingConfig VpcConfig"
    ),
    "AWS::Lambda::Permission": "Action FunctionName Principal SourceArn |",
    "AWS::S3::Bucket": (
        "BucketName VersioningConfiguration"
        " | BucketEncryption LifecycleConfiguration OwnershipControls"
        " PublicAccessBlockConfiguration Tags"
    ),
    "AWS::SQS::Queue": "MessageRetentionPeriod QueueName | SqsManagedSseEnabled Tags",
    "AWS::Scheduler::Schedule": (
        "ScheduleExpression State Target | FlexibleTimeWindow ScheduleExpressionTimezone"
    ),
    "AWS::Scheduler::ScheduleGroup": "Name | Tags",
    "AWS::SecretsManager::Secret": "GenerateSecretString Name | Description KmsKeyId Tags",
    "AWS::StepFunctions::StateMachine": (
        "DefinitionString StateMachineName | LoggingConfiguration RoleArn Tags TracingConfiguration"
    ),
}


@dataclass(frozen=True)
class _Namer:
    """Makes identities: names as the template gives them, or as CloudFormation makes them up."""

    resource: Resource
    resolver: Resolver
    region: str
    account_id: str

    def name(self, key: str) -> str:
        given = self.resolver.value(self.resource, key)
        return str(given) if given else f"{self.resource.stack}-{self.resource.logical_id}"

    def arn(self, service: str, rest: str) -> str:
        return f"arn:aws:{service}:{self.region}:{self.account_id}:{rest}"


def _table(it: _Namer) -> Identity:
    arn = it.arn("dynamodb", f"table/{it.name('TableName')}")
    return Identity(it.name("TableName"), {"Arn": arn, "StreamArn": f"{arn}/stream/1"})


def _bucket(it: _Namer) -> Identity:
    name = it.name("BucketName").lower()
    return Identity(name, {"Arn": f"arn:aws:s3:::{name}"})


def _queue(it: _Namer) -> Identity:
    name = it.name("QueueName")
    url = f"https://sqs.{it.region}.amazonaws.com/{it.account_id}/{name}"
    return Identity(url, {"Arn": it.arn("sqs", name), "QueueName": name})


def _rule(it: _Namer) -> Identity:
    name, bus = it.name("Name"), it.resolver.value(it.resource, "EventBusName", "default")
    place = name if bus == "default" else f"{bus}/{name}"
    return Identity(name, {"Arn": it.arn("events", f"rule/{place}")})


def _machine(it: _Namer) -> Identity:
    name = it.name("StateMachineName")
    arn = it.arn("states", f"stateMachine:{name}")
    return Identity(arn, {"Arn": arn, "Name": name})


def _role(it: _Namer) -> Identity:
    name = it.name("RoleName")[:64]  # the most that IAM takes, as CloudFormation knows
    return Identity(name, {"Arn": f"arn:aws:iam::{it.account_id}:role/{name}"})


def _key(it: _Namer) -> Identity:
    key = it.resource.logical_id
    return Identity(key, {"Arn": it.arn("kms", f"key/{key}")})


def _log_group(it: _Namer) -> Identity:
    name = it.name("LogGroupName")
    return Identity(name, {"Arn": it.arn("logs", f"log-group:{name}:*")})


def _by_arn(service: str, kind: str, key: str) -> Callable[[_Namer], Identity]:
    """A resource whose Ref is its name and whose only attribute is its ARN."""
    return lambda it: Identity(it.name(key), {"Arn": it.arn(service, kind + it.name(key))})


_IDENTITIES: Final[Mapping[str, Callable[[_Namer], Identity]]] = {
    "AWS::DynamoDB::Table": _table,
    "AWS::ECR::Repository": _by_arn("ecr", "repository/", "RepositoryName"),
    "AWS::Events::EventBus": _by_arn("events", "event-bus/", "Name"),
    "AWS::Events::Rule": _rule,
    "AWS::IAM::Role": _role,
    "AWS::KMS::Key": _key,
    "AWS::Lambda::Function": _by_arn("lambda", "function:", "FunctionName"),
    "AWS::Logs::LogGroup": _log_group,
    "AWS::S3::Bucket": _bucket,
    "AWS::SNS::Topic": _by_arn("sns", "", "TopicName"),
    "AWS::SQS::Queue": _queue,
    "AWS::Scheduler::ScheduleGroup": _by_arn("scheduler", "schedule-group/", "Name"),
    "AWS::StepFunctions::StateMachine": _machine,
}


# Named by AWS when they are made, and so made first.
MADE_FIRST: Final = ("AWS::EC2::Subnet", "AWS::EC2::VPC", "AWS::SecretsManager::Secret")


def identifier(*, account_id: str, region: str) -> Callable[[Resource, Resolver], Identity]:
    """What a resource is called: known for most types before the resource is there."""

    def identify(resource: Resource, resolver: Resolver) -> Identity:
        if resource.kind in MADE_FIRST:
            raise resource.refused("is named before it is made; what names it has to come later")
        make = _IDENTITIES.get(resource.kind)
        if make is None:
            return Identity(f"{resource.stack}-{resource.logical_id}")
        return make(_Namer(resource, resolver, region, account_id))

    return identify


def check_properties(resource: Resource) -> None:
    """Refuse what nobody has decided about.

    Raises:
        TemplateError: the type, or a property of it, is not known.
    """
    if resource.kind in NOTHING_TO_EMULATE:
        return
    written = _PROPERTIES.get(resource.kind)
    if written is None:
        raise resource.refused(
            "is of a type that local mode does not make; teach it to "
            "tests/support/templates/deployment.py, or name it in NOTHING_TO_EMULATE of "
            "tests/support/templates/kinds.py, with the reason"
        )
    known = {*written.split()} - {"|"}
    for name in sorted(set(resource.properties) - known):
        raise resource.refused(
            f"has the property {name}, of which local mode makes nothing; add it to "
            "tests/support/templates/kinds.py, and what follows from it"
        )


def expect(resource: Resource, what: str, found: Any, *allowed: Any) -> None:
    """Refuse a value that local mode would not act on.

    Raises:
        TemplateError: it is none of those allowed.
    """
    if found not in allowed:
        known = " or ".join(repr(each) for each in allowed)
        raise resource.refused(f"has {what} {found!r}; local mode knows {known}")
