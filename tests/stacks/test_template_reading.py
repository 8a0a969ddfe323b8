"""Reading templates: what values come to, and what is refused, by name and with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.templates.deployment import TemplateDeployment
from tests.support.templates.kinds import NOTHING_TO_EMULATE, identifier
from tests.support.templates.reading import Resolver, TemplateError, read_templates

ACCOUNT = {"account_id": "123456789012", "region": "us-west-2"}
QUEUE = {
    "Type": "AWS::SQS::Queue",
    "Properties": {"QueueName": "letters", "MessageRetentionPeriod": 1209600},
}


def template(resources: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {"Resources": resources, **sections}


def resolver(**templates: dict[str, Any]) -> Resolver:
    return Resolver(
        templates,
        **ACCOUNT,
        zones=("us-west-2a", "us-west-2b"),
        identify=identifier(**ACCOUNT),
    )


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"Ref": "AWS::Region"}, "us-west-2"),
        ({"Ref": "AWS::StackName"}, "one"),
        ({"Fn::GetAtt": ["Letters", "Arn"]}, "arn:aws:sqs:us-west-2:123456789012:letters"),
        ({"Fn::GetAtt": "Letters.QueueName"}, "letters"),
        ({"Fn::Join": ["-", ["a", {"Ref": "AWS::AccountId"}]]}, "a-123456789012"),
        ({"Fn::Sub": "${AWS::Region}/${Letters.QueueName}/${!x}"}, "us-west-2/letters/${x}"),
        ({"Fn::Sub": ["${name}!", {"name": {"Ref": "AWS::Partition"}}]}, "aws!"),
        ({"Fn::Select": [1, {"Fn::GetAZs": ""}]}, "us-west-2b"),
        ({"Fn::Select": ["0", {"Fn::Split": [":", "x:y"]}]}, "x"),
        ({"Fn::If": ["Here", "yes", "no"]}, "yes"),
        ({"Fn::If": ["There", "yes", "no"]}, "no"),
        ({"kept": 1, "left out": {"Ref": "AWS::NoValue"}}, {"kept": 1}),
        ([{"Ref": "AWS::NoValue"}, "${not.a.sub}"], ["${not.a.sub}"]),
        ({"Ref": "Bus"}, "one-Bus"),
    ],
)
def test_values_come_to_what_cloudformation_makes_of_them(value: Any, plain: Any) -> None:
    conditions = {
        "Here": {"Fn::Equals": [{"Ref": "AWS::Region"}, "us-west-2"]},
        "There": {"Fn::And": [{"Condition": "Here"}, {"Fn::Not": [{"Condition": "Here"}]}]},
    }
    bus = {"Type": "AWS::Events::EventBus"}
    read = resolver(one=template({"Letters": QUEUE, "Bus": bus}, Conditions=conditions))

    assert read.plain(value, "one") == plain


def test_imports_come_from_the_stack_that_exports_them() -> None:
    output = {"Value": {"Fn::GetAtt": ["Letters", "Arn"]}, "Export": {"Name": "one:letters"}}
    one, two = template({"Letters": QUEUE}, Outputs={"Arn": output}), template({})

    read = resolver(two=two, one=one)

    imported = read.plain({"Fn::ImportValue": "one:letters"}, "two")
    assert imported == "arn:aws:sqs:us-west-2:123456789012:letters"
    with pytest.raises(TemplateError, match='no stack exports "one:other"; run make synth again'):
        read.plain({"Fn::ImportValue": "one:other"}, "two")
    asked = {"StackName": "one", "Region": {"Ref": "AWS::Region"}, "OutputName": "Arn"}
    assert read.plain({"Fn::GetStackOutput": asked}, "two") == imported
    with pytest.raises(TemplateError, match='stack one has no output "Other"; run make synth'):
        read.plain({"Fn::GetStackOutput": asked | {"OutputName": "Other"}}, "two")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            {"Fn::Cidr": ["10.0.0.0/16", 2, 8]},
            "Fn::Cidr of .* is not known; add it to tests/support/temp",
        ),
        ({"Ref": "Nobody"}, 'stack one has no resource "Nobody"'),
        ({"Fn::GetAtt": ["Letters", "Url"]}, r"Letters \(AWS::SQS::Queue\) is asked for its attr"),
        ("{{resolve:ssm:/name}}", "is looked up by CloudFormation at deployment"),
        ({"Fn::If": ["Never", 1, 2]}, 'stack one has no condition "Never"'),
    ],
)
def test_what_is_not_known_is_refused(value: Any, sentence: str) -> None:
    with pytest.raises(TemplateError, match=sentence):
        resolver(one=template({"Letters": QUEUE})).plain(value, "one")


def test_resources_that_depend_on_each_other_in_a_circle_are_refused() -> None:
    def bus(other: str) -> dict[str, Any]:
        return {"Type": "AWS::Events::EventBus", "Properties": {"Name": {"Ref": other}}}

    with pytest.raises(TemplateError, match="in a circle: one/A -> one/B -> one/A"):
        resolver(one=template({"A": bus("B"), "B": bus("A")})).plain({"Ref": "A"}, "one")


@pytest.mark.parametrize(
    ("resource", "sentence"),
    [
        (
            {"Type": "AWS::Kinesis::Stream"},
            r"stack one: Odd \(AWS::Kinesis::Stream\) is of a type that local mode does not make; "
            "teach it to",
        ),
        (
            {"Type": "AWS::SQS::Queue", "Properties": {"FifoQueue": True}},
            r"Odd \(AWS::SQS::Queue\) has the property FifoQueue, of which local mode makes noth",
        ),
    ],
)
def test_types_and_properties_that_nobody_has_decided_about_are_refused(
    resource: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TemplateError, match=sentence):
        TemplateDeployment({"one": template({"Odd": resource})}, **ACCOUNT)


def test_resource_without_its_condition_is_not_made() -> None:
    metadata = {"Type": "AWS::Kinesis::Stream", "Condition": "Never"}
    never = {"Never": {"Fn::Equals": ["a", "b"]}}

    made = TemplateDeployment(
        {"one": template({"Odd": metadata, "Letters": QUEUE}, Conditions=never)}, **ACCOUNT
    )

    assert made.product({}).queues == ["letters"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"State": "DISABLED"}, "has the state 'DISABLED'; local mode knows 'ENABLED'"),
        ({"Targets": []}, "has a number of targets of 0; local mode knows 1"),
        ({"Targets": [{"Arn": "a:function:f", "InputPath": "$"}]}, "has a target with InputPath"),
        ({}, "calls f, and no AWS::Lambda::Permission lets events.amazonaws.com in"),
    ],
)
def test_rule_that_would_do_something_else_here_is_refused(
    changed: dict[str, Any], sentence: str
) -> None:
    properties = {
        "EventPattern": {"source": ["s"]},
        "State": "ENABLED",
        "Targets": [{"Arn": "arn:aws:lambda:us-west-2:123456789012:function:f", "Id": "one"}],
    }
    rule = {"Type": "AWS::Events::Rule", "Properties": {**properties, **changed}}

    with pytest.raises(TemplateError, match=sentence):
        TemplateDeployment({"one": template({"Rule": rule})}, **ACCOUNT).product({})


def test_what_nothing_is_made_of_is_counted_and_explained() -> None:
    alarm = {"Type": "AWS::CloudWatch::Alarm", "Properties": {"Anything": 1}}

    made = TemplateDeployment({"one": template({"A": alarm, "B": alarm})}, **ACCOUNT)

    assert made.left_out == {"AWS::CloudWatch::Alarm": 2}
    assert all(len(reason) > 15 for reason in NOTHING_TO_EMULATE.values())


def test_folder_without_templates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="has no templates, files that end in"):
        read_templates(tmp_path)

    (tmp_path / "one.template.json").write_text(json.dumps({"Resources": {}, "Mappings": {}}))
    with pytest.raises(TemplateError, match="has the section Mappings, which local mode does not"):
        read_templates(tmp_path)
    (tmp_path / "one.template.json").write_text("{")
    with pytest.raises(TemplateError, match="is not JSON"):
        read_templates(tmp_path)
