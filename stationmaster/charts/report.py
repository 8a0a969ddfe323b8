"""The report of one run, or of two side by side, as one page that needs no network. Pure.

The page has the data and two scripts: plotly.min.js and `report.js`, which makes text, and never
markup, of what others wrote. It runs no other: their hashes are in its content security policy,
which also forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.comparing import differences, facts_of
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.results import ResultManifest
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run


class RunReport(Frozen):
    """Everything that was known of one run at a time."""

    made_at: datetime
    title: str
    machines: str
    run: Run
    cluster: Cluster | None
    points: tuple[ev.ProgressReported, ...]
    """Its steps in order, each once; of a very long run a random sample of them."""
    events: tuple[ev.RunEvent, ...]
    """All but the steps, oldest first."""
    cost_usd: float
    costs: tuple[tuple[datetime, float], ...]
    """The cost up to each time at which its price changed, oldest first."""
    paid: dict[str, float] = {}
    """The seconds of paid time by what they were spent on; empty where that is not known."""
    usd_per_million_tokens: float | None = None
    over_at: datetime | None = None
    """When its teardown had ended; None while there is one."""
    diagnosis: tuple[str, ...] = ()
    """Why it failed, the line that shows it, and what to do; empty without a failure."""
    manifest: ResultManifest | None = None
    no_manifest: str = ""
    """Why there is no manifest."""


def data_of(reports: Sequence[RunReport]) -> dict[str, Any]:
    """Return the data of the page, as JSON takes it."""
    facts = [facts_of(each.run.request, each.run.placement, each.manifest) for each in reports]
    differs = [(name, *values) for name, values in differences(facts)]
    return {"runs": [json.loads(each.model_dump_json()) for each in reports], "differs": differs}


def page(reports: Sequence[RunReport]) -> str:
    """Write the page.

    Raises:
        PermanentError: Plotly is not installed.
    """
    here = Path(__file__)
    plotly, draw = _plotly(), here.with_suffix(".js").read_text(encoding="utf-8")
    return Template(here.with_suffix(".html").read_text(encoding="utf-8")).substitute(
        hashes=f"'{_hash(plotly)}' '{_hash(draw)}'",
        # Nothing in it ends its element, or begins a comment.
        data=json.dumps(data_of(reports)).replace("<", "\\u003c"),
        plotly=plotly,
        draw=draw,
    )


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _plotly() -> str:
    """Read plotly.min.js of the installed wheel; nothing of it is imported."""
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise PermanentError(
            "a report needs the package plotly; run: pip install 'stationmaster[report]'"
        )
    folder = Path(found.submodule_search_locations[0])
    return (folder / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
