"""The Slack side: the public HTTP API, the bot behind it, the notifier on the table's stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_apigatewayv2 as apigateway
from aws_cdk import aws_apigatewayv2_integrations as integrations
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from lambdas.registry import (
    NOTIFIER,
    ROUTES,
    SCHEDULES,
    STREAM_CONSUMER,
    Package,
)
from stacks.acknowledgements import accept
from stacks.config import StageConfig
from stacks.constructs.alarms import add_alarm, add_dead_letter_alarms, add_log_alarm
from stacks.constructs.bundling import RULES_FILE
from stacks.constructs.deliveries import add_schedules, add_stream_consumer
from stacks.constructs.functions import FunctionRoles, Functions
from stacks.data import DataStack
from stacks.workflow import WorkflowStack
from stationmaster.domain.names import NOBODY_REACHED

# No query string, no headers, no body: they carry Slack's signature and people's text.
_ACCESS_LOG: Final = {
    "requestId": "$context.requestId",
    "at": "$context.requestTime",
    "ip": "$context.identity.sourceIp",
    "route": "$context.routeKey",
    "status": "$context.status",
    "latency_ms": "$context.responseLatency",
    "integration_error": "$context.integrationErrorMessage",
}


class BotStack(cdk.Stack):
    """The HTTP API, the functions of package `bot`, and the stream's consumer."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: StageConfig,
        data: DataStack,
        workflow: WorkflowStack,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, construct_id, **kwargs)
        roles = FunctionRoles(self, Package.BOT, workflow.granted)
        rules_file = RULES_FILE if config.rules else ""
        made = Functions(
            self,
            Package.BOT,
            roles,
            workflow.settings.model_copy(update={"rules_file": rules_file}),
            traced=config.trace_functions,
            rules=config.rules,
        )
        functions, dead_letters = made.by_name, made.dead_letters
        add_stream_consumer(functions[STREAM_CONSUMER], table=data.table, dead_letters=dead_letters)
        add_schedules(self, SCHEDULES, functions=functions, dead_letters=dead_letters)
        add_log_alarm(
            functions[NOTIFIER.name],
            message=NOBODY_REACHED,
            description="a run is live and neither its channel nor its requester can be reached",
        )
        add_dead_letter_alarms(functions[NOTIFIER.name])
        api = self._api(functions, config)
        add_alarm(
            api,
            "server-errors-alarm",
            api.metric_server_error(statistic="Sum", period=cdk.Duration.minutes(5)),
            "the bot's address answered Slack with a 5xx: look at the logs of the bot and the API",
        )
        cdk.CfnOutput(
            self,
            "SlackRequestUrl",
            value=f"{api.api_endpoint}{ROUTES[0].path}",
            description="for the Slack app manifest: stationmaster slack-manifest --url URL",
        )

    def _api(
        self, functions: Mapping[str, lambda_.Function], config: StageConfig
    ) -> apigateway.HttpApi:
        api = apigateway.HttpApi(self, "Api", create_default_stage=False)
        for route in ROUTES:
            created = api.add_routes(
                path=route.path,
                methods=[apigateway.HttpMethod(route.method)],
                integration=integrations.HttpLambdaIntegration(
                    f"{route.function}-integration", functions[route.function]
                ),
            )
            for each in created:
                accept(
                    each,
                    "APIG4",
                    "the bot verifies what Slack signs, and of browsers the state that it issued",
                )
        log_group = logs.LogGroup(
            self,
            "AccessLogs",
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        stage = apigateway.HttpStage(
            self,
            "Stage",
            http_api=api,
            stage_name="$default",
            auto_deploy=True,
            throttle=apigateway.ThrottleSettings(
                rate_limit=config.requests_per_second, burst_limit=2 * config.requests_per_second
            ),
        )
        resource = stage.node.default_child
        assert isinstance(resource, apigateway.CfnStage)
        resource.access_log_settings = apigateway.CfnStage.AccessLogSettingsProperty(
            destination_arn=log_group.log_group_arn, format=json.dumps(_ACCESS_LOG)
        )
        return api
