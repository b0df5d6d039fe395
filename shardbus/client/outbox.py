"""A durable sender: a message that an outbox has taken is delivered, even if this process ends.

    send ──> appended to the journal of the outbox in the store, by a node ──> `send` returns
                                                │
                                                └──> delivered, under the number of its entry
    confirmed, up to some entry ──> trimmed, every `TRIM_S`

The journal is the truth: an outbox that opens sends every entry that is there, under the numbers
that they had, so the receivers recognise messages that they have handled.

One process has an outbox open at a time. It holds a lease, whose counter is the fence of the
journal and the era of its deliveries: appends of a former opener are refused, and so are its late
deliveries. A lease that ran out, as while the store was away, is taken again under a later fence if
no other process was the opener meanwhile; steps under way are then repeated under that fence.
Otherwise the outbox takes nothing any more.

Messages that are sent while an append is under way go together in the next one. An append without
an answer is sent again, to any node, under the same operation id.

A type that no member has, as while all nodes of its application restart, is no reason to give a
message up: its messages wait, in order, and those for other types pass them.

Bounds: `WAITING_MAX` messages wait to be appended, and as many for types that no member has; then
`send` waits. Deliveries have the windows of `deliveries.producer`.

Source: docs/how-to/deliver.md; B.106.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

from shardbus.config.settings import DeliverySettings
from shardbus.deliveries.producer import DeliveryEnd, SendOutcome
from shardbus.error_text import text_of
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    ConfigError,
    DeliveryFailed,
    EntityFailed,
    LocalProtocolError,
    NodeLost,
    Refused,
    RequestError,
    ShardBusError,
    StoreUnavailable,
    UnknownEntityType,
)
from shardbus.guarded_log import GuardedLog
from shardbus.routing.delivering import DeliveryCounts, DeliverySender, outcome_of
from shardbus.routing.refs import Call, OfOneProcess
from shardbus.routing.router import LoopSender
from shardbus.store.outboxes import OutboxMessage, decode_message, encode_message
from shardbus.task_set import TaskSet
from shardbus.transport.permissions import OUTBOX_TYPE

log = GuardedLog("shardbus.client")

TTL_S = 5.0
"""Seconds for which a lease is granted."""
RENEW_S = 1.5
TRIM_S = 0.1
AGAIN_S = 0.2
"""Between two attempts at a step that has no answer."""
STEP_S = 30.0
"""Seconds for which a step is tried; longer than a node's death takes to be seen."""
WAITING_MAX = 1000
"""Messages that wait to be appended, and messages of one append."""
APPEND_BYTES = 2**20
"""Bytes after which an append takes no more messages."""
NOT_AS_STORED = "is not as stored: the store has lost entries, or it was open elsewhere"
ABSENT_S = 5.0
"""Between two looks for a type that no member has, at most."""
CLOSE_S = 30.0
"""Seconds for which an outbox that closes waits for confirmations."""

AskNode = Callable[..., Awaitable[Any]]
"""Asks a node for a step of an outbox."""
_Taken = tuple[bytes, OutboxMessage, asyncio.Future[None]]
"""A message as it is appended, the message, and the outcome of its `send`."""


