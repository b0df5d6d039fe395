"""The outboxes of clients in a store: a journal, a lease, a register, and one list of names.

    journal     the messages, each behind the time at which a node took it
    lease       which process has the outbox open; its counter is the fence of journal and register
    register    a journal, whose last entry counts: who opened the outbox last, and which messages
                an operator has given up
    list        the names of the outboxes that are open or have messages

An outbox has one opener at a time. A process that opens it again after its lease ran out goes on
only if none has been the opener in between: the register names the last one's fence.

An operator who gives messages up is an opener, too, so he cannot while a producer has the outbox
open, and a former producer changes nothing afterwards. The messages that are given up in the middle
stay in the journal, which loses entries at its beginning only; the register has their numbers, and
a reader gets them without content.

Messages behind an unconfirmed one stay until that one has ended. So the *pending* messages of an
outbox may be confirmed in part.

Bounds: `DROPPED_MAX` numbers in the register, `LISTED_MAX` outboxes in a list for operators.

Source: docs/how-to/deliver.md; B.106.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from secrets import randbits, token_hex
from typing import NamedTuple

import msgspec

from shardbus.bounds import Uid
from shardbus.errors import JournalConflict, Refused, StaleFence, StoreError
from shardbus.quantities import counted
from shardbus.store.journal_protocol import Append, JournalPage, JournalStore
from shardbus.store.protocol import Lease, StateStore
from shardbus.transport.permissions import OUTBOX_TYPE

PAGE = 1000
"""Entries that are read at a time."""
LISTED_MAX = 1000
"""Outboxes that a list for operators reads."""
AT_ONCE = 20
"""Outboxes that a list reads at once."""
DROPPED_MAX = 1000
"""Messages of one outbox that are given up behind one that is not."""
DROP_TTL_S = 20.0
"""Seconds for which an operator is the opener, at most."""
LIST, LIST_SHARD, LIST_FENCE = OUTBOX_TYPE, "all", 1
"""The list of names: remembered entities of a reserved type, under one fence."""
REGISTER_TYPE = "$outbox-register"
"""The kind of the journals that are registers."""
LEASE_PREFIX = "outbox/"
LEASES_MAX = 100_000
"""Openers that an outbox had, which can be imported."""
STAMP_BYTES = 8


class OutboxMessage(NamedTuple):
    """A message, as a client encodes it. `payload`: the arguments, encoded."""

    entity_type: str
    entity_id: str
    method: str
    payload: bytes


encode_message = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(OutboxMessage).decode


def decode_message(entry: bytes) -> OutboxMessage:
    """Return a message.

    Raises:
        StoreError: it is none.
    """
    try:
        return _decode(entry)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"a message of an outbox cannot be read: {error}") from None


class OutboxRegister(msgspec.Struct, array_like=True, frozen=True):
    """The state of an outbox besides its messages. `fence`: of its last opener. `opened`:
    milliseconds since 1970. `dropped`: numbers of messages that were given up."""

    fence: Uid = 0
    producer: str = ""
    opened: Uid = 0
    dropped: list[Uid] = []
    producer_fence: Uid = 0
    """Under which `producer` has opened it; lower than `fence` once an operator was the opener."""

    def is_of(self, producer: str, former: int) -> bool:
        """True if the last opener was this producer: under this fence, or by a call whose answer
        it never got."""
        is_own = self.producer == producer and self.producer_fence == self.fence
        return is_own or self.fence == former


class StoredMessage(NamedTuple):
    """A message in the journal. `taken`: milliseconds since 1970."""

    number: int
    taken: int
    message: OutboxMessage


class OutboxSummary(NamedTuple):
    """An outbox, as a list shows it. `oldest`: None if it has no message."""

    name: str
    register: OutboxRegister
    pending: int
    oldest: StoredMessage | None


class DroppedMessages(NamedTuple):
    """Messages that were given up: how many, the first of them, and how many are left."""

    number: int
    first: list[StoredMessage]
    left: int


class StoredOutboxes:
    """The outboxes of a store. `wall_clock` returns the seconds since 1970. Each method raises
    StoreUnavailable if the store does not answer."""

    def __init__(
        self, store: StateStore, journals: JournalStore, wall_clock: Callable[[], float]
    ) -> None:
        self._store, self._journals, self._wall_clock = store, journals, wall_clock

    # ---- the steps of an opener

    async def open(self, name: str, producer: str, ttl: float, former: int = 0) -> int | None:
        """Return the fence of the opener; None if another process is. `former`: the fence that this
        process had before, 0 for none. Copies of one call, also at once, return the same fence.

        Raises:
            StaleFence: another process was the opener since.
        """
        lease = await self._store.acquire_lease(_lease_name(name), producer, ttl)
        if lease is None:
            return None
        try:
            await self._register(lease, former)
        except JournalConflict:  # a copy of this step, under the same lease, has written first
            await self._register(lease, former)
        return lease.counter

    async def _register(self, lease: Lease, former: int) -> None:
        """Write the opener into the register, unless a copy of this step has."""
        name, fence, producer = lease.name.removeprefix(LEASE_PREFIX), lease.counter, lease.owner
        register, last, head = await self._begin(name, fence)
        if register.fence == fence:
            return
        if former and not register.is_of(producer, former):
            await self._store.release_lease(lease)
            raise StaleFence(OUTBOX_TYPE, name, former, register.fence)
        await self._store.add_remembered(LIST, LIST_SHARD, [name], LIST_FENCE)
        dropped = [number for number in register.dropped if number >= head.first]
        opened = int(self._wall_clock() * 1000)
        register = OutboxRegister(fence, producer, opened, dropped, fence)
        await self._write(name, register, last)

    async def renew(self, name: str, producer: str, fence: int, ttl: float) -> bool:
        """Extend the lease. Returns False if it is lost."""
        return await self._store.renew_lease(Lease(_lease_name(name), producer, fence), ttl)

    async def close(self, name: str, producer: str, fence: int, ttl: float) -> None:
        """Free the lease of an opener. An outbox without messages leaves the list."""
        lease = Lease(_lease_name(name), producer, fence)
        if await self._store.renew_lease(lease, ttl):
            await self._forget_if_empty(name)
            await self._store.release_lease(lease)

    async def read(self, name: str, fence: int, after: int) -> JournalPage:
        """Return messages after a number, and refuse the appends of former openers from now on. A
        message that was given up is empty.

        Raises:
            StaleFence: another process was the opener since.
        """
        page = await self._journals.open(OUTBOX_TYPE, name, name, fence, after, PAGE)
        dropped = set((await self.register(name)).dropped)
        entries = [
            b"" if number in dropped else entry[STAMP_BYTES:]
            for number, entry in enumerate(page.entries, page.first)
        ]
        return page._replace(entries=entries)

    async def append(
        self, name: str, fence: int, after: int, messages: list[bytes], op_id: int
    ) -> int:
        """Append messages after a number, and return the number of the last one. A repeat under the
        same operation id changes nothing.

        Raises:
            StaleFence, JournalConflict: another process is the opener, or was.
        """
        stamp = int(self._wall_clock() * 1000).to_bytes(STAMP_BYTES, "big")
        entries = tuple(stamp + message for message in messages)
        append = Append(OUTBOX_TYPE, name, name, fence, entries, op_id, after)
        (refused,) = await self._journals.append([append])
        if refused is not None:
            raise refused
        return append.last

    async def trim(self, name: str, fence: int, upto: int) -> None:
        """Remove the messages up to this number.

        Raises:
            StaleFence: another process was the opener since.
        """
        await self._journals.trim(OUTBOX_TYPE, name, name, fence, upto)

    # ---- for operators

    async def names(self) -> tuple[list[str], bool]:
        """Return the outboxes that are open or have messages, at most `LISTED_MAX`, and whether
        there are more."""
        names: dict[str, None] = {}
        cursor: str | None = None
        while len(names) <= LISTED_MAX:
            page, cursor = await self._store.page_remembered(LIST, LIST_SHARD, cursor, PAGE)
            names |= dict.fromkeys(page)
            if cursor is None:
                break
        return sorted(names)[:LISTED_MAX], len(names) > LISTED_MAX

    async def summaries(self) -> tuple[list[OutboxSummary], bool]:
        """Return the outboxes of the list, the oldest message first, and whether there are more."""
        names, more = await self.names()
        rows: list[OutboxSummary] = []
        for begin in range(0, len(names), AT_ONCE):
            part = names[begin : begin + AT_ONCE]
            registers = await asyncio.gather(*map(self.register, part))
            heads = await asyncio.gather(*(self._read(name, 0, 1) for name in part))
            rows += map(_summary, part, registers, heads)
        rows.sort(key=_by_age)
        return rows, more

    async def messages(
        self, name: str, after: int, limit: int
    ) -> tuple[OutboxSummary, list[StoredMessage]]:
        """Return an outbox, and at most `limit` of its messages after a number.

        Raises:
            Refused: there is none of this name.
        """
        register, head = await self.register(name), await self._read(name, 0, 1)
        if not register.fence and not head.last:
            raise Refused(f"no outbox is called {name!r}", hint="`shardbus outbox list` has them")
        dropped, rows, page = set(register.dropped), list[StoredMessage](), head
        after = max(after, head.first - 1)
        while len(rows) < limit and after < head.last:
            page = await self._read(name, after, PAGE)
            rows += [message for message in _messages(page) if message.number not in dropped]
            after = page.end
        return _summary(name, register, head), rows[:limit]

    async def register(self, name: str) -> OutboxRegister:
        """Return the register of an outbox."""
        return _register_of(await self._journals.read(REGISTER_TYPE, name, name, 0, PAGE))

    async def drop(self, name: str, number: int = 0) -> DroppedMessages:
        """Give up one message of an outbox that no process has open; without a number, all.

        Raises:
            Refused: a process has it open; there is no such outbox, or message; too many have been
                given up one by one.
        """
        await self.messages(name, 0, 1)
        lease = await self._store.acquire_lease(
            _lease_name(name), f"operator/{token_hex(8)}", DROP_TTL_S
        )
        if lease is None:
            raise Refused(
                f"the outbox {name!r} is open in a process, which delivers it",
                hint="end that process; its lease ends within 5 s",
            )
        try:
            return await self._drop(name, lease.counter, number)
        finally:
            await self._store.release_lease(lease)

    async def _drop(self, name: str, fence: int, number: int) -> DroppedMessages:
        former, last, head = await self._begin(name, fence)
        dropped = {n for n in former.dropped if n >= head.first}
        pending = head.last - head.first + 1 - len(dropped)
        if number and (number in dropped or not head.first <= number <= head.last):
            raise Refused(f"the outbox {name!r} has no message {number}")
        if number and len(dropped) >= DROPPED_MAX:
            hint = "give up the first one, or the whole outbox"
            text = counted(len(dropped), "message is", "messages are")
            raise Refused(f"{text} given up behind one that is not", hint=hint)
        page = await self._read(name, max(number, head.first) - 1, 1 if number else PAGE)
        first = [message for message in _messages(page) if message.number not in dropped]
        upto = head.last
        if number:
            dropped.add(number)
            upto = head.first - 1
            while upto + 1 in dropped:
                upto += 1
        kept = sorted(n for n in dropped if n > upto)
        await self._write(name, msgspec.structs.replace(former, fence=fence, dropped=kept), last)
        await self._journals.trim(OUTBOX_TYPE, name, name, fence, upto)
        await self._forget_if_empty(name)
        count = 1 if number else pending
        return DroppedMessages(count, first, pending - count)

    # ---- steps

    async def _read(self, name: str, after: int, limit: int) -> JournalPage:
        return await self._journals.read(OUTBOX_TYPE, name, name, after, limit)

    async def _begin(self, name: str, fence: int) -> tuple[OutboxRegister, int, JournalPage]:
        """Refuse the writes of former openers from now on. Returns the register, the number of its
        last entry, and the head of the outbox."""
        page = await self._journals.open(REGISTER_TYPE, name, name, fence, 0, PAGE)
        head = await self._journals.open(OUTBOX_TYPE, name, name, fence, 0, 0)
        return _register_of(page), page.last, head

    async def _write(self, name: str, register: OutboxRegister, after: int) -> None:
        """Write the register behind its last entry, which goes."""
        fence, entry = register.fence, msgspec.msgpack.encode(register)
        append = Append(REGISTER_TYPE, name, name, fence, (entry,), randbits(62) + 1, after)
        (refused,) = await self._journals.append([append])
        if refused is not None:
            raise refused
        await self._journals.trim(REGISTER_TYPE, name, name, fence, after)

    async def _forget_if_empty(self, name: str) -> None:
        """Take an outbox without messages off the list. Its numbers and its fence stay."""
        head = await self._read(name, 0, 0)
        if head.first > head.last:
            await self._store.remove_remembered(LIST, LIST_SHARD, [name], LIST_FENCE)


async def raise_fence(store: StateStore, journals: JournalStore, name: str) -> None:
    """Let the next opener of an imported outbox come after its last one: entities that remember
    that one would take deliveries of an earlier opener for stale.

    Raises:
        StoreError: a process has the outbox open, or too many had.
    """
    register = _register_of(await journals.read(REGISTER_TYPE, name, name, 0, PAGE))
    counter, owner = 0, f"import/{token_hex(8)}"
    while counter < register.fence:
        lease = await store.acquire_lease(_lease_name(name), f"{owner}/{counter}", DROP_TTL_S)
        if lease is None or register.fence > LEASES_MAX:
            why = "is open in a process" if lease is None else "had too many openers"
            raise StoreError(f"the outbox {name!r:.100} {why}")
        await store.release_lease(lease)
        counter = lease.counter


def _lease_name(name: str) -> str:
    return f"{LEASE_PREFIX}{name}"


def _by_age(row: OutboxSummary) -> tuple[bool, int, str]:
    return row.oldest is None, row.oldest.taken if row.oldest else 0, row.name


def _register_of(page: JournalPage) -> OutboxRegister:
    if not page.entries:
        return OutboxRegister()
    try:
        return msgspec.msgpack.decode(page.entries[-1], type=OutboxRegister)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"the register of an outbox cannot be read: {error}") from None


def _messages(page: JournalPage) -> list[StoredMessage]:
    return [
        StoredMessage(
            number,
            int.from_bytes(entry[:STAMP_BYTES], "big"),
            decode_message(entry[STAMP_BYTES:]),
        )
        for number, entry in enumerate(page.entries, page.first)
    ]


def _summary(name: str, register: OutboxRegister, head: JournalPage) -> OutboxSummary:
    """Return an outbox by its register and the first page of its journal, with one entry."""
    dropped = sum(1 for number in register.dropped if number >= head.first)
    pending = head.last - head.first + 1 - dropped
    return OutboxSummary(name, register, pending, next(iter(_messages(head)), None))
