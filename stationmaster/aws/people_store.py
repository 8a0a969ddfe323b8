"""What people have chosen for themselves, in DynamoDB: an item for each who has chosen anything."""

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
