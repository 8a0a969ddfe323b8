"""What the end-to-end tests need of the machine."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's path; the test is skipped where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        path = shutil.which(name)
        if path:
            return path
    pytest.skip("needs Chromium on PATH (Debian: apt-get install chromium)")
