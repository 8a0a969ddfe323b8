"""How long a test waits for what is bound to come.

Generous, because the machine may be busy: every wait ends as soon as its condition holds. Short
enough that a hang or two still leave a run of the whole suite its time to say which tests failed.
"""

from __future__ import annotations

from typing import Final

# In seconds: ten minutes. On two cores the whole suite takes about fifteen.
PATIENCE_S: Final = 600.0
PATIENCE_MS: Final = PATIENCE_S * 1000
