"""Event-sourced entities and their projection in runs of whole nodes, and the rules.

Senders deliver bookings to ledgers, and ask for others. A ledger persists an event for each. Some
appends have two events, some handlers fail before they persist and after, some catch an append in
doubt and go on, some save a snapshot. Some bookings plan a call by a reminder, or drop a planned
one; the call persists an event. A projection lists the bookings of each ledger, and delivers each
to a tally. Its handlers fail, too.

The checker has the whole history of each journal: the simulated store reports each append.

    E1   a replay is the history, in order, at least up to the last event of its own fence
    E2   a booking that was answered or confirmed is in the history
    E3   of each sender, each delivered booking comes once, after the one before it; one that was
         asked for comes once at most
    E4   no event is missing for the projection. At rest, each part has the fold of the whole
         history, and the tally has each booking
    E5   a snapshot is the fold of the history up to its number. At rest, so is each state in memory
    E6   at rest, no delivery of a living process is pending
    E7   of each reminder, one firing is in the history at most. At rest, each planned call that is
         not dropped has one

After a store has lost acknowledged data, E1 to E5 and E7 do not hold.

Source: docs/how-to/event-sourcing.md; docs/simulation.md.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from shardbus.app import ShardBus
from shardbus.entities.activation import LifeState
from shardbus.entities.context import Context
from shardbus.entity import Entity, handler
from shardbus.errors import RequestError, StoreUnavailable
from shardbus.event_sourced import EventSourced, event
from shardbus.projection import Projection
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.nodes.delivering import FAILS, PlannedFailure, SimDeliverer
from shardbus.wire.stored_events import stored_event
from shardbus.wire.stored_state import split_numbered, split_record

if TYPE_CHECKING:
    from shardbus.simulation.nodes.world import NodeWorld, SimProcess

LEDGER, LISTED, TALLY = "ledger", "listed", "tally"
ALL = "all"
"""The id of the one tally."""
ASKS, TOUCHES = 0.3, 0.1
"""The parts of messages that are asks, and deliveries that persist nothing."""
MARKS, SNAPSHOTS, CATCHES = 0.2, 0.05, 0.5
"""The parts of handlings that persist a second event, that save a snapshot, and of appends in doubt
that are caught."""
PLANS, DROPS = 0.3, 0.3
"""The parts of bookings that plan a call, and that drop a planned one."""
CALLED_AFTER_S, PLANNED_MAX = (0.05, 8.0), 20
SNAPSHOT_AFTER, KEPT = (3, 8, 100), (0, 0, 2)
"""Events between two snapshots, and events that are kept behind one; 0: all."""


@dataclass(frozen=True)
class Booked:
    """A booking: the number `seq` of its sender."""

    sender: str
    seq: int


@dataclass(frozen=True)
class Marked:
    """An event that the projection passes over."""


@dataclass(frozen=True)
class CallPlanned:
    """A reminder was set."""

    mark: str


@dataclass(frozen=True)
class CallDropped:
    """A reminder was forgotten."""

    mark: str


@dataclass(frozen=True)
class CallMade:
    """A reminder has fired."""

    mark: str


@dataclass
class Book:
    """The bookings of a ledger in their order, and the last number of each sender. `planned`: calls
    that are not dropped."""

    rows: list[str] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    planned: dict[str, bool] = field(default_factory=dict)


@dataclass
class Tallied:
    """By ledger: the number of the last event, and how many there were."""

    last: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def row_of(sender: str, seq: int) -> str:
    """Return a booking as a ledger lists it."""
    return f"{sender} {seq}"


class StoredHistory:
    """All events of one journal, also those that were removed since."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        """The bookings; empty for other events."""
        self.fences: list[int] = []
        """The fence under which each was appended."""
        self.last: dict[str, int] = {}
        """By sender, the number of the last booking."""
        self.booked: dict[str, None] = {}
        self.planned: dict[str, None] = {}
        """CallPlanned calls that are neither dropped nor made."""
        self.called: dict[str, None] = {}

    def bookings(self, upto: int | None = None) -> list[str]:
        """Return the bookings of all events, or of those up to a number."""
        return [row for row in self.rows[:upto] if row]

    def least(self, fence: int) -> int:
        """Return the number of the last event that an activation under this fence must have."""
        return max((n for n, stored in enumerate(self.fences, 1) if stored <= fence), default=0)


class EventChecker:
    """Checks the rules of the module's text. `broken` keeps a violation and returns it."""

    def __init__(
        self, world: NodeWorld, broken: Callable[[str, str], Violation], dice: Random
    ) -> None:
        self.world, self._broken, self.dice = world, broken, dice
        self.histories: dict[str, StoredHistory] = defaultdict(StoredHistory)
        """By ledger."""
        self.open: dict[tuple[str, int], SimProcess] = {}
        """Deliveries without an end, with their process."""
        self.plans = Random(f"plans of {dice.random()}")
        self.senders = 0
        self.answered = False
        """True once a booking was answered, or its delivery confirmed."""
        world.store.on_appended = self.on_appended

    @property
    def _lied(self) -> bool:
        return self.world.store.lied

    # ---- the store

    def on_appended(self, kind: str, name: str, fence: int) -> None:
        """Add the events of an append to the history, and check their numbers (E3)."""
        if kind != LEDGER or self._lied:
            return
        history, journal = self.histories[name], self.world.store.data.journals[kind, name]
        for entry in journal.entries[len(history.rows) - journal.trimmed :]:
            stored = stored_event(entry)
            row = ""
            if stored.name == Booked.__name__:
                sender, seq = stored.value["sender"], stored.value["seq"]
                row = row_of(sender, seq)
                self._check_number(name, history, sender, seq)
                history.last[sender] = seq
                history.booked[row] = None
            elif stored.name != Marked.__name__:
                self._on_reminder(name, history, stored.name, stored.value["mark"])
            history.rows.append(row)
            history.fences.append(fence)

    def _on_reminder(self, name: str, history: StoredHistory, event_name: str, mark: str) -> None:
        """Note the event of a reminder (E7)."""
        if event_name == CallPlanned.__name__:
            history.planned[mark] = None
            return
        history.planned.pop(mark, None)
        if event_name == CallMade.__name__:
            if mark in history.called:
                raise self._broken("E7", f"{name} has the call {mark} twice")
            history.called[mark] = None

    def _check_number(self, name: str, history: StoredHistory, sender: str, seq: int) -> None:
        if row_of(sender, seq) in history.booked:
            raise self._broken("E3", f"{name} has {seq} of {sender} twice")
        last = history.last.get(sender, 0)
        if not sender.endswith("?") and seq != last + 1:
            raise self._broken("E3", f"{name} has {seq} of {sender} after {last}")

    # ---- entities

    def on_started(self, context: Context, book: Book) -> None:
        """Check the state that a replay has made (E1)."""
        if self._lied:
            return
        history = self.histories[context.entity_id]
        least = history.bookings(history.least(context.fence))
        whole = history.bookings()
        if book.rows != whole[: len(book.rows)] or len(book.rows) < len(least):
            text = f"{context.entity_id} replays {book.rows[-3:]}, {len(book.rows)} bookings, of"
            raise self._broken("E1", f"{text} {len(least)} to {len(whole)}: {whole[-3:]}")

    def on_handled(self, context: Context, book: Book, sender: str, seq: int) -> None:
        """Check the number of a delivery (E3)."""
        last = book.last.get(sender, 0)
        if seq != last + 1 and not self._lied:
            text = f"{context.entity_id} handles {seq} of {sender} after {last}"
            raise self._broken("E3", text)

    def on_tallied(self, tallied: Tallied, ledger: str, number: int) -> None:
        """Check the number of an event that the projection has delivered (E4)."""
        if number <= tallied.last.get(ledger, 0) and not self._lied:
            raise self._broken("E4", f"event {number} of {ledger} is tallied twice")

    def on_answered(self, ledger: str, sender: str, seq: int) -> None:
        """Check that the store has an answered booking (E2)."""
        self.answered = True
        if row_of(sender, seq) not in self.histories[ledger].booked and not self._lied:
            raise self._broken("E2", f"{ledger} answered {seq} of {sender}, which is not stored")

    def events(self, sender: str, seq: int) -> list[object]:
        """Return the events of a booking."""
        if self.dice.random() >= MARKS:
            return [Booked(sender, seq)]
        events: list[object] = [Booked(sender, seq), Marked()]
        return events if self.dice.random() < 0.5 else events[::-1]

    async def plan(self, context: Context, sender: str, seq: int) -> list[object]:
        """Set or forget a reminder in some bookings. Returns the events of that."""
        drawn, planned = self.plans.random(), context.reminders()
        if drawn < PLANS and len(planned) < PLANNED_MAX:
            mark, after = row_of(sender, seq), self.plans.uniform(*CALLED_AFTER_S)
            await context.remind(mark, handler="call", after=after, data=mark)
            return [CallPlanned(mark)]
        if drawn > 1.0 - DROPS and planned:
            name = self.plans.choice(planned).name
            await context.forget(name)
            return [CallDropped(name)]
        return []

    def fail_sometimes(self) -> None:
        """Raise a planned failure."""
        if self.dice.random() < FAILS:
            raise PlannedFailure

    # ---- the quiet

    def unfinished(self, types: Any) -> str:
        """Return a delivery that is pending at rest (E6), or a state that is not the fold of its
        history (E4, E5). `types`: the entity types of the application."""
        pending = [key for key, by in self.open.items() if by.ended_at is None and by.in_touch]
        if pending:
            return f"{pending[0]} and {len(pending) - 1} more bookings are not confirmed"
        if self._lied:
            return ""
        tallied = self._stored(types, TALLY, ALL)[1] or Tallied()
        for name, history in self.histories.items():
            rows, last = history.bookings(), len(history.rows)
            if history.planned:
                return f"{name} has not called {next(iter(history.planned))}"
            number, part = self._stored(types, LISTED, f"{name}/{LISTED}")
            if number != last or part is None or part.rows != rows:
                return f"the part of {name} has handled {number} events of {last}"
            count = tallied.counts.get(name, 0)
            if count != len(rows):
                return f"the tally has {count} bookings of {name}, which has {len(rows)}"
            number, book = self._stored(types, LEDGER, name)
            if book is not None and book.rows != history.bookings(number):
                return f"the snapshot of {name} with event {number} is not the fold"
        return self._wrong_in_memory()

    def _wrong_in_memory(self) -> str:
        """Return a ledger whose state in memory is not the fold, or a projection that lacks
        events."""
        for sim_node in self.world.sim_nodes.values():
            if sim_node.ended_at is not None or not sim_node.process.member:
                continue
            regions = sim_node.node.regions
            projecting = regions[LISTED].host.runner.projecting
            if projecting is not None and projecting.counts.missing:
                return f"{sim_node.name} lacks {projecting.counts.missing} events"
            for name, activation in regions[LEDGER].host.active.items():
                if activation.state is not LifeState.RUNNING or activation.busy:
                    continue
                if activation.entity.state.rows != self.histories[name].bookings():
                    return f"{sim_node.name} has another state of {name} in memory"
        return ""

    def _stored(self, types: Any, kind: str, entity_id: str) -> tuple[int, Any]:
        """Return the number and the state of a stored record; 0 and None without one."""
        row = self.world.store.data.states.get((kind, entity_id))
        if row is None or not row.data:
            return 0, None
        number, alone = split_numbered(split_record(row.data)[1])
        return number, types[kind].states.read(entity_id, alone) if alone else None


