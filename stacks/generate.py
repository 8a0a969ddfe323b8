"""Write what is committed of a synthesis: `python -m stacks.generate`.

These are the state machines, the policies of every role, and the page of IAM actions. A test fails
while the committed files differ. Local mode reads the first two, so it starts without Node or the
CDK. A function's ARN stands in the machines as ${function-name}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from lambdas import registry
from stacks import rights
from stacks.node import use_packaged_node

ROOT: Final = Path(__file__).parent.parent
_ARN_PREFIX: Final = "arn:aws:lambda:us-east-1:123456789012:function:"


Template = dict[str, Any]

# Names that a deployment configures; in the file they stand as ${dataset-bucket} and so on.
_CONFIGURED: Final = {
    "deployment": "name-of-deployment",
    "dataset_buckets": "dataset-bucket",
    "linked_buckets": "dataset-bucket",
    "eks_clusters": "eks-cluster",
}
_PATH: Final = "aws:cdk:path"
# No wheels are installed, and each resource says where it is in the application.
_CONTEXT: Final = {"aws:cdk:bundling-stacks": [], "aws:cdk:enable-path-metadata": True}


def definitions() -> dict[str, str]:
    """Write the text of each committed file, by its path from the repository's root."""
    use_packaged_node()
    # Imported late: importing the CDK starts Node, which the line above chooses.
    import aws_cdk as cdk
    from aws_cdk import aws_lambda as lambda_
    from aws_cdk import aws_stepfunctions as sfn
    from constructs import Construct

    from stacks.constructs.machines import MACHINES

    stack = cdk.Stack(cdk.App(), "Definitions")
    functions = {
        function.name: lambda_.Function.from_function_arn(
            stack, function.name, _ARN_PREFIX + function.name
        )
        for function in registry.FUNCTIONS
    }

    def text(name: str) -> str:
        machine = MACHINES[name]
        resource = sfn.StateMachine(
            stack,
            name,
            definition_body=sfn.DefinitionBody.from_chainable(
                machine.states(Construct(stack, f"{name}-states"), functions)
            ),
            comment=machine.comment,
            timeout=machine.limit,
        ).node.default_child
        assert isinstance(resource, sfn.CfnStateMachine)
        definition = json.loads(_literal(stack.resolve(resource.definition_string)))
        return json.dumps(_with_placeholders(definition), indent=2) + "\n"

    return {
        **{path: text(name) for name, path in registry.MACHINES.items()},
        registry.POLICIES: policies_text(),
        rights.PAGE: rights.page(),
    }


def _with_placeholders(value: Any) -> Any:
    """Replace each function's ARN in the definition by its placeholder."""
    match value:
        case dict():
            return {key: _with_placeholders(item) for key, item in value.items()}
        case list():
            return [_with_placeholders(item) for item in value]
        case str() if value.startswith(_ARN_PREFIX):
            return "${" + value.removeprefix(_ARN_PREFIX) + "}"
        case _:
            return value


def _literal(value: Any) -> str:
    """Join the text of a definition, as CloudFormation would, from its parts."""
    match value:
        case str():
            return value
        case {"Fn::Join": ["", parts]}:
            return "".join(_literal(part) for part in parts)
        case {"Ref": "AWS::Partition"}:
            return "aws"
        case _:
            raise ValueError(f"a definition holds {value!r}; expected text, a join, the partition")


def main() -> None:
    for path, text in definitions().items():
        (ROOT / path).write_text(text)


def policies() -> dict[str, Any]:
    """Collect every role that acts in local mode, by its path ("workflow/Roles/bot")."""
    templates = _templates()
    # Its role is of a build, which local mode has none of, and names the hash of all our sources.
    acting = {stack: template for stack, template in templates.items() if stack != "images"}
    roles: dict[str, Any] = {}
    for stack, template in acting.items():
        read = _Reader(templates, stack)
        for logical_id, role in _of_type(template, "AWS::IAM::Role").items():
            properties = role["Properties"]
            roles[read.path(logical_id)] = {
                "trust": read.plain(properties["AssumeRolePolicyDocument"]["Statement"]),
                "managed": read.plain(properties.get("ManagedPolicyArns", [])),
                "statements": [
                    statement
                    for policy in properties.get("Policies", [])
                    for statement in read.plain(policy["PolicyDocument"]["Statement"])
                ],
            }
    for stack, template in acting.items():
        read = _Reader(templates, stack)
        attached = _of_type(template, "AWS::IAM::Policy")
        # What does not fit into a role's own policy, the CDK puts into one of these.
        attached |= _of_type(template, "AWS::IAM::ManagedPolicy")
        for policy in attached.values():
            for role in policy["Properties"]["Roles"]:
                path = read.text(role).removeprefix("${").removesuffix("}")
                roles[path]["statements"] += read.plain(
                    policy["Properties"]["PolicyDocument"]["Statement"]
                )
    for role in roles.values():
        # Their order means nothing to IAM, and follows from what the CDK found to fit into the
        # role's own policy: where a few characters decide that, it differs between two syntheses.
        role["statements"].sort(key=json.dumps)
    return dict(sorted(roles.items()))


