"""Calls to a Redis Cluster: which master has which slot, and the way of a call to it.

Each master has a link of its own (`redis_link`), so that a master that does not answer holds up
nothing but its own slots. A call goes to the master of its first key's slot, as the *map* of slots
has it. If that master does not answer it, the call goes on:

| the master | the call goes |
|---|---|
| answers MOVED: another one has the slot | there; the map has it from then on |
| answers ASK: the slot is on its way, and this key has gone | there, once, behind ASKING |
| answers TRYAGAIN: some keys of the call have gone, others not | again, one call for each key |
| is gone, loads, is a replica, or cannot reach the others | by a new map, after a pause |

It does so until `timeout` has passed. A script that uses its keys together cannot be cut, so it
waits until the keys are in one place again.

The map is the first answer of a node to CLUSTER SLOTS. It is requested anew when a master does not
answer, and with every probe. A master that the map did not have as one before may be a replica that
took over without the last writes: it counts as another server, as a master with another run id
does. A slot that moves between masters that are known loses nothing and counts as nothing.

The client library's own cluster client is not used for calls: its pipeline waits for the slowest of
all servers, and one lost connection fails every part of it.

Source: docs/guarantees.md; the Redis Cluster specification.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from shardbus.errors import StoreUnavailable
from shardbus.ids import Address
from shardbus.store.redis_errors import trouble_of
from shardbus.store.redis_keys import slot_of
from shardbus.store.redis_link import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Bounced,
    Durability,
    RedisClient,
    RedisLink,
    RedisSession,
)
from shardbus.store.redis_packing import Value
from shardbus.store.redis_scripts import Script
from shardbus.store.trouble import Trouble
from shardbus.task_set import TaskSet

ASKED_AT_ONCE = 5
"""Nodes that get the request for the map at once; the first answer counts."""
MARKS_MAX = 4 * REDIS_CLUSTER_HASH_SLOTS
"""Keys that are tried for one that a master has."""
REDIRECTS = 5
"""Redirects of one call without a pause, at most."""


_Range = tuple[int, int, list[Address]]
"""The first and the last of some slots, their master, and its replicas."""


class ClusterMap:
    """The masters and their slots. `seeds` are nodes of the cluster, `connect` makes a client of
    one node, `timeout` bounds a question, in seconds. `shown` names the cluster in errors. `mark`
    returns a key of the store's own for each number; see `mark`."""

    def __init__(
        self,
        seeds: Sequence[Address],
        connect: Callable[[Address], RedisClient],
        shown: str,
        mark: Callable[[int], str],
        *,
        timeout: float,
    ) -> None:
        self.connect, self._mark = connect, mark
        self._seeds = tuple(seeds)
        self._shown, self._timeout = shown, timeout
        self._owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._marks: dict[Address, str] = {}
        self._nodes: tuple[Address, ...] = ()
        """All nodes of the last answer, replicas too."""
        self.masters: frozenset[Address] = frozenset()
        self.version = 0
        """Grows with each answer."""
        self.on_new_master: Callable[[], None] = lambda: None
        self.trouble = Trouble("does not respond", again=True)
        """Why the last question had no answer."""
        self._asking: asyncio.Task[None] | None = None
        self._tasks = TaskSet()

    def owner(self, slot: int) -> Address | None:
        """Return the master of a slot, None if it has none."""
        return self._owners[slot]

    def mark(self, master: Address) -> str:
        """Return the first of the store's own keys that this master has: to probe it, and so that
        each batch writes something. A master without a slot gets one that it will refuse."""
        before = self._marks.get(master)
        if before is not None and self._owners[slot_of(before)] == master:
            return before
        keys = map(self._mark, range(MARKS_MAX))
        mark = next((key for key in keys if self._owners[slot_of(key)] == master), self._mark(0))
        self._marks[master] = mark
        return mark

    def move(self, slot: int, to: Address) -> None:
        """Note that a slot has another master."""
        self._owners[slot] = to
        self._learn(self.masters | {to})

    async def refresh(self, seen: int | None = None) -> None:
        """Request the map, unless it is newer than version `seen`. Callers at the same time share
        one question.

        Raises:
            StoreUnavailable: no node answers.
        """
        if seen is not None and self.version > seen:
            return
        before = self.version
        if self._asking is None or self._asking.done():
            self._asking = self._tasks.spawn(self._ask(), name="shardbus-redis-map")
        await asyncio.shield(self._asking)
        if self.version == before:
            what, hint = self.trouble.what, self.trouble.hint
            raise StoreUnavailable(f"{self._shown} {what}", hint=hint, definite=True)

    async def _ask(self) -> None:
        """Request the map. `version` grows if a node answers; it does not raise if none does,
        because its callers may all have given up by then."""
        nodes = list(dict.fromkeys((*self._nodes, *self._seeds)))
        random.shuffle(nodes)
        answers: list[list[_Range]] = []

        async def ask(node: Address) -> None:
            try:
                answers.append(await self._slots_at(node))
            except Exception as error:  # The client library's errors have no common root.
                self.trouble = trouble_of(error)

        for first in range(0, len(nodes), ASKED_AT_ONCE):
            asks = {
                self._tasks.spawn(ask(node), name="shardbus-redis-slots")
                for node in nodes[first : first + ASKED_AT_ONCE]
            }
            while asks and not answers:
                _, asks = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
            for task in asks:
                task.cancel()
            if answers:
                self._read(answers[0])
                return

    async def _slots_at(self, node: Address) -> list[_Range]:
        """Return the ranges of slots as a node has them."""
        client = self.connect(node)
        try:
            async with asyncio.timeout(self._timeout):
                rows = await client.execute_command("CLUSTER SLOTS")
        finally:
            with contextlib.suppress(Exception):
                await client.aclose()
        ranges = [
            (int(first), int(last), [_address(place, node) for place in places])
            for first, last, *places in rows
        ]
        if not ranges:
            raise StoreUnavailable(f"{node} knows no slots")
        return ranges

    def _read(self, ranges: list[_Range]) -> None:
        owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, places in ranges:
            owners[first : last + 1] = [places[0]] * (last + 1 - first)
        self._owners = owners
        self._nodes = tuple({place for _, _, places in ranges for place in places})
        self.version += 1
        self._learn(frozenset(places[0] for _, _, places in ranges))

    def _learn(self, masters: frozenset[Address]) -> None:
        before, self.masters = self.masters, masters
        if before and not masters <= before:
            self.on_new_master()