def declare_ledgers(
    bus: ShardBus, checker: Callable[[], EventChecker], shards: int, mode: Any, dice: Random
) -> dict[str, type]:
    """Declare the types. Returns their classes, by name."""

    calling: Any = _calling(checker)

    class BookedLedger(calling):  # type: ignore[misc]
        state: Book

        async def on_start(self) -> None:
            checker().on_started(self.context, self.state)

        @event
        def booked(self, event: Booked) -> None:
            self.state.rows.append(row_of(event.sender, event.seq))
            self.state.last[event.sender] = event.seq

        @event
        def marked(self, event: Marked) -> None:
            """Change nothing."""

        @handler
        async def take(self, sender: str, seq: int) -> None:
            check = checker()
            check.on_handled(self.context, self.state, sender, seq)
            check.fail_sometimes()
            planned = await check.plan(self.context, sender, seq)
            await self.persist(*check.events(sender, seq), *planned)
            check.fail_sometimes()

        @handler
        async def touch(self) -> None:
            checker().fail_sometimes()

        @handler
        async def book(self, sender: str, seq: int) -> bool:
            check = checker()
            check.fail_sometimes()
            planned = await check.plan(self.context, sender, seq)
            try:
                await self.persist(*check.events(sender, seq), *planned)
            except StoreUnavailable:
                if check.dice.random() >= CATCHES:
                    raise
                return False
            if check.dice.random() < SNAPSHOTS:
                await self.save()
            check.fail_sometimes()
            return True

    options: Any = {"shards": shards, "handoff": mode}
    bus.entity(
        LEDGER,
        snapshot_after=dice.choice(SNAPSHOT_AFTER),
        events_kept=dice.choice(KEPT),
        reminders=True,
        **options,
    )(BookedLedger)
    parts = _declare_projection(bus, checker, options, BookedLedger)
    return {LEDGER: BookedLedger, **parts}


