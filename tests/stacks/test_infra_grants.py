"""A function's permissions cover what its step asks the AWS adapters to do.

IAM is not enforced by the local endpoint, so a permission that is missing would show up only in a
real account: here the source of the steps is read instead.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from lambdas.registry import BOT, FUNCTIONS, Function, Permission, get_function

ROOT = Path(__file__).parent.parent.parent
P = Permission

# What calling `services.<adapter>.<method>` takes, besides the table.
NEEDED = {
    "access_entries.ensure": P.CLUSTER_CREATE,
    "addons.describe": P.CLUSTER_READ,
    "bus.cluster_drained": P.BUS_PUT,
    "clusters.describe": P.CLUSTER_READ,
    "clusters.ensure": P.CLUSTER_CREATE,
    "clusters.left": P.CLUSTER_READ,
    "clusters.release": P.CLUSTER_DELETE,
    "file_systems.describe": P.FILE_SYSTEM_READ,
    "file_systems.ensure": P.FILE_SYSTEM_CREATE,
    "file_systems.left": P.FILE_SYSTEM_READ,
    "file_systems.list_tagged": P.FILE_SYSTEM_READ,
    "file_systems.mountable": P.FILE_SYSTEM_READ,
    "file_systems.release": P.FILE_SYSTEM_DELETE,
    "launch_templates.ensure_system": P.NETWORK_CREATE,
    "launch_templates.ensure_training": P.NETWORK_CREATE,
    "launch_templates.left": P.NETWORK_READ,
    "launch_templates.release": P.NETWORK_DELETE,
    "node_groups.describe": P.CLUSTER_READ,
    "node_groups.ensure_system": P.NODE_GROUP_CREATE,
    "node_groups.ensure_training": P.NODE_GROUP_CREATE,
    "node_groups.left": P.CLUSTER_READ,
    "node_groups.release": P.NODE_GROUP_DELETE,
    "placement_groups.ensure": P.NETWORK_CREATE,
    "placement_groups.left": P.NETWORK_READ,
    "placement_groups.release": P.NETWORK_DELETE,
    "pod_identities.ensure": P.CLUSTER_CREATE,
    "security_groups.describe": P.NETWORK_READ,
    "security_groups.ensure": P.NETWORK_CREATE,
    "security_groups.left": P.NETWORK_READ,
    "security_groups.release": P.NETWORK_DELETE,
    "workflows.heartbeat": P.SEND_TASK_RESULT,
    "workflows.wait_failed": P.SEND_TASK_RESULT,
    "workflows.wait_succeeded": P.SEND_TASK_RESULT,
    "workflows.cluster_status": P.READ_CLUSTER_WORKFLOW,
    "workflows.start_cluster": P.START_CLUSTER,
    "workflows.start_teardown": P.START_TEARDOWN,
    "workflows.start_train": P.START_TRAIN,
    "workflows.teardown_status": P.START_TEARDOWN,
    "workflows.train_status": P.START_TRAIN,
}
# Both ways to create an add-on: with the cluster itself, or as a plugin.
NEEDED_ONE_OF = {"addons.ensure": {P.CLUSTER_CREATE, P.ADDON_CREATE}}
# Packages whose modules a step calls one by one, by a name that it is given.
ROOMS = ("stationmaster.checks", "stationmaster.plugins")
ADAPTERS = {call.partition(".")[0] for call in [*NEEDED, *NEEDED_ONE_OF]}
# Functions that list adapters for a loop, whose variable is called `kind`.
LISTS = ("in_deletion_order", "network_in_deletion_order")


@cache
def parsed(module: str) -> ast.Module:
    path = ROOT / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(source.read_text())


@cache
def origins(module: str) -> dict[str, str]:
    """Module of every function of steps that can be named in `module`, its own included."""
    found = {}
    for node in parsed(module).body:
        match node:
            case ast.FunctionDef(name=name):
                found[name] = module
            case ast.ImportFrom(module=str(imported), names=names) if imported.startswith(
                ("stationmaster.steps.", "stationmaster.waiting")
            ):
                found |= {alias.name: imported for alias in names}
    return found


def calls_of(module: str) -> set[str]:
    """`adapter.method` of every call on services that the module can come to make."""
    calls = in_rooms(module)
    listed: set[str] = set()
    of_each: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting: list[tuple[str, ast.AST]] = [
        (module, node) for node in parsed(module).body if not isinstance(node, ast.ImportFrom)
    ]
    while waiting:
        where, tree = waiting.pop()
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(
                    attr=method,
                    value=ast.Attribute(
                        attr=adapter,
                        value=ast.Name(id="services") | ast.Attribute(attr="services"),
                    ),
                ) if adapter in ADAPTERS:
                    calls.add(f"{adapter}.{method}")
                case ast.Attribute(attr=method, value=ast.Name(id="kind")):
                    of_each.add(method)
                case ast.Name(id=name) if name in origins(where):
                    home = origins(where)[name]
                    if (home, name) not in seen:
                        seen.add((home, name))
                        waiting += functions(home, name)
                        listed |= adapters_in(home, name) if name in LISTS else set()
    return calls | {f"{adapter}.{method}" for adapter in listed for method in of_each}


def in_rooms(module: str) -> set[str]:
    """What the modules of a room can call, for a module that reaches in by name."""
    rooms = {
        node.module
        for step in {module, *origins(module).values()}
        for node in parsed(step).body
        if isinstance(node, ast.ImportFrom) and node.module in ROOMS
    }
    return {
        call
        for room in rooms
        for path in (ROOT / room.replace(".", "/")).glob("*.py")
        if path.stem != "__init__"
        for call in calls_of(f"{room}.{path.stem}")
    }


def functions(module: str, name: str) -> list[tuple[str, ast.AST]]:
    """The function of that name, with its module."""
    return [
        (module, each)
        for each in parsed(module).body
        if isinstance(each, ast.FunctionDef) and each.name == name
    ]


def adapters_in(module: str, name: str) -> set[str]:
    """Every `services.<adapter>` that a function names."""
    ((_, tree),) = functions(module, name)
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ADAPTERS
    }


FUNCTIONS_OF_LAMBDAS = [spec for spec in FUNCTIONS if spec.handler.startswith("lambdas.")]


def source_of(spec: Function) -> str:
    """The module whose calls the function makes: a step's own, or the handler's."""
    module, _, attribute = spec.handler.rpartition(".")
    return f"stationmaster.steps.{attribute}" if module == "lambdas.steps" else module


@pytest.mark.parametrize("spec", FUNCTIONS_OF_LAMBDAS, ids=lambda spec: spec.name)
def test_function_may_do_what_its_step_does(spec: Function) -> None:
    called = calls_of(source_of(spec))

    for call in called:
        needed = NEEDED_ONE_OF.get(call) or {NEEDED[call]}
        assert needed & spec.permissions, f"{call} needs one of {sorted(needed)}"


def test_bot_may_do_what_its_commands_do() -> None:
    called = calls_of("stationmaster.commands")

    assert {NEEDED[call] for call in called} <= BOT.permissions


def test_calls_of_plugins_and_checks_count_for_the_steps_that_call_them() -> None:
    plugin, check = (source_of(get_function(name)) for name in ("install-plugin", "run-check"))

    assert "addons.describe" in calls_of(plugin)
    assert "file_systems.mountable" in calls_of(check)


def test_calls_are_found_in_the_source() -> None:
    found = calls_of(source_of(get_function("verify-released")))

    kinds = "clusters file_systems launch_templates node_groups placement_groups security_groups"
    assert found == {f"{kind}.{verb}" for kind in kinds.split() for verb in ("left", "release")}
