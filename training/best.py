"""The best checkpoint by evaluation: `best.json` beside the checkpoints names it for retention.

It is written, whole or not at all, when the checkpoint is complete and verified, and the best one
before it is removed only after that. So a process that is killed at any moment leaves the one or
the other.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from stationmaster.domain.checkpoints import Manifest
from stationmaster.domain.progress_lines import EvaluatedLine
from training.files import write_whole
from training.manifest import checkpoint_path, read_manifest, remove_old
from training.parallel import Ranks, sum_over_ranks

FILE: Final = "best.json"

logger = logging.getLogger(__name__)


def read_best(directory: Path) -> EvaluatedLine | None:
    """Read the evaluation of the best checkpoint; None where none is noted, or it is not there.

    Raises:
        OSError: the storage does not answer.
    """
    try:
        best = EvaluatedLine.model_validate_json((directory / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as exc:
        logger.warning("%s is not read, and the best one is looked for anew: %s", FILE, exc)
        return None
    found = read_manifest(checkpoint_path(directory, best.step))
    return best if isinstance(found, Manifest) else None


def write_best(directory: Path, best: EvaluatedLine, *, kept: int) -> None:
    """Note the best checkpoint, which is complete, and remove the one that was best before."""
    try:
        write_whole(directory / FILE, best.text() + "\n")
        remove_old(directory, kept=kept, best=best.step)
    except OSError as exc:
        logger.warning("step %d is not noted as the best one: %s", best.step, exc)


def is_better(evaluation: EvaluatedLine, best: EvaluatedLine | None, ranks: Ranks) -> bool:
    """Say, alike on every rank, whether an evaluation has a lower loss than the best one."""
    loss = evaluation.loss_nats
    mine = math.isfinite(loss) and (best is None or loss < best.loss_nats)
    return sum_over_ranks([float(mine)], ranks)[0] > 0
