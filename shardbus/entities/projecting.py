"""The parts of one projection on one node: the shell of `projections.parts`.

    source persists ──> news ──┐
    shard comes ──> scan ──────┴──> HandleEvents: the part gets a message, and starts if needed
    message ──> reads the journal after its last event ──> its handlers, in order
            ──> one save: the state, the deliveries, the number of the last event ──> Handled

**Effects once.** The record of a part is its state with the number of the last event that is in it,
written in one save under the shard's fence. So an event changes the state once, and a message that
a handler delivers (`self.deliver`) is stored with it. Effects elsewhere happen at least once: the
handlers run again for the events after the last save: at most `BATCH` or those of a second, and
after a failure for one event. `self.event_number` is the same each time.

**In order, in one place.** A part is an entity, so it has one activation, and works at one message
at a time. It reads the journal from the store, never from the memory of its source, so it handles
what is stored, and nothing else.

**Removal of events waits.** A source removes old events only up to the last one that every
projection declared here has handled (`handled`). If events are missing all the same, because they
were removed before the projection was there, their number is counted, logged, and the part goes on
with the first one that is left.

Source: docs/how-to/event-sourcing.md; S2.74.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from shardbus.entities.activation import Activation, Shard
from shardbus.entities.journal_scan import JournalScan, split_place, stored_numbers
from shardbus.entities.own_messages import WorkHost, has_own, order, send_own
from shardbus.entities.projected_events import PLACE, EventPlace, ProjectedEvents, part_id, place_of
from shardbus.entities.unfinished_work import finish, is_unfinished
from shardbus.error_text import described, is_a
from shardbus.errors import (
    ConfigError,
    Refused,
    Rejection,
    StateUnreadable,
    StoreError,
    Unhandled,
)
from shardbus.guarded_log import GuardedLog
from shardbus.projections import parts
from shardbus.routing.paths import parent_id
from shardbus.store.journal_protocol import JournalPage
from shardbus.store.journals import Journals
from shardbus.store.protocol import StateStore
from shardbus.wire.stored_state import StateCodec, numbered

log = GuardedLog("shardbus.projections")

EVENTS = "$events"
"""The name of the invoker of the message that lets a part handle events. No handler has it."""
ORDER = "$projection"
"""The name of the invoker of an operator's message."""
BATCH = 100
"""Events that are handled before a save, at most."""
BATCH_S = 1.0
"""Seconds after which no further event is handled before a save."""


class ProjectionCounts(msgspec.Struct):
    """Counts, for metrics."""

    handled: int = 0
    """Events that are handled, and stored as such."""
    passed: int = 0
    """Those of them for whose class the projection has no handler."""
    failed: int = 0
    """Attempts at which a handler raised, or an event could not be read."""
    missing: int = 0
    """Events that were removed before the projection could handle them."""


