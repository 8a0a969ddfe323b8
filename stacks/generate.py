"""Write what is committed of a synthesis: `python -m stacks.generate`.

These are the state machines, and the policies of every role. A test fails while the committed files
differ. Local mode reads them, so it starts without Node or the CDK. A function's ARN stands in the
machines as ${function-name}.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from lambdas import registry
from stacks.node import use_packaged_node
from stacks.policies import policies_text

ROOT: Final = Path(__file__).parent.parent
_ARN_PREFIX: Final = "arn:aws:lambda:us-east-1:123456789012:function:"


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


if __name__ == "__main__":
    main()
