"""What the page shows of a run beside its thread, read as `/train status` and `/train logs` do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from stationmaster.commands.looking import describe_run
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.ids import RunId
from stationmaster.local.slack.records import SlackRefusal
from stationmaster.services import Services
from stationmaster.settings import Settings

_LINES: Final = 8


class RunPane:
    """Looks at runs for the page; `settings` is None until the product is deployed."""

    def __init__(self, settings: Callable[[], Settings | None]) -> None:
        self._settings = settings

    @cached_property
    def _services(self) -> Services:
        settings = self._settings()
        if settings is None:
            raise SlackRefusal("local mode is still starting")
        return Services(settings)

    def look(self, run_id: str, channel_id: str) -> dict[str, Any]:
        """Return the run's figures, pods and newest log lines.

        Raises:
            SlackRefusal: this channel has no such run.
        """
        try:
            view = describe_run(self._services, RunId(run_id), channel_id=channel_id)
            tails = self._services.runs.log_tails(view.run.run_id)
        except StationmasterError as exc:
            raise SlackRefusal(str(exc)) from exc
        run = view.run
        return {
            "title": run.request.title,
            "phase": run.phase.value,
            "progress": run.progress and run.progress.model_dump(mode="json"),
            "points": run.loss_points,
            "cost_usd": view.cost_usd(self._services.now()),
            "is_emulated": run.emulated_speed is not None,
            "is_live": view.is_live,
            "pods": [pod.model_dump(mode="json") for pod in run.pods.values()],
            "logs": [{"pod": tail.pod, "lines": tail.lines[-_LINES:]} for tail in tails],
        }
