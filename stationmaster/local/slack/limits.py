"""Slack's limits, one table with the source of each figure.

`blocks.py`, `views.py`, `rates.py` and the Web API methods read it. A figure that Slack documents
is quoted; one that it does not is marked as our reading. Nothing else here holds a limit.
"""

from __future__ import annotations

from dataclasses import dataclass

_BLOCKS = "https://docs.slack.dev/reference/block-kit/blocks"
_ELEMENTS = "https://docs.slack.dev/reference/block-kit/block-elements"
_OBJECTS = "https://docs.slack.dev/reference/block-kit/composition-objects"
_VIEWS = "https://docs.slack.dev/reference/views/modal-views"
_RATES = "https://docs.slack.dev/apis/web-api/rate-limits"
_POST = "https://docs.slack.dev/reference/methods/chat.postMessage"


@dataclass(frozen=True, slots=True)
class Limit:
    """A maximum and where it is written."""

    maximum: int
    source: str


BLOCKS_PER_MESSAGE = Limit(50, _BLOCKS)
BLOCKS_PER_VIEW = Limit(100, _BLOCKS)
BLOCK_ID = Limit(255, _BLOCKS)
SECTION_TEXT = Limit(3000, f"{_BLOCKS}/section-block")
SECTION_FIELDS = Limit(10, f"{_BLOCKS}/section-block")
SECTION_FIELD_TEXT = Limit(2000, f"{_BLOCKS}/section-block")
HEADER_TEXT = Limit(150, f"{_BLOCKS}/header-block")
CONTEXT_ELEMENTS = Limit(10, f"{_BLOCKS}/context-block")
CONTEXT_TEXT = Limit(3000, f"{_OBJECTS}/text-object")
ACTIONS_ELEMENTS = Limit(25, f"{_BLOCKS}/actions-block")
IMAGE_URL = Limit(3000, f"{_BLOCKS}/image-block")
IMAGE_ALT_TEXT = Limit(2000, f"{_BLOCKS}/image-block")
IMAGE_TITLE = Limit(2000, f"{_BLOCKS}/image-block")
INPUT_LABEL = Limit(2000, f"{_BLOCKS}/input-block")
INPUT_HINT = Limit(2000, f"{_BLOCKS}/input-block")
MARKDOWN_TEXT = Limit(12_000, f"{_BLOCKS}/markdown-block")

ACTION_ID = Limit(255, f"{_ELEMENTS}/button-element")
BUTTON_TEXT = Limit(75, f"{_ELEMENTS}/button-element")
BUTTON_VALUE = Limit(2000, f"{_ELEMENTS}/button-element")
BUTTON_URL = Limit(3000, f"{_ELEMENTS}/button-element")
ACCESSIBILITY_LABEL = Limit(75, f"{_ELEMENTS}/button-element")
PLACEHOLDER = Limit(150, f"{_ELEMENTS}/select-menu-element")
SELECT_OPTIONS = Limit(100, f"{_ELEMENTS}/select-menu-element")
OVERFLOW_OPTIONS = Limit(5, f"{_ELEMENTS}/overflow-menu-element")
CHOICE_OPTIONS = Limit(10, f"{_ELEMENTS}/checkboxes-element")
OPTION_TEXT = Limit(75, f"{_OBJECTS}/option-object")
OPTION_VALUE = Limit(150, f"{_OBJECTS}/option-object")
OPTION_DESCRIPTION = Limit(75, f"{_OBJECTS}/option-object")
CONFIRM_TITLE = Limit(100, f"{_OBJECTS}/confirmation-dialog-object")
CONFIRM_TEXT = Limit(300, f"{_OBJECTS}/confirmation-dialog-object")
CONFIRM_BUTTON = Limit(30, f"{_OBJECTS}/confirmation-dialog-object")

VIEW_TITLE = Limit(24, _VIEWS)
VIEW_BUTTON = Limit(24, _VIEWS)
VIEW_CALLBACK_ID = Limit(255, _VIEWS)
VIEW_PRIVATE_METADATA = Limit(3000, _VIEWS)

# Slack truncates a longer text; refusing it is stricter, so that no product message relies on the
# truncation.
MESSAGE_TEXT = Limit(40_000, f"{_POST}#truncating")
# Clients fold a longer text behind "Show more"; the recommendation is 4,000 characters.
MESSAGE_TEXT_SHOWN = Limit(4000, f"{_POST}#truncating")
# Not documented; the length at which Slack was reported to answer msg_blocks_too_long.
BLOCKS_TOTAL_TEXT = Limit(13_200, "https://github.com/slackapi/bolt-js/issues/2509")

ACK_S = Limit(3, "https://docs.slack.dev/interactivity/implementing-slash-commands")
TRIGGER_S = Limit(3, "https://docs.slack.dev/interactivity/handling-user-interaction")
RESPONSE_URL_USES = Limit(5, "https://docs.slack.dev/interactivity/handling-user-interaction")
RESPONSE_URL_S = Limit(30 * 60, "https://docs.slack.dev/interactivity/handling-user-interaction")
UPLOAD_BYTES = Limit(
    64 * 1024 * 1024, "ours: Slack takes 1 GB; this endpoint keeps files in memory"
)

# "Generally 1 message per second per channel, short bursts allowed". The size of a burst is not
# documented; 10 is our reading, small enough that a chatty notifier is caught.
POST_MESSAGE_PER_S = Limit(1, _RATES)
POST_MESSAGE_BURST = Limit(10, f"our reading of {_RATES}")

TIER_PER_MINUTE = {
    1: Limit(1, _RATES),
    2: Limit(20, _RATES),
    3: Limit(50, _RATES),
    4: Limit(100, _RATES),
}
"""Calls a minute of each tier, counted per method, app and workspace ("20+" is read as 20)."""

METHOD_TIER = {
    "chat.delete": 3,
    "chat.postEphemeral": 4,
    "chat.update": 3,
    "conversations.history": 3,
    "conversations.info": 3,
    "conversations.open": 3,
    "conversations.replies": 3,
    "files.completeUploadExternal": 4,
    "files.getUploadURLExternal": 4,
    "usergroups.users.list": 2,
    "users.info": 4,
    "views.open": 4,
    "views.update": 4,
}
"""The tier on each method's page; auth.test has far higher limits."""
