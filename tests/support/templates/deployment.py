"""From templates to what a deployment creates: the same specs as the registry's way comes to.

Used by tests of stacks. Networks, secrets and roles are created first, because AWS names
them; with these names everything else can be read.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stationmaster.local.aws.deployment import Deployment
from stationmaster.local.aws.http_api import Route
from stationmaster.local.aws.schedules import Schedule
from stationmaster.local.aws.specs import (
    BucketSpec,
    DeploymentSpec,
    FunctionSpec,
    NetworkSpec,
    RuleSpec,
    StateMachineSpec,
    StreamSpec,
    SubnetSpec,
    TableSpec,
)
from tests.support.templates.kinds import (
    NOTHING_TO_EMULATE,
    check_properties,
    expect,
    identifier,
)
from tests.support.templates.reading import Identity, Resolver, Resource, Template, TemplateError

_EVENTS: Final = "events.amazonaws.com"
_API: Final = "apigateway.amazonaws.com"
_UNIT_S: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


@dataclass(frozen=True)
class TemplateRole:
    """A role with its policies, in the shape of `lambdas/policies.json`, and who has it."""

    arn: str
    document: Mapping[str, Any]
    functions: tuple[str, ...]


class TemplateDeployment:
    """The templates of one assembly, read for one account."""

    def __init__(self, templates: Mapping[str, Template], *, account_id: str, region: str) -> None:
        """Read them.

        Raises:
            TemplateError: a type or a property of a resource is not known.
        """
        self._region = region
        self._resolver = Resolver(
            templates,
            account_id=account_id,
            region=region,
            zones=tuple(f"{region}{letter}" for letter in "abc"),
            identify=identifier(account_id=account_id, region=region),
        )
        self._resources = [*self._resolver.resources()]
        for resource in self._resources:
            check_properties(resource)

    @property
    def left_out(self) -> dict[str, int]:
        """The types of which nothing is made, and of how many resources."""
        kinds = Counter(one.kind for one in self._resources if one.kind in NOTHING_TO_EMULATE)
        return dict(sorted(kinds.items()))

    # -- what is created first --------------------------------------------------------------------

    def base(self) -> DeploymentSpec:
        """The network, the secrets with what the template generates, and the roles."""
        return DeploymentSpec(
            network=self._network(),
            secrets={self._secret_name(each): self._secret(each) for each in self._secrets()},
            roles=[self._ref(role) for role in self._of("AWS::IAM::Role")],
        )

    def know(self, base: Deployment) -> None:
        """Take down how AWS has named what `base` asked for."""
        (vpc,) = self._of("AWS::EC2::VPC")
        self._resolver.know(vpc, Identity(base.vpc_id))
        subnets = [*self._of("AWS::EC2::Subnet")]
        for subnet, subnet_id in zip(subnets, base.subnet_ids, strict=True):
            self._resolver.know(subnet, Identity(subnet_id))
        for secret in self._secrets():
            self._resolver.know(secret, Identity(base.secret_arns[self._secret_name(secret)]))

    def _network(self) -> NetworkSpec:
        networks = [*self._of("AWS::EC2::VPC")]
        if len(networks) != 1:
            raise TemplateError(
                f"the templates have {len(networks)} networks; local mode takes one: run make "
                "synth without vpc_id in cdk.json"
            )
        tags = self._tags(networks[0])
        return NetworkSpec(
            name=tags.get("Name", "network"),
            cidr=self._value(networks[0], "CidrBlock"),
            tags=tags,
            subnets=[
                SubnetSpec(
                    self._value(each, "CidrBlock"),
                    self._value(each, "AvailabilityZone").removeprefix(self._region),
                    self._tags(each),
                )
                for each in self._of("AWS::EC2::Subnet")
            ],
        )

    def _secrets(self) -> Iterator[Resource]:
        return self._of("AWS::SecretsManager::Secret")

    def _secret_name(self, secret: Resource) -> str:
        return str(self._value(secret, "Name", f"{secret.stack}-{secret.logical_id}"))

    def _secret(self, secret: Resource) -> str | None:
        """The value that it is deployed with; None for one that a person fills in."""
        generated = self._value(secret, "GenerateSecretString", {})
        if not generated:
            return None
        value = json.loads(generated["SecretStringTemplate"])
        return json.dumps(value | {generated["GenerateStringKey"]: secrets.token_hex(16)})

    # -- the rest ---------------------------------------------------------------------------------

    def variables(self) -> dict[str, str]:
        """The variables of all functions; one that several have is the same for each.

        Raises:
            TemplateError: it is not.
        """
        found: dict[str, str] = {}
        for function in self._of("AWS::Lambda::Function"):
            for name, value in self._environment(function).items():
                if found.setdefault(name, value) != value:
                    raise function.refused(
                        f"has {name}={value!r}, and another function {found[name]!r}; functions of "
                        "one process share their variables here"
                    )
        return found

    def product(self, variables: Mapping[str, str | None]) -> DeploymentSpec:
        """Everything else; `variables` take the place of a function's own, None that of none."""
        return DeploymentSpec(
            queues=[self._queue(each) for each in self._of("AWS::SQS::Queue")],
            functions=[
                self._function(each, variables) for each in self._of("AWS::Lambda::Function")
            ],
            tables=[self._table(each) for each in self._of("AWS::DynamoDB::Table")],
            buckets=[self._bucket(each) for each in self._of("AWS::S3::Bucket")],
            streams=[self._stream(each) for each in self._of("AWS::Lambda::EventSourceMapping")],
            buses=[self._ref(each) for each in self._of("AWS::Events::EventBus")],
            rules=[self._rule(each) for each in self._of("AWS::Events::Rule")],
            schedules=[self._schedule(each) for each in self._of("AWS::Scheduler::Schedule")],
            schedule_groups=[self._ref(each) for each in self._of("AWS::Scheduler::ScheduleGroup")],
            routes=[self._route(each) for each in self._of("AWS::ApiGatewayV2::Route")],
            state_machines=[
                StateMachineSpec(
                    name=self._value(each, "StateMachineName"),
                    definition=self._value(each, "DefinitionString"),
                )
                for each in self._of("AWS::StepFunctions::StateMachine")
            ],
        )

    def roles(self) -> list[TemplateRole]:
        """Every role with what its policies say."""
        of_functions: dict[str, list[str]] = {}
        for function in self._of("AWS::Lambda::Function"):
            of_functions.setdefault(self._value(function, "Role"), []).append(self._ref(function))
        statements: dict[str, list[Any]] = {}
        # What does not fit into a role's own policy, the CDK puts into a managed one.
        for policy in (*self._of("AWS::IAM::Policy"), *self._of("AWS::IAM::ManagedPolicy")):
            document = self._value(policy, "PolicyDocument")
            for role in self._value(policy, "Roles"):
                statements.setdefault(role, []).extend(document["Statement"])
        return [
            TemplateRole(
                arn=self._arn(role),
                document={
                    "trust": self._value(role, "AssumeRolePolicyDocument")["Statement"],
                    "managed": self._value(role, "ManagedPolicyArns", []),
                    "statements": [
                        *(
                            each
                            for policy in self._value(role, "Policies", [])
                            for each in policy["PolicyDocument"]["Statement"]
                        ),
                        *statements.get(self._ref(role), []),
                    ],
                },
                functions=tuple(of_functions.get(self._arn(role), ())),
            )
            for role in self._of("AWS::IAM::Role")
        ]

    def _function(self, function: Resource, variables: Mapping[str, str | None]) -> FunctionSpec:
        name = self._ref(function)
        environment = {**self._environment(function), **variables}
        return FunctionSpec(
            name=name,
            handler=self._value(function, "Handler"),
            timeout_s=self._value(function, "Timeout"),
            memory_mib=self._value(function, "MemorySize"),
            environment={key: value for key, value in environment.items() if value is not None},
            on_failure=self._on_failure().get(name, ""),
        )

    def _environment(self, function: Resource) -> dict[str, str]:
        written = self._value(function, "Environment", {})
        return {name: str(value) for name, value in written.get("Variables", {}).items()}

    def _on_failure(self) -> dict[str, str]:
        """The queue for what a function has failed at, by the function's name."""
        found = {}
        for config in self._of("AWS::Lambda::EventInvokeConfig"):
            expect(config, "the qualifier", self._value(config, "Qualifier"), "$LATEST")
            expect(config, "the attempts", self._value(config, "MaximumRetryAttempts"), 2)
            destination = self._value(config, "DestinationConfig")["OnFailure"]["Destination"]
            found[_last(self._value(config, "FunctionName"))] = _last(destination)
        return found

    def _queue(self, queue: Resource) -> str:
        kept_s = self._value(queue, "MessageRetentionPeriod")
        expect(queue, "the retention", kept_s, 14 * 86400)
        return _last(self._arn(queue))

    def _table(self, table: Resource) -> TableSpec:
        expect(table, "the billing", self._value(table, "BillingMode"), "PAY_PER_REQUEST")
        stream = self._value(table, "StreamSpecification")
        expect(table, "the stream", stream, {"StreamViewType": "NEW_AND_OLD_IMAGES"})
        kinds = {each["AttributeType"] for each in self._value(table, "AttributeDefinitions")}
        expect(table, "keys of the types", kinds, {"S"})
        partition, sort = _keys(self._value(table, "KeySchema"))
        return TableSpec(
            name=self._ref(table),
            partition_key=partition,
            sort_key=sort,
            ttl_attribute=self._value(table, "TimeToLiveSpecification", {}).get(
                "AttributeName", ""
            ),
            indexes={
                index["IndexName"]: _keys(index["KeySchema"])
                for index in self._value(table, "GlobalSecondaryIndexes", [])
            },
        )

    def _bucket(self, bucket: Resource) -> BucketSpec:
        versions = self._value(bucket, "VersioningConfiguration")
        expect(bucket, "the versions", versions, {"Status": "Enabled"})
        return BucketSpec(name=self._ref(bucket))

    def _stream(self, mapping: Resource) -> StreamSpec:
        start = self._value(mapping, "StartingPosition")
        expect(mapping, "the start", start, "TRIM_HORIZON", "LATEST")  # the same in an empty table
        expect(mapping, "the answers", self._value(mapping, "FunctionResponseTypes", []), [])
        expect(mapping, "the factor", self._value(mapping, "ParallelizationFactor", 1), 1)
        source = self._value(mapping, "EventSourceArn")
        failed = self._value(mapping, "DestinationConfig", {}).get("OnFailure", {})
        return StreamSpec(
            table=source.split("/")[1],
            function=_last(self._value(mapping, "FunctionName")),
            batch_size=self._value(mapping, "BatchSize", 100),
            max_retry_attempts=self._value(mapping, "MaximumRetryAttempts", -1),
            bisect_batch=self._value(mapping, "BisectBatchOnFunctionError", False),
            max_record_age_s=self._value(mapping, "MaximumRecordAgeInSeconds", -1),
            on_failure=_last(failed.get("Destination", "")),
        )

    def _rule(self, rule: Resource) -> RuleSpec:
        expect(rule, "the state", self._value(rule, "State"), "ENABLED")
        target = self._target(
            rule, self._value(rule, "Targets"), {"Arn", "DeadLetterConfig", "Id", "RetryPolicy"}
        )
        self._expect_permission(rule, target["Arn"], _EVENTS)
        return RuleSpec(
            name=self._ref(rule),
            bus=self._value(rule, "EventBusName", "default"),
            event_pattern=self._value(rule, "EventPattern"),
            function=_last(target["Arn"]),
            dead_letters=_last(target.get("DeadLetterConfig", {}).get("Arn", "")),
        )

    def _schedule(self, schedule: Resource) -> Schedule:
        expect(schedule, "the state", self._value(schedule, "State"), "ENABLED")
        known = {"Arn", "DeadLetterConfig", "Input", "RetryPolicy", "RoleArn"}
        target = self._target(schedule, [self._value(schedule, "Target")], known)
        try:
            rate_s = _parse_rate(self._value(schedule, "ScheduleExpression"))
        except ValueError as exc:
            raise schedule.refused(f"cannot be made: {exc}") from exc
        return Schedule(
            name=schedule.logical_id,
            rate_s=rate_s,
            function=_last(target["Arn"]),
            payload=target.get("Input", ""),
        )

    def _route(self, route: Resource) -> Route:
        expect(route, "the authorization", self._value(route, "AuthorizationType"), "NONE")
        for stage in self._of("AWS::ApiGatewayV2::Stage"):
            expect(stage, "the name", self._value(stage, "StageName"), "$default")
        target = self._value(route, "Target").removeprefix("integrations/")
        (integration,) = (
            each for each in self._of("AWS::ApiGatewayV2::Integration") if self._ref(each) == target
        )
        version = self._value(integration, "PayloadFormatVersion")
        expect(integration, "the payload's version", version, "2.0")
        function = self._value(integration, "IntegrationUri")
        self._expect_permission(route, function, _API)
        method, _, path = self._value(route, "RouteKey").partition(" ")
        return Route(method=method, path=path, function=_last(function))

    def _target(self, owner: Resource, targets: list[Any], known: set[str]) -> dict[str, Any]:
        expect(owner, "a number of targets of", len(targets), 1)
        unknown = set(targets[0]) - known
        if unknown:
            raise owner.refused(
                f"has a target with {', '.join(sorted(unknown))}, of which local mode makes "
                "nothing; teach it to tests/support/templates/deployment.py"
            )
        return dict(targets[0])

    def _expect_permission(self, caller: Resource, function_arn: str, principal: str) -> None:
        """Refuse what Lambda would refuse: a caller whom the function does not let in."""
        let_in = {
            (_last(self._value(each, "FunctionName")), self._value(each, "Principal"))
            for each in self._of("AWS::Lambda::Permission")
        }
        if (_last(function_arn), principal) not in let_in:
            raise caller.refused(
                f"calls {_last(function_arn)}, and no AWS::Lambda::Permission lets {principal} in"
            )

    def _of(self, kind: str) -> Iterator[Resource]:
        return (each for each in self._resources if each.kind == kind)

    def _value(self, resource: Resource, name: str, default: Any = None) -> Any:
        return self._resolver.value(resource, name, default)

    def _ref(self, resource: Resource) -> str:
        return self._resolver.identity(resource.stack, resource.logical_id).ref

    def _arn(self, resource: Resource) -> str:
        identity = self._resolver.identity(resource.stack, resource.logical_id)
        return identity.attributes["Arn"]

    def _tags(self, resource: Resource) -> dict[str, str]:
        return {tag["Key"]: tag["Value"] for tag in self._value(resource, "Tags", [])}


def _parse_rate(expression: str) -> float:
    """Return the seconds of `rate(N unit)`.

    Raises:
        ValueError: the expression is not a rate; cron(...) is not emulated.
    """
    match = re.fullmatch(r"rate\((\d+) (second|minute|hour|day)s?\)", expression.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(
            f'schedule expression "{expression}" is not emulated; '
            "expected rate(N minutes) with N >= 1"
        )
    return float(int(match[1]) * _UNIT_S[match[2]])


def _last(arn_or_name: str) -> str:
    """The name at the end of an ARN, or of no ARN at all."""
    return arn_or_name.rpartition(":")[2]


def _keys(schema: list[dict[str, str]]) -> tuple[str, str]:
    """The partition key and the sort key."""
    of_kind = {each["KeyType"]: each["AttributeName"] for each in schema}
    return of_kind["HASH"], of_kind.get("RANGE", "")
