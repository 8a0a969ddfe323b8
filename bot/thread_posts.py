"""Posts into a card's thread, each thing at least once and, but for a crash of Slack's own, once.

The notifier asks `unposted` what is still to be said and hands the message to `post`. A claim comes
before the message and its confirmation after it; a claim that was never confirmed is looked up in
the thread itself, where the marks of the messages say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from bot.blocks.elements import Content
from bot.outbox import Mark, Outbox
from stationmaster.aws.delivery_store import Delivery
from stationmaster.services import Services


class ThreadPosts:
    """Claims, posts and confirms; keys are of whatever must not be posted twice."""

    def __init__(self, services: Services, outbox: Outbox) -> None:
        self._services = services
        self._outbox = outbox

    def unposted(self, delivery: Delivery, keys: Iterable[str]) -> list[str]:
        """Claim `keys`; those that are not in the thread yet are returned.

        Raises:
            TransientError: it cannot be known now.
        """
        now, deliveries = self._services.now(), self._services.deliveries
        claims = deliveries.claim(delivery.owner, keys, now=now)
        earlier = [since for since in claims.values() if since is not None]
        if not earlier:
            return [*claims]
        found = self._outbox.find(
            delivery.owner,
            channel=delivery.channel_id,
            thread_ts=delivery.card_ts,
            since=min(earlier),
        )
        posted = [key for key in claims if _mark_key(key) in found]
        deliveries.confirm(delivery.owner, posted, now=now)
        return [key for key in claims if key not in posted]

    def post(
        self, content: Content, delivery: Delivery, keys: Sequence[str], *, broadcast: bool = False
    ) -> None:
        """Post one message that says everything of `keys`.

        Raises:
            TransientError, ChannelLost, PermanentError: as Outbox.post; the claims stay.
        """
        self._outbox.post(
            content,
            channel=delivery.channel_id,
            thread_ts=delivery.card_ts,
            broadcast=broadcast,
            mark=Mark(delivery.owner, [_mark_key(key) for key in keys]),
        )
        self._services.deliveries.confirm(delivery.owner, keys, now=self._services.now())


def _mark_key(key: str) -> str:
    """Short, because a message may stand for a hundred events."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]