def _calling(checker: Callable[[], EventChecker]) -> type:
    """Return a class with the events and the handler of planned calls."""

    class Calling(EventSourced):
        state: Book

        @event
        def planned(self, event: CallPlanned) -> None:
            self.state.planned[event.mark] = True

        @event
        def dropped(self, event: CallDropped) -> None:
            self.state.planned.pop(event.mark, None)

        @event
        def called(self, event: CallMade) -> None:
            """Change nothing: a second call would show."""

        @handler
        async def call(self, mark: str) -> None:
            check = checker()
            if mark not in self.state.planned:
                return  # the step before or behind the events of its plan is missing
            check.fail_sometimes()
            await self.persist(CallMade(mark))
            check.fail_sometimes()

    return Calling


def _declare_projection(
    bus: ShardBus, checker: Callable[[], EventChecker], options: Any, ledger: type
) -> dict[str, type]:
    """Declare the projection of the ledgers, and the tally. Returns their classes, by name."""

    class BookingTally(Entity):
        state: Tallied

        @handler
        def add(self, ledger: str, number: int) -> None:
            checker().on_tallied(self.state, ledger, number)
            self.state.last[ledger] = number
            self.state.counts[ledger] = self.state.counts.get(ledger, 0) + 1

    bus.entity(TALLY, **options)(BookingTally)

    class Listed(Projection):
        attempts = 0
        state: Book

        @event
        async def booked(self, event: Booked) -> None:
            checker().fail_sometimes()
            self.state.rows.append(row_of(event.sender, event.seq))
            self.deliver(self.context.ref(BookingTally, ALL).add, self.source_id, self.event_number)
            checker().fail_sometimes()

    bus.projection(of=ledger, name=LISTED)(Listed)
    return {LISTED: Listed, TALLY: BookingTally}


