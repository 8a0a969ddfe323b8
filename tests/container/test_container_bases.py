"""What images are built on."""

import re
from pathlib import Path

import pytest

from stationmaster.diagnosis.lint.versions import defects_of

DOCKERFILES = sorted((Path(__file__).parents[2] / "container").glob("*/Dockerfile"))
BASE = re.compile(r"^(?:ARG \w+=|FROM )([^\s$]+:\S+)", re.MULTILINE)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_image_is_built_on_versions_that_have_no_known_defect(dockerfile: Path) -> None:
    bases = BASE.findall(dockerfile.read_text())

    assert bases
    assert [defect for base in bases for defect in defects_of(base)] == []
