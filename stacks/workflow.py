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
    DEAD_LETTERS,
    FUNCTIONS,
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
from stacks.constructs.functions import FunctionRoles, Functions, dead_letter_queue, role_arn
from stacks.constructs.machines import MACHINES, Machine
from stacks.constructs.permissions import Granted
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
        dataset_bucket_arns = self._bucket_arns(config.dataset_buckets)
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
            linked_bucket_arns=self._bucket_arns(config.linked_buckets),
            eks_clusters=config.eks_clusters,
            function_role_arns=role_arn(self, config.deployment, "*"),
            kubectl_role_arns=config.kubectl_role_arns,
            vpc_arn=self.format_arn(service="ec2", resource="vpc", resource_name=network.vpc_id),
            artifacts_arn=data.artifacts_arn,
            machine_arns={
                name: self._machine_arn(full_name) for name, full_name in machine_names.items()
            },
            clock=add_clock(
                self,
                group=config.deployment,
                function_arn=self.format_arn(
                    service="lambda",
                    resource="function",
                    resource_name=f"{config.deployment}-{KEEP_CLOCK.name}",
                    arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
                ),
            ),
        )
        specs = [spec for spec in FUNCTIONS if spec.package is Package.LAMBDAS]
        roles = FunctionRoles(
            self,
            "Roles",
            specs=specs,
            granted=self.granted,
            deployment=config.deployment,
        )
        self.settings = self._settings(config, network, data, images, roles.cluster_access_arns)
        dead_letters = dead_letter_queue(
            self, "DeadLetters", name=f"{config.deployment}-{DEAD_LETTERS[Package.LAMBDAS]}"
        )
        functions = Functions(
            self,
            "Functions",
            specs=specs,
            roles=roles.by_name,
            settings=self.settings,
            dead_letters=dead_letters,
            traced=config.trace_functions,
        ).by_name
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
        return Settings(
            deployment=config.deployment,
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
            dataset_buckets=config.dataset_buckets,
            linked_buckets=config.linked_buckets,
            eks_clusters=config.eks_clusters,
            hugging_face_token_in_eks_clusters=config.hugging_face_token_in_eks_clusters,
            file_systems=config.file_systems,
            reservations=config.reservations,
            image_registries=config.image_registries,
            image_channels=config.image_channels,
            push_organisations=config.push_organisations,
            operations_channel=config.operations_channel,
            max_concurrent_runs=config.max_concurrent_runs,
            max_concurrent_runs_per_channel=config.max_concurrent_runs_per_channel,
            max_usd_per_hour=config.max_usd_per_hour,
            max_usd_per_hour_per_channel=config.max_usd_per_hour_per_channel,
            fsx_csi_role_arn=roles.fsx_csi.role_arn,
            cluster_access_role_arns=cluster_access_arns,
            kubectl_role_arns=config.kubectl_role_arns,
            public_api=config.public_api,
            api_cidrs=config.api_cidrs,
            functions_security_group_id=(
                functions_group(self, "FunctionsGroup", vpc_id=network.vpc_id).attr_group_id
                if config.functions_join_network
                else ""
            ),
            kubernetes_version=config.kubernetes_version,
            node_repair=config.node_repair,
            metrics_role_arn=roles.metrics.role_arn if roles.metrics is not None else "",
            **{
                f"{image}_image": images.built.get(image, "")
                for image in ("training", "relay", *FRAMEWORK_IMAGES.values())
            },
            image_copies=images.copies,
            relay_replicas=config.relay_replicas,
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

    def _bucket_arns(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            self.format_arn(service="s3", region="", account="", resource=name) for name in names
        )

    def _machine_arn(self, name: str) -> str:
        return self.format_arn(
            service="states",
            resource="stateMachine",
            resource_name=name,
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )
