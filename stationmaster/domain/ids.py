"""A type for each kind of id.

All are text, and a cluster that a run caused has that run's id. So the type checker keeps them
apart: a run's id in place of a cluster's works until two runs share a cluster.
"""

from __future__ import annotations

from typing import NewType

RunId = NewType("RunId", str)
ClusterId = NewType("ClusterId", str)
# A run's attempts are counted from 1; the id is unique among those of all runs.
AttemptId = NewType("AttemptId", str)
# Equal for every delivery of the same fact.
EventId = NewType("EventId", str)
