"""The workflows: the state machines, their functions, and everything that starts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from lambdas.registry import (
    CHECK_REACH,
    KEEP_CLOCK,
    REAPER,
    RECORDER,
    RULES,
    SCHEDULES,
    Package,
)
from stacks.acknowledgements import accept_wildcard
from stacks.config import StageConfig
from stacks.constructs.alarms import add_dead_letter_alarms
from stacks.constructs.cluster_roles import ClusterRoles
from stacks.constructs.deliveries import add_clock, add_rules, add_schedules
from stacks.constructs.functions import FunctionRoles, Functions, function_role_arn
from stacks.constructs.machines import MACHINES, Machine
from stacks.constructs.statements import Granted, arn
from stacks.data import DataStack
from stacks.image_builds import ImagesStack
from stacks.network import Network, functions_group
from stationmaster.domain.catalogue.recipes import FRAMEWORK_IMAGES
from stationmaster.settings import Settings


class WorkflowStack(cdk.Stack):
    """State machines, the functions of package `lambdas`, rules, schedules, roles of clusters."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: StageConfig,
        network: Network,
        data: DataStack,
        images: ImagesStack,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, construct_id, **kwargs)
        # Functions know the machines and the machines their functions: names break the circle.
        machine_names = {name: f"{config.deployment}-{name}" for name in MACHINES}
        dataset_bucket_arns = _bucket_arns(config.dataset_buckets)
        self.granted = Granted(
            deployment=config.deployment,
            table_arns=data.table_arns,
            key=data.key,
            bus=data.bus,
            slack_secret=data.slack_secret,
            hugging_face_secret=data.hugging_face_secret,
            relay_secret=data.relay_secret,
            roles=ClusterRoles(
                self,
                "ClusterRoles",
                bus=data.bus,
                artifacts_arn=data.artifacts_arn,
                key=data.key,
                dataset_bucket_arns=dataset_bucket_arns,
                dataset_key_arns=config.dataset_key_arns,
                eks_clusters=config.eks_clusters,
                has_metrics=config.gpu_metrics,
            ),
            dataset_bucket_arns=dataset_bucket_arns,
            linked_bucket_arns=_bucket_arns(config.linked_buckets),
            eks_clusters=config.eks_clusters,
            role_path=config.role_path,
            function_role_arns=function_role_arn(config.deployment, "*", path=config.role_path),
            kubectl_role_arns=config.kubectl_role_arns,
            vpc_arn=arn("ec2", "vpc", network.vpc_id),
            artifacts_arn=data.artifacts_arn,
            machine_arns={
                name: arn("states", "stateMachine", full_name, sep=":")
                for name, full_name in machine_names.items()
            },
            clock=add_clock(
                self,
                group=config.deployment,
                function_arn=arn(
                    "lambda", "function", f"{config.deployment}-{KEEP_CLOCK.name}", sep=":"
                ),
            ),
        )
        roles = FunctionRoles(self, Package.LAMBDAS, self.granted)
        self.settings = self._settings(config, network, data, images, roles.cluster_access_arns)
        made = Functions(self, Package.LAMBDAS, roles, self.settings, traced=config.trace_functions)
        functions, dead_letters = made.by_name, made.dead_letters
        if not config.functions_join_network:
            roles.ask_before_leaving(functions[CHECK_REACH.name])
        self._add_machines(machine_names, functions)
        add_rules(
            self,
            RULES,
            bus=data.bus,
            functions=functions,
            machine_arns=[*self.granted.machine_arns.values()],
            dead_letters=dead_letters,
        )
        add_schedules(self, SCHEDULES, functions=functions, dead_letters=dead_letters)
        for name in (RECORDER.name, REAPER.name):
            add_dead_letter_alarms(functions[name])

    def _settings(
        self,
        config: StageConfig,
        network: Network,
        data: DataStack,
        images: ImagesStack,
        cluster_access_arns: tuple[str, ...],
    ) -> Settings:
        """Set what every function, the bot's included, finds in its environment."""
        roles = self.granted.roles
        images_of = ("training", "cpu", "relay", *FRAMEWORK_IMAGES.values())
        of_network = {"vpc_id", "subnet_ids"}
        alike = (StageConfig.model_fields.keys() & Settings.model_fields.keys()) - of_network
        return Settings(
            **{name: getattr(config, name) for name in alike},
            region=self.region,
            table_name=data.table.table_name,
            bus_name=data.bus.event_bus_name,
            artifacts_bucket=data.artifacts.bucket_name,
            schedule_group=self.granted.clock.group,
            keep_clock_function_arn=self.granted.clock.function_arn,
            scheduler_role_arn=self.granted.clock.role.role_arn,
            cluster_state_machine_arn=self.granted.machine_arns["cluster"],
            train_state_machine_arn=self.granted.machine_arns["train"],
            teardown_state_machine_arn=self.granted.machine_arns["teardown"],
            vpc_id=network.vpc_id,
            subnet_ids=network.subnet_ids,
            cluster_role_arn=roles.cluster.role_arn,
            node_role_arn=roles.nodes.role_arn,
            relay_role_arn=roles.relay.role_arn,
            saver_role_arn=roles.saver.role_arn,
            stager_role_arn=roles.stager.role_arn,
            fsx_csi_role_arn=roles.fsx_csi.role_arn,
            cluster_access_role_arns=cluster_access_arns,
            functions_security_group_id=(
                functions_group(self, "FunctionsGroup", vpc_id=network.vpc_id).attr_group_id
                if config.functions_join_network
                else ""
            ),
            metrics_role_arn=roles.metrics.role_arn if roles.metrics is not None else "",
            **{f"{image}_image": images.built.get(image, "") for image in images_of},
            image_copies=images.copies,
            slack_secret_id=data.slack_secret.secret_arn,
            hugging_face_secret_id=data.hugging_face_secret.secret_arn,
            relay_secret_id=data.relay_secret.secret_arn,
        )

    def _add_machines(
        self, names: Mapping[str, str], functions: Mapping[str, lambda_.Function]
    ) -> None:
        for name, machine in MACHINES.items():
            added = self._machine(name.capitalize(), machine, name=names[name], functions=functions)
            role = added.node.find_child("Role")
            accept_wildcard(role, "*", "X-Ray and the delivery of logs take no single resources")
            for function in functions.values():
                accept_wildcard(
                    role, f"{function.function_arn}:*", "versions and aliases of this one function"
                )

    def _machine(
        self,
        construct_id: str,
        machine: Machine,
        *,
        name: str,
        functions: Mapping[str, lambda_.Function],
    ) -> sfn.StateMachine:
        log_group = logs.LogGroup(
            self,
            f"{construct_id}Logs",
            # The prefix keeps Step Functions from adding to a resource policy of limited size.
            log_group_name=f"/aws/vendedlogs/states/{name}",
            retention=logs.RetentionDays.THREE_MONTHS,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        states = machine.states(Construct(self, f"{construct_id}States"), functions)
        return sfn.StateMachine(
            self,
            construct_id,
            state_machine_name=name,
            definition_body=sfn.DefinitionBody.from_chainable(states),
            comment=machine.comment,
            timeout=machine.limit,
            tracing_enabled=True,
            logs=sfn.LogOptions(
                destination=log_group,
                level=sfn.LogLevel.ALL,
                include_execution_data=False,  # the data of waits holds the task token
            ),
        )


def _bucket_arns(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(arn("s3", name, region="", account="") for name in names)
