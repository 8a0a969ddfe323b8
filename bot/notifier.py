"""Posts what happened: one live card a run and a kept cluster, a thread below it, a receipt.

`notifier_handler` calls it with batches of the table's stream. It reads runs and clusters, never
writes them; what was posted is remembered beside them, so a batch may be delivered again, whole or
in part. Everything is claimed, posted and confirmed, in this order: after a crash between the last
two, the message is looked for in Slack before it is posted once more.

Slack takes about 50 edits a minute for all cards together, and a post a second in each channel. So
progress is coalesced, lines of a thread share messages, and each run or cluster has its turn: ends
first, then whose card was drawn longest ago. No batch waits for long, because others wait behind
it: what finds no room is held back and comes with a batch that the notifier causes itself, or with
the next refresh.

Where a channel takes no posts any more, its runs and clusters are followed in the direct
conversation with the person who asked for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from bot.announcement import CARD_KEY
from bot.blocks.elements import Content
from bot.news import News, NewsReader, reread
from bot.operations import post_budgets, post_orphans, post_what_was_set_aside
from bot.outbox import Mark, Outbox
from bot.pace import RESERVED, Pace
from bot.stream import StreamBatch, keep_records_of, keep_unread
from bot.subjects import RunSubject, Subject
from bot.thread_posts import ThreadPosts, is_receipt_due
from bot.uploads import post_log_files, post_loss_chart, post_pictures, post_study, read_curve
from stationmaster.aws.delivery_store import Delivery, Owner
from stationmaster.domain.errors import (
    ChannelLost,
    NoRoom,
    PermanentError,
    TransientError,
)
from stationmaster.domain.names import NOBODY_REACHED
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import CardMissing, MonthSpent
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.invocations import about
from stationmaster.services import Services
from stationmaster.steps.parts.records import change_phases

logger = logging.getLogger(f"stationmaster.{__name__}")

# A card is edited at most this often; progress less often, the more cards share the budget.
MIN_INTERVAL_S: Final = 1.5
# A refresh leaves a card alone that was edited less than this ago.
REFRESH_AFTER_S: Final = 10.0
# What is torn down is looked at for a day.
_RECENTLY: Final = timedelta(days=1)
# How long one batch may wait for budgets in all; one of many records has others behind it.
_PATIENCE_S: Final = 3.0
_CROWDED: Final = 50
# A batch looks at no more than this many of those that were held back.
_MOST_HELD: Final = 100


class Notifier:
    """Projects runs and kept clusters into Slack; kept while the function is warm."""

    def __init__(
        self,
        services: Services,
        outbox: Outbox,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._services = services
        self._outbox = outbox
        self._pace = Pace(services, sleep=sleep)
        self._thread = ThreadPosts(services, outbox, self._pace)
        # What was skipped or held back; looked at again with the next batch.
        self._stale: dict[Owner, Subject] = {}
        self._interval_s = MIN_INTERVAL_S
        # What was over and had everything posted: nothing of it can become due any more.
        self._settled: set[Owner] = set()

    def notify(self, batch: StreamBatch) -> int:
        """Post everything that a batch brings; what is urgent comes first.

        What cannot be read, and what breaks while it is posted, becomes a dead letter.

        Returns:
            The number of dead letters.

        Raises:
            TransientError: something could not be posted; the same batch is to be delivered again.
        """
        is_crowded = sum(map(len, batch.records.values())) >= _CROWDED
        reader = NewsReader(self._services)
        # Ends first, then what was held back longest ago.
        also = sorted(self._stale.values(), key=lambda each: not each.has_ended)[:_MOST_HELD]
        news = reader.of_batch(batch, also=also)
        for subject in also:  # what still has to wait is put behind the others
            del self._stale[subject.owner]
        unusable = reader.unreadable
        unusable |= self._tell_all(news, patience_s=0.0 if is_crowded else _PATIENCE_S)
        num_kept = keep_unread(self._services, batch)
        for key, reason in unusable.items():
            num_kept += keep_records_of(self._services, batch, key, reason=reason)
        post_what_was_set_aside(self._services, self._outbox, batch.set_aside)
        post_orphans(self._services, self._outbox, batch.orphans)
        post_log_files(self._services, self._outbox, self._pace, batch.logs)
        post_pictures(self._services, self._outbox, self._pace, batch.pictures)
        return num_kept

    def refresh(self, reached: Sequence[MonthSpent] = ()) -> None:
        """Draw the cards of what is live anew, the oldest first, so that they visibly live.

        What a batch could not post while Slack was away is posted now, or with the next refresh;
        `reached` is said in its channel unless it was.
        """
        found = NewsReader(self._services).live_and_recent(settled=self._settled)
        due = [one for one in found if self._is_due(one)]
        over = {one.subject.owner for one in found if not one.subject.is_live}
        self._settled |= over - {one.subject.owner for one in due}
        try:
            self._tell_all(due, patience_s=_PATIENCE_S)
            post_budgets(self._services, self._outbox, reached)
        except TransientError as exc:
            logger.warning("refresh is not complete", extra={"reason": str(exc)})

    def _is_due(self, news: News) -> bool:
        ended_at = news.subject.is_over_since
        if ended_at is not None and self._services.now() - ended_at >= _RECENTLY:
            return False
        is_behind = news.delivery.thread_since is not None
        if news.is_urgent or is_behind or is_receipt_due(news.subject, news.delivery):
            return True
        return news.subject.is_live and self._remaining_s(news, REFRESH_AFTER_S) <= 0

    def _tell_all(self, news: Sequence[News], *, patience_s: float) -> dict[str, str]:
        """Post all in their order; returns what broke, by its key in the table, and why."""
        if not news:
            return {}
        self._interval_s = self._current_interval_s()
        self._pace.begin(patience_s=patience_s)
        since = self._interval_ago
        failures: list[TransientError] = []
        broken: dict[str, str] = {}
        holds_back = False
        for one in sorted(news, key=lambda each: each.order(since=since)):
            with about("tell", one.subject.ids):
                try:
                    if self._pace.is_late and one.can_wait:
                        self._thread.hold_back(one, one.delivery)
                        self._stale[one.subject.owner] = one.subject
                        holds_back = True
                        continue
                    self._tell(one)
                except NoRoom:
                    written = self._services.deliveries.load(one.subject.owner)
                    self._thread.hold_back(one, written)
                    self._stale[one.subject.owner] = one.subject
                    holds_back = True
                except TransientError as exc:
                    failures.append(exc)
                except ChannelLost:
                    # The state stays true, and its next change tries again.
                    logger.exception(NOBODY_REACHED, extra={"owner": one.subject.owner})
                except PermanentError:
                    # Slack will not take it the next time either, and others wait behind it.
                    logger.exception("it cannot be posted", extra={"owner": one.subject.owner})
                except Exception as exc:
                    # A bug of ours, at this boundary: another try would break as well, and for an
                    # hour nothing behind it would be posted.
                    logger.exception("posting broke", extra={"owner": one.subject.owner})
                    broken[one.subject.key] = f"{type(exc).__name__}: {exc}"
        if holds_back:
            self._services.deliveries.bring_batch(self._services.now())
        if failures:
            raise TransientError(
                f"{len(failures)} of {len(news)} cards could not be posted: {failures[0]}"
            ) from failures[0]
        return broken

    def _current_interval_s(self) -> float:
        live = len(self._services.runs.list_open())
        live += sum(each.is_kept for each in self._services.cluster_states.list_open())
        return max(MIN_INTERVAL_S, 1.5 * live)

    def _tell(self, news: News) -> None:
        try:
            self._tell_channel(news)
        except ChannelLost as exc:
            delivery = self._services.deliveries.load(news.subject.owner)
            if delivery.lost_channel_id:
                raise  # the direct conversation takes nothing either
            subject = self._take_back_start(news.subject, refusal=str(exc))
            moved = self._move_to_requester(subject, delivery, lost=exc)
            news = replace(news, subject=subject, delivery=moved)
            self._tell_channel(news)

    def _tell_channel(self, news: News) -> None:
        subject, delivery = news.subject, news.delivery
        if delivery.card_ts is None:
            subject = self._take_back_start(subject)
            delivery = self._place_card(subject, delivery)
            news = replace(news, subject=subject)
        run = subject.view.run if isinstance(subject, RunSubject) else None
        if run is not None and run.awaits_card and run.phase is RunPhase.REQUESTED:
            self._services.workflows.start_train(run.run_id)
        if news.delivery.card_ts is not None or not delivery.card_digest:
            delivery = self._refresh_card(replace(news, delivery=delivery))
        delivery = self._thread.tell(news, delivery, interval_s=self._interval_s)
        if delivery.thread_since is not None:
            self._stale[subject.owner] = subject
        if run is not None and run.phase.is_terminal and not delivery.chart_posted:
            delivery = self._post_chart(run, delivery)
        if is_receipt_due(subject, delivery):
            if run is not None and run.request.study and run.phase.is_terminal:
                post_study(self._services, self._outbox, self._pace, run, delivery.channel_id)
            self._thread.post_receipt(news, delivery)

    def _take_back_start(self, subject: Subject, *, refusal: str = "") -> Subject:
        """End a run that awaits its card, where that is refused or a minute late."""
        if not (isinstance(subject, RunSubject) and subject.view.run.awaits_card):
            return subject
        missing = CardMissing(self._services.now(), refusal)
        change_phases(self._services, subject.view.run, decide(subject.view.run, missing, POLICY))
        return reread(self._services, subject)

    def _move_to_requester(
        self, subject: Subject, delivery: Delivery, *, lost: ChannelLost
    ) -> Delivery:
        """Continue in the requester's direct conversation, where a new card says why.

        Raises:
            ChannelLost: that person cannot be reached.
        """
        direct = self._outbox.open_direct(subject.user_id)
        left = delivery.channel_id or subject.channel_id
        logger.error(
            "channel is lost", extra={"owner": subject.owner, "channel": left, "code": lost.code}
        )
        moved = delivery.model_copy(
            update={
                "channel_id": direct,
                "card_ts": None,
                "card_claimed_at": None,
                "card_milestone": "",
                "lost_channel_id": left,
                "lost_code": lost.code,
            }
        )
        return self._save(moved)

    def _card(self, subject: Subject, delivery: Delivery) -> Content:
        moved_from = (delivery.lost_channel_id, delivery.lost_code)
        return subject.card(
            now=self._services.now(),
            moved_from=moved_from if delivery.lost_channel_id else None,
        )

    def _place_card(self, subject: Subject, delivery: Delivery) -> Delivery:
        """Give it a card: the one that a crash left unconfirmed, or else a new one."""
        channel, owner = delivery.channel_id or subject.channel_id, subject.owner
        if delivery.card_claimed_at is not None:
            since = delivery.card_claimed_at
            found = self._outbox.find(owner, channel=channel, since=since).get(CARD_KEY)
            if found is not None:
                placed = {"card_ts": found, "card_digest": "", "card_milestone": ""}
                return self._save(delivery.model_copy(update=placed | {"card_claimed_at": None}))
        self._pace.take_post(channel)
        claimed_at = delivery.card_claimed_at or self._services.now()
        claimed = {"channel_id": channel, "card_ts": None, "card_claimed_at": claimed_at}
        delivery = self._save(delivery.model_copy(update=claimed))
        content = self._card(subject, delivery)
        card_ts = self._outbox.post(content, channel=channel, mark=Mark(owner, (CARD_KEY,)))
        return self._remember_card(
            subject,
            delivery.model_copy(update={"card_ts": card_ts, "card_claimed_at": None}),
            content=content,
        )

    def _refresh_card(self, news: News) -> Delivery:
        delivery, owner = news.delivery, news.subject.owner
        if self._card(news.subject, delivery).digest == delivery.card_digest:
            self._stale.pop(owner, None)
            return delivery
        if not self._await_turn(news):
            self._stale[owner] = news.subject
            return delivery
        # Waiting may have taken minutes.
        subject = reread(self._services, news.subject)
        content = self._card(subject, delivery)
        try:
            is_there = self._outbox.update(
                content, channel=delivery.channel_id, ts=delivery.card_ts or ""
            )
        except ChannelLost:
            raise
        except PermanentError:
            # The thread and the receipt say the same in other words.
            logger.exception("card is not accepted", extra={"owner": owner})
            return delivery
        if not is_there:
            logger.warning("card was deleted, posting a new one", extra={"owner": owner})
            return self._place_card(subject, delivery)
        return self._remember_card(subject, delivery, content=content)

    def _remember_card(self, subject: Subject, delivery: Delivery, *, content: Content) -> Delivery:
        now = self._services.now()
        self._stale.pop(subject.owner, None)
        return self._save(
            delivery.model_copy(
                update={
                    "card_digest": content.digest,
                    "card_milestone": subject.milestone,
                    "card_updated_at": now,
                }
            )
        )

    def _save(self, delivery: Delivery) -> Delivery:
        return self._services.deliveries.save(delivery, now=self._services.now())

    def _await_turn(self, news: News) -> bool:
        """Wait until this card may be edited; False when it is better skipped for now.

        A card that changes all the time leaves room to the others, even with urgent news.

        Raises:
            NoRoom: an urgent change would have to wait too long.
        """
        if not news.is_urgent:
            is_steady = news.subject.is_steady(news.events)
            wait_s = self._remaining_s(news, self._interval_s if is_steady else MIN_INTERVAL_S)
            if wait_s > 0 and (is_steady or not self._pace.wait(wait_s)):
                return False
        comes_first = news.comes_first(since=self._interval_ago)
        channel = news.delivery.channel_id
        if self._pace.take_edit(channel, reserve=0 if comes_first else RESERVED):
            return True
        if comes_first:
            raise NoRoom(f"card of {news.subject.owner}: no edit is left of this minute's budget")
        return False

    @property
    def _interval_ago(self) -> datetime:
        return self._services.now() - timedelta(seconds=self._interval_s)

    def _remaining_s(self, news: News, interval_s: float) -> float:
        updated_at = news.delivery.card_updated_at
        if updated_at is None:
            return 0.0
        return interval_s - (self._services.now() - updated_at).total_seconds()

    def _post_chart(self, run: Run, delivery: Delivery) -> Delivery:
        if len(run.loss_points) > 1:
            post_loss_chart(self._outbox, read_curve(self._services, run), run, delivery)
        return self._save(delivery.model_copy(update={"chart_posted": True}))
