"""The dashboard and the alarms: what they watch exists, and somebody hears of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from infra_templates import Resource, Template, of_type, text_of

from lambdas.registry import FUNCTIONS, MACHINES
from stationmaster.domain.census import NAMESPACE, Census, Measure

TOPIC = "arn:{Partition}:sns:{Region}:{AccountId}:stationmaster-alarms"


def metrics_of(alarm: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics that an alarm reads, of one form."""
    if "MetricName" in alarm:
        return [alarm]
    found = [each["MetricStat"]["Metric"] for each in alarm["Metrics"] if "MetricStat" in each]
    assert found
    return found


def test_every_alarm_of_every_stack_is_sent_to_the_topic(
    templates: dict[str, Template], resources: dict[str, Resource]
) -> None:
    (topic,) = of_type(resources, "AWS::SNS::Topic").values()
    assert topic["Properties"]["TopicName"] == "stationmaster-alarms"

    stacks = set()
    for name, alarm in of_type(resources, "AWS::CloudWatch::Alarm").items():
        stack = name.partition("/")[0]
        stacks.add(stack)
        for key in ("AlarmActions", "OKActions"):
            (action,) = alarm["Properties"][key]
            sent_to = text_of(action)
            assert sent_to in (TOPIC, "{Alarms8C26B0D8}") or stack == "observability", name
        assert len(alarm["Properties"]["AlarmDescription"]) > 30
    assert {"observability", "bot"} <= stacks


def test_alarms_watch_machines_functions_and_figures_that_exist(
    resources: dict[str, Resource],
) -> None:
    functions = {f"stationmaster-{each.name}" for each in FUNCTIONS}
    seen: dict[str, set[str]] = {"machine": set(), "function": set(), "figure": set()}
    for name, alarm in of_type(resources, "AWS::CloudWatch::Alarm").items():
        if not name.startswith("observability/"):
            continue
        for metric in metrics_of(alarm["Properties"]):
            (dimension,) = metric["Dimensions"]
            value = text_of(dimension["Value"])
            match metric["Namespace"]:
                case "AWS/States":
                    seen["machine"].add(value.rpartition(":stationmaster-")[2])
                case "AWS/Lambda":
                    assert value in functions
                    watched = f"{value.removeprefix('stationmaster-')} {metric['MetricName']}"
                    seen["function"].add(watched)
                case _:
                    assert (metric["Namespace"], value) == (NAMESPACE, "stationmaster")
                    assert dimension["Name"] == "service"
                    seen["figure"].add(metric["MetricName"])

    assert seen["machine"] == set(MACHINES)
    assert seen["function"] == {
        *(f"{name} Errors" for name in ("recorder", "reaper", "notifier", "bot")),
        "bot Throttles",
        "notifier IteratorAge",
    }
    assert seen["figure"] == {*Census.model_fields, Measure.REFUSED_REQUESTS} - {"OpenRuns"}


def test_server_errors_of_the_bots_address_raise_an_alarm(resources: dict[str, Resource]) -> None:
    (alarm,) = [
        each["Properties"]
        for each in of_type(resources, "AWS::CloudWatch::Alarm").values()
        if each["Properties"].get("Namespace") == "AWS/ApiGateway"
    ]

    assert (alarm["MetricName"], alarm["Statistic"], alarm["Threshold"]) == ("5xx", "Sum", 1)
    assert [each["Name"] for each in alarm["Dimensions"]] == ["ApiId"]


def test_silence_of_the_reaper_is_an_alarm_and_silence_of_others_is_not(
    resources: dict[str, Resource],
) -> None:
    missing = {
        re.sub(r"[0-9A-F]{8}$", "", name.partition("/")[2]): alarm["Properties"]["TreatMissingData"]
        for name, alarm in of_type(resources, "AWS::CloudWatch::Alarm").items()
        if name.startswith("observability/")
    }

    assert missing.pop("ReaperSilent") == "breaching"
    assert set(missing.values()) == {"notBreaching"}


def test_each_alarm_of_the_deployment_is_explained_in_its_guide(
    resources: dict[str, Resource],
) -> None:
    guide = (Path(__file__).parent.parent.parent / "docs" / "deploy.md").read_text()
    names = {
        re.sub(r"[0-9A-F]{8}$", "", name.partition("/")[2])
        for name in of_type(resources, "AWS::CloudWatch::Alarm")
        if name.startswith("observability/")
    }

    assert [name for name in sorted(names) if f"`{name}`" not in guide] == []


def test_dashboard_draws_every_figure_machine_and_function(resources: dict[str, Resource]) -> None:
    (dashboard,) = of_type(resources, "AWS::CloudWatch::Dashboard").values()
    body = text_of(dashboard["Properties"]["DashboardBody"])

    json.loads(re.sub(r"\{(\w+)\}", r"\1", body))
    of_fsx = ("DataReadBytes", "DataWriteBytes", "FreeDataStorageCapacity")
    for name in (
        *of_fsx,
        *Census.model_fields,
        *Measure,
        *MACHINES,
        *(each.name for each in FUNCTIONS),
    ):
        assert name in body, name