def _address(place: Sequence[Any], node: Address) -> Address:
    """Return the address of a node in an answer. A node that does not know its own host has none,
    or `?`."""
    host = place[0].decode() if isinstance(place[0], bytes) else place[0]
    return Address(host if host not in (None, "", "?") else node.host, int(place[1]))


class ClusterLink:
    """Calls scripts at the masters of a cluster, as a `RedisLink` does at one server."""

    def __init__(self, slots: ClusterMap, session: RedisSession, *, timeout: float) -> None:
        self._map, self._session, self._timeout = slots, session, timeout
        self._links: dict[Address, RedisLink] = {}
        self._fsync, self._replicas = False, 0
        self._open, self._tasks = False, TaskSet()

    def open(self, *, fsync: bool, replicas: int) -> None:
        """Accept calls, and answer them once they are as durable as `Durability` says."""
        self._fsync, self._replicas = fsync, replicas
        self._open = True

    async def close(self) -> None:
        """Fail the waiting calls and close the connections."""
        self._open = False
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))

    def busy_for(self, key: Value) -> bool:
        """True while calls to the master of this key wait or are in flight."""
        owner = self._map.owner(_slot(key))
        link = self._links.get(owner) if owner is not None else None
        return link is not None and link.busy_for(key)

    async def call(self, script: Script, keys: Sequence[Value], *args: Any) -> Any:
        """Run `script` at the master of its keys and return its reply, as `RedisLink.call`."""
        doubts: list[bool] = []
        troubles: list[Trouble] = []
        try:
            async with asyncio.timeout(self._timeout):
                return await self._try(script, keys, args, doubts, troubles)
        except StoreUnavailable as error:
            if any(doubts[:-1]):  # an earlier attempt
                error.definite = False
            raise
        except TimeoutError:
            trouble = troubles[-1] if troubles else Trouble("does not respond", definite=False)
            self._session.outage.failed(trouble.what, trouble.hint)
            raise StoreUnavailable(
                f"{self._session.shown} gave no answer within {self._timeout:g} s:"
                f" it {trouble.what}",
                hint=trouble.hint,
                definite=trouble.definite and not any(doubts),
            ) from None

    def send(
        self, script: Script, keys: Sequence[Value], args: Sequence[Any], *, alone: bool = True
    ) -> asyncio.Future[Any]:
        """Return the future of a `call`."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def call() -> None:
            try:
                give = partial(answer.set_result, await self.call(script, keys, *args))
            except Exception as error:
                give = partial(answer.set_exception, error)
            if not answer.done():
                give()

        task = self._tasks.spawn(call(), name="shardbus-redis-call")
        answer.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)
        return answer

    async def call_at(
        self, master: Address, script: Script, keys: Sequence[Value], *args: Any
    ) -> Any:
        """Run `script` at this master. Raises StoreUnavailable also if it has not these keys."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._link(master).bounce(script, keys, args)
        except (TimeoutError, Bounced) as error:
            what = error.trouble.what if isinstance(error, Bounced) else "does not respond"
            raise StoreUnavailable(f"{master} {what}") from None

    async def _try(
        self,
        script: Script,
        keys: Sequence[Value],
        args: Sequence[Any],
        doubts: list[bool],
        troubles: list[Trouble],
    ) -> Any:
        """Send a call until a master answers it. Notes why one did not, and whether it may have
        run the call."""
        slot, once = _slot(keys[0]), None
        redirects, pause = 0, FIRST_PAUSE_S
        while True:
            seen = self._map.version
            to = once or self._map.owner(slot)
            try:
                if to is None:
                    raise Bounced(Trouble("has no server for some slots", again=True), False)
                doubts.append(True)
                return await self._link(to).bounce(script, keys, args, asking=once is not None)
            except Bounced as bounced:
                doubts[-1:] = [bounced.in_doubt]
                troubles.append(bounced.trouble)
                if bounced.to is None and len(keys) > 1 and script.join and _is_cut(bounced):
                    return await self._call_each(script, keys, args)
                once = bounced.to if bounced.once else None
                if bounced.to is not None and not bounced.once:
                    self._map.move(slot, bounced.to)
                redirects = redirects + 1 if bounced.to is not None else 0
                if 0 < redirects < REDIRECTS:
                    continue
            await self._renew(seen)
            await asyncio.sleep(pause)
            redirects, pause = 0, min(2 * pause, LONGEST_PAUSE_S)

    async def _call_each(
        self, script: Script, keys: Sequence[Value], args: Sequence[Any]
    ) -> list[Any]:
        """Run `script` once for each key, because the keys are at two masters."""
        assert script.join is not None
        rows = ([arg] for arg in args) if script.own_args else (args for _ in keys)
        calls = (self.call(script, (key,), *mine) for key, mine in zip(keys, rows, strict=True))
        joined: list[Any] = script.join(await asyncio.gather(*calls))
        return joined

    async def _renew(self, seen: int) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self._map.refresh(seen)
        masters = self._map.masters
        for gone in [address for address in self._links if address not in masters]:
            self._links.pop(gone).retire()
            self._session.servers.pop(gone, None)

    def _link(self, to: Address) -> RedisLink:
        if not self._open:
            raise StoreUnavailable(f"the store {self._session.shown} is not open")
        link = self._links.get(to)
        if link is None:
            link = self._links[to] = RedisLink(
                lambda: self._map.connect(to), self._session, timeout=self._timeout, at=to
            )
            durable = Durability(lambda: self._map.mark(to), self._fsync, self._replicas)
            link.open(durable if self._fsync or self._replicas else None)
        return link


def _is_cut(bounced: Bounced) -> bool:
    return "TRYAGAIN" in bounced.trouble.what


def _slot(key: Value) -> int:
    return slot_of(str(key) if isinstance(key, int) else key)