def policies_text() -> str:
    """Write what is committed: JSON with a line for each statement."""
    roles = []
    for path, role in policies().items():
        parts = []
        for part, values in role.items():
            lines = ",\n   ".join(json.dumps(each) for each in values)
            parts.append(f'  "{part}": [\n   {lines}\n  ]' if values else f'  "{part}": []')
        roles.append(f' "{path}": {{\n' + ",\n".join(parts) + "\n }")
    return "{\n" + ",\n".join(roles) + "\n}\n"


def _templates() -> dict[str, Template]:
    """Synthesize a deployment with each kind of configured name; templates by the stacks' names."""
    use_packaged_node()
    # Imported late: importing the CDK starts Node, which the line above chooses.
    import aws_cdk as cdk

    from stacks.application import add_stacks
    from stacks.config import StageConfig

    config = StageConfig.model_validate(
        {name: value if name == "deployment" else (value,) for name, value in _CONFIGURED.items()}
    )
    with TemporaryDirectory() as folder:
        app = cdk.App(outdir=folder, context=_CONTEXT)
        add_stacks(app, config)
        app.synth()
        return {
            path.name.removeprefix(f"{config.deployment}-").partition(".")[0]: json.loads(
                path.read_text()
            )
            for path in sorted(Path(folder).glob("*.template.json"))
        }


class _Reader:
    """Turns values of one stack's template into text and plain lists."""

    def __init__(self, templates: Mapping[str, Template], stack: str) -> None:
        self._templates = templates
        self._stack = stack

    def path(self, logical_id: str) -> str:
        """Return a resource's place in the application, as "data/Table"."""
        resource = self._templates[self._stack]["Resources"][logical_id]
        _, _, path = resource["Metadata"][_PATH].partition("/")
        return f"{self._stack}/{path.removesuffix('/Resource')}"

    def plain(self, value: Any) -> Any:
        """Write every intrinsic function as text."""
        match value:
            case {"Ref": _} | {"Fn::GetAtt": _} | {"Fn::Join": _} | {"Fn::ImportValue": _} | str():
                return self._with_configured(self.text(value))
            case dict():
                return {key: self.plain(each) for key, each in value.items()}
            case list():
                return [self.plain(each) for each in value]
            case _:
                return value

    def text(self, value: Any) -> str:
        """Write a value with each reference as ${path}.

        Raises:
            ValueError: the value has an intrinsic function that is not read here.
        """
        match value:
            case str():
                return value
            case {"Fn::Join": [str(separator), list(parts)]}:
                return separator.join(map(self.text, parts))
            case {"Fn::ImportValue": str(name)}:
                return self._exported(name)
            case {"Ref": str(name)}:
                return "${" + (name if "::" in name else self.path(name)) + "}"
            case {"Fn::GetAtt": [str(name), str(attribute)]}:
                return "${" + f"{self.path(name)}.{attribute}" + "}"
            case _:
                raise ValueError(f"a policy holds {value!r}; expected text, a join or a reference")

    def _exported(self, name: str) -> str:
        for stack, template in self._templates.items():
            for output in template.get("Outputs", {}).values():
                if output.get("Export", {}).get("Name") == name:
                    return _Reader(self._templates, stack).text(output["Value"])
        raise ValueError(f"no stack exports {name}, which a policy imports")

    def _with_configured(self, text: str) -> str:
        for name in set(_CONFIGURED.values()):
            text = text.replace(name, "${" + name.removeprefix("name-of-") + "}")
        return text


def _of_type(template: Template, kind: str) -> dict[str, Any]:
    return {name: each for name, each in template["Resources"].items() if each["Type"] == kind}


if __name__ == "__main__":
    main()
