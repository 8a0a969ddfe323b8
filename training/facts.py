"""What a result's manifest says of the trainer itself: versions, code, seed, data.

Rank 0 writes it once a start. The schema is the saver's, in `stationmaster.domain.results`.
"""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.results import TRAINER_FACTS_FILE, TrainerFacts
from training.files import write_whole

_LIBRARIES: Final = ("torch", "transformers", "tokenizers", "torchao", "stationmaster")
_PACKAGES: Final = ("training", "stationmaster/domain")


def write_facts(output_dir: Path, *, recipe: Recipe, data_identity: str) -> None:
    """Write facts.json to the output directory, over that of an earlier start."""
    facts = TrainerFacts(
        versions=_versions(),
        seed=recipe.training.seed,
        data=f"{recipe.training.dataset} ({data_identity})",
    )
    output_dir.mkdir(parents=True, exist_ok=True)
    write_whole(output_dir / TRAINER_FACTS_FILE, facts.model_dump_json(indent=1) + "\n")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "code": code_hash()}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue  # run from a checkout that is not installed
    return found


def code_hash(root: Path = Path(__file__).parents[1]) -> str:
    """Hash the sources of the trainer and of the domain: `sha256:` and 64 hex digits."""
    found = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(f"{path.relative_to(root).as_posix()}\0".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256:{found.hexdigest()}"
