"""The states that the instances of entities have in common: loads, saves, and news of others.

    start    read the value from R replicas                ──> self.state
    save     read it from R replicas, take what is new     ──> self.state
             write to W replicas                           ──> self.state, with what was written
                                                               at the same time
    clear    read, then drop what was read                 ──> self.state is what is left
    look     each second: which values have changed at the replicas? Read those of the entities
             here; a message of its own gives it to the entity, between two others

So with R + W > N an instance has, once it has started and whenever a save has returned, each save
that was answered before that began; and while it runs, others' saves about a second later.

**No fence.** A save of an activation that is over elsewhere, as in a split, is merged like any
other. An activation that is over on this node saves nothing (StaleActivation).

**In doubt.** A save without an answer has its effect once, or never. The state of a class may be
saved again: that has the same effect. The additions of a kind are given up: to send them again
might count them twice.

**Failures.** If the function raises, the save or the start fails with StateUnreadable, and nothing
is written: all contents stay until a class that can merge them reads them.

Bounds: one save of an object at a time, one message of news for an object, `READ_AT_ONCE` reads. A
value has at most as many contents as instances have saved at the same time.

Source: docs/how-to/replicated-values.md; S3.81, B.135.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardbus.config.settings import DataSettings
from shardbus.entities.activation import Activation, Message, Shard
from shardbus.entities.context import Context, key_of
from shardbus.entities.entity_type import Invoker
from shardbus.entities.merged_state import MergedState, StateCopy
from shardbus.entities.runner import EntityRunner
from shardbus.entities.state_saver import StateSaver
from shardbus.entities.state_sizes import StateSizes
from shardbus.error_text import is_a
from shardbus.errors import ConfigError, StateUnreadable, StoreError, StoreUnavailable, ValueRefused
from shardbus.guarded_log import GuardedLog
from shardbus.replication.versions import DataChange, DataValue, bytes_of, covers, joined
from shardbus.sharding.instances import split_row
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskSet
from shardbus.transport.drop_reports import Origin
from shardbus.transport.log_limiter import LogRateLimiter

if TYPE_CHECKING:
    from shardbus.store.state_values import StateValues

READ_AT_ONCE = 64
log = GuardedLog("shardbus.entity.store", LogRateLimiter())


class MergedStates:
    """The states of one type's activations here. `saver` writes the reminders that entities have
    set, which are no part of a state that merges."""

    what = "merged states"
    """The name of its sweep."""

    def __init__(
        self, form: MergedState, values: StateValues, runner: EntityRunner, saver: StateSaver
    ) -> None:
        self.form, self.values, self._runner, self._saver = form, values, runner, saver
        self.sizes = runner.measure(StateSizes())
        self.counts: Counter[str] = Counter()
        """`merged`: calls of the function; `taken`: news that entities have got; `failed`."""
        self._copies: dict[Activation, StateCopy] = {}
        self._by_id: dict[str, set[Activation]] = {}
        self._since: dict[int, tuple[int, int]] = {}
        self._unread: set[str] = set()
        """Ids whose news are still to be read."""
        self._tasks = TaskSet()
        self._looks = False
        """A look is under way."""

    # ---- for the entities

    async def load(self, activation: Activation) -> None:
        """Give a new object the state.

        Raises:
            StateUnreadable: the contents cannot be read, or do not merge. StoreUnavailable.
        """
        entity_id = split_row(activation.key)[0]
        value = await self.values.read(entity_id)
        copy = StateCopy(activation.entity)
        self._apply(copy, lambda: self.form.first(activation.key, copy, value))
        self._copies[activation] = copy
        self._by_id.setdefault(entity_id, set()).add(activation)
        self._note_size(activation, copy)

    async def save(
        self, context: Context, data: bytes | None, *, alone: bool = False, clears: bool = False
    ) -> None:
        """Save, or clear if there is no `data`, and return once the node is confirmed, too.
        `alone`: only the reminders. `clears`: the reminders end.

        Raises:
            StaleActivation: the object that saves is over. Nothing was written, unless that ended
                while the save was under way.
            StateUnreadable: what others have saved does not merge. StateTooLarge, ValueRefused,
                ConfigError: nothing was written. StoreUnavailable.
        """
        if alone:
            await self._saver.save(context, data, alone=True)
            return
        what = "clear" if data is None else "save"
        activation = context._acting(what)
        copy, entity_id, key = self._copies[activation], context.entity_id, activation.key
        async with copy.turn:
            context._acting(what)
            value = await self.values.read(entity_id)
            context._acting(what)
            if not covers(copy.value.clock, value.clock):
                self._apply(copy, lambda: self.form.take(key, copy, value))
                data = None if data is None else self.form.write(copy.entity.state)
            if data is None:
                await self._remove(context, copy)
            else:
                await self._put(context, copy, data)
            self._note_size(activation, copy)
        if clears and self._runner.reminding is not None:
            await self._saver.save(context, None, clears=True)
        elif self._runner.gate.close_if_due():
            await self._runner.gate.passed()

    async def save_reminders(self, context: Context) -> None:
        """As `StateSaver.save_reminders`."""
        await self._saver.save_reminders(context)

    async def _put(self, context: Context, copy: StateCopy, data: bytes) -> None:
        entity_id, key = context.entity_id, key_of(context)
        save = self.form.outgoing(copy, data, self._saver.stored_form(key, data))
        if save.change is None:
            return
        try:
            value = await self.values.write(entity_id, save.change)
        except BaseException as error:
            if not _is_definite(error):
                self.form.give_up(copy, save)
            raise
        context._acting("save")
        self._apply(copy, lambda: self.form.saved(key, copy, save, value))

    async def _remove(self, context: Context, copy: StateCopy) -> None:
        """Drop all that the entity has seen."""
        if copy.value.dots:
            change = DataChange("", seen=copy.value.clock)
            value = joined(copy.value, await self.values.write(context.entity_id, change))
            context._acting("clear")
            self._apply(copy, lambda: self.form.first(key_of(context), copy, value))

    def _apply(self, copy: StateCopy, change: Callable[[], None]) -> None:
        """Change the state of an object, and count merges."""
        try:
            change()
        except StateUnreadable:
            self.counts["failed"] += 1
            raise
        finally:
            self.counts["merged"] += copy.merges
            copy.merges = 0

    def _note_size(self, activation: Activation, copy: StateCopy) -> None:
        if self._copies.get(activation) is copy:
            self.sizes.resize(activation, bytes_of(copy.value))

    # ---- news of other instances

    def sweep(self, tick: int) -> None:
        """Look for news, unless the last look still goes on."""
        if self._copies and not self._looks:
            self._looks = True
            self._tasks.spawn(self._look(), name="shardbus-merged-states")

    async def _look(self) -> None:
        """Read the values that have changed, and give them to the entities here."""
        try:
            ids, complete = await self.values.changed(self._since)
            self._unread |= ids & self._by_id.keys() if complete else self._by_id.keys()
            while self._unread:
                part = sorted(self._unread)[:READ_AT_ONCE]
                values = await asyncio.gather(*map(self.values.read, part))
                self._unread.difference_update(part)
                for entity_id, value in zip(part, values, strict=True):
                    for activation in list(self._by_id.get(entity_id, ())):
                        self._hand(activation, value)
        except (StoreError, ConfigError) as error:  # the next look goes on
            log.warning("news of merged states of %s: %s", self._runner.kind.name, error)
        finally:
            self._looks = False

    def _hand(self, activation: Activation, value: DataValue) -> None:
        """Give a value to an entity as a message of its own, if it is newer."""
        copy = self._copies[activation]
        if covers(copy.value.clock, value.clock):
            return
        waits = copy.news is not None and activation.busy
        copy.news = value if copy.news is None else joined(copy.news, value)
        if not waits:
            invoker = Invoker(
                "$merge", self._take_news, False, {}, decode_message=lambda payload: activation
            )
            message = Message(invoker, b"", None, Origin.OWN, 0)
            self._runner.receive(activation, message, counts=False)

    def _take_news(self, entity: Any, activation: Activation) -> None:
        """Put the news into the state, as the handler of a message."""
        copy = self._copies.get(activation)
        if copy is None or copy.news is None:  # they were for a former object
            return
        value, copy.news = copy.news, None
        if not covers(copy.value.clock, value.clock):
            self._apply(copy, lambda: self.form.take(activation.key, copy, value))
            self.counts["taken"] += 1
            self._note_size(activation, copy)

    # ---- as the work of a host

    def open(self, hosted: Shard) -> None:
        """Do nothing: a state is read when its entity starts."""

    def close(self, hosted: Shard) -> None:
        """Do nothing: `gone` has forgotten its entities."""

    def gone(self, activation: Activation) -> None:
        """Forget an activation that has left memory."""
        self._copies.pop(activation, None)
        entity_id = split_row(activation.key)[0]
        here = self._by_id.get(entity_id, set())
        here.discard(activation)
        if not here:
            self._by_id.pop(entity_id, None)

    def claim_again(self) -> None:
        """Read every value here again: the store may have lost something."""
        self._since.clear()

    def stop(self) -> None:
        """End the look under way: the node ends."""
        self._tasks.cancel()


def sharing(
    saver: StateSaver,
    runner: EntityRunner,
    store: StateStore,
    settings: DataSettings | None,
    wall_clock: Callable[[], float],
) -> StateSaver | MergedStates:
    """Return the object that saves the states of a type: `saver`, or one around it if its instances
    share their states.

    Raises:
        ConfigError: they do, and the store has no replicated values.
    """
    form = runner.kind.merged
    if form is None:
        return saver
    from shardbus.store.state_values import StateValues  # few types have them

    values = StateValues(runner.kind.name, store, settings or DataSettings(), wall_clock)
    merging = MergedStates(form, values, runner, saver)
    runner.share(merging.load)
    return merging


def _is_definite(error: BaseException) -> bool:
    """True if a write that failed so has no effect."""
    if is_a(error, StoreUnavailable):
        return bool(error.definite)
    return is_a(error, ValueRefused, ConfigError)