class Projecting:
    """Lets the parts of one projection handle events. `shard_of` finds the shard of a part."""

    what = "projections"
    """The name of its sweep."""

    def __init__(
        self,
        host: WorkHost,
        store: StateStore,
        journals: Journals | None,
        shard_of: Callable[[str], str],
    ) -> None:
        kind = host.kind
        if kind.projection is None or kind.states is None:
            raise ConfigError(f"{kind.name!r} is no projection")
        if journals is None:
            raise ConfigError(
                f"{kind.name!r} handles events, and this store has no journals",
                hint="use a store of shardbus, or give the store `journals`",
            )
        self._host, self._store, self._journals = host, store, journals
        self.events: ProjectedEvents = kind.projection
        self._states: StateCodec = kind.states
        self._part_shard = shard_of
        self.parts = parts.ProjectedParts(self.events.attempts)
        self.scan = JournalScan(
            host.name,
            self.events.source,
            journals,
            lambda source_ids: stored_numbers(store, host.name, source_ids),
            self._shard_of,
            self.news,
            lambda: self.parts.has_room,
            host.loop,
        )
        self.counts = ProjectionCounts()
        self._news: dict[str, str] = {}
        """Sources with news in this turn of the loop, with their shards."""
        self._timer: tuple[float, asyncio.TimerHandle] | None = None

    # ---- shards

    def open(self, hosted: Shard) -> None:
        """Look for parts of a shard that are behind: this node hosts it now."""
        self.scan.add([hosted.shard])

    def close(self, hosted: Shard) -> None:
        """Forget a shard that has left this node."""
        self.scan.forget(hosted.shard)
        self._handle(parts.ShardGone(hosted.shard))

    def stop(self) -> None:
        """Cancel everything: the node ends."""
        self.scan.stop()
        if self._timer is not None:
            self._timer[1].cancel()

    def claim_again(self) -> None:
        """Scan every shard anew: the store may have lost something."""
        self.scan.add(self._host.shards)

    def gone(self, activation: Activation) -> None:
        """Note that a part has left memory: a message that it had not handled is void."""
        source_id = parent_id(activation.key)
        error = "it has left memory before it came to it"
        self._ends_later(activation.shard, parts.Failed(source_id, 0, error, raised=False))

    def _shard_of(self, source_id: str) -> str:
        """Return the shard of a source, empty if it is unknown or cannot have a part."""
        try:
            return self._part_shard(part_id(source_id, self._host.name))
        except ConfigError as error:
            log.warning("%s cannot follow %r: %s", self._host.name, source_id, error)
            return ""

    # ---- news and turns

    def news(self, shard: str, source_id: str) -> None:
        """Note that the journal of an entity has, or may have, events to handle."""
        if not self._news:
            self._host.loop.call_soon(self._take_news)
        self._news[source_id] = shard

    def _take_news(self) -> None:
        news, self._news = self._news, {}
        for source_id, shard in news.items():
            if shard in self._host.shards:  # else its next home scans it
                self._handle(parts.News(shard, source_id))

    def sweep(self, tick: int) -> None:
        """Go on with pauses that are over, about once a second."""
        self._carry_out(self.parts.tick(self._host.loop.time()))

    def _on_timer(self) -> None:
        self._timer = None
        if not self._host.gate.close_if_due():
            self.sweep(0)

    def _handle(self, event: parts.Event) -> None:
        self._carry_out(self.parts.handle(event, self._host.loop.time()))

    def _carry_out(self, effects: Sequence[parts.HandleEvents | parts.ScanAgain]) -> None:
        for effect in effects:
            if isinstance(effect, parts.ScanAgain):
                self.scan.add([effect.shard])
            else:
                self._wake(effect)
        deadline = self.parts.deadline()
        if deadline is not None and (self._timer is None or deadline < self._timer[0]):
            if self._timer is not None:
                self._timer[1].cancel()
            self._timer = deadline, self._host.loop.call_at(deadline, self._on_timer)

    def _wake(self, work: parts.HandleEvents) -> None:
        """Hand a part the message by which it handles events."""
        host, hosted = self._host, self._host.shards.get(work.shard)
        if hosted is None or hosted.stopping:
            return  # its next home scans it
        if host.gate.close_if_due():
            self._in_vain(hosted, work, "this node is suspended")
            return
        try:
            key = part_id(work.source_id, host.name)
        except ConfigError as error:
            failed = parts.Failed(work.source_id, 0, described(error), raised=True)
            self._ends_later(hosted, failed)
            return
        activation = host.find(key, work.shard)
        if activation is not None and has_own(host, activation, EVENTS):
            return
        if activation is None:
            activation = host.activate(hosted, key, "events")
        send_own(host, activation, EVENTS, lambda entity: self._work(activation, entity, work))
        if not has_own(host, activation, EVENTS):  # it has ended already, or its mailbox is full
            self._in_vain(hosted, work, "it took no message")

    def _in_vain(self, hosted: Shard, work: parts.HandleEvents, why: str) -> None:
        """Note that a part cannot handle events now."""
        self._ends_later(hosted, parts.Failed(work.source_id, 0, why, raised=False))

    def _ends_later(self, hosted: Shard, event: parts.Event) -> None:
        """Report the end of work in a callback of its own: the part may be at work yet."""

        def end() -> None:
            if self._host.shards.get(hosted.shard) is hosted:
                self._handle(event)

        self._host.loop.call_soon(end)

    # ---- work

    async def load(self, activation: Activation, data: bytes | None) -> None:
        """Give a new object its stored state, and its place in the journal.

        Raises:
            StateUnreadable: the record cannot be read.
        """
        key = activation.key
        try:
            number, alone = split_place(data)
        except ValueError as error:
            raise self._states.unreadable(key, 0, error) from error
        entity = activation.entity
        entity.state = self._states.read(key, alone) if alone else self._states.cls()
        vars(entity)[PLACE] = EventPlace(number)

    async def _work(self, activation: Activation, entity: Any, work: parts.HandleEvents) -> None:
        """Handle events, store that, and report it."""
        source_id, place = work.source_id, place_of(entity)
        ended: parts.Event = parts.Failed(source_id, 0, "it was interrupted", raised=False)
        try:
            if self._sends_wait(activation):
                ended = parts.Waits(source_id)
                return
            last = await self._handle_events(activation, entity, work)
            ended = parts.Handled(source_id, place.handled, place.handled < last)
        except BaseException as error:
            raised = not is_a(error, StoreError, asyncio.CancelledError, GeneratorExit)
            ended = parts.Failed(source_id, place.current, described(error), raised)
            self.counts.failed += raised
            if is_a(error, Rejection, Unhandled):  # its state may be half changed: it starts again
                raise RuntimeError(f"a handler of events raised {described(error)}") from error
            raise
        finally:
            place.current = 0
            self._ends_later(activation.shard, ended)

    async def _handle_events(
        self, activation: Activation, entity: Any, work: parts.HandleEvents
    ) -> int:
        """Handle the events after the part's last one, at most `BATCH`. Returns the last number of
        the journal."""
        place, limit = place_of(entity), 1 if work.single else BATCH
        shard = activation.shard.shard
        page = await self._journals.read(
            self.events.source, shard, work.source_id, place.handled, limit
        )
        missing = self._missing(activation, place, page)
        handlers, codec, passed = self.events.handlers, self.events.codec, 0
        end, until = page.end, self._host.loop.time() + BATCH_S
        for number, entry in enumerate(page.entries, page.first):
            if self._sends_wait(activation) or self._has_worked(activation, until):
                end = number - 1
                break
            place.current = number
            event = codec.read(work.source_id, number, entry, handlers)
            if event is None:
                passed += 1
                continue
            function, waits = handlers[type(event)]
            value = function(entity, event)
            if waits:
                value = await value
            elif is_unfinished(value):
                value = await finish(value)
            if isinstance(value, self._states.cls):  # as a fold may return the next state
                entity.state = value
        if end > place.handled:
            await self._save(entity, end, entity.state)
            if activation.extras is not None:  # it gets on: no longer pauses between failures
                activation.extras.own_failures = 0
            self._note_missing(activation, missing)
            self.counts.handled += end - page.first + 1
            self.counts.passed += passed
        return page.last

    def _has_worked(self, activation: Activation, until: float) -> bool:
        """True if the time of a batch is over, or the part is to stop."""
        return activation.stopping is not None or self._host.loop.time() >= until

    def _sends_wait(self, activation: Activation) -> bool:
        """True if half of the room for the part's own deliveries is used."""
        record = activation.shard.records.get(activation.key)
        return record is not None and record.is_half_full

    def _missing(self, activation: Activation, place: EventPlace, page: JournalPage) -> int:
        """Return the number of events between the part and a page, which are removed.

        Raises:
            StateUnreadable: the journal ends before.
        """
        if page.last < place.handled:
            text = f"the journal ends with event {page.last}, and {place.handled} are handled"
            raise StateUnreadable(
                f"{self._host.name} {activation.key!r:.100}: {text}: rewind it",
                entity_type=self._host.name,
                entity_id=activation.key,
                version=0,
                field="",
            )
        return page.first - place.handled - 1

    def _note_missing(self, activation: Activation, missing: int) -> None:
        if missing:
            self.counts.missing += missing
            log.warning(
                "%s %r: %d events were removed before it could handle them",
                self._host.name,
                activation.key,
                missing,
            )

    async def _save(self, entity: Any, number: int, state: Any) -> None:
        """Store a state with the number of the last event that is in it."""
        await entity.context._save(numbered(number, self._states.write(state)))
        place_of(entity).handled = number

    # ---- the removal of events, and scans

    async def handled(self, shard: str, source_id: str) -> int:
        """Return the number of the last event of an entity that its part has handled, and stored.

        Raises:
            StoreError: the store does not answer.
        """
        try:
            key = part_id(source_id, self._host.name)
        except ConfigError:
            return 0
        activation = self._host.find(key, shard)
        if activation is not None and PLACE in vars(activation.entity or self):
            return place_of(activation.entity).handled
        [number] = await stored_numbers(self._store, self._host.name, [source_id])
        return max(number, 0)

    # ---- for operators

    @property
    def lag(self) -> float:
        """Seconds for which the first part that is behind has been so."""
        return self.parts.lag(self._host.loop.time())

    @property
    def shards(self) -> int:
        """Shards of this node."""
        return len(self._host.shards)

    async def described(self, shard: str, source_id: str) -> dict[str, object]:
        """Return how far the part of an entity is, for a page.

        Raises:
            StoreError: the store does not answer.
        """
        handled = await self.handled(shard, source_id)
        page = await self._journals.read(self.events.source, shard, source_id, 0, 0)
        part = dict(self.parts.failing).get(source_id)
        return {
            "handled": handled,
            "last": page.last,
            "first": page.first,
            "behind": max(page.last - handled, 0),
            "state": self.parts.state_of(source_id).value,
            "number": 0 if part is None else part.number,
            "attempts": 0 if part is None else part.failures,
            "error": "" if part is None else part.error,
        }

    def failing(self, limit: int) -> list[tuple[str, parts.Part]]:
        """Return parts that have failed, stopped ones first, by the ids of their sources."""
        return self.parts.failing[:limit]

    def retry(self, source_id: str) -> int:
        """Let a part that has failed try again now, or all without an id. Returns how many were
        waiting or had stopped."""
        waits = (parts.PartState.PAUSED, parts.PartState.STOPPED)
        failing = [key for key, part in self.parts.failing if part.state in waits]
        if source_id:
            failing = [key for key in failing if key == source_id]
        self._handle(parts.Retry(source_id))
        return len(failing)

    async def rewind(self, shard: str, source_id: str, *, missing: bool) -> int:
        """Let a part begin anew, with an empty state and the first event. Returns how many events
        are gone, which it cannot handle again.

        Raises:
            Refused: it has no events, or some are gone, and `missing` is False. Or the shard moves.
                Nothing changed.
            AskTimeout: the part has not come to it; it may be done later.
        """

        async def begin(entity: Any) -> int:
            page = await self._journals.read(self.events.source, shard, source_id, 0, 0)
            if not page.last:
                raise Refused(f"{self.events.source} {source_id!r:.100} has no events")
            gone = page.first - 1
            if gone and not missing:
                text = f"the events of {source_id!r:.100} before number {page.first} are removed"
                raise Refused(
                    f"{text}: its state would be without them", hint="say --missing to go on"
                )
            empty = self._states.cls()
            await self._save(entity, 0, empty)
            entity.state = empty
            return gone

        return await self._order(shard, source_id, begin)

    async def skip(self, shard: str, source_id: str, number: int) -> int:
        """Pass over the next event of a part, which must have this number. Returns it.

        Raises:
            Refused: it has another number, or the shard moves. Nothing changed.
            AskTimeout: the part has not come to it; it may be done later.
        """

        async def pass_over(entity: Any) -> int:
            handled = place_of(entity).handled
            if handled + 1 != number:
                text = f"the next event of {source_id!r:.100} is {handled + 1}, not {number}"
                raise Refused(text, hint="`shardbus projection show` has its number")
            page = await self._journals.read(self.events.source, shard, source_id, handled, 0)
            if page.last < number:
                raise Refused(f"{source_id!r:.100} has no event {number} yet")
            await self._save(entity, number, entity.state)
            return number

        return await self._order(shard, source_id, pass_over)

    async def _order(self, shard: str, source_id: str, act: Callable[[Any], Awaitable[int]]) -> int:
        """Let a part do something for an operator, and go on with its events then."""
        key = part_id(source_id, self._host.name)
        number = await order(self._host, shard, key, ORDER, lambda activation, entity: act(entity))
        self._handle(parts.News(shard, source_id))
        self._handle(parts.Retry(source_id))
        return number
