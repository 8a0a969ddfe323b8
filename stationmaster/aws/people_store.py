"""What people have chosen, in DynamoDB: for themselves, and as the budget of a channel's months."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from stationmaster.aws import table
from stationmaster.aws.rows import Rows
from stationmaster.domain.notices import Notices


class PeopleStore(Rows):
    def notices_of(self, user_ids: Iterable[str]) -> dict[str, Notices]:
        """Read how people want to hear of news: with a mention, unless they have chosen."""
        wanted = {table.person(user_id): user_id for user_id in user_ids}
        found = dict.fromkeys(wanted.values(), Notices.MENTION)
        for key, item in self._items(wanted):
            with suppress(KeyError, ValueError):  # a choice of another version
                found[wanted[key]] = Notices(item["notices"]["S"])
        return found

    def choose(self, user_id: str, notices: Notices) -> None:
        item = table.person(user_id).attributes | {"notices": {"S": notices.value}}
        self._put_item("keeping a person's settings", item)

    def budgets_of(self, channel_ids: Iterable[str]) -> dict[str, float]:
        """Read what each of the channels may spend in a month; 0 where nobody has set that."""
        wanted = {table.channel(each): each for each in channel_ids}
        found = dict.fromkeys(wanted.values(), 0.0)
        for key, item in self._items(wanted):
            with suppress(KeyError, ValueError):
                found[wanted[key]] = float(item["usd_a_month"]["N"])
        return found

    def set_budget(self, channel_id: str, usd: float) -> None:
        item = table.channel(channel_id).attributes | {"usd_a_month": {"N": f"{usd:.2f}"}}
        self._put_item("keeping the budget of a channel", item)
