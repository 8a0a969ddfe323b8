"""Posts the card of a run or a cluster before that exists: proof that its cost can be posted.

A channel that takes no card starts nothing. Nobody waits for Slack's limits here: where it takes
the card of a run only later, the notifier posts it and then starts the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from bot.outbox import Mark, Outbox
from bot.subjects import ClusterSubject, RunSubject, Subject
from stationmaster.aws.delivery_store import Delivery
from stationmaster.commands.runs import Announced
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.table import APP_NAME
from stationmaster.domain.errors import (
    ChannelLost,
    NoRoom,
    NotPossibleNow,
    SlackBusy,
    StationmasterError,
    WriteConflict,
)
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.view import ClusterView, RunView
from stationmaster.domain.teams import is_direct
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

# The key under which a card is found again among the app's messages.
CARD_KEY: Final = "card"


class Announcer:
    """Puts a first card into its channel."""

    def __init__(self, services: Services, outbox: Outbox) -> None:
        self._services = services
        self._outbox = outbox

    def announce_run(self, run: Run) -> Announced:
        """Post the card of a run that is about to be written, unless Slack takes it only later.

        Raises:
            NotPossibleNow: the app cannot post in the channel, with what to do about it.
            TransientError: Slack does not take the app's token now.
        """
        subject = RunSubject(RunView(run))
        try:
            return Announced(self._announce(subject))
        except (SlackBusy, WriteConflict) as exc:
            logger.warning("card is posted later", extra={"reason": str(exc), **subject.ids})
            if isinstance(exc, NoRoom):
                # Slack was not asked, so nobody has to look for the card, once a minute at most.
                return Announced(_nothing, is_posted=False)
        claimed = Delivery(
            owner=subject.owner,
            channel_id=subject.channel_id,
            card_claimed_at=self._services.now(),  # it may be there: Slack did not say
        )
        with suppress(WriteConflict):  # another delivery of this request has written one
            self._services.deliveries.save(claimed, now=self._services.now())
        return Announced(_nothing, is_posted=False)

    def announce_cluster(self, cluster: Cluster) -> Callable[[], None]:
        """Post the card of a cluster that is about to be written; returns a call that deletes it.

        Raises:
            NotPossibleNow: the app cannot post in the channel, or not now.
            TransientError: as announce_run.
        """
        view = ClusterView(cluster, emulated_speed=self._services.settings.emulated_speed)
        try:
            return self._announce(ClusterSubject(view))
        except (SlackBusy, WriteConflict) as exc:
            raise NotPossibleNow(
                "nothing was started, because Slack takes no card in this channel at this moment; "
                "type the command again in a few seconds"
            ) from exc

    def _announce(self, subject: Subject) -> Callable[[], None]:
        known = self._services.deliveries.load(subject.owner)
        if known.card_ts is not None:
            return _nothing  # by an earlier delivery of this request, which went no further
        now = self._services.now()
        channel = subject.channel_id
        content = subject.card(now=now)
        if self._services.deliveries.take_post_token(channel, now):
            raise NoRoom(f"no post is left of the budget of channel {channel}")
        try:
            card_ts = self._outbox.post(
                content, channel=channel, mark=Mark(subject.owner, (CARD_KEY,))
            )
        except ChannelLost as exc:
            raise _refusal(exc, channel=channel, kind=subject.kind) from exc

        def take_back() -> None:
            try:
                self._outbox.delete(channel=channel, ts=card_ts)
            except StationmasterError:
                # It names something that does not exist; its buttons say so.
                logger.exception("card cannot be taken back", extra={"owner": subject.owner})

        posted = {
            "channel_id": channel,
            "card_ts": card_ts,
            "card_claimed_at": None,
            "card_digest": content.digest,
            "card_milestone": subject.milestone,
            "card_updated_at": now,
        }
        try:
            self._services.deliveries.save(known.model_copy(update=posted), now=now)
        except WriteConflict:
            # Another delivery of this request has posted its card in this very moment.
            take_back()
            return _nothing
        except StationmasterError:
            take_back()
            raise
        return take_back


def _nothing() -> None:
    """Leave a card that is not ours to delete."""


def _refusal(lost: ChannelLost, *, channel: str, kind: str) -> NotPossibleNow:
    nothing = f"nothing was started, because a {kind} is followed in its channel and"
    if lost.code in ("not_in_channel", "channel_not_found") and not is_direct(channel):
        return NotPossibleNow(
            f"{nothing} {APP_NAME} is not in this one; invite it, then type the command again",
            suggestion=f"/invite @{APP_NAME}",
        )
    if lost.code in ("not_in_channel", "channel_not_found"):
        return NotPossibleNow(
            f"{nothing} {APP_NAME} is not part of this conversation; type the command in a channel"
        )
    if lost.code in ("is_archived", "is_inactive"):
        return NotPossibleNow(f"{nothing} this one is archived; type the command in another one")
    return NotPossibleNow(
        f"{nothing} {APP_NAME} may not post in this one (Slack answers {lost.code}); let an admin "
        "allow it, or type the command in another channel"
    )
