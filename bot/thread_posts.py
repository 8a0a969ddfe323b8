"""Posts into a card's thread, each thing at least once and, but for a crash of Slack's own, once.

Lines that can wait share a message; those that had to are read from the table again, from the time
that the delivery keeps. A claim comes before a message and its confirmation after it; a claim that
was never confirmed is looked up in the thread by the marks of its messages.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks.elements import Content, context, mentions_in, without_mentions
from bot.blocks.thread_lines import ThreadEvent
from bot.news import News, earlier_events
from bot.outbox import Mark, Outbox
from bot.pace import RESERVED, Pace
from bot.subjects import RunSubject, Subject
from stationmaster.aws.delivery_store import Delivery
from stationmaster.domain.errors import NoRoom, PermanentError
from stationmaster.domain.run.events import PhaseChanged
from stationmaster.domain.teams import in_team, split
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

# Lines share a message until this long after the last one; longer, the more live cards there are.
INTERVAL_S: Final = 10.0


class ThreadPosts:
    """Claims, posts and confirms; keys are of whatever must not be posted twice."""

    def __init__(self, services: Services, outbox: Outbox, pace: Pace) -> None:
        self._services = services
        self._outbox = outbox
        self._pace = pace

    def tell(self, news: News, delivery: Delivery, *, interval_s: float) -> Delivery:
        """Post the noteworthy events that were not posted yet, all of them in one message.

        Warnings have a message of their own, which is shown in the channel as well. Lines that can
        wait do so for the interval, and leave room to what cannot.

        Raises:
            NoRoom: what is pressing would have to wait too long.
        """
        subject, past = news.subject, self._past(news, delivery)
        known = {event.event_id for event in news.events}
        ends = [
            event
            for event in past
            if isinstance(event, PhaseChanged) and event.phase.is_terminal
            if event.event_id not in known
        ]
        events = [*news.events, *ends]  # its batch may be a dead letter
        noteworthy = [event for event in events if subject.is_noteworthy(event)]
        if not noteworthy and delivery.thread_since is None:
            return delivery
        # The receipt is the last line of a thread.
        is_last = is_receipt_due(subject, delivery)
        if is_last or any(subject.is_pressing(event) for event in noteworthy):
            self._pace.take_post(delivery.channel_id)
        elif not self._may_post(delivery, interval_s=interval_s):
            return self.hold_back(news, delivery)
        if delivery.thread_since is not None:
            earlier = earlier_events(self._services, subject, since=delivery.thread_since)
            noteworthy = [*filter(subject.is_noteworthy, earlier), *noteworthy]
        noteworthy = [*{event.event_id: event for event in noteworthy}.values()]
        of_key = {subject.claim_key(event): event for event in noteworthy}
        keys = self.unposted(delivery, of_key)
        for is_warning in (False, True):
            chosen = [key for key in keys if subject.is_warning(of_key[key]) is is_warning]
            said = [event for event in noteworthy if subject.claim_key(event) in chosen]
            message = subject.message(said, past=past)
            if message is not None:
                self.post(message, delivery, chosen, broadcast=is_warning)
        if not keys and delivery.thread_since is None:
            return delivery
        now = self._services.now()
        posted = delivery.model_copy(update={"thread_at": now, "thread_since": None})
        return self._services.deliveries.save(posted, now=now)

    def hold_back(self, news: News, delivery: Delivery) -> Delivery:
        """Remember from when on lines are still to be posted."""
        known = [delivery.thread_since] if delivery.thread_since is not None else []
        times = [event.at for event in news.events if news.subject.is_noteworthy(event)]
        since = min([*known, *times], default=None)
        if since == delivery.thread_since:
            return delivery
        held = delivery.model_copy(update={"thread_since": since})
        return self._services.deliveries.save(held, now=self._services.now())

    def post_receipt(self, news: News, delivery: Delivery) -> None:
        """Post what is posted at the end, in the channel as well: an edited card notifies nobody.

        Raises:
            NoRoom: it would have to wait too long.
        """
        subject, now = news.subject, self._services.now()
        self._pace.take_post(delivery.channel_id)
        keys = self.unposted(delivery, [f"receipt-{subject.teardown.value}"])
        if keys:
            self.post(subject.receipt(now=now), delivery, keys, broadcast=True)
        said = delivery.model_copy(update={"receipt_posted": subject.teardown})
        self._services.deliveries.save(said, now=now)

    def unposted(self, delivery: Delivery, keys: Iterable[str]) -> list[str]:
        """Claim `keys`; returns those that are not in the thread yet.

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
        """Post one message that says everything of `keys`, as those want it whom it mentions.

        Raises:
            NoRoom: a direct message would have to wait too long.
            TransientError, ChannelLost, PermanentError: as Outbox.post; the claims stay.
        """
        unwanted = []
        team = split(delivery.channel_id)[0]
        if mentioned := [in_team(team, each) for each in mentions_in(content)]:
            for user_id, notices in self._services.people.notices_of(mentioned).items():
                is_told = not notices.are_direct or self._post_directly(
                    content, delivery, [f"{key}/{user_id}" for key in keys], user_id
                )
                if is_told and not notices.are_mentions:
                    unwanted.append(user_id)
        self._post(without_mentions(content, unwanted), delivery, keys, broadcast=broadcast)

    def _post_directly(
        self, content: Content, delivery: Delivery, keys: Sequence[str], user_id: str
    ) -> bool:
        """Post it to one person as well; False where that is this conversation, or takes nothing.

        It comes before the thread, whose confirmation would end it.
        """
        try:
            direct = self._outbox.open_direct(user_id)
            if direct == delivery.channel_id:
                return False
            beside = delivery.model_copy(update={"channel_id": direct, "card_ts": None})
            if keys := self.unposted(beside, keys):
                self._pace.take_post(direct)
                about = f"{md.code(delivery.owner, 120)} in {md.channel(delivery.channel_id)}"
                said = without_mentions(content, [user_id])
                said.blocks.append(context(about))
                self._post(said, beside, keys)
        except PermanentError:
            logger.exception("no direct message", extra={"owner": delivery.owner})
            return False
        return True

    def _post(
        self, content: Content, delivery: Delivery, keys: Sequence[str], *, broadcast: bool = False
    ) -> None:
        self._outbox.post(
            content,
            channel=delivery.channel_id,
            thread_ts=delivery.card_ts,
            broadcast=broadcast,
            mark=Mark(delivery.owner, [_mark_key(key) for key in keys]),
        )
        self._services.deliveries.confirm(delivery.owner, keys, now=self._services.now())

    def _past(self, news: News, delivery: Delivery) -> list[ThreadEvent]:
        """Read what is recorded of a run that has ended, until its chart is posted."""
        if not isinstance(news.subject, RunSubject) or delivery.chart_posted:
            return []
        run = news.subject.view.run
        return [*self._services.runs.rare_events(run.run_id)] if run.phase.is_terminal else []

    def _may_post(self, delivery: Delivery, *, interval_s: float) -> bool:
        """Say whether lines that can wait no longer have to; takes the post."""
        now, every = self._services.now(), timedelta(seconds=max(INTERVAL_S, interval_s))
        if delivery.thread_at is not None and now - delivery.thread_at < every:
            return False
        try:
            self._pace.take_post(delivery.channel_id, reserve=RESERVED)
        except NoRoom:
            return False
        return True


def is_receipt_due(subject: Subject, delivery: Delivery) -> bool:
    """Say whether its receipt, or that of a later teardown, is still to be posted."""
    return not subject.is_live and delivery.receipt_posted is not subject.teardown


def _mark_key(key: str) -> str:
    """Shorten a key: a message may stand for a hundred events."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]
