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
    "bus.run_ended": P.BUS_PUT,
    "clusters.create": P.CLUSTER_CREATE,
    "clusters.create_system_nodes": P.NODE_GROUP_CREATE,
    "clusters.create_training_nodes": P.NODE_GROUP_CREATE,
    "clusters.delete": P.CLUSTER_DELETE,
    "clusters.delete_node_group": P.NODE_GROUP_DELETE,
    "clusters.describe": P.CLUSTER_READ,
    "clusters.ensure_access": P.CLUSTER_CREATE,
    "clusters.list_for_run": P.CLUSTER_READ,
    "clusters.list_node_groups": P.CLUSTER_READ,
    "clusters.node_group": P.CLUSTER_READ,
    "file_systems.create": P.FILE_SYSTEM_CREATE,
    "file_systems.delete": P.FILE_SYSTEM_DELETE,
    "file_systems.describe": P.FILE_SYSTEM_READ,
    "file_systems.list_for_run": P.FILE_SYSTEM_READ,
    "networks.delete": P.NETWORK_DELETE,
    "networks.ensure_launch_template": P.NETWORK_CREATE,
    "networks.ensure_system_launch_template": P.NETWORK_CREATE,
    "networks.ensure_placement_group": P.NETWORK_CREATE,
    "networks.ensure_security_group": P.NETWORK_CREATE,
    "networks.list_for_run": P.NETWORK_READ,
    "networks.security_group": P.NETWORK_READ,
    "workflows.heartbeat": P.SEND_TASK_RESULT,
    "workflows.job_failed": P.SEND_TASK_RESULT,
    "workflows.job_succeeded": P.SEND_TASK_RESULT,
    "workflows.start_teardown": P.START_TEARDOWN,
    "workflows.start_train": P.START_TRAIN,
    "workflows.teardown_status": P.START_TEARDOWN,
    "workflows.train_status": P.START_TRAIN,
}
# Both ways to create an add-on: with the cluster itself, or as a plugin.
NEEDED_ONE_OF = {"clusters.ensure_addon": {P.CLUSTER_CREATE, P.ADDON_CREATE}}
ADAPTERS = {"bus", "clusters", "file_systems", "networks", "workflows"}


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())


@cache
def origins(module: str) -> dict[str, str]:
    """Module of every function of steps that can be named in `module`, its own included."""
    found = {}
    for node in parsed(module).body:
        match node:
            case ast.FunctionDef(name=name):
                found[name] = module
            case ast.ImportFrom(module=str(imported), names=names) if imported.startswith(
                "stationmaster.steps."
            ):
                found |= {alias.name: imported for alias in names}
    return found


def calls_of(module: str) -> set[str]:
    """`adapter.method` of every call on services that the module can come to make."""
    calls: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting: list[tuple[str, ast.AST]] = [
        (module, node) for node in parsed(module).body if not isinstance(node, ast.ImportFrom)
    ]
    while waiting:
        where, tree = waiting.pop()
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(
                    attr=method, value=ast.Attribute(attr=adapter, value=ast.Name(id="services"))
                ) if adapter in ADAPTERS:
                    calls.add(f"{adapter}.{method}")
                case ast.Name(id=name) if name in origins(where):
                    home = origins(where)[name]
                    if (home, name) not in seen:
                        seen.add((home, name))
                        waiting += [
                            (home, each)
                            for each in parsed(home).body
                            if isinstance(each, ast.FunctionDef) and each.name == name
                        ]
    return calls


STEPS = [spec for spec in FUNCTIONS if spec.handler.startswith("lambdas.")]


@pytest.mark.parametrize("spec", STEPS, ids=lambda spec: spec.name)
def test_function_may_do_what_its_step_does(spec: Function) -> None:
    called = calls_of(spec.handler.removesuffix(".handler"))

    for call in called:
        needed = NEEDED_ONE_OF.get(call) or {NEEDED[call]}
        assert needed & spec.permissions, f"{call} needs one of {sorted(needed)}"


def test_bot_may_do_what_its_commands_do() -> None:
    called = calls_of("stationmaster.commands")

    assert {NEEDED[call] for call in called} <= BOT.permissions


def test_calls_are_found_in_the_source() -> None:
    found = calls_of(get_function("verify-released").handler.removesuffix(".handler"))

    assert {"clusters.list_for_run", "networks.list_for_run"} <= found
