"""The handlers of the steps: each imports its own step, and passes on what its payload has."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lambdas import registry, steps
from lambdas.step import step_handler
from stationmaster.domain.errors import CheckFailed, PermanentError
from stationmaster.settings import Settings

ROOT = Path(__file__).parent.parent.parent
MACHINES = sorted((ROOT / "lambdas").glob("*.asl.json"))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(region="us-west-2", table_name="t", bus_name="b")
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)


def tasks(machine: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The function and the payload of every task, those inside maps and branches too."""
    for state in machine["States"].values():
        for nested in [*state.get("Branches", []), state.get("ItemProcessor")]:
            if nested:
                yield from tasks(nested)
        if state["Type"] == "Task":
            parameters = state["Parameters"]
            named = parameters.get("FunctionName", state["Resource"])
            yield named.strip("${}"), parameters.get("Payload", parameters)


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.name)
def test_tasks_send_what_their_steps_take(path: Path) -> None:
    seen = set()
    for function, payload in tasks(json.loads(path.read_text())):
        name = function.replace("-", "_")
        module = __import__(f"stationmaster.steps.{name}", fromlist=[name])
        _, *taken = inspect.signature(getattr(module, name)).parameters.values()
        needed = {each.name for each in taken if each.default is inspect.Parameter.empty}
        sent = {key.removesuffix(".$") for key in payload} - {"turn"}

        assert needed <= sent <= {each.name for each in taken}, function
        seen.add(function)

    assert seen


@pytest.mark.parametrize("function", registry.STEPS, ids=lambda function: function.name)
def test_every_registered_step_has_a_handler_that_is_made_once(
    function: registry.Function,
) -> None:
    module, _, attribute = function.handler.rpartition(".")

    assert module == "lambdas.steps"
    assert getattr(steps, attribute) is getattr(steps, attribute)


def test_what_the_registry_does_not_list_is_no_handler() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'recording'"):
        steps.recording()


def test_function_imports_its_own_step_only() -> None:
    program = (
        # Packages are made without it.
        "import sys; sys.modules['kubernetes.aio'] = None; "
        "from lambdas.steps import ensure_cluster; "
        "import stationmaster.kubernetes.connect, stationmaster.kubernetes.gateway; "
        "print(*[name for name in sys.modules if name.startswith('stationmaster.steps.')])"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()

    handlers = {f"stationmaster.steps.{step.name.replace('-', '_')}" for step in registry.STEPS}
    assert handlers & set(loaded) == {"stationmaster.steps.ensure_cluster"}


def test_handler_passes_the_payload_by_name_and_leaves_out_what_is_missing() -> None:
    def step(services: Any, cluster_id: str, *, plugin: str, error: Any = None) -> list[Any]:
        return [services.settings.table_name, cluster_id, plugin, error]

    handler = step_handler(step)

    payload = {"cluster_id": "c", "plugin": "p", "more": "of the state"}
    assert handler(payload, None) == ["t", "c", "p", None]
    assert handler(payload | {"error": {"Error": "E"}}, None) == ["t", "c", "p", {"Error": "E"}]


def test_handler_tells_a_loop_to_wait_longer_the_longer_it_has_waited() -> None:
    def step(services: Any, run_id: str) -> dict[str, bool]:
        return {"ready": run_id == "ready"}

    handler, turn = step_handler(step), {"every_s": 10, "wait_s": 10, "waited_s": 400}

    longer = {"ready": False, "every_s": 10, "wait_s": 30, "waited_s": 430}
    assert handler({"run_id": "r", "turn": turn}, None) == longer
    assert handler({"run_id": "ready", "turn": turn}, None) == {"ready": True}


def test_handler_lets_errors_of_the_tree_out_and_names_any_other() -> None:
    def failing(services: Any, run_id: str) -> None:
        raise CheckFailed("no")

    def broken(services: Any, run_id: str) -> None:
        raise KeyError("x")

    with pytest.raises(CheckFailed, match="no"):
        step_handler(failing)({"run_id": "r"}, None)
    with pytest.raises(PermanentError, match="internal error: KeyError: 'x'"):
        step_handler(broken)({"run_id": "r"}, None)
