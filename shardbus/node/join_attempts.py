"""How one node comes into a cluster: through which seeds, and why it waits.

    begin       through the members of its former life, or through its seeds; or an operator decides
    by          through these seeds from now on; contacts by names and by the store are looked up
    denied      a seed's secret differs from this node's; once all differ, the attempt is over
    describe    why the node waits, until it is a member

Not here: the messages to the seeds, and who founds a cluster (`membership.joining`).

Source: docs/architecture.md; S1.60-S1.62, S3.42.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from shardbus.config.seeds import parse_seeds
from shardbus.config.settings import Settings
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.membership import events as cluster
from shardbus.membership.trials import BrokenLink
from shardbus.node.join_waits import JoinWaits, Look
from shardbus.node.rejoining import Rejoining, founder, pause_before
from shardbus.shells.discovery import Discovery
from shardbus.store.protocol import StateStore
from shardbus.store.urls import family

log = GuardedLog("shardbus.node")

ONE_LIST = "the first seed founds the cluster: all nodes need the same list of seeds"
"""The remedy if none of the seeds is a member."""


class JoinAttempts:
    """The attempts of one node to join.

    Args:
        me: its address.
        post: hands an event to membership.
        is_member: True once the node is in a cluster.
        look: recognizes the program that listens at an address.
    """

    def __init__(
        self,
        me: Address,
        settings: Settings,
        store: StateStore,
        loop: asyncio.AbstractEventLoop,
        post: Callable[[cluster.Event], None],
        is_member: Callable[[], bool],
        look: Look,
    ) -> None:
        self._me, self._settings, self._store, self._loop = me, settings, store, loop
        self._post, self._is_member = post, is_member
        self.began = False
        """True once an attempt has begun."""
        self.shares_store = family(settings.store.url) != "memory"
        """True if other processes can use the same store."""
        self.watched = parse_seeds(settings.node.seeds).addresses
        """The addresses of the settings' seeds."""
        self.rejoining: Rejoining | None = None
        self._waits = JoinWaits(look, loop)
        self._seeds: set[Address] = set()
        self._denying: set[Address] = set()
        """Seeds whose keys differ from this node's."""
        self._discovery: Discovery | None = None
        self._rejoins_later: asyncio.TimerHandle | None = None

    def begin(self, rejoins_by: Sequence[str], turn: int) -> None:
        """Join through `rejoins_by`, members of this node's former life, or else through the seeds
        of the settings, unless `node.join` is `manual`."""
        self._post(cluster.WatchSeeds(self.watched))
        if rejoins_by:
            within = self._settings.cluster.rejoin_within
            self.rejoining = Rejoining(rejoins_by, within, self._loop.time(), turn)
            first = founder(self._me, self._settings.node, rejoins_by)
            rejoin = partial(self.by, rejoins_by, founds=False, within=within, first=first)
            self._rejoins_later = self._loop.call_later(pause_before(turn), rejoin)
        elif self._settings.node.join == "auto":
            self.by(self._settings.node.seeds)

    def by(
        self,
        seeds: Iterable[str],
        *,
        founds: bool = True,
        within: float = 0.0,
        first: Address | None = None,
    ) -> None:
        """Begin to join through these seeds, in the forms of `node.seeds`; without any, found a
        cluster. With `founds` False, rejoin: give up after `within` seconds, 0 is never, and found
        none, except by the store's claim, with discovery or as the node at the address `first`."""
        listed = parse_seeds(seeds)
        addresses, discovers = listed.addresses, listed.discovers
        self.began, self._denying = True, set()
        self._seeds = set(addresses) - {self._me}
        claims = self.shares_store
        self._post(
            cluster.JoinSeeds(addresses, founds, within, discovers, claims, listed.store, first)
        )
        if discovers and self._discovery is None:
            self._discovery = Discovery(
                listed, self._me, self._store, self._settings.cluster, self._contacts_found
            )
            self._discovery.start()

    def _contacts_found(self, contacts: tuple[Address, ...]) -> bool:
        """Join through these. Returns True while this node is no member."""
        if not self._is_member():
            self._seeds = set(contacts) - {self._me}
            self._post(cluster.ContactsFound(contacts))
        return not self._is_member()

    def denied(self, address: Address) -> bool:
        """Note that the keys of this seed differ. Returns True if no seed can admit this node."""
        self._denying.add(address)
        hopeless = bool(self._seeds) and self._seeds <= self._denying
        return self.began and hopeless and not self._is_member()

    def watch(self, broken: Callable[[], Sequence[BrokenLink]], *, ended: bool) -> None:
        """Log which ways to other nodes do not work, and for which members a node waits that
        rejoins. Called once a second. `ended`: this node does not try any more."""
        waits = not (ended or self._is_member())
        waited = self._waits.update(broken() if waits else ())
        if waited is not None:
            log.warning("in no cluster after %.0f s: %s", waited, self._ways())
        rejoining = self.rejoining if waits else None
        if rejoining is not None and (line := rejoining.line(self._loop.time())):
            log.warning("%s", line)

    def describe(self, waits_for: str) -> str:
        """Return why a node waits that is in no cluster, and which ways to others do not work;
        empty once it is a member. `waits_for`: why it does not found."""
        if self._is_member():
            return ""
        downed = "" if self.rejoining is None else self.rejoining.describe(self._loop.time())
        return "; ".join(filter(None, (downed, waits_for, self._ways())))

    def _ways(self) -> str:
        """Return which ways do not work."""
        by_list = self._discovery is None and self.rejoining is None
        names_remedy = by_list and self._waits.finds_no_member
        return self._waits.describe() + (f"; {ONE_LIST}" if names_remedy else "")

    async def close(self) -> None:
        """Make no further attempt."""
        self._waits.close()
        if self._rejoins_later is not None:
            self._rejoins_later.cancel()
        if self._discovery is not None:
            await self._discovery.close()
