"""The settings of the clients of AWS, apart from `calls`: a cold start does without botocore's."""

from __future__ import annotations

from typing import Final

from botocore.config import Config

# Three tries inside the call; the state machine waits and tries again after that.
CONFIG: Final = Config(
    retries={"mode": "standard", "max_attempts": 3}, connect_timeout=5, read_timeout=20
)
# For questions while a person waits: Slack gives the bot 3 s for the whole answer.
QUICK: Final = Config(connect_timeout=0.5, read_timeout=1, retries={"total_max_attempts": 1})
