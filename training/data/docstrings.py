"""The data set `python-docstrings`: what the standard library says about itself, as instructions.

It is real text that every machine has, to try fine-tuning without a network: "What does
shutil.copytree do?" and the first paragraph of its docstring. It depends on the version of Python
alone.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

NAME: Final = "python-docstrings"
_PAIRS: Final = 2000
_LONGEST_ANSWER: Final = 600  # characters; longer first paragraphs are tables and manuals
# Besides the modules that are one file; 0.8 s to parse on one core.
_PACKAGES: Final = ("asyncio", "email", "http", "json", "logging", "urllib")


def identity() -> str:
    """Name the contents without reading them: the version of Python."""
    return f"{NAME} {_PAIRS} {sys.version}"


@cache
def docstring_pairs() -> tuple[tuple[str, str], ...]:
    """List questions and answers, at most 2,000, in an order that mixes modules."""
    found = dict(_all_pairs())
    names = sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())
    return tuple((f"What does {name} do?", found[name]) for name in names[:_PAIRS])


def _all_pairs() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(root.glob("[a-z]*.py"))
    for package in _PACKAGES:
        files += sorted((root / package).rglob("*.py"))
    for file in files:
        parts = file.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if any(part.startswith("_") or part == "test" for part in parts):
            continue
        tree = ast.parse(file.read_bytes())
        yield from _documented(tree, ".".join(parts))


def _documented(node: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, str]]:
    for child in node.body:
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if child.name.startswith("_"):
            continue
        qualified = f"{name}.{child.name}"
        docstring = ast.get_docstring(child) or ""
        answer = " ".join(docstring.partition("\n\n")[0].split())
        if 20 <= len(answer) <= _LONGEST_ANSWER:
            yield qualified, answer
        if isinstance(child, ast.ClassDef):
            yield from _documented(child, qualified)
