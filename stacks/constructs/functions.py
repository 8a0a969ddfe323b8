"""Lambda functions from the registry: each with its own role, log group and the same settings."""

from __future__ import annotations

from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_destinations as destinations
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from lambdas.registry import (
    ASYNCHRONOUS,
    DEAD_LETTERS,
    FUNCTIONS,
    Function,
    Package,
    Permission,
    variables_of,
)
from stacks.acknowledgements import accept, accept_wildcard
from stacks.constructs.alarms import add_queue_alarm
from stacks.constructs.bundling import ARCHITECTURE, RUNTIME, code_of
from stacks.constructs.permissions import grant
from stacks.constructs.statements import Granted, arn, role_arn
from stationmaster.aws.ec2_leftovers import CNI_TAG
from stationmaster.domain.names import TAG_DEPLOYMENT, cluster_name
from stationmaster.settings import Settings

_MAKE_INTERFACES: Final = (
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:UnassignPrivateIpAddresses",
)


class FunctionRoles(Construct):
    """A role for each function; made before the settings, which name some of them.

    Roles have names of their own, because the settings of every function list some: the names that
    CloudFormation makes up share nothing, and take half of Lambda's 4 KB for variables. A role
    belongs to the whole account, so the region is in its name.
    """

    def __init__(self, scope: Construct, package: Package, granted: Granted) -> None:
        super().__init__(scope, "Roles")
        self.specs = [spec for spec in FUNCTIONS if spec.package is package]
        self.by_name = {spec.name: self._role(spec, granted) for spec in self.specs}
        self._in_clusters = [
            spec.name for spec in self.specs if Permission.KUBERNETES in spec.permissions
        ]
        # The roles that need an access entry in every run's cluster.
        self.cluster_access_arns = tuple(
            function_role_arn(granted.deployment, name, path=granted.role_path)
            for name in self._in_clusters
        )

    def ask_before_leaving(self, asked: lambda_.Function) -> None:
        """Fail a deployment that takes functions out of the network while a cluster needs them.

        What asks is there while they are outside, so it is made by a deployment that takes them
        out, before it changes them. A rollback deletes it or has none: if it were always there, the
        rollback of a deployment that puts them in would ask as well, and could fail.
        """
        asking = cdk.CfnCustomResource(
            cdk.Stack.of(self),
            "CheckReach",
            service_token=asked.function_arn,
            service_timeout=600,  # Lambda's three attempts, one and two minutes apart
        )
        for name in self._in_clusters:
            self.by_name[name].node.add_dependency(asking)  # its function depends on it

    def _role(self, spec: Function, granted: Granted) -> iam.Role:
        role = iam.Role(
            self,
            spec.name,
            role_name=_role_name(granted.deployment, spec.name),
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            description=f"Stationmaster's function {spec.name}, and no other",
        )
        for permission in sorted(spec.permissions):
            grant(role, permission, granted)
        return role


def function_role_arn(deployment: str, function: str, *, path: str) -> str:
    """Write the role's ARN of a function of the workflow stack; `function` may be a pattern."""
    return role_arn(path.removeprefix("/") + _role_name(deployment, function))


def _role_name(deployment: str, function: str) -> str:
    return f"{deployment}-{function}-{cdk.Aws.REGION}"


