"""Words and figures as Slack shows them: escaped, shortened, with units.

Called by everything that builds blocks. Text that a person, a pod or AWS wrote goes through
`escape` or `code` exactly once.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from stationmaster.domain.identities import ARN, short_name
from stationmaster.domain.teams import split

# Symbols are written as escapes: sources are ASCII.
DONE: Final = "\u2713"  # check mark
CURRENT: Final = "\u25cf"  # black circle
COMING: Final = "\u25cb"  # white circle
FAILED: Final = "\u2717"  # ballot x
WARNING: Final = "\u26a0\ufe0f"  # warning sign, as an emoji
DOT: Final = "\u00b7"
ELLIPSIS: Final = "\u2026"
TIMES: Final = "\u00d7"
ARROW: Final = "\u2192"

_BAR_FULL: Final = "\u2588"
_BAR_WIDTH: Final = 24
_BAR_EMPTY: Final = "\u2591"
_SPARKS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
# Only where Slack would begin a format: before a word, with its like after it.
_FORMATTING: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:([*_~])(?=\S.*\1)|:(?=[+-]1:|[a-z0-9_-]*[a-z][a-z0-9_-]*:))", re.DOTALL
)
_LOOK_ALIKES: Final = {"*": "\u2217", "_": "\u02cd", "~": "\u223c", ":": "\u2236"}
_DATE: Final = re.compile(r"<!date\^(\d+)\^([^|>]+)\|([^>]*)>")
_SIGNS: Final = re.compile(r"`|(?<![A-Za-z0-9])[*_](?=\S)|(?<=\S)[*_](?![A-Za-z0-9])")
_QUOTE: Final = re.compile(r"^>+")
_USER_ID: Final = re.compile(r"[UW][A-Z0-9]{2,30}")
_CHANNEL_ID: Final = re.compile(r"[CDG][A-Z0-9]{2,30}")


def escape(text: str, limit: int = 600) -> str:
    """Make foreign text harmless in mrkdwn, on one line, at most `limit` characters when escaped.

    Slack has no escape for *, _, ~, back quotes, emoji and quotes, so what would begin one becomes
    a character that looks like it. Addresses stay plain words (`elements`, "verbatim").
    Source: https://docs.slack.dev/messaging/formatting-message-text#escaping
    """
    return with_code(text.replace("`", "'"), limit)


def with_code(text: str, limit: int) -> str:
    """Do the same to a sentence of our own rules, whose back quotes mark code."""
    line = printable(" ".join(text.split())).lstrip()
    unquoted = _QUOTE.sub("\u203a", line)
    return _entities(_FORMATTING.sub(lambda sign: _LOOK_ALIKES[sign[0]], unquoted), limit)


def printable(text: str) -> str:
    """Leave out NUL, what has no width, and what turns the direction of the text."""
    return "".join(char for char in text if char.isprintable())


def _entities(text: str, limit: int) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return cut(escaped, limit)


def cut(escaped: str, limit: int) -> str:
    """Shorten text that is escaped already, never inside an entity."""
    if len(escaped) <= limit:
        return escaped
    kept = escaped[: limit - 1]
    entity = kept.rfind("&")
    if entity > len(kept) - 5 and ";" not in kept[entity:]:
        kept = kept[:entity]
    return kept.rstrip() + ELLIPSIS


def code(text: str, limit: int = 200) -> str:
    """Write foreign text as inline code; back quotes, which cannot be escaped, are replaced."""
    return f"`{in_code(text, limit) or ' '}`"


def in_code(text: str, limit: int) -> str:
    """Make foreign text harmless between back quotes, where nothing is formatted."""
    return _entities(printable(" ".join(text.replace("`", "'").split())), limit)


def code_block(lines: Sequence[str], limit: int = 2_800, *, width: int = 240) -> str:
    """Write foreign lines as a code block: the newest that fit, each at most `width` characters."""
    kept: list[str] = []
    size = 0
    for line in reversed(lines):
        clean = printable(line.replace("\t", "    ").rstrip()).replace("```", "'''")
        shown = _entities(clean, width)
        if size + len(shown) + 1 > limit - 8:
            break
        kept.append(shown)
        size += len(shown) + 1
    return "```\n" + ("\n".join(reversed(kept)) or " ") + "\n```"


def rich(line: str) -> list[dict[str, object]]:
    """Return mrkdwn of ours as the elements of rich text: times, and words without formats."""
    plain = _SIGNS.sub("", line)
    texts, times = _DATE.split(plain)[::4], _DATE.findall(plain)
    elements: list[dict[str, object]] = [{"type": "text", "text": html.unescape(texts[0])}]
    for (at, form, said), text in zip(times, texts[1:], strict=True):
        date = {"type": "date", "timestamp": int(at), "format": form, "fallback": said}
        elements += [date, {"type": "text", "text": html.unescape(text)}]
    return [each for each in elements if each.get("text") != ""]


def user(user_id: str) -> str:
    """Mention a member, or name an identity of IAM; anything else is shown as plain text."""
    if user_id.startswith(ARN):
        return code(short_name(user_id), 80)
    user_id = split(user_id)[1]
    return f"<@{user_id}>" if _USER_ID.fullmatch(user_id) else escape(user_id, 60)


def channel(channel_id: str) -> str:
    """Link a channel; anything that is no channel id is shown as plain text."""
    channel_id = split(channel_id)[1]
    return f"<#{channel_id}>" if _CHANNEL_ID.fullmatch(channel_id) else escape(channel_id, 60)


def link(address: str, text: str) -> str:
    """Link an address, which is never shortened, and show `text`."""
    escaped = address.replace("&", "&amp;").replace("<", "%3C").replace(">", "%3E")
    return f"<{escaped.replace('|', '%7C')}|{escape(text.replace('|', '/'), 200)}>"


def ago(at: datetime) -> str:
    """Say how long ago, e.g. "3 minutes ago", counted by the reader's own client.

    Source: date formatting in https://docs.slack.dev/messaging/formatting-message-text
    """
    return _date(at, "{ago}")


def clock(at: datetime) -> str:
    """Write a time of day to the second, in the reader's time zone."""
    return _date(at, "{time_secs}")


