"""The linter of manifests: text in, findings out. Start reading in `linting.py`."""

from stationmaster.diagnosis.lint.linting import Finding, Linted, lint

__all__ = ["Finding", "Linted", "lint"]
