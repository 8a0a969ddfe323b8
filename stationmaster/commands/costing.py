"""What the runs and kept clusters of a channel have cost in a month, as `/train cost` asks."""

from __future__ import annotations

from dataclasses import replace

from stationmaster.commands.auditing import known_id
from stationmaster.domain.commands.requests import ShowCost
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.services import Services
from stationmaster.spending import Bill, month_of


def channel_cost(services: Services, wanted: ShowCost, *, channel_id: str) -> Bill:
    """Add up a month of a channel.

    Raises:
        NotPossibleNow: nobody of that name is known in the channel.
    """
    user_id = known_id(services, wanted.person, channel_id) if wanted.person else ""
    if wanted.person and not user_id:
        raise NotPossibleNow(
            f"nobody called @{wanted.person[:60]} has started anything in this channel lately; "
            "/train cost shows everybody",
            suggestion="/train cost",
        )
    bill = month_of(services, wanted.month, channels={channel_id})
    spent = tuple(each for each in bill.spent if user_id in ("", each.user_id))
    return replace(bill, spent=spent)
