"""A checkpoint that another run has left, taken over as the first one of this run.

What was brought back to the file system is moved to the run's own checkpoints, before it looks for
any: from then on it is resumed from, kept and replaced as any of them, also after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from stationmaster.domain.catalogue.continuing import MAY_CHANGE
from stationmaster.domain.checkpoints import Manifest, Unusable
from stationmaster.domain.errors import BadParameter, PermanentError
from training.agreement import damage_of, from_rank_0
from training.files import sync
from training.manifest import (
    checkpoint_path,
    differences,
    has_manifest,
    numbered_steps,
    read_manifest,
    write_manifest,
)
from training.parallel import Ranks

logger = logging.getLogger(__name__)


def take_over(
    restored: Path, *, directory: Path, configuration: Mapping[str, str], ranks: Ranks
) -> None:
    """Move the checkpoint `restored` into `directory`, unless the run has checkpoints already.

    All ranks call it together, and read it whole before it is moved. It may be repeated after a
    kill at any point. `configuration` is this run's; the checkpoint's may differ in the keys that
    say how the learning rate continues, and takes this run's name for it.

    Raises:
        BadParameter: it was made with another configuration.
        PermanentError: there is no complete checkpoint, or it is damaged; nothing was moved.
        OSError: the storage does not answer.
    """
    manifest = from_rank_0(partial(_find, restored, directory, configuration), ranks)
    if manifest is None:
        return
    if damage := damage_of(restored, manifest, ranks, cached=True):
        raise _unusable(restored, damage)
    from_rank_0(partial(_move, restored, manifest, directory, configuration), ranks)


def _find(restored: Path, directory: Path, configuration: Mapping[str, str]) -> Manifest | None:
    """Find what is to be moved; None where the run has checkpoints."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(has_manifest(path) for path in numbered_steps(directory).values()):
        return None
    manifest = read_manifest(restored) if restored.is_dir() else None
    if not isinstance(manifest, Manifest):
        reason = manifest.reason if isinstance(manifest, Unusable) else "it is not there"
        raise _unusable(restored, reason)
    _check(manifest, configuration, restored=restored)
    return manifest


def _unusable(restored: Path, reason: str) -> PermanentError:
    return PermanentError(
        f"checkpoint {restored} cannot be resumed from: {reason}; bring it back again, or leave "
        "--resume-from out to start from scratch"
    )


def _move(
    restored: Path, manifest: Manifest, directory: Path, configuration: Mapping[str, str]
) -> None:
    for key in sorted(MAY_CHANGE):
        if manifest.configuration.get(key) != configuration.get(key):
            logger.info(
                "%s is %s from step %d on; the checkpoint was made with %s",
                key,
                configuration.get(key, "not given"),
                manifest.step + 1,
                manifest.configuration.get(key, "none"),
            )
    write_manifest(restored, manifest.model_copy(update={"configuration": dict(configuration)}))
    place = checkpoint_path(directory, manifest.step)
    restored.rename(place)
    sync(directory)
    logger.info("checkpoint of step %d was taken over from %s", manifest.step, restored)


def _check(manifest: Manifest, configuration: Mapping[str, str], *, restored: Path) -> None:
    theirs = {k: v for k, v in manifest.configuration.items() if k not in MAY_CHANGE}
    ours = {k: v for k, v in configuration.items() if k not in MAY_CHANGE}
    different = differences(theirs, ours)
    if different:
        raise BadParameter(
            f"checkpoint {restored} was made with another configuration: {'; '.join(different)}; "
            "give its values to continue it, or leave --resume-from out to start from scratch"
        )