def when(at: datetime) -> str:
    """Write a day and a time of day, e.g. "today at 14:05", in the reader's time zone."""
    shown = f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return f"<!date^{int(at.timestamp())}^{{date_short_pretty}} at {{time}}|{shown}>"


def _date(at: datetime, token: str) -> str:
    return f"<!date^{int(at.timestamp())}^{token}|at {at.astimezone(UTC):%H:%M:%S} UTC>"


def money(usd: float) -> str:
    """Write dollars with as many digits as matter: $0.004, $0.31, $1,284."""
    if usd >= 1_000:
        return f"${usd:,.0f}"
    if 0 < usd < 0.1:
        return f"${usd:.3f}" if usd >= 0.0005 else "<$0.001"
    return f"${usd:,.2f}"


def money_escaped(usd: float) -> str:
    """Write `money` for mrkdwn, where < is a control character."""
    return money(usd).replace("<", "&lt;")


def duration(span: timedelta | float) -> str:
    """Write a span in two units at most: 8s, 2m 10s, 3h 05m, 2d 4h."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if not math.isfinite(seconds):
        return "unknown"
    total = max(0, round(seconds))
    if total < 60:
        return f"{total}s"
    if total < 3_600:
        return f"{total // 60}m {total % 60:02d}s"
    if total < 86_400:
        return f"{total // 3_600}h {total % 3_600 // 60:02d}m"
    return f"{total // 86_400:,}d {total % 86_400 // 3_600}h"


def count(value: float) -> str:
    """Write a large count in three digits: 842, 12.4 K, 6.74 B."""
    for bound, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= bound:
            return f"{value / bound:.3g} {unit}"
    return f"{value:.0f}"


def loss(value: float | None) -> str:
    """Write a loss in nats; None and nan are "not finite"."""
    if value is None or not math.isfinite(value):
        return "not finite"
    return f"{value:.3g}" if abs(value) >= 1_000 else f"{value:.3f}"


def progress_bar(fraction: float) -> str:
    """Draw a bar; it is full only at the very end."""
    full = int(min(1.0, max(0.0, fraction)) * _BAR_WIDTH)
    return _BAR_FULL * full + _BAR_EMPTY * (_BAR_WIDTH - full)


def sparkline(values: Sequence[float], *, width: int = 24) -> str:
    """Draw the shape of a series in at most `width` characters, each the mean of its share."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    columns = min(width, len(finite))
    means = []
    for column in range(columns):
        start = column * len(finite) // columns
        share = finite[start : max(start + 1, (column + 1) * len(finite) // columns)]
        means.append(math.fsum(value / len(share) for value in share))
    low, high = min(means), max(means)
    if high == low:
        return _SPARKS[3] * columns
    top = len(_SPARKS) - 1
    # Halved before subtracting, so that the span of two huge losses cannot overflow.
    span = high / 2 - low / 2
    return "".join(_SPARKS[round((mean / 2 - low / 2) / span * top)] for mean in means)
