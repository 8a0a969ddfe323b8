"""Creates what the product deploys, from the specs of `specs`, through boto3 as a deployment would.

The specs carry names only, so that nothing here imports the product.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stationmaster.local.aws.specs import (
    BucketSpec,
    DeploymentSpec,
    FunctionSpec,
    NetworkSpec,
    RuleSpec,
    StateMachineSpec,
    StreamSpec,
    TableSpec,
)

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")


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
    http_url: str = ""


Client = Callable[[str], Any]


def create(spec: DeploymentSpec, *, client: Client, region: str) -> Deployment:
    """Create everything in dependency order."""
    made = Deployment()
    _create_roles(spec, made, client)
    if spec.network is not None:
        _create_network(spec.network, made, client, region)
    for name, value in spec.secrets.items():
        given = {} if value is None else {"SecretString": value}
        answer = client("secretsmanager").create_secret(Name=name, **given)
        made.secret_arns[name] = answer["ARN"]
    for table in spec.tables:
        made.stream_arns[table.name] = _create_table(table, client)
    for bucket in spec.buckets:
        _create_bucket(bucket, client, region)
    for queue in spec.queues:
        made.queue_arns[queue] = _create_queue(queue, client)
    for function in spec.functions:
        made.function_arns[function.name] = _create_function(function, made, client)
    for machine in spec.state_machines:
        made.state_machine_arns[machine.name] = _create_state_machine(machine, made, client)
    for bus in spec.buses:
        client("events").create_event_bus(Name=bus)
    for group in spec.schedule_groups:
        client("scheduler").create_schedule_group(Name=group)
    for rule in spec.rules:
        _create_rule(rule, made, client)
    for stream in spec.streams:
        _create_mapping(stream, made, client)
    return made


def substitute(definition: str, values: Mapping[str, str], *, name: str) -> str:
    """Replace every `${Name}`.

    Raises:
        ValueError: a placeholder has no value.
    """

    def value(match: re.Match[str]) -> str:
        found = values.get(match[1])
        if found is None:
            raise ValueError(
                f'state machine "{name}": placeholder ${{{match[1]}}} has no value; '
                f"known are {', '.join(sorted(values))}"
            )
        return found

    return _PLACEHOLDER.sub(value, definition)


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


def _create_network(spec: NetworkSpec, made: Deployment, client: Client, region: str) -> None:
    ec2 = client("ec2")

    def tags(kind: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": [{"Key": k, "Value": v} for k, v in values.items()]}]

    made.vpc_id = ec2.create_vpc(
        CidrBlock="10.42.0.0/16", TagSpecifications=tags("vpc", {"Name": spec.name})
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
        named = {"Name": f"{spec.name}-private-{zone}", "kubernetes.io/role/internal-elb": "1"}
        answer = ec2.create_subnet(
            VpcId=made.vpc_id,
            CidrBlock=f"10.42.{index * 32}.0/19",
            AvailabilityZone=f"{region}{zone}",
            TagSpecifications=tags("subnet", named),
        )
        made.subnet_ids.append(answer["Subnet"]["SubnetId"])


def _create_table(spec: TableSpec, client: Client) -> str:
    def key_schema(partition: str, sort: str) -> list[dict[str, str]]:
        keys = [{"AttributeName": partition, "KeyType": "HASH"}]
        return keys + ([{"AttributeName": sort, "KeyType": "RANGE"}] if sort else [])

    names = {
        spec.partition_key,
        spec.sort_key,
        *(n for pair in spec.indexes.values() for n in pair),
    }
    indexes = [
        {
            "IndexName": name,
            "KeySchema": key_schema(partition, sort),
            "Projection": {"ProjectionType": "ALL"},
        }
        for name, (partition, sort) in spec.indexes.items()
    ]
    dynamodb = client("dynamodb")
    answer = dynamodb.create_table(
        TableName=spec.name,
        KeySchema=key_schema(spec.partition_key, spec.sort_key),
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": "S"} for name in sorted(names) if name
        ],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        **({"GlobalSecondaryIndexes": indexes} if indexes else {}),
    )
    if spec.ttl_attribute:
        dynamodb.update_time_to_live(
            TableName=spec.name,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": spec.ttl_attribute},
        )
    return str(answer["TableDescription"]["LatestStreamArn"])


def _create_bucket(spec: BucketSpec, client: Client, region: str) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket=spec.name, CreateBucketConfiguration={"LocationConstraint": region})
    s3.put_bucket_versioning(Bucket=spec.name, VersioningConfiguration={"Status": "Enabled"})


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
        Code={"ZipFile": _code()},
        Timeout=spec.timeout_s,
        MemorySize=spec.memory_mib,
        Environment={"Variables": dict(spec.environment)},
    )
    if spec.on_failure:
        client("lambda").put_function_event_invoke_config(
            FunctionName=spec.name, DestinationConfig=_destination(spec.on_failure, made)
        )
    return str(answer["FunctionArn"])


def _code() -> bytes:
    """Return an archive to satisfy the API: handlers are imported from the working tree."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("README", "Handlers run from the working tree.\n")
    return archive.getvalue()


def _create_state_machine(spec: StateMachineSpec, made: Deployment, client: Client) -> str:
    answer = client("stepfunctions").create_state_machine(
        name=spec.name,
        definition=substitute(spec.definition, made.function_arns, name=spec.name),
        roleArn=made.role_arns["local-execution"],
    )
    return str(answer["stateMachineArn"])


def _create_rule(spec: RuleSpec, made: Deployment, client: Client) -> None:
    events = client("events")
    events.put_rule(
        Name=spec.name, EventBusName=spec.bus, EventPattern=json.dumps(spec.event_pattern)
    )
    failed = {"Arn": made.queue_arns[spec.dead_letters]} if spec.dead_letters else None
    events.put_targets(
        Rule=spec.name,
        EventBusName=spec.bus,
        Targets=[
            {
                "Id": "function",
                "Arn": made.function_arns[spec.function],
                **({"DeadLetterConfig": failed} if failed else {}),
            }
        ],
    )


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