class SimBooker(SimDeliverer):
    """Delivers bookings, and asks for others, from one process."""

    _checker: Any

    def _deliver(self, ref: Any, entity_id: str) -> None:
        drawn, checker = self._dice.random(), self._checker
        try:
            if drawn < ASKS:
                self._ask(ref, entity_id)
            elif drawn < ASKS + TOUCHES:
                ref.touch.deliver(within=0).add_done_callback(lambda done: done.exception())
            else:
                seq = self._seqs.get(entity_id, 0) + 1
                confirmed = ref.take.deliver(self.name, seq, within=0)
                self._seqs[entity_id] = seq
                line = (f"{self.name} {entity_id}", seq)
                checker.open[line] = self._home
                confirmed.add_done_callback(lambda done: self._confirmed(line, entity_id, done))
        except RequestError:
            return

    def _confirmed(self, line: tuple[str, int], entity_id: str, done: asyncio.Future[None]) -> None:
        self._checker.open.pop(line, None)
        if not done.cancelled() and done.exception() is None:
            self._checker.on_answered(entity_id, self.name, line[1])

    def _ask(self, ref: Any, entity_id: str) -> None:
        sender = f"{self.name}?"
        seq = self._seqs[f"{entity_id}?"] = self._seqs.get(f"{entity_id}?", 0) + 1

        def answered(done: asyncio.Future[bool]) -> None:
            if not done.cancelled() and done.exception() is None and done.result():
                self._checker.on_answered(entity_id, sender, seq)

        ref.book(sender, seq).add_done_callback(answered)