class Functions(Construct):
    """The functions of a package, by registry name, and the queue for what they get in vain."""

    def __init__(
        self,
        scope: Construct,
        package: Package,
        roles: FunctionRoles,
        settings: Settings,
        *,
        traced: bool,
        rules: str = "",
    ) -> None:
        super().__init__(scope, "Functions")
        self._settings = settings
        self._tracing = lambda_.Tracing.ACTIVE if traced else lambda_.Tracing.DISABLED
        name = f"{settings.deployment}-{DEAD_LETTERS[package]}"
        self.dead_letters = _dead_letter_queue(scope, "DeadLetters", name=name)
        code = code_of(package, rules)
        self.by_name = {
            spec.name: self._function(spec, roles.by_name[spec.name], code) for spec in roles.specs
        }

    def _function(self, spec: Function, role: iam.Role, code: lambda_.Code) -> lambda_.Function:
        log_group = logs.LogGroup(
            self,
            f"{spec.name}-logs",
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        log_group.grant_write(role)
        asynchronous = spec.name in ASYNCHRONOUS
        function = lambda_.Function(
            self,
            spec.name,
            function_name=f"{self._settings.deployment}-{spec.name}",
            runtime=RUNTIME,
            architecture=ARCHITECTURE,
            handler=spec.handler,
            code=code,
            role=role,
            timeout=cdk.Duration.seconds(spec.timeout_s),
            memory_size=spec.memory_mib,
            environment=variables_of(spec, self._settings.to_environment()),
            log_group=log_group,
            logging_format=lambda_.LoggingFormat.JSON,
            application_log_level_v2=lambda_.ApplicationLogLevel.INFO,
            tracing=self._tracing,
            on_failure=destinations.SqsDestination(self.dead_letters) if asynchronous else None,
            retry_attempts=2 if asynchronous else None,
        )
        if self._tracing is lambda_.Tracing.ACTIVE:
            accept_wildcard(role, "*", "X-Ray takes segments of traces, and no single resource")
        if self._settings.functions_security_group_id and Permission.KUBERNETES in spec.permissions:
            _join_network(spec.name, function, role, self._settings)
        accept(
            function,
            "L1",
            "the tests run on Python 3.11 to 3.13, and functions run what was tested",
        )
        return function


def _join_network(
    name: str, function: lambda_.Function, role: iam.Role, settings: Settings
) -> None:
    """Let the function call clusters from inside of the network, by an interface of its own.

    The function's own code may not do what Lambda does with that interface; of interfaces, it may
    delete those of the deployment's clusters, where that is granted.
    """
    resource = function.node.default_child
    assert isinstance(resource, lambda_.CfnFunction)
    resource.vpc_config = lambda_.CfnFunction.VpcConfigProperty(
        subnet_ids=list(settings.subnet_ids),
        security_group_ids=[settings.functions_security_group_id],
    )
    # Source, also of the condition on what the code itself calls: Lambda developer guide, "Giving
    # Lambda functions access to resources in an Amazon VPC".
    role.add_to_policy(
        iam.PolicyStatement(
            actions=[
                *_MAKE_INTERFACES,
                "ec2:DeleteNetworkInterface",
                "ec2:DescribeNetworkInterfaces",
                "ec2:DescribeSubnets",
            ],
            resources=["*"],
        )
    )
    accept_wildcard(role, "*", "Lambda makes the interface itself; its id is unknown at deployment")
    by_code = arn("lambda", "function", f"{settings.deployment}-{name}", sep=":")
    others = {
        f"aws:ResourceTag/{CNI_TAG}": cluster_name("*"),
        f"aws:ResourceTag/{TAG_DEPLOYMENT}": settings.deployment,
    }
    for actions, conditions in (
        (_MAKE_INTERFACES, {}),
        (("ec2:DeleteNetworkInterface",), {"StringNotLike": others}),
    ):
        role.add_to_policy(
            iam.PolicyStatement(
                effect=iam.Effect.DENY,
                actions=[*actions],
                resources=["*"],
                conditions={"ArnEquals": {"lambda:SourceFunctionArn": by_code}, **conditions},
            )
        )


def _dead_letter_queue(scope: Construct, construct_id: str, *, name: str) -> sqs.Queue:
    """Make a queue for what failed every try, kept for the two weeks that SQS can keep it.

    It has a name of its own, by which `stationmaster redrive` finds it, and an alarm.
    """
    queue = sqs.Queue(
        scope,
        construct_id,
        queue_name=name,
        encryption=sqs.QueueEncryption.SQS_MANAGED,
        enforce_ssl=True,
        retention_period=cdk.Duration.days(14),
    )
    accept(queue, "SQS3", "this queue is itself the dead letter queue of its senders")
    add_queue_alarm(queue)
    return queue