class ClientOutbox(OfOneProcess):
    """An outbox of a client: `async with client.outbox("orders") as outbox: await
    outbox.send(ref.add, 2)`. `sender_of` returns the sender of a type, once the cluster has
    described it.

    A node that delivers the messages that a process has left sends none of its own: `patience`, in
    seconds, is how long it waits at its opening for another process, and `pages` bounds the pages
    that it reads; 0 is all."""

    def __init__(
        self,
        name: str,
        owner: str,
        ask: AskNode,
        sender_of: Callable[[str], Awaitable[LoopSender]],
        patience: float = STEP_S,
        pages: int = 0,
    ) -> None:
        self.name, self._owner, self._ask, self._sender_of = name, owner, ask, sender_of
        self._patience, self._pages = patience, pages
        self.counts = DeliveryCounts()
        self.failed: Counter[str] = Counter()
        """Deliveries that were given up, by reason."""
        self._fence = self._last = self._trimmed = 0
        self._reopening = asyncio.Lock()
        self._waiting: deque[_Taken] = deque()
        self._appending: list[_Taken] = []
        """Messages of the append that is under way."""
        self._pending: dict[int, None] = {}
        """Numbers of entries that are not confirmed, in order."""
        self._absent: dict[str, deque[tuple[int, OutboxMessage]]] = {}
        """Entries for types that no member has now, by type."""
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._sender: DeliverySender
        self._tasks = TaskSet()
        self._lost = ""
        """Why it takes nothing any more."""

    async def __aenter__(self) -> ClientOutbox:
        """Open it.

        Raises:
            Refused: it is open in another process. DeliveryFailed: it is closed, or its client was
                closed meanwhile. LocalProtocolError: it was made by a closed client. Others: no
                node, or no store, has answered in time.
        """
        if self._fence:
            raise LocalProtocolError("an outbox is opened once", hint="make another one")
        self._check()
        try:
            await self._open()
            if self._lost:  # closed while it opened: let the next process have it
                with contextlib.suppress(ShardBusError):
                    await self._step("close", within=AGAIN_S)
            else:
                self._tasks.spawn(self._renew())
                await self._deliver_stored()
            self._check()
        except LocalProtocolError:  # the client is closed
            self._check()
            raise
        except BaseException:
            self.abandon()
            raise
        for work in (self._append, self._trim):
            self._tasks.spawn(work())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def send(self, call: Any, /, *args: Any, **kwargs: Any) -> None:
        """Take a message, as in `send(ref.add, 2)`. Returns once the store has it: then it is
        delivered, by this process or by the next one that opens the outbox.

        Raises:
            ConfigError: the call is no handler of a reference. SchemaError: the arguments cannot be
                sent. DeliveryFailed: the outbox is closed, or open elsewhere; the message may have
                been taken if it was sent before. LocalProtocolError: the outbox was not opened.
                StoreUnavailable, RequestError: no node, or no
                store, has answered in time; it may have been taken.
        """
        if not isinstance(call, Call):
            raise ConfigError(f"send takes a handler of a reference, not {type(call).__name__}")
        (entity_type, entity_id), method, payload = call.as_delivery(args, kwargs)
        if not self._fence and not self._lost:
            raise LocalProtocolError("the outbox is not open", hint="use it in `async with`")
        while len(self._waiting) >= WAITING_MAX and not self._lost:
            self._room.clear()
            await self._room.wait()
        self._check()
        entry = OutboxMessage(entity_type, entity_id, method, payload)
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((encode_message(entry), entry, taken))
        self._work.set()
        await taken

    @property
    def unconfirmed(self) -> int:
        """Messages that the outbox has taken, and that are not confirmed."""
        return len(self._pending)

    async def close(self, within: float = CLOSE_S) -> None:
        """Wait, for up to 30 s, until everything is confirmed, and close. The next process that
        opens the outbox delivers the rest."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    while (self._waiting or self._appending or self._pending) and not self._lost:
                        await asyncio.sleep(TRIM_S)
        finally:
            lost = self._lost
            self.abandon()
        if not lost and self._fence:
            with contextlib.suppress(ShardBusError):
                await self._step("trim", number=self._confirmed, within=AGAIN_S)
                await self._step("close", within=AGAIN_S)

    def abandon(self) -> None:
        """Stop at once, as when the client closes first. The next process that opens the outbox
        delivers the rest, once the lease has ended."""
        self._end("closed")

    def _end(self, why: str) -> None:
        """Take, send and renew nothing any more."""
        self._lost = self._lost or why
        self._tasks.cancel()
        if self._fence:
            self._sender.abandon()
        self._refuse_waiting()

    # ---- steps

    async def _step(
        self,
        step: str,
        *,
        number: int = 0,
        entries: tuple[bytes, ...] = (),
        op_id: int = 0,
        within: float = STEP_S,
    ) -> Any:
        """Ask a node for a step, again while none answers.

        Raises:
            DeliveryFailed: the outbox is open elsewhere. Refused: the cluster refuses it. Others:
                no answer in time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        while True:
            error: ShardBusError
            fence = self._fence
            arguments = (OUTBOX_TYPE, step, self.name, self._owner, number, fence)
            try:
                answer = await self._ask(*arguments, list(entries), op_id, TTL_S)
            except (NodeLost, AskTimeout, BufferFull, EntityFailed) as raised:
                error = raised
            else:
                if not isinstance(answer, dict) or "refused" not in answer:
                    return answer
                kind, text, hint = answer["refused"]
                if kind in ("StaleFence", "JournalConflict"):
                    if not fence:
                        return None  # at the opening, which waits for its turn
                    left = max(until - loop.time(), AGAIN_S)
                    if step != "open" and await self._reopened(fence, left):
                        continue
                    raise self._stale(text, "" if kind == "StaleFence" else NOT_AS_STORED)
                if kind != "StoreUnavailable":
                    raise Refused(text, hint=hint)
                error = StoreUnavailable(text, hint=hint)
            if loop.time() + AGAIN_S >= until:
                raise error
            await asyncio.sleep(AGAIN_S)

    async def _reopened(self, former: int, within: float) -> bool:
        """Take a lease that was lost again. Returns True if the outbox has a later fence than
        `former`, by this call or by one before.

        Raises:
            DeliveryFailed: another process was the opener since. Others: no answer in time.
        """
        async with self._reopening:
            if self._fence == former:
                self._fence = await self._step("open", within=within) or former
        return self._fence > former

    def _stale(self, why: str, what: str = "") -> DeliveryFailed:
        """Take and send nothing any more: another process has the outbox, or had it, or the store
        has lost entries (`what`)."""
        self._lost = self._lost or "stale"
        if self._fence:
            self._sender.abandon()
        text = f"the outbox {self.name!r} {what or 'is open elsewhere'}"
        return DeliveryFailed(text, reason="stale", why=why)

    def _check(self) -> None:
        if self._lost:
            text = f"the outbox {self.name!r} takes nothing any more"
            raise DeliveryFailed(text, reason=self._lost, definite=True)

    async def _open(self) -> None:
        """Take the lease, once no other process has it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        while (counter := await self._step("open")) is None:
            if loop.time() >= until:
                hint = "close it there; the lease of a process that died ends within 5 s"
                raise Refused(f"the outbox {self.name!r} is open in another process", hint=hint)
            await asyncio.sleep(AGAIN_S)
        self._fence = counter
        settings = DeliverySettings()
        name = f"outbox {self.name}"
        self._sender = DeliverySender(name, settings, self.counts, loop, era=counter)

    async def _deliver_stored(self) -> None:
        """Deliver the entries of the journal."""
        after = 0
        for page in count(1):
            first, entries, last = await self._step("read", number=after)
            for number, entry in enumerate(entries, first):
                if entry:  # an operator has given up one without content
                    await self._deliver(number, decode_message(entry))
            after = self._last = max(last if not entries else first + len(entries) - 1, 0)
            if after >= last or page == self._pages:
                return

    # ---- work

    async def _deliver(self, number: int, entry: OutboxMessage) -> None:
        """Deliver an entry under its number, or let it wait behind others for a type that no member
        has now. It is given up only for an error that would end a delivery; after any other it
        stays in the store.

        Raises:
            RequestError: no node has described its type in time. ConfigError: this process needs
                the class of its type.
        """
        loop = asyncio.get_running_loop()
        self._pending[number] = None
        while self._is_full and not self._lost:
            await asyncio.sleep(TRIM_S)
        if (absent := self._absent.get(entry.entity_type)) is not None:
            absent.append((number, entry))
            return
        until = loop.time() + STEP_S
        while not self._lost:  # else the next opener delivers it
            try:
                sender = await self._sender_of(entry.entity_type)
                if not self._lost:
                    self._offer(sender, number, entry)
                return
            except UnknownEntityType:
                self._absent[entry.entity_type] = deque([(number, entry)])
                self._tasks.spawn(self._deliver_absent(entry.entity_type))
                return
            except ShardBusError as error:
                if outcome_of(error) is SendOutcome.DEFINITE:
                    self._on_end(number, DeliveryEnd.REFUSED, error)
                    return
                if not isinstance(error, RequestError) or loop.time() + AGAIN_S >= until:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _deliver_absent(self, entity_type: str) -> None:
        """Deliver the entries for a type once a member has it, as after a restart of all nodes of
        its application."""
        entries, pause = self._absent[entity_type], AGAIN_S
        while not self._lost:
            await asyncio.sleep(pause)
            pause = min(pause * 2, ABSENT_S)
            try:
                sender = await self._sender_of(entity_type)
            except ShardBusError as error:
                absent = isinstance(error, UnknownEntityType)
                if absent or outcome_of(error) is not SendOutcome.DEFINITE:
                    continue
                for number, _ in self._absent.pop(entity_type):
                    self._on_end(number, DeliveryEnd.REFUSED, error)
                return
            while entries and not self._lost:
                if self._sender.producer.is_full:
                    await asyncio.sleep(TRIM_S)
                else:
                    self._offer(sender, *entries.popleft())
            if not entries:
                del self._absent[entity_type]
                return

    @property
    def _is_full(self) -> bool:
        """True if no more entries may wait."""
        absent = sum(map(len, self._absent.values()))
        return self._sender.producer.is_full or absent >= WAITING_MAX

    def _offer(self, sender: LoopSender, number: int, entry: OutboxMessage) -> None:
        entity_type, entity_id, method, payload = entry
        end = partial(self._on_end, number)
        letter = self._sender.letter(sender, entity_id, method, payload, end)
        self._sender.offer(letter, (entity_type, entity_id), seq=number)

    def _on_end(self, number: int, end: DeliveryEnd, error: BaseException | None) -> None:
        if end is DeliveryEnd.STALE:
            self._stale("")
            return
        self._pending.pop(number, None)
        if end is not DeliveryEnd.CONFIRMED:
            self.failed[end.value] += 1
            why = "" if error is None else text_of(error)
            log.error("outbox %r: a delivery is given up, %s: %s", self.name, end.value, why)

    @property
    def _confirmed(self) -> int:
        """The number up to which every entry has ended."""
        return next(iter(self._pending), self._last + 1) - 1

    async def _append(self) -> None:
        """Append the waiting messages, one append after the other."""
        while True:
            self._work.clear()
            if not self._waiting:
                await self._work.wait()
            rows = self._appending = []
            size = 0
            while self._waiting and len(rows) < WAITING_MAX and size < APPEND_BYTES:
                rows.append(self._waiting.popleft())
                size += len(rows[-1][0])
            self._room.set()
            try:
                await self._append_rows(rows)
            except (ShardBusError, RequestError) as error:
                self._lost = self._lost or "unknown"
                self._appending = []
                for _, _, taken in rows:
                    if not taken.done():
                        taken.set_exception(error)
                self._refuse_waiting()
                return
            self._appending = []

    async def _append_rows(self, rows: list[_Taken]) -> None:
        op_id = secrets.randbits(62) + 1
        entries = tuple(encoded for encoded, _, _ in rows)
        after = self._last
        self._last = await self._step("append", number=after, entries=entries, op_id=op_id)
        for number, (_, entry, taken) in enumerate(rows, after + 1):
            if not taken.done():
                taken.set_result(None)
            await self._deliver(number, entry)

    def _refuse_waiting(self) -> None:
        """Refuse the messages that are not appended. The store may have the messages of the append
        under way."""
        self._room.set()
        text = f"the outbox {self.name!r} takes nothing any more"
        for rows, definite in ((self._waiting, True), (self._appending, False)):
            for _, _, taken in rows:
                if not taken.done():
                    error = DeliveryFailed(text, reason=self._lost, definite=definite)
                    taken.set_exception(error)
        self._waiting.clear()
        self._appending = []

    async def _renew(self) -> None:
        """Keep the lease. One that cannot be renewed in time may be taken by another process, whose
        fence then refuses this one."""
        while not self._lost:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(ShardBusError):
                fence = self._fence
                if await self._step("renew", within=TTL_S) is False:
                    await self._reopened(fence, TTL_S)

    async def _trim(self) -> None:
        """Remove confirmed entries from the journal."""
        while not self._lost:
            await asyncio.sleep(TRIM_S)
            confirmed = self._confirmed
            if confirmed > self._trimmed:
                with contextlib.suppress(ShardBusError):
                    await self._step("trim", number=confirmed)
                    self._trimmed = confirmed
