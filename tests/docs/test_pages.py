"""The pages refer to what exists: links, decisions, and the files that the architecture names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = ROOT / "docs" / "decisions"
RECORDS = sorted(path.name for path in DECISIONS.glob("0*.md"))
# Where the architecture's short paths begin.
FOLDERS = ("", "stationmaster")


def _tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}


@pytest.mark.parametrize("page", _tracked("*.md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(\s*(?!https?:)([^)\s#]*)(?:#([^)\s]+))?\s*\)", page.read_text())
    targets = [(page.parent / path if path else page, anchor) for path, anchor in links]

    missing = [str(target) for target, _ in targets if not target.exists()]
    unknown = [
        f"{target.name}#{anchor}"
        for target, anchor in targets
        if anchor and target.suffix == ".md" and target.exists() and anchor not in _anchors(target)
    ]

    assert (missing, unknown) == ([], [])


def test_named_decisions_exist() -> None:
    named = {
        (str(path.relative_to(ROOT)), number)
        for path in _tracked("*.py", "*.md", "*.sh", "*.yaml", "container/*Dockerfile")
        for number in re.findall(r"\bdecisions?[ /](0\d{3})", path.read_text())
    }
    known = {name[:4] for name in RECORDS}

    assert [each for each in sorted(named) if each[1] not in known] == []


def test_index_lists_each_decision_once() -> None:
    listed = re.findall(r"\((\d{4}[^)]+\.md)\)", (DECISIONS / "README.md").read_text())

    assert sorted(listed) == RECORDS


@pytest.mark.parametrize("name", RECORDS)
def test_decision_has_the_common_form(name: str) -> None:
    headings = re.findall(r"^#+ (.+)$", (DECISIONS / name).read_text(), flags=re.M)

    assert headings[0].startswith(f"{name[:4]} ")
    assert headings[1:] == ["Context", "Choice", "Consequence", "Status"]


def test_architecture_names_files_that_exist() -> None:
    pages = [ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "architecture").glob("*.md")]
    missing = {
        (page.name, path)
        for page in pages
        for path in re.findall(r"`([a-z_]+/[a-z_/]+\.[a-z]+)`", page.read_text())
        if not any((ROOT / folder / path).exists() for folder in FOLDERS)
    }

    assert missing == set()
