"""Posts what happened: one live card a run, a thread below it, a chart, a receipt.

`notifier_handler` calls it with batches of the table's stream. It reads runs, never writes them;
what was posted is remembered beside the run, so a batch may be delivered again, whole or in part.
Everything is claimed, posted and confirmed, in this order: after a crash between the last two, the
message is looked for in Slack before it is posted once more.

Slack takes about 50 edits a minute for all runs together. So progress is coalesced (a card that is
skipped is drawn from the current state next time), while changes that a person waits for are always
delivered, if need be by failing the batch so that the stream delivers it again.

A run whose channel takes no posts any more goes on in the direct conversation with its requester.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from bot.announcement import CARD_KEY
from bot.blocks.card import card_milestone, run_card
from bot.blocks.elements import Content
from bot.blocks.receipt import run_receipt
from bot.blocks.thread import ThreadEvent, is_noteworthy, thread_message
from bot.loss_curve import post_loss_chart
from bot.news import News, NewsReader
from bot.outbox import Mark, Outbox
from bot.stream import StreamBatch
from bot.thread_posts import ThreadPosts
from stationmaster.aws.delivery_store import Delivery
from stationmaster.commands import view_run
from stationmaster.domain.errors import (
    ChannelLost,
    PermanentError,
    TransientError,
)
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import NOBODY_REACHED
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import (
    CheckpointSaved,
    PhaseChanged,
    ProgressReported,
    RunEvent,
    TrainingEvaluated,
)
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services

logger = logging.getLogger(__name__)

# A card is edited at most this often; progress less often, the more runs share the budget.
MIN_INTERVAL_S: Final = 1.5
# A refresh leaves a card alone that was edited less than this ago.
REFRESH_AFTER_S: Final = 10.0
# What is torn down is looked at for a day.
_RECENTLY: Final = timedelta(days=1)
# How long one card may hold up the batch while the common budget is used up.
_MAX_BUDGET_WAIT_S: Final = 6.0
# Edits that can wait leave this many tokens of the budget to changes that cannot.
_RESERVED_TOKENS: Final = 3


class Notifier:
    """Projects runs into Slack; kept while the function is warm."""

    def __init__(
        self,
        services: Services,
        outbox: Outbox,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._services = services
        self._outbox = outbox
        self._thread = ThreadPosts(services, outbox)
        self._sleep = sleep
        # Cards that were skipped; drawn again when their interval has passed.
        self._stale: set[RunId] = set()
        # Runs that were over and had everything posted: nothing of them can become due any more.
        self._settled: set[RunId] = set()

    def notify(self, batch: StreamBatch) -> None:
        """Post everything that a batch brings; runs with urgent changes come first.

        Raises:
            TransientError: something could not be posted; the same batch is to be delivered again.
        """
        news = NewsReader(self._services).of_batch(batch, also=self._stale)
        self._stale &= {one.run.run_id for one in news}
        self._tell_all(sorted(news, key=lambda one: not one.is_urgent))

    def refresh(self) -> None:
        """Draw the cards of live runs anew, so that they visibly live; the oldest come first.

        What a batch could not post while Slack was away for long is posted now. What cannot be
        posted now either is left to the next refresh.
        """
        found = NewsReader(self._services).live_and_recent(settled=self._settled)
        due = [one for one in found if self._is_due(one)]
        over = {one.run.run_id for one in found if not one.view.is_live}
        self._settled |= over - {one.run.run_id for one in due}
        due.sort(key=lambda one: one.delivery.card_updated_at or one.run.requested_at)
        try:
            self._tell_all(due)
        except TransientError as exc:
            logger.warning("refresh is not complete", extra={"reason": str(exc)})

    def _is_due(self, news: News) -> bool:
        ended_at = news.view.torn_down_at
        if ended_at is not None and self._services.now() - ended_at >= _RECENTLY:
            return False
        if news.is_urgent or _is_receipt_due(news.view, news.delivery):
            return True
        return news.view.is_live and self._remaining_s(news, REFRESH_AFTER_S) <= 0

    def _tell_all(self, news: Sequence[News]) -> None:
        if not news:
            return
        interval_s = self._interval_s()
        failures: list[TransientError] = []
        for one in news:
            try:
                self._tell(one, interval_s=interval_s)
            except TransientError as exc:
                failures.append(exc)
            except ChannelLost:
                # The state stays true, and the next change of the run tries again.
                logger.exception(NOBODY_REACHED, extra={"run_id": one.run.run_id})
            except PermanentError:
                # Slack will not take it the next time either, and other runs wait behind it.
                logger.exception("run cannot be posted", extra={"run_id": one.run.run_id})
        if failures:
            raise TransientError(
                f"{len(failures)} of {len(news)} runs could not be posted: {failures[0]}"
            ) from failures[0]

    def _interval_s(self) -> float:
        live = len(self._services.runs.list_open())
        return max(MIN_INTERVAL_S, 1.5 * live)

    def _tell(self, news: News, *, interval_s: float) -> None:
        try:
            self._tell_channel(news, interval_s=interval_s)
        except ChannelLost as exc:
            delivery = self._services.deliveries.load(news.run.run_id)
            if delivery.lost_channel_id:
                raise  # the direct conversation takes nothing either
            moved = self._move_to_requester(news.run, delivery, lost=exc)
            self._tell_channel(replace(news, delivery=moved), interval_s=interval_s)

    def _tell_channel(self, news: News, *, interval_s: float) -> None:
        view, run, delivery = news.view, news.run, news.delivery
        if delivery.card_ts is None:
            delivery = self._place_card(view, delivery)
        if news.delivery.card_ts is not None or not delivery.card_digest:
            delivery = self._refresh_card(replace(news, delivery=delivery), interval_s=interval_s)
        self._tell_thread(news, delivery)
        if run.phase.is_terminal and not delivery.chart_posted:
            delivery = self._post_chart(run, delivery)
        if _is_receipt_due(view, delivery):
            self._post_receipt(view, delivery)

    def _move_to_requester(self, run: Run, delivery: Delivery, *, lost: ChannelLost) -> Delivery:
        """Go on in the requester's direct conversation, where a new card says why.

        Raises:
            ChannelLost: that person cannot be reached.
        """
        direct = self._outbox.open_direct(run.request.user_id)
        left = delivery.channel_id or run.request.channel_id
        logger.error(
            "channel is lost", extra={"run_id": run.run_id, "channel": left, "code": lost.code}
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

    def _card(self, view: RunView, delivery: Delivery) -> Content:
        moved_from = (delivery.lost_channel_id, delivery.lost_code)
        return run_card(
            view,
            now=self._services.now(),
            moved_from=moved_from if delivery.lost_channel_id else None,
        )

    def _place_card(self, view: RunView, delivery: Delivery) -> Delivery:
        """Give the run a card: the one that a crash left unconfirmed, or else a new one."""
        run = view.run
        channel = delivery.channel_id or run.request.channel_id
        if delivery.card_claimed_at is not None:
            since = delivery.card_claimed_at
            found = self._outbox.find(run.run_id, channel=channel, since=since).get(CARD_KEY)
            if found is not None:
                placed = {"card_ts": found, "card_digest": "", "card_milestone": ""}
                return self._save(delivery.model_copy(update=placed | {"card_claimed_at": None}))
        claimed_at = delivery.card_claimed_at or self._services.now()
        claimed = {"channel_id": channel, "card_ts": None, "card_claimed_at": claimed_at}
        delivery = self._save(delivery.model_copy(update=claimed))
        content = self._card(view, delivery)
        card_ts = self._outbox.post(content, channel=channel, mark=Mark(run.run_id, (CARD_KEY,)))
        return self._remember_card(
            view,
            delivery.model_copy(update={"card_ts": card_ts, "card_claimed_at": None}),
            content=content,
        )

    def _refresh_card(self, news: News, *, interval_s: float) -> Delivery:
        run, delivery = news.run, news.delivery
        if self._card(news.view, delivery).digest == delivery.card_digest:
            self._stale.discard(run.run_id)
            return delivery
        if not self._await_turn(news, interval_s=interval_s):
            self._stale.add(run.run_id)
            return delivery
        # Waiting may have taken minutes.
        view = view_run(self._services, self._services.runs.load(run.run_id))
        content = self._card(view, delivery)
        try:
            is_there = self._outbox.update(
                content, channel=delivery.channel_id, ts=delivery.card_ts or ""
            )
        except ChannelLost:
            raise
        except PermanentError:
            # The thread and the receipt say the same in other words.
            logger.exception("card is not accepted", extra={"run_id": run.run_id})
            return delivery
        if not is_there:
            logger.warning("card was deleted, posting a new one", extra={"run_id": run.run_id})
            return self._place_card(view, delivery)
        return self._remember_card(view, delivery, content=content)

    def _remember_card(self, view: RunView, delivery: Delivery, *, content: Content) -> Delivery:
        now = self._services.now()
        self._stale.discard(view.run.run_id)
        return self._save(
            delivery.model_copy(
                update={
                    "card_digest": content.digest,
                    "card_milestone": card_milestone(view),
                    "card_updated_at": now,
                }
            )
        )

    def _save(self, delivery: Delivery) -> Delivery:
        return self._services.deliveries.save(delivery, now=self._services.now())

    def _await_turn(self, news: News, *, interval_s: float) -> bool:
        """Wait until this card may be edited; False when it is better skipped for now.

        Raises:
            TransientError: an urgent change would have to wait too long.
        """
        if not news.is_urgent:
            is_steady = _is_steady(news.events)
            wait_s = self._remaining_s(news, interval_s if is_steady else MIN_INTERVAL_S)
            if wait_s > 0 and is_steady:
                return False
            if wait_s > 0:
                self._sleep(wait_s)
        waited_s = 0.0
        while True:
            delay_s = self._services.deliveries.take_update_token(
                self._services.now(), reserve=0 if news.is_urgent else _RESERVED_TOKENS
            )
            if delay_s == 0:
                return True
            if not news.is_urgent:
                return False
            if waited_s + delay_s > _MAX_BUDGET_WAIT_S:
                raise TransientError(
                    f"card of run {news.run.run_id}: no edit is left of this minute's budget"
                )
            self._sleep(delay_s)
            waited_s += delay_s

    def _remaining_s(self, news: News, interval_s: float) -> float:
        updated_at = news.delivery.card_updated_at
        if updated_at is None:
            return 0.0
        return interval_s - (self._services.now() - updated_at).total_seconds()

    def _tell_thread(self, news: News, delivery: Delivery) -> None:
        """Post the noteworthy events that were not posted yet, all of them in one message."""
        run, events = news.run, [*news.events]
        if run.phase.is_terminal and not delivery.chart_posted:
            # Its batch may have been set aside while Slack was away for long.
            known = {event.event_id for event in events}
            events += [end for end in self._ends(run) if end.event_id not in known]
        of_key = {_claim_key(event): event for event in events if is_noteworthy(event)}
        keys = self._thread.unposted(delivery, of_key)
        message = thread_message([of_key[key] for key in keys], news.view)
        if message is not None:
            self._thread.post(message, delivery, keys)

    def _ends(self, run: Run) -> list[RunEvent]:
        return [
            event
            for event in self._services.runs.events(run.run_id)
            if isinstance(event, PhaseChanged) and event.phase.is_terminal
        ]

    def _post_chart(self, run: Run, delivery: Delivery) -> Delivery:
        events = self._services.runs.events(run.run_id) if len(run.loss_points) > 1 else []
        post_loss_chart(self._outbox, run, events, delivery)
        return self._save(delivery.model_copy(update={"chart_posted": True}))

    def _post_receipt(self, view: RunView, delivery: Delivery) -> None:
        now = self._services.now()
        keys = self._thread.unposted(delivery, [f"receipt-{view.teardown.value}"])
        if keys:
            # An edited card notifies nobody; a broadcast does.
            self._thread.post(run_receipt(view, now=now), delivery, keys, broadcast=True)
        self._save(delivery.model_copy(update={"receipt_posted": view.teardown}))


def _claim_key(event: ThreadEvent) -> str:
    """What is claimed before an event is posted: the event, or its minute where many may follow.

    A run that saves or evaluates every few seconds would drown its thread; the card names the
    newest.
    """
    if isinstance(event, CheckpointSaved):
        return f"checkpoint-{event.at:%Y%m%dT%H%M}"
    if isinstance(event, TrainingEvaluated):
        return f"evaluation-{event.at:%Y%m%dT%H%M}"
    return event.event_id


def _is_receipt_due(view: RunView, delivery: Delivery) -> bool:
    return not view.is_live and delivery.receipt_posted is not view.teardown


def _is_steady(events: Sequence[ThreadEvent]) -> bool:
    """Whether more of the same is about to follow, so that skipping loses nothing."""
    return all(
        isinstance(event, ProgressReported | CheckpointSaved | TrainingEvaluated)
        for event in events
    )
