"""The local AWS of each test file, and a bot in it that answers as a test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from stationmaster.domain.remote import FIELD
from stationmaster.local.aws import LocalAws
from tests.support.aws_fixtures import Script, aws, deployed, script

__all__ = ["aws", "bot", "deployed", "script"]  # fixtures


@pytest.fixture
def bot(script: Script, aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Let the function `worker` be a bot with these answers; returns what it was asked."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)

    def answering(*answers: Any) -> list[Any]:
        left, asked = list(answers), []

        def answer(event: Any, _context: Any) -> Any:
            asked.append(json.loads(event[FIELD]["ask"]))
            given = left.pop(0) if len(left) > 1 else left[0]
            if given is None:
                raise RuntimeError("killed")
            return given if given.keys() & {"refused", "failed", "statusCode"} else {"value": given}

        script.on("worker", answer)
        return asked

    return answering
