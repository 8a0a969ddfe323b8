"""The ids of what lives on its own, each of a type of its own.

All are text, and a cluster that one run caused has the id of that run. So the type checker has to
keep them apart: a run's id where a cluster's is meant works until two runs share a cluster.
"""

from __future__ import annotations

from typing import NewType

RunId = NewType("RunId", str)
ClusterId = NewType("ClusterId", str)
# A run's attempts are counted from 1; the id is unique among those of all runs.
AttemptId = NewType("AttemptId", str)
# Equal for every delivery of the same fact.
EventId = NewType("EventId", str)
