"""Which checkpoint a run continues from: the newest that is whole, or a clear sentence why none is.

Rank 0 decides for all ranks. Nothing that has a manifest is deleted here, or skipped in silence: a
bad file cannot be told from a bad reader.

    damaged         stays where it is, with a warning; the one before is looked at. It is renamed
                    when training reaches its step again
    unknown form    the run stops: another version of the trainer wrote it, and it may be whole
    storage fails   tried again within 44 s, then the run stops; it says nothing about the files
    none is left    the run stops, rather than starting over beside the ruins

A checkpoint that another run has left is moved to the run's own before it looks for any: from then
on it is resumed from, kept and replaced as any of them, also after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from stationmaster.domain.catalogue.continuing import MAY_CHANGE
from stationmaster.domain.checkpoints import Manifest, Unusable
from stationmaster.domain.errors import BadParameter, PermanentError
from training.agreement import damage_of, from_rank_0
from training.files import sync
from training.manifest import (
    again,
    checkpoint_path,
    differences,
    has_manifest,
    nearest_relative,
    numbered_steps,
    read_manifest,
    remove_incomplete,
    set_aside,
    write_manifest,
)
from training.parallel import Ranks

logger = logging.getLogger(__name__)

_WAY_OUT: Final = "give another --output-dir to start from scratch"


class ResumeSearch:
    """Goes through the checkpoints of one directory, newest first."""

    def __init__(self, directory: Path, *, configuration: Mapping[str, str]) -> None:
        self._directory = directory
        self._configuration = configuration
        self.damaged: dict[int, str] = {}
        """The steps that were skipped, and why."""

    def find(self) -> Manifest | None:
        """Find the newest complete checkpoint that is not known to be damaged; None without any.

        Raises:
            BadParameter: it was made with another configuration.
            PermanentError: it is of an unknown form, or there are checkpoints and all are damaged.
            OSError: the storage does not answer.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        steps = again(lambda: numbered_steps(self._directory))
        for step in sorted(steps.keys() - self.damaged.keys(), reverse=True):
            manifest = self._read(steps[step])
            if isinstance(manifest, Manifest):
                self._check(manifest)
                return manifest
            if manifest is not None:
                self._note(step, manifest.reason)
        if self.damaged:
            raise PermanentError(
                f"no checkpoint in {self._directory} can be read ({self.describe()}); nothing was "
                f"deleted and training did not start over: restore the files, or {_WAY_OUT}"
            )
        self._warn_of_relatives()
        return None

    def skip(self, step: int, reason: str) -> Manifest | None:
        """Continue with the one before a damaged checkpoint; raises as `find` does."""
        self._note(step, reason)
        return self.find()

    def settle(self, found: Manifest | None) -> None:
        """Remove what was never finished, and note that a checkpoint was read well."""
        try:
            remove_incomplete(self._directory)
            if found is not None and not found.verified:
                path = checkpoint_path(self._directory, found.step)
                write_manifest(path, found.model_copy(update={"verified": True}))
        except OSError as exc:
            # Training can continue without; the next save will say what is wrong with the storage.
            logger.warning("%s could not be tidied up: %s", self._directory, exc)

    def make_way(self, step: int) -> None:
        """Rename a checkpoint that was skipped, when its step is saved again."""
        path = checkpoint_path(self._directory, step)
        if has_manifest(path):
            logger.warning("checkpoint %s is in the way, and now %s", path, set_aside(path))
        self.damaged.pop(step, None)

    def describe(self) -> str:
        """Say what was skipped and why, "" for nothing."""
        return "; ".join(
            f"step {step}: {self.damaged[step]}" for step in sorted(self.damaged, reverse=True)
        )

    def _read(self, path: Path) -> Manifest | Unusable | None:
        manifest = again(lambda: read_manifest(path))
        if isinstance(manifest, Unusable) and manifest.is_foreign:
            raise PermanentError(
                f"checkpoint {path} was not written by this version of the trainer: "
                f"{manifest.reason}; continue with the version that wrote it, or {_WAY_OUT}"
            )
        return manifest

    def _check(self, manifest: Manifest) -> None:
        different = differences(manifest.configuration, self._configuration)
        if not different:
            return
        why = ""
        if manifest.configuration.get("steps") != self._configuration.get("steps"):
            schedule = self._configuration.get("schedule")
            why = f" (schedule={schedule} falls to the last step: other steps are other rates)"
        path = checkpoint_path(self._directory, manifest.step)
        raise _other(path, different, why, "another --output-dir")

    def _note(self, step: int, reason: str) -> None:
        self.damaged[step] = reason
        logger.warning("checkpoint of step %d is passed over, and left as it is: %s", step, reason)

    def _warn_of_relatives(self) -> None:
        try:
            relative = nearest_relative(self._directory, self._configuration)
        except OSError as exc:
            logger.warning("other runs in %s cannot be read: %s", self._directory.parent, exc)
            return
        if relative:
            path, different = relative
            logger.warning(
                "training starts from scratch: %s was made with another configuration: %s",
                path,
                "; ".join(different) or "the same under another name",
            )


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
    different = differences(manifest.configuration, configuration, but=MAY_CHANGE)
    if different:
        raise _other(restored, different, "", "leave --resume-from out")


def _other(path: Path, different: list[str], why: str, way_out: str) -> BadParameter:
    return BadParameter(
        f"checkpoint {path} was made with another configuration: {'; '.join(different)}{why}; "
        f"give its values to continue it, or {way_out} to start from scratch"
    )
