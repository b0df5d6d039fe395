"""The replicated values of a store inside the cluster: requests, listings and watching.

The machine is `replication.quorum`; this is its driver, beside the driver of registers in
`replicated`, on the same links. Numbers of its calls begin at `VALUES`, and those of listings of
changes at `LISTINGS`, so that answers find their way.

**Watching.** Every `WATCH_S` a watcher requests from each disk in reach the keys that have changed
since its last request, and reads those that its prefix has. A disk that does not remember all of
them, as after its start, makes the watcher read all keys of the prefix. So no change is missed that
reaches a disk in reach; of several changes in a row only the last may be seen.

Source: docs/how-to/replicated-values.md; S3.85-S3.89.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import aclosing
from itertools import count
from random import Random
from typing import Protocol

from shardbus.errors import ConfigError, StoreUnavailable, ValueRefused
from shardbus.quantities import counted
from shardbus.replication import quorum
from shardbus.replication.messages import KeysChanged, ListChanges, TakeChange
from shardbus.replication.proposer import Completed, RingFound, SendCall, Unanswered
from shardbus.replication.ring import AdoptRing, ReplicaRing, StoreCall, StoreReply
from shardbus.replication.values import DATA, SEPARATOR, data_key
from shardbus.replication.versions import REGISTER, Clock, DataChange, DataValue, NotTaken
from shardbus.store.replica_links import ReplicaLinks

VALUES, LISTINGS = 2**61, 2**61 + 2**60
WATCH_S = 0.2
AGAIN_S = 1.0
"""Until a watcher reads again after a failure."""
REQUESTS_MAX = 10_000
"""Requests under way."""
WATCHED_MAX = 100_000
"""Keys of one watcher."""
READ_AT_ONCE = 64
CONFLICTS_MANY = 10
"""Values of one key, put at the same time, that are worth a finding."""
CONFLICTS_NAMED = 20
"""Keys that are kept for it."""

Since = dict[int, tuple[int, int]]
"""The run and the last number of each disk, of the changes that a watcher has seen."""
Keys = Callable[[str], Awaitable[list[str]]]
"""Lists the keys that begin with a text."""


class ReplicatedValues:
    """The requests of one store object. Belongs to one event loop.

    Args:
        timeout: of each request, in seconds.
        list_keys: lists keys of registers and values, by scans of a majority.
    """

    def __init__(
        self,
        url: str,
        links: ReplicaLinks,
        ring: ReplicaRing,
        timeout: float,
        list_keys: Keys,
        dice: Random,
    ) -> None:
        self._url, self._links, self._timeout = url, links, timeout
        self._list_keys = list_keys
        self._loop = asyncio.get_running_loop()
        self._quorums = quorum.Quorums(ring, dice, VALUES)
        self._tickets, self._listings = count(1), count(LISTINGS)
        self._awaited: dict[Hashable, asyncio.Future[quorum.DataOutcome]] = {}
        self._listed: dict[int, asyncio.Future[KeysChanged]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._closed = False
        self.counts: Counter[tuple[str, str]] = Counter()
        """Requests that have ended, by kind and outcome."""
        self.conflicts = ValueConflicts()
        self.on_change()

    # ---- the driver

    def close(self) -> None:
        """End all requests; those under way are in doubt."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future in self._awaited.values():
            if not future.done():
                future.set_result(Unanswered(sent=True))
        for listing in self._listed.values():
            listing.cancel()

    def on_change(self) -> None:
        """Disks have begun or ceased to serve."""
        self._carry_out(self._quorums.serve(self._links.serving_disks, self._loop.time()))
        self.take_ring(self._links.ring)

    def take_ring(self, ring: ReplicaRing) -> None:
        """Work under this ring, if it is newer."""
        self._carry_out(self._quorums.take_ring(ring, self._loop.time()))

    def on_refused(self, disk: int, ring: ReplicaRing) -> None:
        """A disk has refused calls of a former ring."""
        self._carry_out(self._quorums.on_refused(disk, ring, self._loop.time()))

    def handle(self, reply: StoreReply) -> None:
        """Take the reply to a call whose number is `VALUES` or above."""
        if reply.number < LISTINGS:
            self._carry_out(self._quorums.handle(reply, self._loop.time()))
            return
        listing = self._listed.get(reply.number)
        if listing is not None and not listing.done() and isinstance(reply.answer, KeysChanged):
            listing.set_result(reply.answer)

    def _carry_out(self, effects: list[quorum.DataEffect]) -> None:
        for effect in effects:
            match effect:
                case SendCall(disk, StoreCall() as call):
                    if not self._links.send(disk, call) and isinstance(call.request, TakeChange):
                        self._quorums.on_unsent(call.number, self._loop.time())
                case SendCall(disk, AdoptRing(ring)):
                    self._links.adopt(ring, {disk})
                case quorum.RequestSettled(ticket, outcome):
                    future = self._awaited.pop(ticket, None)
                    if future is not None and not future.done():
                        future.set_result(outcome)
                case RingFound() | SendCall():
                    pass  # the driver of registers connects to its disks
        self._arm()

    def _arm(self) -> None:
        due = self._quorums.deadline()
        if self._timer is not None and (due is None or self._due > due):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and due is not None and not self._closed:
            self._due, self._timer = due, self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._quorums.tick(max(self._loop.time(), self._due)))

    # ---- requests

    @property
    def ring(self) -> ReplicaRing:
        """The ring under which requests are made."""
        return self._quorums.ring

    def replicas_of(self, name: str) -> list[str]:
        """Return the addresses of the disks that hold a key; the id of one that is out of reach."""
        links = self._links.links.values()
        by_disk = {link.disk: str(link.address) for link in links if link.disk is not None}
        disks = self.ring.disks_of(data_key(name))
        return [by_disk.get(disk, f"disk {disk:016x}") for disk in disks]

    async def get(self, name: str, level: quorum.Level) -> DataValue:
        """Return the value of a key; one without dots if there is none.

        Raises:
            StoreUnavailable: too few replicas have answered in time.
            ConfigError: the key has fewer replicas than the level needs.
        """
        return await self._do(name, quorum.GetValue(level), f"r={level}")

    async def write(self, name: str, change: DataChange, level: quorum.Level) -> DataValue:
        """Write a value. Returns the value of the replica that has taken the write.

        Raises:
            StoreUnavailable: too few replicas have answered in time; `definite` False: the write
                may have its effect, once.
            ValueRefused: the value is of another kind, or would be too large.
            ConfigError: as `get`. Nothing was written.
        """
        return await self._do(name, quorum.WriteValue(change, level), f"w={level}")

    async def _do(
        self, name: str, work: quorum.GetValue | quorum.WriteValue, level: str
    ) -> DataValue:
        if self._closed:
            raise StoreUnavailable(f"{self._url} is not open", definite=True)
        if len(self._awaited) >= REQUESTS_MAX:
            raise StoreUnavailable(
                f"{self._url}: {REQUESTS_MAX} requests of values are under way",
                hint="await some of them first",
                definite=True,
            )
        future: asyncio.Future[quorum.DataOutcome] = self._loop.create_future()
        ticket = next(self._tickets)
        self._awaited[ticket] = future
        now = self._loop.time()
        self._carry_out(self._quorums.submit(ticket, data_key(name), work, now, self._timeout))
        outcome = await future
        self.counts[_kind_of(work), _named(outcome)] += 1
        match outcome:
            case Completed(DataValue() as value):
                self.conflicts.note(name, value)
                return value
            case NotTaken("memory"):
                raise StoreUnavailable(
                    f"{self._url}: {name!r:.100} was not written: its replica's memory is full",
                    hint="raise store.memory, or delete values",
                    definite=True,
                )
            case NotTaken(reason, detail):
                limit = work.change.limit if isinstance(work, quorum.WriteValue) else 0
                raise ValueRefused(name, reason, detail, limit)
            case quorum.TooFewDisks(needed, disks):
                raise ConfigError(
                    f"{level}: a key has {counted(disks, 'replica')}, fewer than {needed}",
                    hint="use a lower number, or raise store.replicas",
                )
            case _:
                sent = isinstance(outcome, Unanswered) and outcome.sent
                raise self._unavailable(name, level, definite=not sent)

    def _unavailable(self, name: str, level: str, *, definite: bool) -> StoreUnavailable:
        troubles = "" if self._closed else self._links.troubles
        doubt = "" if definite else "; the write may have been stored, or may be yet, once"
        return StoreUnavailable(
            f"{self._url}: too few replicas of {name!r:.100} have answered for {level} within"
            f" {self._timeout:g} s{doubt}" + (f": {troubles}" if troubles else ""),
            hint="start the replicas that are away, or use a lower level"
            + ("" if definite else "; read the value before you write it again"),
            definite=definite,
        )

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with a text and have a value, sorted.

        Raises:
            StoreUnavailable: too few replicas have answered in time.
        """
        start = f"{DATA}{SEPARATOR}"
        names = [key[len(start) :] for key in await self._list_keys(start + prefix)]
        return sorted(name for name in names if belongs(name, prefix))

    # ---- watching

    async def watch(
        self, prefix: str, level: quorum.Level
    ) -> AsyncGenerator[tuple[str, DataValue], None]:
        """Yield values as `watch_values`.

        Raises:
            StoreUnavailable: the store was closed.
            ConfigError: more than `WATCHED_MAX` keys begin with this text, or as `get`.
        """
        async with aclosing(watch_values(self, prefix, level)) as changes:
            async for name, value in changes:
                yield name, value
        raise StoreUnavailable(f"{self._url} is not open", definite=True)

    @property
    def is_open(self) -> bool:
        """True until `close`."""
        return not self._closed

    async def changed(self, prefix: str, since: Since) -> tuple[set[str], bool]:
        """Return the keys that have changed on the disks in reach, and whether these are all.
        `since` is brought up to date."""
        disks = sorted(self._links.serving_disks)
        answers = await asyncio.gather(
            *(self._list_changes(disk, prefix, *since.get(disk, (0, 0))) for disk in disks)
        )
        keys, complete = set[str](), True
        for disk, answer in zip(disks, answers, strict=True):
            if answer is not None:
                since[disk] = answer.run, answer.until
                names = (key.partition(SEPARATOR)[2] for key in answer.keys)
                keys.update(name for name in names if belongs(name, prefix))
                complete = complete and answer.complete
        return keys, complete

    async def _list_changes(
        self, disk: int, prefix: str, run: int, since: int
    ) -> KeysChanged | None:
        """Return the answer of a disk, None if it does not come in time."""
        number = next(self._listings)
        listing: asyncio.Future[KeysChanged] = self._loop.create_future()
        self._listed[number] = listing
        try:
            request = ListChanges(prefix, run, since)
            if not self._links.send(disk, StoreCall(number, self.ring.number, request)):
                return None
            async with asyncio.timeout(self._timeout):
                return await listing
        except TimeoutError:
            return None
        finally:
            del self._listed[number]


class ValueConflicts:
    """The keys that had at least `CONFLICTS_MANY` values, put at the same time, when they were last
    read or written: the last `CONFLICTS_NAMED` of them. Each put after an old version adds one."""

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}
        """By key, as operators read it: how many."""

    def note(self, name: str, value: DataValue) -> None:
        """Note a value that was read or written."""
        many = len(value.dots) >= CONFLICTS_MANY and value.dots[0].kind == REGISTER
        if not many and not self.keys:
            return
        key = name.replace(SEPARATOR, " ")
        self.keys.pop(key, None)
        if many:
            self.keys[key] = len(value.dots)
            if len(self.keys) > CONFLICTS_NAMED:
                del self.keys[next(iter(self.keys))]


def belongs(name: str, prefix: str) -> bool:
    """True if a key that begins with a text is of those that the text stands for: the states of
    entities, whose names have a separator, are not among the values of applications."""
    return (SEPARATOR in name) == (SEPARATOR in prefix)


class ChangedValues(Protocol):
    """A place at which values are watched."""

    @property
    def is_open(self) -> bool: ...
    async def get(self, name: str, level: quorum.Level, /) -> DataValue: ...
    async def keys(self, prefix: str, /) -> list[str]: ...
    async def changed(self, prefix: str, since: Since, /) -> tuple[set[str], bool]: ...


async def watch_values(
    source: ChangedValues, prefix: str, level: quorum.Level
) -> AsyncGenerator[tuple[str, DataValue], None]:
    """Yield the values of all keys that begin with a text, and then each that changes; a value
    without dots is of a key that was deleted. It goes on while replicas are out of reach, and ends
    when the source is closed."""
    versions: dict[str, Clock] = {}
    since: Since = {}
    left: set[str] = set()
    rescans = True
    while source.is_open:
        pause = WATCH_S
        try:
            keys, complete = await source.changed(prefix, since)
            left |= keys
            rescans = rescans or not complete
            if rescans:
                left |= {*await source.keys(prefix), *versions}
                rescans = False
            for part in _parts(sorted(left), READ_AT_ONCE):
                values = await asyncio.gather(*(source.get(name, level) for name in part))
                left.difference_update(part)
                for name, value in zip(part, values, strict=True):
                    if _is_news(versions, name, value):
                        yield name, value
        except StoreUnavailable:
            pause = AGAIN_S
        if len(versions) > WATCHED_MAX:
            raise ConfigError(f"more than {WATCHED_MAX} keys begin with {prefix!r:.60}")
        await asyncio.sleep(pause)


def _kind_of(work: quorum.GetValue | quorum.WriteValue) -> str:
    return "get" if isinstance(work, quorum.GetValue) else "write"


def _named(outcome: quorum.DataOutcome) -> str:
    """Return the name of an outcome in `counts`."""
    match outcome:
        case Completed():
            return "done"
        case Unanswered(sent):
            return "in doubt" if sent else "failed"
        case _:
            return "refused"


def _is_news(versions: dict[str, Clock], name: str, value: DataValue) -> bool:
    """Note the version of a key. Returns True if a watcher has not seen it yet."""
    former = versions.get(name)
    if not value.dots:
        return versions.pop(name, None) is not None
    versions[name] = value.clock
    return former != value.clock


def _parts(names: list[str], length: int) -> list[list[str]]:
    return [names[first : first + length] for first in range(0, len(names), length)]
