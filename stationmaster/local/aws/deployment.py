"""What a deployment creates, as plain data, and its creation through boto3.

`local.product` writes down what the product deploys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lambdas import registry

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")


@dataclass(frozen=True)
class FunctionSpec:
    """A Lambda function; `handler` is module.attribute, importable from the repository root."""

    name: str
    handler: str
    timeout_s: int = 30
    environment: Mapping[str, str] = field(default_factory=dict)
    # The queue for events that it failed with, where they come without a caller who waits.
    on_failure: str = ""


@dataclass(frozen=True)
class StreamSpec:
    """Feeds a table's stream to a function; no retry limit means until the function succeeds."""

    table: str
    function: str
    batch_size: int = 100
    max_retry_attempts: int = -1
    bisect_batch: bool = False
    max_record_age_s: int = -1
    on_failure: str = ""


@dataclass(frozen=True)
class DeploymentSpec:
    """Everything that a deployment creates, as names only: nothing here imports the product."""

    # Names of SQS queues for what was tried in vain.
    queues: Sequence[str] = ()
    functions: Sequence[FunctionSpec] = ()
    # The arguments of CreateTable.
    tables: Sequence[Mapping[str, Any]] = ()
    # Names of versioned S3 buckets.
    buckets: Sequence[str] = ()
    streams: Sequence[StreamSpec] = ()
    buses: Sequence[str] = ()
    # The bus of each has its name in the account.
    rules: Sequence[registry.Rule] = ()
    schedules: Sequence[registry.Schedule] = ()
    # Groups of EventBridge Scheduler, for schedules that the product itself makes.
    schedule_groups: Sequence[str] = ()
    routes: Sequence[registry.Route] = ()
    # Name -> definition; `${Name}` in it becomes a function's ARN.
    state_machines: Mapping[str, str] = field(default_factory=dict)
    # Secret name -> value; None for none yet.
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    # Names of IAM roles, beside the one that functions and state machines run with.
    roles: Sequence[str] = ()
    # The name of a VPC with one private subnet in each zone; "" for none.
    network: str = ""


@dataclass
class Deployment:
    """The identities of what was created."""

    queue_arns: dict[str, str] = field(default_factory=dict)
    function_arns: dict[str, str] = field(default_factory=dict)
    state_machine_arns: dict[str, str] = field(default_factory=dict)
    stream_arns: dict[str, str] = field(default_factory=dict)
    secret_arns: dict[str, str] = field(default_factory=dict)
    role_arns: dict[str, str] = field(default_factory=dict)
    vpc_id: str = ""
    subnet_ids: list[str] = field(default_factory=list)


Client = Callable[[str], Any]


def create(spec: DeploymentSpec, *, client: Client, region: str) -> Deployment:
    """Create everything in dependency order."""
    made = Deployment()
    _create_roles(spec, made, client)
    if spec.network:
        _create_network(spec.network, made, client, region)
    for name, value in spec.secrets.items():
        given = {} if value is None else {"SecretString": value}
        answer = client("secretsmanager").create_secret(Name=name, **given)
        made.secret_arns[name] = answer["ARN"]
    for table in spec.tables:
        answer = client("dynamodb").create_table(**table)
        made.stream_arns[table["TableName"]] = answer["TableDescription"]["LatestStreamArn"]
    s3 = client("s3")
    for bucket in spec.buckets:
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": region})
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for queue in spec.queues:
        made.queue_arns[queue] = _create_queue(queue, client)
    for function in spec.functions:
        made.function_arns[function.name] = _create_function(function, made, client)
    for name, definition in spec.state_machines.items():
        made.state_machine_arns[name] = client("stepfunctions").create_state_machine(
            name=name,
            definition=_PLACEHOLDER.sub(lambda match: made.function_arns[match[1]], definition),
            roleArn=made.role_arns["local-execution"],
        )["stateMachineArn"]
    for bus in spec.buses:
        client("events").create_event_bus(Name=bus)
    for group in spec.schedule_groups:
        client("scheduler").create_schedule_group(Name=group)
    for rule in spec.rules:
        events, where = client("events"), {"EventBusName": rule.bus}
        events.put_rule(Name=rule.name, EventPattern=json.dumps(rule.event_pattern), **where)
        target = {"Id": "function", "Arn": made.function_arns[rule.function]}
        events.put_targets(Rule=rule.name, Targets=[target], **where)
    for stream in spec.streams:
        _create_mapping(stream, made, client)
    return made


