"""Which class each validation image of ImageNet is of, from any of the files that say it.

Called by `training.data.imagenet_source`. This module must not import torch.
"""

from __future__ import annotations

import csv
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from stationmaster.domain.errors import BadParameter
from training.data.mat_file import read_structs

_LABELS: Final = "imagenet_2012_validation_synset_labels.txt"
_SOLUTION: Final = "LOC_val_solution.csv"
MAPPINGS: Final = (_LABELS, _SOLUTION)
_KIT: Final = "ILSVRC2012_devkit_t12.tar.gz"
LABEL_FILES: Final = (*MAPPINGS, _KIT)
_KIT_CLASSES: Final = "ILSVRC2012_devkit_t12/data/meta.mat"
_KIT_TRUTH: Final = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


def read_labels(by_name: Mapping[str, Path]) -> dict[str, str]:
    """The class of each validation image by the name of its file, from whichever file has it.

    Raises:
        BadParameter: there is none, or it is not understood.
    """
    found = next((by_name[name] for name in MAPPINGS if name in by_name), None)
    try:
        if found is not None and found.name == _LABELS:
            return _numbered(found.read_text("utf-8").split())
        if found is not None:
            with found.open(newline="", encoding="utf-8") as rows:
                return {
                    f"{row['ImageId']}.JPEG": row["PredictionString"].split()[0]
                    for row in csv.DictReader(rows)
                }
    except (KeyError, IndexError, AttributeError, UnicodeDecodeError, csv.Error) as exc:
        raise BadParameter(
            f"{found} does not say which class each validation image is of ({exc!r}); upload it "
            "again"
        ) from exc
    if _KIT in by_name:
        return _labels_of_kit(by_name[_KIT])
    raise BadParameter(
        "validation images are there, and nothing that says which class each is of; "
        f"put {_KIT}, {_LABELS} or {_SOLUTION} beside it"
    )


def _labels_of_kit(path: Path) -> dict[str, str]:
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            read = {}
            for name in (_KIT_CLASSES, _KIT_TRUTH):
                content = archive.extractfile(name)
                assert content is not None
                read[name] = content.read()
    except (tarfile.TarError, KeyError, OSError, EOFError) as exc:
        raise BadParameter(f"{path} is damaged: {exc}; upload it again") from exc
    classes: dict[int, str] = {}
    for row in read_structs(read[_KIT_CLASSES]):
        number, wnid = row.get("ILSVRC2012_ID"), row.get("WNID")
        if isinstance(number, tuple) and number and isinstance(wnid, str):
            classes[int(number[0])] = wnid
    truth = [int(word) for word in read[_KIT_TRUTH].split()]
    unknown = next((each for each in truth if each not in classes), None)
    if unknown is not None:
        raise BadParameter(f"{path} has no class of the number {unknown}; upload it again")
    return _numbered(classes[each] for each in truth)


def _numbered(classes: Iterable[str]) -> dict[str, str]:
    return {
        f"ILSVRC2012_val_{number:08d}.JPEG": name for number, name in enumerate(classes, start=1)
    }
