"""The linter of manifests: text in, findings out. Start reading in `linting.py`.

Its rules are the product's own data: rendering sets what the environment policy wants, the local
cluster refuses by the same rules. There is no schema of every field: the API server has one.
"""

from stationmaster.diagnosis.lint.linting import Finding, Linted, lint

__all__ = ["Finding", "Linted", "lint"]
