"""A function's permissions cover what its step asks the AWS adapters to do.

The local endpoint enforces IAM, but only on the ways that some test goes: here the source of the
steps is read, so that no way is left out.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from lambdas.registry import BOT, FUNCTIONS, Function, Permission, get_function
from stationmaster import jobs
from stationmaster.aws import ec2_leftovers
from stationmaster.aws.existing_file_systems import LOOK_ACTIONS
from stationmaster.aws.file_system_room import ROOM_ACTIONS
from stationmaster.aws.kinds import actions_by_kind
from stationmaster.aws.scaling_groups import REPLACE_ACTIONS, SCALING_ACTIONS
from stationmaster.aws.schedules import CLOCK_ACTIONS

ROOT = Path(__file__).parent.parent.parent
P = Permission

# What AWS asks for besides the call that a method makes.
IMPLIED = {"fsx:TagResource"}
# What calling `services.<adapter>.<method>` takes, besides the table. Kinds with ACTIONS say so
# themselves: `needed` reads it there.
NEEDED = {
    "access_entries.ensure": P.CLUSTER_CREATE,
    "addons.describe": P.CLUSTER_READ,
    "account.ask": P.PREFLIGHT,
    "artifacts.verify": P.ARTIFACTS_READ,
    "bus.cluster_drained": P.BUS_PUT,
    "bus.nodes_wanted": P.BUS_PUT,
    "clusters.describe": P.CLUSTER_READ,
    "clusters.choose_version": P.CLUSTER_CREATE,
    "clusters.ensure": P.CLUSTER_CREATE,
    "clusters.find": P.CLUSTER_READ,
    "clusters.left": P.CLUSTER_READ,
    "clusters.release": P.CLUSTER_DELETE,
    "node_groups.describe": P.CLUSTER_READ,
    "node_groups.ensure_system": P.NODE_GROUP_CREATE,
    "node_groups.ensure_training": P.NODE_GROUP_CREATE,
    "node_groups.resize": P.NODE_GROUP_CREATE,
    "node_groups.left": P.CLUSTER_READ,
    "node_groups.release": P.NODE_GROUP_DELETE,
    "scaling_groups.add_to": P.NODE_GROUP_CREATE,
    "scaling_groups.replace": P.NODE_REPLACE,
    "subnets.zones": P.NETWORK_READ,
    "subnets.zones_offering": P.NETWORK_READ,
    "datasets.measure": P.DATASETS_LIST,
    "hub.check_readable": P.HUGGING_FACE_SECRET,
    "metrics_logs.ensure": P.CLUSTER_CREATE,
    "hub.look_up": P.HUGGING_FACE_SECRET,
    "hub.measure": P.HUGGING_FACE_SECRET,
    "existing_clusters.look_up": P.EXISTING_CLUSTERS_READ,
    "hyperpod_clusters.eks_name": P.EXISTING_CLUSTERS_READ,
    "price_list.of_hyperpod": P.EXISTING_CLUSTERS_READ,
    "pod_identities.ensure": P.CLUSTER_CREATE,
    "pod_identities.ensure_in": P.EXISTING_CLUSTERS_JOIN,
    "pod_identities.ensure_results": P.RESULTS_ACCESS,
    "pod_identities.left_in": P.CLUSTER_READ,
    "pod_identities.release_results": P.RESULTS_ACCESS,
    "pod_identities.release_in": P.EXISTING_CLUSTERS_LEAVE,
    "quick_artifacts.read": P.ARTIFACTS_READ,
    "schedules.delete": P.CLOCK,
    "schedules.put": P.CLOCK,
    "tagged.list_all": P.NETWORK_READ,
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
# A file system that exists is looked at, and the network around it.
NEEDED_ALL = {
    "existing_file_systems.look_up": {P.FILE_SYSTEM_READ, P.NETWORK_READ},
    "quick_file_systems.look_up": {P.EXISTING_FILE_SYSTEMS_READ},
    "file_system_room.free_gib": {P.FILE_SYSTEM_ROOM},
}
# Both ways to create an add-on: with the cluster itself, or as a plugin.
NEEDED_ONE_OF = {"addons.ensure": {P.CLUSTER_CREATE, P.ADDON_CREATE}}
# Packages whose modules a step calls one by one, by a name that it is given.
ROOMS = ("stationmaster.checks", "stationmaster.plugins", "stationmaster.preflight")
# They are handed to others, who ask.
HANDED_ON = ("account", "quick_account")
KINDS = actions_by_kind()
ADAPTERS = {call.partition(".")[0] for call in [*NEEDED, *NEEDED_ALL, *NEEDED_ONE_OF]} | set(KINDS)
# Methods of Services that list adapters for a loop, whose variable is called `kind`.
LISTS = ("in_deletion_order", "network_in_deletion_order")


@cache
def parsed(module: str) -> ast.Module:
    path = ROOT / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(source.read_text())


@cache
def origins(module: str) -> dict[str, str]:
    """Module of every function of the product that can be named in `module`, its own included."""
    found = {}
    for node in parsed(module).body:
        match node:
            case ast.FunctionDef(name=name):
                found[name] = module
            case ast.ImportFrom(module=str(imported), names=names) if imported.startswith(
                (
                    "stationmaster.steps.",
                    "stationmaster.jobs.",
                    "stationmaster.waiting",
                    "stationmaster.cluster_",
                    "stationmaster.saving_reactions",
                    "stationmaster.cluster_file_system",
                    "stationmaster.aws.",
                )
            ):
                found |= {alias.name: imported for alias in names}
    return found


def calls_of(module: str) -> set[str]:
    """`adapter.method` of every call on services that the module can come to make."""
    calls = in_rooms(module) | in_jobs(module)
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
                case ast.Attribute(attr=name, value=ast.Name(id="services")) if name in HANDED_ON:
                    calls.add("account.ask")
                case ast.Attribute(attr=name, value=ast.Name(id="services")) if name in LISTS:
                    listed |= adapters_in(name)
                case ast.Attribute(attr=method, value=ast.Name(id="kind")):
                    of_each.add(method)
                case ast.Name(id=name) if name in origins(where):
                    home = origins(where)[name]
                    if (home, name) not in seen:
                        seen.add((home, name))
                        waiting += functions(home, name)
    return calls | {f"{adapter}.{method}" for adapter in listed for method in of_each}


def in_rooms(module: str) -> set[str]:
    """What the modules of a room can call, for a module outside of it that reaches in by name."""
    rooms = {
        node.module
        for step in {module, *origins(module).values()}
        for node in parsed(step).body
        if isinstance(node, ast.ImportFrom)
        and node.module in ROOMS
        and not step.startswith(f"{node.module}.")
    }
    return {
        call
        for room in rooms
        for path in (ROOT / room.replace(".", "/")).glob("*.py")
        if path.stem != "__init__"
        for call in calls_of(f"{room}.{path.stem}")
    }


def in_jobs(module: str) -> set[str]:
    """What the Jobs can call that a module, or one whose functions it names, carries out."""
    names = {
        alias.name
        for step in {module, *origins(module).values()}
        for node in parsed(step).body
        if isinstance(node, ast.ImportFrom) and node.module == "stationmaster.jobs"
        for alias in node.names
    }
    named = {name for name in names if isinstance(getattr(jobs, name), ModuleType)}
    if "next_staging" in names:
        named |= {job.__name__.rpartition(".")[2] for job in jobs.STAGING}
    return {call for name in named for call in calls_of(f"stationmaster.jobs.{name}")}


def functions(module: str, name: str) -> list[tuple[str, ast.AST]]:
    """The function of that name, with its module."""
    return [
        (module, each)
        for each in parsed(module).body
        if isinstance(each, ast.FunctionDef) and each.name == name
    ]


def methods(module: str, known_by: str, *, of: str = "") -> dict[str, ast.FunctionDef]:
    """The methods of the class, `of` that name or any, that has one called `known_by`."""
    for node in parsed(module).body:
        if isinstance(node, ast.ClassDef):
            found = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
            if known_by in found and of in ("", node.name):
                return found
    raise AssertionError(f"{module} has no class with {known_by}")


def adapters_in(name: str) -> set[str]:
    """Every adapter that one of the LISTS names, also through the other."""
    named = {
        node.attr
        for node in ast.walk(methods("stationmaster.services", name)[name])
        if isinstance(node, ast.Attribute)
    }
    others = [adapters_in(other) for other in named & {*LISTS}]
    return (named & ADAPTERS).union(*others)


def methods_of(kind: str) -> dict[str, ast.FunctionDef]:
    return methods(module_of(kind), "left", of=kind.title().replace("_", ""))


def module_of(kind: str) -> str:
    return f"stationmaster.aws.{'ec2_leftovers' if kind in ec2_leftovers.ACTIONS else kind}"


def taken_by(kind: str, method: str) -> set[str]:
    """The IAM actions of all calls to AWS that a method of a kind can come to make."""
    module = module_of(kind)
    service = KINDS[kind].resource.partition(":")[0]
    own = methods_of(kind)
    taken: set[str] = set()
    waiting: list[ast.AST] = [own.pop(method)]
    while waiting:
        for node in ast.walk(waiting.pop()):
            match node:
                case ast.Call(func=ast.Name(id="listed"), args=[_, ast.Constant(value=call), *_]):
                    taken.add(f"{service}:{call.title().replace('_', '')}")
                case ast.Attribute(attr="get_paginator"):
                    continue
                case ast.Attribute(
                    attr=call, value=ast.Attribute(attr="_client") | ast.Name(id="client")
                ):
                    taken.add(f"{service}:{call.title().replace('_', '')}")
                case ast.Attribute(attr=name, value=ast.Name(id="self")) if name in own:
                    waiting.append(own.pop(name))
                case ast.Name(id=name) if name in origins(module):
                    waiting += [each for _, each in functions(origins(module)[name], name)]
    return taken


def needed(call: str) -> set[Permission]:
    """The permissions that a call of `adapter.method` takes."""
    kind, _, method = call.partition(".")
    if call in NEEDED_ALL:
        return NEEDED_ALL[call]
    if kind not in KINDS:
        return {NEEDED[call]}
    actions = KINDS[kind]
    taken = taken_by(kind, method)
    verbs = {
        "create": {*actions.create, *actions.change},
        "read": {*actions.read},
        "delete": {*actions.delete},
    }
    return {P(f"{actions.permission}-{verb}") for verb in verbs if verbs[verb] & taken}


FUNCTIONS_OF_LAMBDAS = [spec for spec in FUNCTIONS if spec.handler.startswith("lambdas.")]


def source_of(spec: Function) -> str:
    """The module whose calls the function makes: a step's own, or the handler's."""
    module, _, attribute = spec.handler.rpartition(".")
    return f"stationmaster.steps.{attribute}" if module == "lambdas.steps" else module


@pytest.mark.parametrize("spec", FUNCTIONS_OF_LAMBDAS, ids=lambda spec: spec.name)
def test_function_may_do_what_its_step_does(spec: Function) -> None:
    called = calls_of(source_of(spec))

    for call in called:
        if call in NEEDED_ONE_OF:
            assert NEEDED_ONE_OF[call] & spec.permissions, call
        else:
            assert needed(call) <= spec.permissions, f"{call} needs {sorted(needed(call))}"


def test_bot_may_do_what_its_commands_do() -> None:
    called = {
        call
        for part in ("account", "clusters", "finding", "results", "runs")
        for call in calls_of(f"stationmaster.commands.{part}")
    }

    expected = {
        "account.ask",
        "workflows.start_cluster",
        "quick_artifacts.read",
        "quick_file_systems.look_up",
    }
    assert expected <= called

    assert {each for call in called for each in needed(call)} <= BOT.permissions


@pytest.mark.parametrize("kind", KINDS)
def test_kind_states_exactly_the_actions_that_its_calls_take(kind: str) -> None:
    actions = KINDS[kind]
    public = [name for name in methods_of(kind) if name[0] != "_"]

    taken = {action for method in public for action in taken_by(kind, method)}

    stated = {*actions.create, *actions.change, *actions.read, *actions.delete}
    assert stated - IMPLIED == taken
    assert needed(f"{kind}.left") == {P(f"{actions.permission}-read")}
    assert needed(f"{kind}.release") == {P(f"{actions.permission}-delete")}


@pytest.mark.parametrize(
    ("module", "service", "stated"),
    [
        ("schedules", "scheduler", CLOCK_ACTIONS),
        ("scaling_groups", "autoscaling", SCALING_ACTIONS + REPLACE_ACTIONS),
    ],
)
def test_calls_of_a_service_take_exactly_the_actions_that_are_stated(
    module: str, service: str, stated: tuple[str, ...]
) -> None:
    tree = ast.walk(parsed(f"stationmaster.aws.{module}"))
    taken = {
        f"{service}:{node.attr.title().replace('_', '')}"
        for node in tree
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "_client"
    }

    assert taken == set(stated)


@pytest.mark.parametrize(
    ("module", "stated"),
    [("existing_file_systems", LOOK_ACTIONS), ("file_system_room", ROOM_ACTIONS)],
)
def test_looking_at_a_file_system_states_exactly_the_actions_that_it_takes(
    module: str, stated: tuple[str, ...]
) -> None:
    taken = {
        f"{node.value.attr.removeprefix('_')}:{node.attr.title().replace('_', '')}"
        for node in ast.walk(parsed(f"stationmaster.aws.{module}"))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr in ("_fsx", "_ec2", "_cloudwatch")
    }

    assert taken == set(stated)


def test_calls_are_found_in_the_source() -> None:
    found = calls_of(source_of(get_function("verify-released")))

    kinds = "clusters file_systems launch_templates node_groups placement_groups security_groups"
    assert found >= {f"{kind}.{verb}" for kind in kinds.split() for verb in ("left", "release")}
    assert {call.partition(".")[0] for call in found} >= set(KINDS), "made by Services, not listed"
