"""Reads the CloudFormation templates of a CDK assembly: resources, and what their values come to.

Used by `deployment`. It knows the functions of CloudFormation that templates of the CDK
use, and refuses the others by name. It knows no type of resource: whoever makes a resolver says
what a resource of each type is called.

Source: AWS CloudFormation user guide, "Intrinsic function reference", "Pseudo parameters reference"
and "Conditions section syntax".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Template = dict[str, Any]

_SUFFIX: Final = ".template.json"
_SECTIONS: Final = frozenset(
    {
        "AWSTemplateFormatVersion",
        "Conditions",
        "Description",
        "Outputs",
        # Of the bootstrap version, which only a deployment by the CDK asks for.
        "Parameters",
        "Resources",
        "Rules",
    }
)
_IN_TEXT: Final = re.compile(r"\$\{(!?)([^}]+)\}")
_DYNAMIC: Final = "{{resolve:"


class TemplateError(ValueError):
    """A template has what local mode does not make: what, where, and what to do."""


@dataclass(frozen=True)
class Resource:
    """One resource of a stack, its values as they are written."""

    stack: str
    logical_id: str
    kind: str
    properties: Mapping[str, Any]

    def refused(self, why: str) -> TemplateError:
        """What to raise about it."""
        return TemplateError(f"stack {self.stack}: {self.logical_id} ({self.kind}) {why}")


@dataclass(frozen=True)
class Identity:
    """What a resource is called once it is there: by Ref, and by the attributes of GetAtt."""

    ref: str
    attributes: Mapping[str, str] = field(default_factory=dict)


def read_templates(folder: Path) -> dict[str, Template]:
    """The templates of an assembly, by the names of their stacks.

    Raises:
        TemplateError: the folder has none, or one of them is no template.
    """
    found = {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            template = json.loads(path.read_text())
        except ValueError as exc:
            raise TemplateError(f"{path} is not JSON ({exc}); run make synth again") from exc
        unknown = set(template) - _SECTIONS
        if unknown:
            raise TemplateError(
                f"{path} has the section {', '.join(sorted(unknown))}, which local mode does not "
                "read; add it to tests/support/templates/reading.py"
            )
        found[path.name.removesuffix(_SUFFIX)] = template
    if not found:
        raise TemplateError(
            f'"{folder}" has no templates, files that end in {_SUFFIX}; make synth writes them to '
            "cdk.out"
        )
    return found


class Resolver:
    """Gives values their plain form; what one stands for is looked up when it is asked for."""

    def __init__(
        self,
        templates: Mapping[str, Template],
        *,
        account_id: str,
        region: str,
        zones: tuple[str, ...],
        identify: Callable[[Resource, Resolver], Identity],
    ) -> None:
        """`identify` says what a resource is called; it may ask for values in its turn."""
        self._templates = templates
        self._zones = list(zones)
        self._identify = identify
        self._pseudo: Final = {
            "AWS::AccountId": account_id,
            "AWS::NoValue": None,
            "AWS::Partition": "aws",
            "AWS::Region": region,
            "AWS::URLSuffix": "amazonaws.com",
        }
        self._identities: dict[tuple[str, str], Identity] = {}
        self._under_way: list[str] = []
        self._exports = {
            self._plain_name(output["Export"]["Name"]): (stack, output["Value"])
            for stack, template in templates.items()
            for output in template.get("Outputs", {}).values()
            if "Export" in output
        }

    def resources(self) -> Iterator[Resource]:
        """Every resource whose condition holds, in the order of the templates."""
        for stack, template in self._templates.items():
            for logical_id, written in template["Resources"].items():
                if "Condition" in written and not self._holds(written["Condition"], stack):
                    continue
                yield self._resource(stack, logical_id)

    def know(self, resource: Resource, identity: Identity) -> None:
        """Take down what a resource that has been made is called."""
        self._identities[resource.stack, resource.logical_id] = identity

    def identity(self, stack: str, logical_id: str) -> Identity:
        """What a resource is called; what it depends on is looked up first.

        Raises:
            TemplateError: it depends on itself, or is not in the template.
        """
        key = (stack, logical_id)
        if key not in self._identities:
            name = f"{stack}/{logical_id}"
            if name in self._under_way:
                circle = " -> ".join((*self._under_way, name))
                raise TemplateError(f"resources depend on each other in a circle: {circle}")
            self._under_way.append(name)
            try:
                self._identities[key] = self._identify(self._resource(stack, logical_id), self)
            finally:
                self._under_way.pop()
        return self._identities[key]

    def value(self, resource: Resource, name: str, default: Any = None) -> Any:
        """One property of a resource in plain form, the default where it has none."""
        try:
            found = self.plain(resource.properties.get(name, default), resource.stack)
        except TemplateError as exc:
            if str(exc).startswith("stack "):
                raise
            raise resource.refused(f"has a property {name} that cannot be read: {exc}") from exc
        return default if found is None else found

    def plain(self, value: Any, stack: str) -> Any:
        """A value of a template in plain form.

        Raises:
            TemplateError: it has a function, or names something, that is not known.
        """
        match value:
            case {"Ref": str(name)}:
                return self._ref(name, stack)
            case {"Condition": str(name)} if len(value) == 1:
                return self._holds(name, stack)
            case dict() if len(value) == 1 and next(iter(value)).startswith("Fn::"):
                ((function, argument),) = value.items()
                return self._call(function, argument, stack)
            case dict():
                made = {key: self.plain(item, stack) for key, item in value.items()}
                return {key: item for key, item in made.items() if item is not None}
            case list():
                return [each for one in value if (each := self.plain(one, stack)) is not None]
            case str() if _DYNAMIC in value:
                raise TemplateError(
                    f"{value!r} is looked up by CloudFormation at deployment, and local mode has "
                    "nobody who does; give the value by Ref or Fn::GetAtt"
                )
            case _:
                return value

    def _call(self, function: str, argument: Any, stack: str) -> Any:
        match function, argument:
            case "Fn::GetAtt", [str(name), str(attribute)]:
                return self._attribute(stack, name, attribute)
            case "Fn::GetAtt", str(path):
                name, _, attribute = path.partition(".")
                return self._attribute(stack, name, attribute)
            case "Fn::Sub", str(text):
                return self._substituted(text, {}, stack)
            case "Fn::Sub", [str(text), dict(names)]:
                return self._substituted(text, self.plain(names, stack), stack)
            case "Fn::If", [str(name), holds, fails]:
                return self.plain(holds if self._holds(name, stack) else fails, stack)
        given = self.plain(argument, stack)
        match function, given:
            case "Fn::ImportValue", str(name):
                return self._imported(name)
            case "Fn::GetStackOutput", {"StackName": str(other), "OutputName": str(name)}:
                return self._output(other, name)
            case "Fn::Join", [str(separator), list(parts)]:
                return separator.join(str(part) for part in parts)
            case "Fn::Select", [index, list(items)] if int(index) < len(items):
                return items[int(index)]
            case "Fn::Split", [str(separator), str(text)]:
                return text.split(separator)
            case "Fn::GetAZs", str():
                return self._zones
            case "Fn::Equals", [left, right]:
                return left == right
            case "Fn::Not", [bool(one)]:
                return not one
            case "Fn::And", list(parts):
                return all(parts)
            case "Fn::Or", list(parts):
                return any(parts)
        raise TemplateError(
            f"{function} of {json.dumps(argument)[:200]} is not known; add it to "
            "tests/support/templates/reading.py"
        )

    def _ref(self, name: str, stack: str) -> Any:
        if name == "AWS::StackName":
            return stack
        if name in self._pseudo:
            return self._pseudo[name]
        return self.identity(stack, name).ref

    def _attribute(self, stack: str, name: str, attribute: str) -> str:
        found = self.identity(stack, name).attributes.get(attribute)
        if found is None:
            raise self._resource(stack, name).refused(
                f"is asked for its attribute {attribute}, which local mode does not give; add it "
                "to tests/support/templates/kinds.py"
            )
        return found

    def _substituted(self, text: str, names: Mapping[str, Any], stack: str) -> str:
        def value(match: re.Match[str]) -> str:
            literal, name = match[1], match[2]
            if literal:
                return "${" + name + "}"
            if name in names:
                return str(names[name])
            owner, _, attribute = name.partition(".")
            if attribute:
                return self._attribute(stack, owner, attribute)
            return str(self._ref(name, stack))

        return _IN_TEXT.sub(value, text)

    def _imported(self, name: str) -> Any:
        if name not in self._exports:
            raise TemplateError(
                f'no stack exports "{name}"; run make synth again, so that all templates are of '
                "one synthesis"
            )
        stack, value = self._exports[name]
        return self.plain(value, stack)

    def _output(self, stack: str, name: str) -> Any:
        output = self._templates.get(stack, {}).get("Outputs", {}).get(name)
        if output is None:
            raise TemplateError(
                f'stack {stack} has no output "{name}"; run make synth again, so that all '
                "templates are of one synthesis"
            )
        return self.plain(output["Value"], stack)

    def _holds(self, name: str, stack: str) -> bool:
        conditions = self._templates[stack].get("Conditions", {})
        if name not in conditions:
            raise TemplateError(f'stack {stack} has no condition "{name}"')
        return bool(self.plain(conditions[name], stack))

    def _resource(self, stack: str, logical_id: str) -> Resource:
        written = self._templates[stack]["Resources"].get(logical_id)
        if written is None:
            raise TemplateError(f'stack {stack} has no resource "{logical_id}"')
        return Resource(stack, logical_id, written["Type"], written.get("Properties", {}))

    def _plain_name(self, name: Any) -> str:
        if not isinstance(name, str):
            raise TemplateError(f"an export is named {name!r}; expected a text")
        return name
