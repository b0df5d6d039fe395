"""How a downed node joins again: by which members, once its store answers, and for how long.

A node that downed itself in a split knows members that it could not reach; one that others have
downed knows those that did. Any of them may be in the cluster that it rejoins. If all were downed,
no cluster is left that could take it: then it does not rejoin. Its process ends, and the seeds of
its settings decide the way when a supervisor starts it again.

The store may be on the other side of the split, too. So the node waits for it first, instead of
ending because it does not answer.

A node that is downed soon after it has joined is disturbed by something that joining again does not
mend. So it waits before it asks, longer each time, up to `PAUSE_MAX_S`; after `CALM_S` as a member
it begins anew, without a pause.

Both waits end after `cluster.rejoin_within`: the side that stayed may be lost for good, and silence
lets a node that rejoins found no cluster. It then ends, and the seeds of its settings decide again.

If every other node has restarted meanwhile, none of them founds, because the first seed answers
them. So the `founder` founds anew by the store's claim, if no member lives at any of the addresses
that it knew (`membership.joining`, `membership.founding`).

Source: S3.42; docs/downing.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shardbus.backoff import doubling
from shardbus.config.seeds import parse_seeds
from shardbus.config.settings import NodeSettings, Settings
from shardbus.errors import StoreUnavailable
from shardbus.ids import Address
from shardbus.membership.gossip import ON_THE_WAY_OUT
from shardbus.membership.member import age_order
from shardbus.membership.view import MembershipView
from shardbus.node.store_wait import StoreWait
from shardbus.quantities import counted
from shardbus.store.opening import open_store
from shardbus.store.urls import default_url

CONTACTS_MAX = 100
"""Members that a node asks, at most: the oldest ones."""
NAMED_MAX = 5
"""Members that a line names."""
PAUSE_S, PAUSE_MAX_S = 5.0, 300.0
"""Seconds before a node asks, the second time in a row that it rejoins, and at most."""
CALM_S = 300.0
"""Seconds as a member after which the next time is the first."""
LOG_AGAIN_S, LOG_AGAIN_MAX_S = 10.0, 120.0
"""Seconds between two lines of the log about rejoining: at first, and at most."""


def contacts(view: MembershipView | None, seeds: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses, HOST:PORT, of the members that may take a node in, and of its seeds.
    Empty if no member may.

    Args:
        view: the last view of the node that was downed.
        seeds: the seeds of its settings.
    """
    if view is None:
        return ()
    live = [m for m in view.members if m.status not in ON_THE_WAY_OUT and m.node != view.me]
    if not live:
        return ()
    oldest = sorted(live, key=age_order)[:CONTACTS_MAX]
    return tuple(dict.fromkeys([*(str(member.node.address) for member in oldest), *seeds]))


def founder(me: Address, node: NodeSettings, by: Sequence[str]) -> Address | None:
    """Return the address of the node that may found anew: the first seed, or this node without
    seeds. None if no node may: an operator or a look-up decides, or there may be members beyond
    those that it contacts.

    Args:
        me: this node's address.
        node: its settings.
        by: the addresses that it contacts, from `contacts`.
    """
    seeds = parse_seeds(node.seeds)
    if node.join != "auto" or seeds.discovers or len(by) >= CONTACTS_MAX:
        return None
    return seeds.addresses[0] if seeds.addresses else me


def pause_before(turn: int) -> float:
    """Return the seconds to wait before a node rejoins, the `turn`-th time in a row, from 1."""
    return 0.0 if turn <= 1 else doubling(PAUSE_S, PAUSE_MAX_S, turn - 1)


def next_turn(turn: int, member_for: float) -> int:
    """Return how many times in a row a node rejoins with the next one, after it was a member for
    `member_for` seconds."""
    return 1 if member_for >= CALM_S else turn + 1


def named(by: Sequence[str]) -> str:
    """Return these members as text, the first few by name."""
    shown = ", ".join(by[:NAMED_MAX])
    return shown if len(by) <= NAMED_MAX else f"{shown} and {len(by) - NAMED_MAX} more"


class Rejoining:
    """An attempt to join again, for the log and the pages of the node.

    Args:
        by: the members that it asks, HOST:PORT.
        within: the seconds after which it gives up; 0 is never.
        turn: how many times in a row it rejoins.
    """

    def __init__(self, by: Sequence[str], within: float, now: float, turn: int = 1) -> None:
        self.by, self.within, self.turn = by, within, turn
        self._began_at = now + pause_before(turn)
        self._lines = 0
        self._line_at = self._began_at + LOG_AGAIN_S

    def describe(self, now: float) -> str:
        """Return why the node waits, and until when."""
        if now < self._began_at:
            pause = self._began_at - now
            times = f"{counted(self.turn, 'time')} in a row"
            return f"was downed {times}, and asks {named(self.by)} in {pause:.0f} s to take it in"
        left = max(self._began_at + self.within - now, 0.0)
        end = f"for {left:.0f} s more" if self.within else "without end"
        return f"was downed, and asks {named(self.by)} to take it in {end}"

    def line(self, now: float) -> str:
        """Return a line for the log if one is due, else an empty text."""
        if now < self._line_at:
            return ""
        self._lines += 1
        self._line_at = now + doubling(LOG_AGAIN_S, LOG_AGAIN_MAX_S, self._lines + 1)
        return f"this node {self.describe(now)}"


async def store_answers(name: str, settings: Settings) -> bool:
    """Wait until the store of the cluster answers, at most for `cluster.rejoin_within`. Returns
    True.

    Raises:
        StoreUnavailable: it has not answered in time.
    """
    now, within = asyncio.get_running_loop().time(), settings.cluster.rejoin_within
    url, wait = (
        settings.store.url or default_url(name),
        StoreWait(within, now, "was downed, and rejoins"),
    )
    while True:
        try:
            await _ask_store(url, name, settings)
        except StoreUnavailable as error:
            await wait.after(error)
        else:
            return True


async def _ask_store(url: str, name: str, settings: Settings) -> None:
    store = open_store(
        url,
        cluster=name,
        timeout=settings.store.timeout,
        guard=True,
        security=settings.security,
    )
    try:
        await store.start()
        await store.identity()
    finally:
        await store.close()
