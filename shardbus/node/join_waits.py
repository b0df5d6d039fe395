"""Why a node waits that is in no cluster yet: for its log and its pages.

Membership reports the ways that do not work (`membership.trials.BrokenLink`). One that has not
worked for `FIRST_S` is named, with host, port and channel. Where this node itself gets no answer,
it looks for a listener at that address, again and again, because that may change.

The log gets a line after `FIRST_S`, and then ever more rarely; at once if something else is wrong.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from shardbus.backoff import doubling
from shardbus.ids import Address
from shardbus.membership.joining import NO_MEMBER
from shardbus.membership.trials import BrokenLink
from shardbus.task_set import TaskSet

FIRST_S, LOG_AGAIN_MAX_S = 5.0, 300.0
"""Seconds until a way is named, and between two lines of the log at most; at first `FIRST_S`."""
LOOK_AGAIN_S = 10.0
"""Seconds between two looks at an address."""
LOOKS_MAX = 8
"""Addresses that are looked at."""
NAMED_MAX = 5
"""Ways that a line names."""

Way = tuple[Address, str, Address | None]
"""A way without its reason: where, the channel, and who connects."""
Look = Callable[[Address, str], Awaitable[str]]
"""Recognizes the listener at an address, for a channel; returns an empty text if all seems well."""


class JoinWaits:
    """The ways that one node waits for. Belongs to one event loop."""

    def __init__(self, look: Look, loop: asyncio.AbstractEventLoop) -> None:
        self._look, self._loop = look, loop
        self._since: dict[Way, float] = {}
        self._findings: dict[tuple[Address, str], str] = {}
        """The findings at an address."""
        self._looked_from: dict[tuple[Address, str], float] = {}
        """When the last look at an address began."""
        self._links: tuple[BrokenLink, ...] = ()
        self._looks = TaskSet()
        self._began_at: float | None = None
        self._lines, self._line_at = 0, 0.0
        self._named: tuple[Way, ...] = ()

    def update(self, links: Sequence[BrokenLink]) -> float | None:
        """Take membership's present reports. Returns the seconds that the node has waited if a line
        of the log is due, else None."""
        now = self._loop.time()
        self._links = tuple(links)
        self._since = {way: self._since.get(way, now) for way in map(_way, links)}
        places = {(link.address, link.channel) for link in links}
        self._findings = {place: seen for place, seen in self._findings.items() if place in places}
        self._looked_from = {p: at for p, at in self._looked_from.items() if p in places}
        if not links:
            self._began_at, self._lines, self._named = None, 0, ()
            return None
        if self._began_at is None:
            self._began_at = now
        lasting = self._lasting(now)
        self._look_at(lasting, now)
        return now - self._began_at if self._line_is_due(lasting, now) else None

    def describe(self) -> str:
        """Return why the node waits; empty if nothing has lasted."""
        lasting = self._lasting(self._loop.time())
        shown = [self._text(link) for link in lasting[:NAMED_MAX]]
        more = len(lasting) - len(shown)
        return "; ".join([*shown, *([f"and {more} more"] if more else [])])

    @property
    def finds_no_member(self) -> bool:
        """True if the node waits only for nodes which say that they are in no cluster."""
        lasting = self._lasting(self._loop.time())
        return bool(lasting) and all(link.why == NO_MEMBER for link in lasting)

    def close(self) -> None:
        """Look no more."""
        self._looks.cancel()

    def _lasting(self, now: float) -> list[BrokenLink]:
        return [link for link in self._links if now - self._since[_way(link)] >= FIRST_S]

    def _line_is_due(self, lasting: Sequence[BrokenLink], now: float) -> bool:
        ways = tuple(sorted(map(_way, lasting), key=str))
        waits = ways == self._named and now < self._line_at
        if not ways or waits or not self._looked_at(lasting):
            return False
        self._named, self._lines = ways, self._lines + 1
        self._line_at = now + doubling(FIRST_S, LOG_AGAIN_MAX_S, self._lines)
        return True

    # ---- the listeners there

    def _text(self, link: BrokenLink) -> str:
        seen = self._findings.get((link.address, link.channel), "")
        text = link.describe()
        return f"{text} ({seen})" if seen and link.by is None else text

    def _looked_at(self, links: Sequence[BrokenLink]) -> bool:
        """True if the addresses that this line would name have been looked at."""
        local = [link for link in links if link.by is None][:LOOKS_MAX]
        return all((link.address, link.channel) in self._findings for link in local)

    def _look_at(self, links: Sequence[BrokenLink], now: float) -> None:
        for link in [link for link in links if link.by is None][:LOOKS_MAX]:
            place = (link.address, link.channel)
            due = now - self._looked_from.get(place, -LOOK_AGAIN_S) >= LOOK_AGAIN_S
            if due and len(self._looks) < LOOKS_MAX:
                self._looked_from[place] = now
                self._looks.spawn(self._look_once(*place), self._loop)

    async def _look_once(self, address: Address, channel: str) -> None:
        self._findings[address, channel] = await self._look(address, channel)


def _way(link: BrokenLink) -> Way:
    return link.address, link.channel, link.by
