"""Tells the channel what happened: one live card a run, a thread below it, a chart, a receipt.

`notifier_handler` calls it with batches of the table's stream. It reads runs, never writes them;
what was told is remembered beside the run, so a batch may be delivered again, whole or in part.

Slack takes about 50 edits a minute for all runs together. So progress is coalesced (a card that is
skipped is drawn from the current state next time), while changes that a person waits for are always
delivered, if need be by failing the batch so that the stream delivers it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bot.blocks.card import card_milestone, run_card
from bot.blocks.elements import Content
from bot.blocks.receipt import run_receipt
from bot.blocks.thread import is_noteworthy, thread_message
from bot.outbox import Outbox
from stationmaster.aws.delivery_store import Delivery
from stationmaster.domain.errors import (
    PermanentError,
    RunNotFound,
    StationmasterError,
    TransientError,
)
from stationmaster.domain.events import (
    CheckpointSaved,
    ProgressReported,
    RunEvent,
    TrainingEvaluated,
    TrainingResumed,
)
from stationmaster.domain.run import Run, TeardownStatus
from stationmaster.services import Services

logger = logging.getLogger(__name__)

# A card is edited at most this often; progress less often, the more runs share the budget.
MIN_INTERVAL_S: Final = 1.5
# How long one card may hold up the batch while the common budget is used up.
_MAX_BUDGET_WAIT_S: Final = 6.0
# Edits that can wait leave this many tokens of the budget to changes that cannot.
_RESERVED_TOKENS: Final = 3


@dataclass(frozen=True)
class _News:
    """One run of a batch: its state, what the channel knows, what is new."""

    run: Run
    delivery: Delivery
    events: Sequence[RunEvent]

    @property
    def is_urgent(self) -> bool:
        """Something that a person waits for is not on the card yet."""
        return self.delivery.card_milestone != card_milestone(self.run)


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
        self._sleep = sleep
        # Cards that were skipped; drawn again when their interval has passed.
        self._stale: set[str] = set()

    def notify(self, batch: Mapping[str, Sequence[RunEvent]]) -> None:
        """Tell everything that a batch brings; runs with urgent changes come first.

        Raises:
            TransientError: something could not be told; the same batch is to be delivered again.
        """
        found = [self._read(run_id, events) for run_id, events in batch.items()]
        found += [self._read(run_id, ()) for run_id in sorted(self._stale - batch.keys())]
        news = sorted((one for one in found if one is not None), key=lambda one: not one.is_urgent)
        if not news:
            return
        interval_s = self._interval_s()
        failures: list[TransientError] = []
        for one in news:
            try:
                self._tell(one, interval_s=interval_s)
            except TransientError as exc:
                failures.append(exc)
            except PermanentError:
                # Slack will not take it the next time either, and other runs wait behind it.
                logger.exception("run cannot be told", extra={"run_id": one.run.run_id})
        if failures:
            raise TransientError(
                f"{len(failures)} of {len(news)} runs could not be told: {failures[0]}"
            ) from failures[0]

    def _read(self, run_id: str, events: Sequence[RunEvent]) -> _News | None:
        try:
            run = self._services.runs.load(run_id)
        except RunNotFound:
            logger.warning("run of the stream is gone", extra={"run_id": run_id})
            self._stale.discard(run_id)
            return None
        return _News(run, self._services.deliveries.load(run_id), events)

    def _interval_s(self) -> float:
        live = sum(not run.phase.is_terminal for run in self._services.runs.list_open())
        return max(MIN_INTERVAL_S, 1.5 * live)

    def _tell(self, news: _News, *, interval_s: float) -> None:
        if news.delivery.card_ts is None:
            delivery = self._post_card(news.run, news.delivery)
        else:
            try:
                delivery = self._refresh_card(news, interval_s=interval_s)
            except PermanentError:
                # The thread and the receipt say the same in other words.
                logger.exception("card is not accepted", extra={"run_id": news.run.run_id})
                delivery = news.delivery
        card_ts = delivery.card_ts or ""
        self._tell_thread(news, channel=delivery.channel_id, card_ts=card_ts)
        run = news.run
        if run.phase.is_terminal and not delivery.chart_posted:
            delivery = self._post_chart(run, delivery)
        if (
            run.teardown in (TeardownStatus.COMPLETED, TeardownStatus.FAILED)
            and delivery.receipt_posted is not run.teardown
        ):
            self._post_receipt(run, delivery)

    def _post_card(self, run: Run, delivery: Delivery) -> Delivery:
        content = run_card(run, now=self._services.now())
        channel = run.request.channel_id
        card_ts = self._outbox.post(content, channel=channel)
        return self._remember_card(
            run,
            delivery.model_copy(update={"card_ts": card_ts, "channel_id": channel}),
            content=content,
        )

    def _refresh_card(self, news: _News, *, interval_s: float) -> Delivery:
        run, delivery = news.run, news.delivery
        if run_card(run, now=self._services.now()).digest == delivery.card_digest:
            self._stale.discard(run.run_id)
            return delivery
        if not self._await_turn(news, interval_s=interval_s):
            self._stale.add(run.run_id)
            return delivery
        run = self._services.runs.load(run.run_id)  # waiting may have taken a while
        content = run_card(run, now=self._services.now())
        is_there = self._outbox.update(
            content, channel=delivery.channel_id, ts=delivery.card_ts or ""
        )
        if not is_there:
            logger.warning("card was deleted, posting a new one", extra={"run_id": run.run_id})
            return self._post_card(run, delivery)
        return self._remember_card(run, delivery, content=content)

    def _remember_card(self, run: Run, delivery: Delivery, *, content: Content) -> Delivery:
        now = self._services.now()
        self._stale.discard(run.run_id)
        return self._services.deliveries.save(
            delivery.model_copy(
                update={
                    "card_digest": content.digest,
                    "card_milestone": card_milestone(run),
                    "card_updated_at": now,
                }
            ),
            now=now,
        )

    def _await_turn(self, news: _News, *, interval_s: float) -> bool:
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

    def _remaining_s(self, news: _News, interval_s: float) -> float:
        updated_at = news.delivery.card_updated_at
        if updated_at is None:
            return 0.0
        return interval_s - (self._services.now() - updated_at).total_seconds()

    def _tell_thread(self, news: _News, *, channel: str, card_ts: str) -> None:
        """Post the noteworthy events that were not told yet, all of them in one message.

        They are claimed first and released when the post fails. A function that is killed between
        the two loses this message, and nothing else.
        """
        run, deliveries = news.run, self._services.deliveries
        now = self._services.now()
        claimed = {
            _claim_key(event): event
            for event in news.events
            if is_noteworthy(event)
            and deliveries.claim_event(run.run_id, _claim_key(event), now=now)
        }
        message = thread_message([*claimed.values()], run)
        if message is None:
            return
        try:
            self._outbox.post(message, channel=channel, thread_ts=card_ts)
        except StationmasterError:
            deliveries.release_events(run.run_id, [*claimed])
            raise

    def _post_chart(self, run: Run, delivery: Delivery) -> Delivery:
        events = self._services.runs.events(run.run_id) if len(run.loss_points) > 1 else []
        points = [
            (event.step, event.loss_nats) for event in events if isinstance(event, ProgressReported)
        ]
        if len(points) > 1:
            # Pillow is needed once a run; every other batch does without loading it.
            from bot.chart import loss_chart

            png = loss_chart(
                points,
                title=f"{run.request.recipe}: training loss",
                subtitle=f"{run.run_id}, {run.request.nodes} x {run.request.instance_type}",
                resumed_at=[event.step for event in events if isinstance(event, TrainingResumed)],
            )
            try:
                self._outbox.upload(
                    png,
                    filename=f"{run.run_id}-loss.png",
                    title=f"Loss of {run.run_id}",
                    comment="Loss over all steps",
                    channel=delivery.channel_id,
                    thread_ts=delivery.card_ts or "",
                )
            except PermanentError:
                # The picture is worth less than the receipt that follows.
                logger.exception("chart is not accepted", extra={"run_id": run.run_id})
        return self._services.deliveries.save(
            delivery.model_copy(update={"chart_posted": True}), now=self._services.now()
        )

    def _post_receipt(self, run: Run, delivery: Delivery) -> None:
        now = self._services.now()
        self._outbox.post(
            run_receipt(run, now=now),
            channel=delivery.channel_id,
            thread_ts=delivery.card_ts,
            broadcast=True,  # an edited card notifies nobody; this does
        )
        self._services.deliveries.save(
            delivery.model_copy(update={"receipt_posted": run.teardown}), now=now
        )


def _claim_key(event: RunEvent) -> str:
    """What is claimed before an event is told: the event, or its minute where many may follow.

    A run that saves or evaluates every few seconds would drown its thread; the card names the
    newest.
    """
    if isinstance(event, CheckpointSaved):
        return f"checkpoint-{event.at:%Y%m%dT%H%M}"
    if isinstance(event, TrainingEvaluated):
        return f"evaluation-{event.at:%Y%m%dT%H%M}"
    return event.event_id


def _is_steady(events: Sequence[RunEvent]) -> bool:
    """Whether more of the same is about to follow, so that skipping loses nothing."""
    return all(
        isinstance(event, ProgressReported | CheckpointSaved | TrainingEvaluated)
        for event in events
    )
