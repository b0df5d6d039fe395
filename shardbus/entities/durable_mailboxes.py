"""The durable mailboxes of one type on one node: the shell of `deliveries.durable_mailbox`.

    RegionShell ──> take ──> DurableMailbox ──> journal ──> confirmed
                               │                               │
                               │ asks, in their order          v
                               └────────────> activation <── a message of the node, which calls the
                                                             handler of deliveries under its number

The mailbox stands in front of the entity: a message is stored whether or not the entity is in
memory, starts, or is at work. The choice is made for a type: `RegionShell` hands the messages of
any other type to their activations as ever.

**Found again.** An entity is on a list of its shard in the store, like a remembered one, before a
message of it is confirmed, and until its journal is gone. The next home reads the list, and handles
what is left. So no search of journals is needed, and a stale home, which cannot list an entity,
confirms nothing. A mailbox that was empty for half a minute is removed, with its journal and the
entry in the list: entities that get no messages leave nothing in the store.

**Another home of the id.** After a change of the shard function an id may belong to another shard
than its list. Then its messages are sent to the entity as deliveries, under their numbers, before
they are removed here. The journal's name has the shard, so the two homes do not share one.

Messages of the node itself carry the stored ones: they end with the activation, and the mailbox
hands the message to the next one.

Source: docs/how-to/deliver.md; S3.77.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast
from zlib import crc32

import msgspec

from shardbus.config.settings import DeliverySettings, ShardingSettings
from shardbus.deliveries.durable_mailbox import (
    Acceptance,
    AppendMail,
    Confirm,
    DurableLimits,
    DurableMailbox,
    Effect,
    GiveUp,
    Hand,
    HandOutcome,
    Mail,
    OpenJournal,
    PassBy,
    Quiet,
    Refuse,
    StoredMail,
    TrimJournal,
    read_mail,
    write_mail,
)
from shardbus.deliveries.numbers import (
    APPLIED,
    MARK,
    REPEATED,
    STALE,
    DeliveryNumber,
    NumberKind,
    encode_number,
    gap,
    read_answer,
    read_number,
)
from shardbus.entities.activation import Activation, Message, Shard
from shardbus.entities.entity_sends import LISTED_WITHIN_S
from shardbus.entities.entity_type import Invoker
from shardbus.entities.in_turns import InTurns
from shardbus.entities.mailbox_table import EntityMailbox, MailboxTable
from shardbus.entities.own_messages import WorkHost
from shardbus.entities.remembering import RememberedEntities
from shardbus.entities.runs import Arrive, Find, RunHandler
from shardbus.error_text import described, is_a, text_of, type_name
from shardbus.errors import (
    ConfigError,
    EntityFailed,
    JournalConflict,
    MailboxFull,
    Refused,
    Rejection,
    RequestError,
    SchemaError,
    StaleFence,
    StoreError,
    StoreUnavailable,
    Unhandled,
)
from shardbus.guarded_log import GuardedLog
from shardbus.quantities import counted
from shardbus.routing.delivering import DeliveryCounts, delivery_key
from shardbus.store.journal_protocol import JournalPage
from shardbus.store.journals import Journals
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskQueue, TaskSet
from shardbus.transport.drop_reports import Origin
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain

log = GuardedLog("shardbus.entity")

_NONE: dict[int, Any] = {}
JOURNAL = "$mailbox/"
"""Before the name of a type: the kind of its journals."""
LIST = "!mailbox"
"""Behind the name of a type: the name under which the store lists its entities with messages."""
PAGE = 1000
AT_ONCE = 64
"""Journals that are opened for recovery, and trims, under way at once."""
LOOKED_AT_ONCE = 500
"""Mailboxes at which one turn looks."""
RELOCATION_S = 30.0
AGAIN_S = 2.0
"""The pause before the messages of an entity in another shard are sent again."""
RECORD = MARK + "$record"
"""The method of a record of deliveries, which goes to the next home of its shard."""


class MailboxCounts(msgspec.Struct):
    """Counts, for metrics."""

    stored: int = 0
    """Messages that were stored."""
    recovered: int = 0
    """Messages that were found in a journal."""
    handled: int = 0
    repeated: int = 0
    """Messages that had been handled before."""
    failed: int = 0
    """Attempts whose handler raised."""
    given_up: Counter[str] = msgspec.field(default_factory=Counter)
    """By reason: messages that were given up."""


class MailNumbers:
    """The numbers of messages to one type on one node. `writer` is the name under which it numbers
    tells, which no other process has or had."""

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.last = 0
        """The number of the last tell that this node has numbered."""

    def of(self, message: Message) -> DeliveryNumber | None:
        """Return the number under which a message is stored; None if it only passes."""
        name = message.invoker.name
        if message.session is None:
            if name.startswith(MARK):
                return None
            self.last += 1
            deliver = NumberKind.DELIVER
            return DeliveryNumber(deliver, self.writer, 0, self.last, 0, message.payload)
        if not name.startswith(MARK) or name == RECORD:
            return None
        try:
            number = read_number(message.payload)
        except SchemaError:
            return None  # its handler refuses it
        return number if isinstance(number, DeliveryNumber) else None


class MailboxRoom:
    """The memory that all durable mailboxes of a type on a node take, and their room."""

    def __init__(
        self, boxes: Mapping[str, EntityMailbox], size_max: int, counts: MailboxCounts
    ) -> None:
        self._boxes, self._size_max, self._counts = boxes, size_max, counts
        self.size = 0
        """Bytes of the messages in memory."""

    def fits(self, size: int, parts: int = 1) -> bool:
        """True if there is memory for `size` bytes more, within this multiple of the bound."""
        return self.size + size <= parts * self._size_max

    def takes(self, box: EntityMailbox, size: int) -> bool:
        """True if a message of this size may be taken."""
        return self.fits(size) and box.machine.has_room(size)

    def has_much_room(self, activation: Activation) -> bool:
        """True if a quarter of the room is free, of the entity and of the type."""
        box = self._boxes.get(activation.key)
        if box is None or box.closed:
            return True
        return 4 * self.size <= 3 * self._size_max and box.machine.has_much_room

    def progress_of(self, activation: Activation) -> object:
        """Return a value that is another one once a message has left: of the entity, or of the type
        if that has no room."""
        box = self._boxes.get(activation.key)
        if box is None or 4 * self.size > 3 * self._size_max:
            return self._counts.handled
        return box.machine.in_front


class DurableMailboxes:
    """The durable mailboxes of one type on one node. `shard_of` finds the shard of an entity."""

    what = "durable mailboxes"
    """The name of its sweep."""

    def __init__(
        self,
        host: WorkHost,
        store: StateStore,
        journals: Journals | None,
        settings: ShardingSettings,
        delivery: DeliverySettings,
        delivered: DeliveryCounts,
        shard_of: Callable[[str], str],
    ) -> None:
        if journals is None:
            raise ConfigError(
                f"{host.name!r} has durable mailboxes, and this store has no journals",
                hint="use a store of shardbus, or give the store `journals`",
            )
        self._host, self._journals, self._shard_of = host, journals, shard_of
        self._delivered = delivered
        self.kind = JOURNAL + host.name
        self.limits = DurableLimits(
            messages=min(settings.durable_mailbox_messages, delivery.producers),
            size=settings.durable_mailbox_bytes,
            retry=delivery.retry,
            retry_max=max(delivery.retry, delivery.retry_max),
            attempts=delivery.attempts,
            skips_poison=delivery.on_poison == "skip",
            trims_soon=host.kind.states is None,
        )
        self.counts = MailboxCounts()
        self._numbers = MailNumbers(f"{host.node_name}/{crc32(host.name.encode()):x}.m")
        self._table = MailboxTable()
        self._boxes = self._table.by_key
        self.room = MailboxRoom(self._boxes, settings.mailbox_bytes, self.counts)
        host.runner.mailbox_limits.stored = self.room
        self._recovering: deque[tuple[Shard, str]] = deque()
        self._opening = 0
        self._trims = TaskQueue(AT_ONCE)
        self._looked_at = InTurns(host.loop, self._look, LOOKED_AT_ONCE)
        self._tasks = TaskSet()
        self._runs: RunHandler | None = None
        self._outcomes: list[tuple[EntityMailbox, Mail, int, HandOutcome, str]] = []
        """Outcomes of messages, which the next callback reports."""
        self.lists = RememberedEntities(
            host.name + LIST,
            store,
            host.loop,
            settings,
            host.gate,
            start=self._on_listed,
            again=self._recover,
            settled=host.maybe_down,
            start_elsewhere=no_start,
        )

    # ---- arrivals

    def before(self, runs: RunHandler) -> Callable[..., None]:
        """Return the function that takes a run of messages in the place of `runs.deliver`."""
        self._runs = runs
        return self.deliver

    def deliver(
        self,
        find: Find,
        arrive: Arrive,
        invoker: Invoker,
        session: Session | None,
        ids: Sequence[str],
        payloads: Sequence[bytes],
        corrs: int | Sequence[int],
        deadline: int,
        chain: Chain = (),
        ahead: list[Any] | None = None,
    ) -> None:
        """Take a run of messages, as `RunHandler.deliver`."""
        passes = session is not None and not invoker.name.startswith(MARK)
        if passes and self._runs is not None and self._boxes.keys().isdisjoint(ids):
            self._runs.deliver(
                find, arrive, invoker, session, ids, payloads, corrs, deadline, chain, ahead
            )
            return
        marks: Iterator[int] = (
            iter(corrs) if not isinstance(corrs, int) else iter([corrs] * len(ids))
        )
        for entity_id, payload, corr in zip(ids, payloads, marks, strict=True):
            activation = find(entity_id) or arrive(entity_id, payload, corr)
            if activation is not None:
                self.take(activation, Message(invoker, payload, session, corr, deadline, chain))

    def take(self, activation: Activation, message: Message) -> None:
        """Take a message for an entity: store it, or let it pass in its order."""
        activation.used = self._host.runner.tick
        number = self._numbers.of(message)
        is_ask = message.session is not None
        box = self._box_of(activation.shard, activation.key, makes=number is not None)
        if box is None:
            self._host.runner.receive(activation, message)
            return
        if number is None:
            self._act(box, box.machine.arrives(Mail([message])))
            return
        name = message.invoker.name
        method = name if name.startswith(MARK) else MARK + name
        at = int(self._host.wall_clock() * 1000)
        stored = StoredMail(at, method, first_of_line(number), message.invoker.trace)
        data = write_mail(stored)
        if is_ask and not self._accepts(box, number, message, len(data)):
            return
        if not is_ask and not self.room.takes(box, len(data)):
            fits = self.room.fits(len(data), parts=2)
            if not self._host.runner.mailbox_limits.exceeds_stored(activation, fits=fits):
                self._host.counts.lose("mailbox_full", activation.key, *message[:4])
                return
        self._act(box, box.machine.arrives(Mail([message], stored, is_ask, data)))

    def _accepts(
        self, box: EntityMailbox, number: DeliveryNumber, message: Message, size: int
    ) -> bool:
        """Return True if a delivery is to be stored; else answer it, now or with its copy."""
        machine, session = box.machine, message.session
        assert session is not None
        fits = self.room.fits(size)
        accepted = machine.accept(number, message, size) if fits else Acceptance.FULL
        if accepted is Acceptance.TAKEN:
            return True
        if accepted is Acceptance.WAITS:
            return False
        self._host.deliveries.decisions[accepted.value] += accepted is not Acceptance.FULL
        if accepted is Acceptance.FULL:
            self._host.counts.lose("mailbox_full", box.key, *message[:4])
            waiting = counted(machine.waiting, "message")
            message.refuse(MailboxFull(f"{self._host.name} {box.key!r} has {waiting} waiting"))
            return False
        self._host.counts.begun += 1
        answer = REPEATED if accepted is Acceptance.REPEATED else STALE
        if accepted is Acceptance.GAP:
            answer = gap(machine.taken_of(number.producer))
        session.outbox.reply(message.corr, answer)
        return False

    def _box_of(self, hosted: Shard, key: str, *, makes: bool) -> EntityMailbox | None:
        box = self._boxes.get(key)
        if box is not None and box.hosted is not hosted:
            self._close(box)
            box = None
        if box is None and (makes or self.lists.knows(hosted, key)):
            fresh = not self.lists.knows(hosted, key)
            box = EntityMailbox(key, hosted, DurableMailbox(self.limits, is_fresh=fresh))
            self._table.add(box)
        return box

    # ---- effects

    def _act(self, box: EntityMailbox, effects: list[Effect]) -> None:
        """Carry out effects of a mailbox. One that is closed only answers."""
        if not box.closed:
            self.room.size += box.machine.size - box.counted
            box.counted = box.machine.size
        for effect in effects:
            match effect:
                case Confirm(mail=mail):
                    self._confirm(mail)
                case Refuse(mail=mail, error=error):
                    self._host.counts.begun += len(mail.messages)
                    refusal = EntityFailed(type_name(error), text_of(error))
                    for message in mail.messages:
                        message.refuse(refusal)
                    mail.messages.clear()
                case _ if box.closed:
                    pass
                case Hand(mail=mail):
                    self._hand(box, mail)
                case AppendMail():
                    self._append(box, effect)
                case OpenJournal():
                    self._spawn(self._open(box, effect))
                case TrimJournal():
                    self._trims.add(partial(self._trim, box, effect), self._host.loop)
                case PassBy(mail=mail):
                    self._pass_on(box, mail)
                case GiveUp():
                    self._give_up(box, effect)
                case Quiet():
                    self._quiet(box)
        if box.timer is not None or box.machine.deadline() is not None:
            self._arm(box)

    def _confirm(self, mail: Mail) -> None:
        messages = mail.messages
        if not messages:
            self.counts.recovered += 1
            return
        self.counts.stored += 1
        self._host.counts.begun += len(messages)
        for message in messages:
            if message.session is not None:
                message.session.outbox.reply(message.corr, APPLIED)
        messages.clear()

    def _pass_on(self, box: EntityMailbox, mail: Mail) -> None:
        host = self._host
        for message in mail.messages:
            if message.session is not None and message.deadline <= host.runner.tick:
                host.counts.lose("expired", box.key, *message[:4])
                continue
            host.runner.receive(_activation_of(host, box, "message"), message)

    def _give_up(self, box: EntityMailbox, effect: GiveUp) -> None:
        """Keep a message that is given up as a dead letter."""
        mail, reason, name = effect.mail, effect.reason, self._host.name
        self.counts.given_up[reason] += 1
        if mail.stored is None:
            method, arguments, producer = "", b"", ""
        else:
            number = mail.stored.number
            method, arguments, producer = mail.stored.method[1:], number.arguments, number.producer
        if self._delivered.keep is not None:
            about = (method, arguments, producer)
            self._delivered.keep(name, reason, box.key, *about, answered=False)
        log.error(
            "%s %r: a message of its mailbox is given up, %s: %s", name, box.key, reason, mail.error
        )

    def _quiet(self, box: EntityMailbox) -> None:
        """Remove a mailbox that is empty here and in the store."""
        self._table.remove(box)
        box.closed = True
        if box.listed is not None or self.lists.knows(box.hosted, box.key):
            self.lists.forget(box.hosted, box.key)

    def _arm(self, box: EntityMailbox) -> None:
        deadline = None if box.closed else box.machine.deadline()
        if box.timer is not None:
            if deadline == box.at:
                return
            box.timer.cancel()
            box.timer = None
        if deadline is not None:
            box.at = deadline
            box.timer = self._host.loop.call_at(deadline, self._on_timer, box)

    def _on_timer(self, box: EntityMailbox) -> None:
        box.timer = None
        if not box.closed:
            self._act(box, box.machine.tick(self._host.loop.time()))

    # ---- handling

    def _hand(self, box: EntityMailbox, mail: Mail) -> None:
        """Hand a message to the entity, which is started if it is not in memory."""
        host = self._host
        box.turn += 1
        box.taker = None
        marked = None
        if mail.stored is not None:
            marked = host.deliveries.invokers.get(mail.stored.method)
        if mail.stored is None:
            self._ends_later(box, mail, HandOutcome.REFUSED, "it cannot be read")
            return
        if marked is None:  # a node of another release may have it
            outcome = HandOutcome.REFUSED if mail.skips else HandOutcome.FAILED
            self._ends_later(box, mail, outcome, "its handler is gone")
            return
        if host.gate.close_if_due():
            self._ends_later(box, mail, HandOutcome.NOT_READY, "this node is suspended")
            return
        activation = box.taker = _activation_of(host, box, "mailbox")
        if mail.stored.trace:
            marked = host.traced(marked, mail.stored.trace, is_ask=False)
        handling = HandledMail(self, box, mail, mail.stored, marked)
        invoker = Invoker(marked.name.removeprefix(MARK), handling, True, _NONE, _no_arguments)
        arguments = mail.stored.number.arguments
        host.stopper.receive_own(activation, Message(invoker, arguments, None, Origin.OWN, 0))
        if handling.begun:
            return
        waits = any(message.invoker is invoker for message in reversed(activation.mailbox or ()))
        if not waits:  # the entity has ended, or its mailbox is full
            self._ends_later(box, mail, HandOutcome.NOT_READY, "it took no message")

    def _ends_later(
        self, box: EntityMailbox, mail: Mail, outcome: HandOutcome, error: str = ""
    ) -> None:
        """Report an outcome in a later callback, with others: the entity may be at work yet."""
        if not self._outcomes:
            self._host.loop.call_soon(self._report_outcomes)
        self._outcomes.append((box, mail, box.turn, outcome, error))

    def _report_outcomes(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        for ended in outcomes:
            self._ended(*ended)

    def _ended(
        self, box: EntityMailbox, mail: Mail, turn: int, outcome: HandOutcome, error: str
    ) -> None:
        if box.closed or box.turn != turn or box.machine.in_hand is not mail:
            return
        counts = self.counts
        counts.handled += outcome is HandOutcome.DONE and not mail.skips
        counts.repeated += outcome is HandOutcome.REPEATED
        counts.failed += outcome is HandOutcome.FAILED
        self._act(box, box.machine.on_outcome(mail, outcome, self._host.loop.time(), error))
        self._after(box)

    def gone(self, activation: Activation) -> None:
        """Note that an entity has left memory: a message that it had not handled is void."""
        box = self._boxes.get(activation.key)
        if box is not None and box.taker is activation and box.machine.in_hand is not None:
            error = "it has left memory before it came to it"
            self._ends_later(box, box.machine.in_hand, HandOutcome.NOT_READY, error)

    # ---- the store

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.spawn(work, self._host.loop)

    async def _open(self, box: EntityMailbox, effect: OpenJournal) -> None:
        shard, journals = box.hosted.shard, self._journals
        place = (self.kind, shard, box.journal)
        try:
            if effect.reads:
                page = await journals.read(*place, effect.after, PAGE)
            else:
                page = await journals.open(*place, box.hosted.fence, effect.after, PAGE)
        except StoreError as error:
            log.warning("the mailbox of %s %r: %s", self._host.name, box.key, text_of(error))
            effects = box.machine.on_open_failed(self._host.loop.time())
        else:
            mails = [_read(entry) for entry in page.entries]
            effects = box.machine.on_opened(page.first, mails, page.last)
        self._act(box, effects)
        self._after(box)

    def _append(self, box: EntityMailbox, effect: AppendMail) -> None:
        """Append messages. Most appends need no task: their entity is listed, and the node is not
        suspended at their end."""
        hosted = box.hosted
        listing = self._list(box)
        entries = tuple([mail.data for mail in effect.group])
        answer = self._journals.append(
            self.kind, hosted.shard, box.journal, hosted.fence, effect.after, entries
        )
        if listing is None:
            answer.add_done_callback(partial(self._on_append, box))
        else:
            self._spawn(self._finish_append(box, answer, listing))

    def _on_append(self, box: EntityMailbox, answer: Any) -> None:
        if answer.cancelled():
            return  # the node ends
        if answer.exception() is None and not self._host.gate.close_if_due():
            self._act(box, box.machine.on_appended())
            self._after(box)
        else:
            self._spawn(self._finish_append(box, answer, None))

    async def _finish_append(
        self, box: EntityMailbox, answer: Any, listing: asyncio.Future[None] | None
    ) -> None:
        host, machine = self._host, box.machine
        try:
            if listing is not None:
                await until_listed(host.name, box.key, listing)
            await answer
            if host.gate.close_if_due():
                await host.gate.passed()
        except JournalConflict:
            effects = machine.on_conflict()
        except StoreError as error:
            definite = is_a(error, StaleFence) or bool(getattr(error, "definite", False))
            log.warning("the mailbox of %s %r: %s", host.name, box.key, text_of(error))
            effects = machine.on_append_failed(error, host.loop.time(), definite=definite)
        else:
            effects = machine.on_appended()
        self._act(box, effects)
        self._after(box)

    def _list(self, box: EntityMailbox) -> asyncio.Future[None] | None:
        """List an entity whose mailbox is not empty. Returns None if it is listed."""
        if self.lists.knows(box.hosted, box.key):
            return None
        if box.listed is None or box.listed.done():
            box.listed = self._host.loop.create_future()
            self.lists.add(box.hosted, box)
        return box.listed

    def _on_listed(self, box: EntityMailbox) -> None:
        if box.listed is not None and not box.listed.done():
            box.listed.set_result(None)

    async def _trim(self, box: EntityMailbox, effect: TrimJournal) -> None:
        hosted = box.hosted
        if box.closed:
            return
        try:
            await self._journals.trim(
                self.kind, hosted.shard, box.journal, hosted.fence, effect.upto, effect.forget
            )
        except StoreError as error:
            log.warning("the mailbox of %s %r: %s", self._host.name, box.key, text_of(error))
            effects = box.machine.on_trim_failed(forgets=effect.forget)
        else:
            effects = box.machine.on_trimmed(effect.upto, forgotten=effect.forget)
        self._act(box, effects)
        self._after(box)

    def _after(self, box: EntityMailbox) -> None:
        """Let a shard that stops go on, if it waited for this mailbox. Refuse the rest of one that
        was closed before its append had an answer."""
        if box.closed:
            error = EntityFailed("StoreUnavailable", f"{box.key!r} has left, its store is silent")
            for message in box.machine.leave():
                self._host.counts.lose("stopped", box.key, *message[:4])
                message.refuse(error)
        elif box.hosted.stopping is not None:
            self._host.maybe_down(box.hosted)

    # ---- recovery

    def _recover(self, hosted: Shard, key: str) -> None:
        """Take over the mailbox of a listed entity, now or once there is room for its messages."""
        self._recovering.append((hosted, key))
        self._recover_some()

    def _recover_some(self) -> None:
        while self._recovering and self._opening < AT_ONCE and self.room.fits(1):
            hosted, key = self._recovering.popleft()
            if self._host.shards.get(hosted.shard) is not hosted or hosted.stopping is not None:
                continue
            self._opening += 1
            self._spawn(self._take_over(hosted, key))

    async def _take_over(self, hosted: Shard, key: str) -> None:
        try:
            if belongs(self._shard_of, hosted, key):
                box = self._box_of(hosted, key, makes=True)
                if box is not None and box.machine.is_empty:
                    self._act(box, box.machine.doubt())
            else:
                await self._relocate(hosted, key)
        finally:
            self._opening -= 1
            self._host.loop.call_soon(self._recover_some)

    async def _relocate(self, hosted: Shard, key: str) -> None:
        """Send the messages of an entity that belongs to another shard to it, and remove them."""
        place = (self.kind, hosted.shard, f"{hosted.shard}/{key}")
        host, after = self._host, 0
        sender = host.ref(host.kind.cls, key)._sender
        try:
            page: JournalPage = await self._journals.open(*place, hosted.fence, 0, PAGE)
            while page.entries:
                for mail in filter(None, (_read(entry)[0] for entry in page.entries)):
                    to = delivery_key(sender, mail.method[1:])
                    body = encode_number(mail.number)
                    timeout = int(RELOCATION_S * 1000)
                    await sender.ask(to, key, body, timeout, read_answer)
                after = page.end
                page = await self._journals.read(*place, after, PAGE)
            await self._journals.trim(*place, hosted.fence, page.last, True)
        except (StoreError, RequestError) as error:
            log.warning("the mailbox of %s %r: %s", host.name, key, text_of(error))
            self._tasks.call_later(host.loop, AGAIN_S, self._recover, hosted, key)
        else:
            self.lists.forget(hosted, key)

    # ---- shards

    def open(self, hosted: Shard) -> None:
        """Do nothing: the list of the shard is read, and names the entities with messages."""

    def is_settled(self, hosted: Shard) -> bool:
        """True if a shard that stops, and has no entity in memory, may leave: handled messages are
        removed from the store, as far as it answers, and no append is under way."""
        return self._table.settles(hosted, lambda box: self._act(box, box.machine.stop()))

    def close(self, hosted: Shard) -> None:
        """Forget a shard that leaves this node. Its messages that are not stored leave, too."""
        for box in self._table.of(hosted):
            self._close(box)

    def _close(self, box: EntityMailbox) -> None:
        box.closed = True
        self._arm(box)
        self._table.remove(box)
        self.room.size -= box.counted
        left = box.machine.leave()
        if left:
            self._host.draining.leave(box.hosted, box.key, left, None)

    def stop(self) -> None:
        """Cancel everything: the node ends."""
        self.lists.stop()
        self._looked_at.stop()
        self._trims.cancel()
        self._tasks.cancel()
        for box in self._boxes.values():
            box.closed = True
            self._arm(box)
        self._table.clear()

    def claim_again(self) -> None:
        """Read every journal anew, and list its entity: the store may have lost something."""
        self.lists.list_again()
        for box in list(self._boxes.values()):
            self._act(box, box.machine.doubt())

    def sweep(self, tick: int) -> None:
        """Trim, remove mailboxes that are empty, and keep entities with messages in memory. Called
        about once a second; it goes on in the next turns if they are many."""
        if not self._looked_at:
            self._looked_at.add(self._boxes.values())
        self._recover_some()

    def _look(self, some: list[EntityMailbox]) -> None:
        for box in some:
            if box.closed or box.hosted.stopping is not None or self._host.gate.closed:
                continue
            if effects := box.machine.look():
                self._act(box, effects)
            if box.machine.waiting:
                activation = self._host.find(box.key, box.hosted.shard)
                if activation is not None:
                    activation.used = self._host.runner.tick

    # ---- for operators, and figures

    @property
    def unstored(self) -> int:
        """Messages that are here and neither stored nor with their entity."""
        return sum(box.machine.unstored for box in self._boxes.values())

    def waiting_of(self, hosted: Shard, key: str) -> int:
        """Return how many messages of an entity are stored, or about to be, and not handled.

        Raises:
            Refused: they are not read yet.
        """
        box = self._boxes.get(key)
        if box is not None and box.hosted is hosted and not box.machine.is_unread:
            return box.machine.waiting
        if self.lists.knows(hosted, key):
            text = f"the durable mailbox of {self._host.name} {key!r:.100} is not read yet"
            raise Refused(text, hint="try again")
        return 0

    @property
    def waiting(self) -> int:
        """Messages that are stored, or about to be, and not handled."""
        return sum(box.machine.waiting for box in self._boxes.values())

    def figures(self) -> dict[str, int]:
        """Return the messages `waiting`, the mailboxes `stuck`, and counts since the start."""
        counts = self.counts
        return {
            "waiting": self.waiting,
            "stuck": len(self.stuck(len(self._boxes))),
            "stored": counts.stored,
            "recovered": counts.recovered,
            "handled": counts.handled,
            "repeated": counts.repeated,
            "failed": counts.failed,
            "given_up": sum(counts.given_up.values()),
        }

    def stuck(self, limit: int) -> list[tuple[str, Mail]]:
        """Return up to `limit` mailboxes whose first message has failed, the one with the oldest
        first, by entity."""
        failing = [
            (key, mail)
            for key, box in self._boxes.items()
            if (mail := box.machine.failing) is not None and mail.stored is not None
        ]
        failing.sort(key=lambda row: row[1].stored.at if row[1].stored else 0)
        return failing[:limit]

    def mails(self, key: str) -> list[Mail]:
        """Return the messages of an entity that are not handled, in order."""
        box = self._boxes.get(key)
        return [] if box is None else box.machine.mails()

    def retry(self, key: str) -> int:
        """Handle the message now that waits for its next attempt, of one entity or of all with an
        empty `key`. Returns how many waited."""
        boxes = [box for box_key, box in list(self._boxes.items()) if not key or box_key == key]
        waiting = [box for box in boxes if box.machine.deadline() is not None]
        for box in waiting:
            self._act(box, box.machine.retry())
        return len(waiting)

    def skip(self, key: str, place: int) -> None:
        """Give up the first message of an entity.

        Raises:
            Refused: the first one has another number, or is being handled. Nothing changed.
        """
        box = self._boxes.get(key)
        if box is None or not box.machine.skip(place):
            text = f"message {place} is not the first that waits in the mailbox of {key!r:.100}"
            raise Refused(text, hint="`shardbus mailbox TYPE ID` has its number")
        self._act(box, box.machine.retry())


async def until_listed(name: str, key: str, listing: asyncio.Future[None]) -> None:
    """Wait until the store lists an entity.

    Raises:
        StoreUnavailable: it is not listed in time. Its messages may be stored.
    """
    try:
        async with asyncio.timeout(LISTED_WITHIN_S):
            await asyncio.shield(listing)
    except TimeoutError:
        text = f"{name} {key!r} is not listed for its mailbox"
        hint = "see why the store does not answer"
        raise StoreUnavailable(text, hint=hint) from None


def belongs(shard_of: Callable[[str], str], hosted: Shard, key: str) -> bool:
    """True if an entity belongs to this shard."""
    try:
        return shard_of(key) == hosted.shard
    except ConfigError:
        return True  # it is nowhere else


async def no_start(entity_id: str) -> None:
    """Start nothing: the messages of an entity in another shard start it."""


def mailboxes_of(host: Any, *services: Any) -> DurableMailboxes | None:
    """Return the durable mailboxes of a host, for the services as `DurableMailboxes` takes them;
    None if its type has none."""
    return DurableMailboxes(host, *services) if host.kind.durable_mailbox else None


class HandledMail:
    """The call of the handler of one stored message, which reports its outcome."""

    __slots__ = ("_box", "_mail", "_mailboxes", "_stored", "begun", "marked")

    def __init__(
        self,
        mailboxes: DurableMailboxes,
        box: EntityMailbox,
        mail: Mail,
        stored: StoredMail,
        marked: Invoker,
    ) -> None:
        self._mailboxes, self._box, self._mail, self._stored = mailboxes, box, mail, stored
        self.marked = marked
        self.begun = False

    async def __call__(self, entity: Any, message: None) -> None:
        """Handle the message as the delivery that it is.

        Raises:
            Exception: as its handler does, after the outcome is on its way.
        """
        self.begun = True
        number, marked = self._stored.number, self.marked
        if self._mail.skips:
            number = with_kind(number, NumberKind.SKIP)
        outcome, error = HandOutcome.NOT_READY, "it was interrupted"
        try:
            try:
                decoded = cast("Any", marked.decode_message)(number)
            except Exception as unreadable:
                outcome, error = HandOutcome.REFUSED, described(unreadable)
                return
            value = marked.function(entity, decoded)
            if marked.is_async:
                value = await value
            outcome, error = (HandOutcome.REPEATED if value == REPEATED else HandOutcome.DONE), ""
        except BaseException as raised:
            outcome, error = outcome_of(raised), described(raised)
            if outcome is not HandOutcome.REFUSED:
                raise
        finally:
            self._mailboxes._ends_later(self._box, self._mail, outcome, error)


def outcome_of(error: BaseException) -> HandOutcome:
    """Return the outcome of a message whose handling has raised."""
    if is_a(error, Rejection):
        return HandOutcome.DONE
    if is_a(error, StoreError, asyncio.CancelledError, GeneratorExit):
        return HandOutcome.NOT_READY
    if is_a(error, Unhandled) and error.declined:
        return HandOutcome.REFUSED
    return HandOutcome.FAILED


def first_of_line(number: DeliveryNumber) -> DeliveryNumber:
    """Return a delivery as one without an unconfirmed predecessor: the mailbox has it."""
    if not number.before:
        return number
    kind, producer, era, seq, _, arguments = msgspec.structs.astuple(number)
    return DeliveryNumber(kind, producer, era, seq, 0, arguments)


def with_kind(number: DeliveryNumber, kind: NumberKind) -> DeliveryNumber:
    """Return a delivery of another kind."""
    _, *rest = msgspec.structs.astuple(number)
    return DeliveryNumber(kind, *rest)


def _activation_of(host: WorkHost, box: EntityMailbox, cause: str) -> Activation:
    """Return the activation of an entity, started if it is not in memory. In a shard that stops it
    handles its messages, and stops."""
    hosted = box.hosted
    activation = host.find(box.key, hosted.shard)
    if activation is None:
        activation = host.activate(hosted, box.key, cause)
        if hosted.stopping is not None:
            host.loop.call_soon(host.end, activation, hosted.stopping)
    return activation


def _no_arguments(payload: bytes) -> None:
    """Decode nothing: the call has its message."""


def _read(entry: bytes) -> tuple[StoredMail | None, bytes]:
    try:
        return read_mail(entry), entry
    except ValueError:
        return None, entry
