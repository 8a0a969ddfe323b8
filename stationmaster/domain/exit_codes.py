"""The exit codes, besides 0, of programs that Jobs run: saver, stager and what prepares data."""

from __future__ import annotations

from typing import Final

EXIT_NOT_DONE: Final = 1
"""Not all could be done; another start continues."""
# After these two, another start would end in the same way.
EXIT_MISUNDERSTOOD: Final = 2
EXIT_REFUSED: Final = 3
