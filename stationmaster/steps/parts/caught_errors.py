"""What Step Functions caught, as the conclusions of the workflows get it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from stationmaster.domain.reactions.workflow import Caught


def parse_caught(error: Mapping[str, str] | None) -> Caught | None:
    """Parse the error that ended a workflow; None after success."""
    if error is None:
        return None
    return Caught(error.get("Error", ""), sentence_of(error.get("Cause", "")))


def sentence_of(cause: str) -> str:
    """Read the sentence in a Cause: Lambda puts JSON there, SendTaskFailure plain text.

    A workflow that fails puts there all that it caught, of which a timeout has no Cause.
    """
    try:
        parsed = json.loads(cause)
    except ValueError:
        return cause
    if isinstance(parsed, dict) and "Error" in parsed:
        return sentence_of(parsed.get("Cause") or parsed["Error"])
    if isinstance(parsed, dict):
        return str(parsed.get("errorMessage", cause))
    return cause