def _create_roles(spec: DeploymentSpec, made: Deployment, client: Client) -> None:
    trust = json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": ["lambda.amazonaws.com", "states.amazonaws.com"]},
                    "Action": "sts:AssumeRole",
                }
            ],
        }
    )
    iam = client("iam")
    for role in ("local-execution", *spec.roles):
        try:
            answer = iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust)
        except iam.exceptions.EntityAlreadyExistsException:
            answer = iam.get_role(RoleName=role)  # an earlier deployment made it
        made.role_arns[role] = answer["Role"]["Arn"]


def _create_network(name: str, made: Deployment, client: Client, region: str) -> None:
    ec2 = client("ec2")

    def tags(kind: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": [{"Key": k, "Value": v} for k, v in values.items()]}]

    made.vpc_id = ec2.create_vpc(
        CidrBlock="10.42.0.0/16", TagSpecifications=tags("vpc", {"Name": name})
    )["Vpc"]["VpcId"]
    # On AWS the group that a network comes with lets its members in; moto's has no rules.
    (group,) = ec2.describe_security_groups(
        Filters=[
            {"Name": "vpc-id", "Values": [made.vpc_id]},
            {"Name": "group-name", "Values": ["default"]},
        ]
    )["SecurityGroups"]
    members = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group["GroupId"]}]}]
    ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=members)
    for index, zone in enumerate("abc"):
        named = {"Name": f"{name}-private-{zone}", "kubernetes.io/role/internal-elb": "1"}
        answer = ec2.create_subnet(
            VpcId=made.vpc_id,
            CidrBlock=f"10.42.{index * 32}.0/19",
            AvailabilityZone=f"{region}{zone}",
            TagSpecifications=tags("subnet", named),
        )
        made.subnet_ids.append(answer["Subnet"]["SubnetId"])


def _create_queue(name: str, client: Client) -> str:
    """Return the ARN of a queue that keeps messages for two weeks, the most that SQS can."""
    sqs = client("sqs")
    url = sqs.create_queue(QueueName=name, Attributes={"MessageRetentionPeriod": "1209600"})
    answer = sqs.get_queue_attributes(QueueUrl=url["QueueUrl"], AttributeNames=["QueueArn"])
    return str(answer["Attributes"]["QueueArn"])


def _create_function(spec: FunctionSpec, made: Deployment, client: Client) -> str:
    answer = client("lambda").create_function(
        FunctionName=spec.name,
        Runtime="python3.13",
        Handler=spec.handler,
        Role=made.role_arns["local-execution"],
        # Handlers are imported from the working tree.
        Code={"ZipFile": b"none"},
        Timeout=spec.timeout_s,
        Environment={"Variables": dict(spec.environment)},
    )
    if spec.on_failure:
        client("lambda").put_function_event_invoke_config(
            FunctionName=spec.name, DestinationConfig=_destination(spec.on_failure, made)
        )
    return str(answer["FunctionArn"])


def _create_mapping(spec: StreamSpec, made: Deployment, client: Client) -> None:
    client("lambda").create_event_source_mapping(
        EventSourceArn=made.stream_arns[spec.table],
        FunctionName=made.function_arns[spec.function],
        StartingPosition="LATEST",
        BatchSize=spec.batch_size,
        MaximumRetryAttempts=spec.max_retry_attempts,
        MaximumRecordAgeInSeconds=spec.max_record_age_s,
        BisectBatchOnFunctionError=spec.bisect_batch,
        **({"DestinationConfig": _destination(spec.on_failure, made)} if spec.on_failure else {}),
    )


def _destination(queue: str, made: Deployment) -> dict[str, Any]:
    return {"OnFailure": {"Destination": made.queue_arns[queue]}}
