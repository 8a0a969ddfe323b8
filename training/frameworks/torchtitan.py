"""The model that torchtitan saves at its last step, by the names of transformers.

torchtitan writes it in Hugging Face's form: files of safetensors and their index. Source:
torchtitan 0.3.0, components/checkpointer/dcp.py, and the writer that it uses,
HuggingFaceStorageWriter of PyTorch.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from stationmaster.domain.errors import BadParameter

INDEX: Final = "model.safetensors.index.json"
_STEP: Final = re.compile(r"step-(\d+)")


def newest_model(directory: Path) -> tuple[int, Path]:
    """Find the step and the directory of the newest save that is a model.

    Raises:
        BadParameter: there is none; checkpoints that training resumes from have another form.
        OSError: the file system does not answer.
    """
    saves = (
        (_STEP.fullmatch(path.parent.name), path.parent) for path in directory.glob(f"*/{INDEX}")
    )
    found = [(int(name[1]), path) for name, path in saves if name is not None]
    if not found:
        raise BadParameter(
            f"{directory} has no step-N/{INDEX}: torchtitan writes it with its last step"
        )
    return max(found)


class TitanWeights:
    """The weights of one save."""

    def __init__(self, directory: Path) -> None:
        """Read the index.

        Raises:
            BadParameter: it is not an index of safetensors.
        """
        self._directory = directory
        path = directory / INDEX
        try:
            self._files = dict(json.loads(path.read_bytes())["weight_map"])
        except (ValueError, KeyError, TypeError) as exc:
            raise BadParameter(f"{path} is not an index of safetensors: {exc}") from exc

    def read(self, name: str) -> Tensor:
        """Read the weight of that name, as it is stored.

        Raises:
            BadParameter: it is not there, or the file is damaged.
        """
        file = self._files.get(name)
        if not isinstance(file, str) or Path(file).name != file:
            raise BadParameter(
                f"{self._directory} is a checkpoint of another model: it has no {name}"
            )
        path = self._directory / file
        try:
            with safe_open(path, framework="pt") as opened:
                return opened.get_tensor(name)
        except FileNotFoundError as exc:
            raise BadParameter(f"{self._directory} has no {file}, which its index names") from exc
        except SafetensorError as exc:
            raise BadParameter(f"{path} cannot be read: {exc}; it is damaged or cut off") from exc
