"""Random calls on one key, and the meaning of each for the others.

A `Recorder` makes a history for the judge: each call with its start, its end, and its effect on a
small model of the value. A call without an answer may have had its effect, at any time after its
start. A refused call may have had its effect before it ended, and has none later: *no effect from
now on*.

    states   (fence, op, data, reminders): loads, saves of one of the last two or both, repeats of
             saves, reads, expiries
    tables   (epoch, claimer, op): claims and writes
    lists    (fence, ids): changes and reads
    leases   never two holders at a time

Source: docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardbus.errors import StaleEpoch, StaleFence
from shardbus.replication import functions, proposer, values
from shardbus.simulation.replication.linearizability import HistoryEntry, Step
from shardbus.simulation.replication.world import ReplicationWorld, SimStoreObject

TIMEOUTS_S = (0.05, 0.3, 1.5)
OPEN_MAX = 8
"""Calls without an answer in one history: each doubles the orders."""
FINAL_TIMEOUT_S = 30.0
STORE_OBJECTS = 4
EACH = 4
"""Saves, changes and reads for each other call."""


class Refusal(NamedTuple):
    """A call was refused: `step` shows why."""

    step: Step


Judged = Callable[[Any], Step | Refusal]


@dataclass(slots=True)
class Recorder:
    """The history of one key."""

    world: ReplicationWorld
    key: str
    entries: list[HistoryEntry] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)

    @property
    def open(self) -> int:
        """The calls whose effect is not certain."""
        return sum(not entry.must for entry in self.entries)

    def call(
        self,
        store: SimStoreObject,
        name: str,
        work: proposer.Operation,
        *,
        effect: Step,
        judged: Judged,
        outdated: Step | None = None,
        timeout: float | None = None,
        end: Callable[[proposer.Outcome], None] = lambda _: None,
    ) -> None:
        """Make a call. `effect`: the effect of a call without a known result. `judged`: from the
        result to its effect. `outdated`: the step that a refusal by a fence shows."""
        world = self.world
        entry = HistoryEntry(name, world.now, effect)
        self.entries.append(entry)

        def over(outcome: proposer.Outcome) -> None:
            label = f"{name.split()[0]} {type(outcome).__name__}"
            self.outcomes[label] = self.outcomes.get(label, 0) + 1
            match outcome:
                case proposer.Completed(result):
                    entry.ended = world.now
                    step = judged(result)
                    if isinstance(step, Refusal):
                        self.refused(entry, step.step)
                    else:
                        entry.must, entry.step = True, step
                case proposer.Outdated():
                    assert outdated is not None
                    entry.ended = world.now
                    self.refused(entry, outdated)
                case proposer.Unanswered(sent=False):
                    self.entries.remove(entry)
                case proposer.Unanswered():
                    pass
            end(outcome)

        store.submit(self.key, work, timeout or world.dice.choice(TIMEOUTS_S), over)

    def maybe(self, name: str, step: Step) -> None:
        """Note an effect that may happen from now on."""
        self.entries.append(HistoryEntry(name, self.world.now, step))

    def refused(self, entry: HistoryEntry, step: Step) -> None:
        """Note that a call was refused, because of the fact that `step` shows."""
        shown = HistoryEntry(f"{entry.name} refused", entry.begun, step, self.world.now, must=True)
        self.entries.append(shown)


STATE_KEY, TABLE_KEY = values.state_key("t", "e"), values.table_key("t")
LIST_KEY, LEASE_KEY = values.list_key("t", "7"), values.lease_key("shard")


class StateCalls:
    """Calls on the state of one entity. The model: fence, the id of the last save, data, which is
    the id of its last save, or minus the id of the expiry that removed it, and reminders, which are
    the id of their last save. The id decides what a save has (`_saves`)."""

    first = (-1, 0, None, None)

    def __init__(self, world: ReplicationWorld) -> None:
        self.dice = world.dice
        self.recorder = Recorder(world, STATE_KEY)
        self.stores = [world.store_object() for _ in range(STORE_OBJECTS + 1)]
        self.owners = [(0, 1)]
        self.begun: set[int] = set()
        self.ops = 0
        self.saved: dict[int, list[int]] = {}

    def step(self) -> None:
        """Make one call."""
        dice = self.dice
        kind = dice.choice(("load", *("save",) * EACH, "again", "again", "read", "expire"))
        if dice.random() < 0.15:
            self.owners.append((dice.randrange(STORE_OBJECTS), len(self.owners) + 1))
            kind = "load"
        owner, fence = self.owners[-1] if dice.random() < 0.6 else dice.choice(self.owners[-3:])
        store = self.stores[owner]
        if dice.random() < 0.1:
            store, kind = self.stores[-1], dice.choice(("load", "read", "expire"))
        if fence not in self.begun:
            self.begun.add(fence)
            self.recorder.maybe(f"raise f{fence}", lambda s: _raised(s, fence))
            kind = kind if dice.random() < 0.2 else "load"
        match kind:
            case "load":
                self.load(store, fence)
            case "save":
                self.ops += 1
                self.saved.setdefault(fence, []).append(self.ops)
                self.save(store, fence, self.ops)
            case "again" if fence in self.saved:
                self.save(store, fence, dice.choice(self.saved[fence][-2:]))
            case "read":
                self.read(store)
            case _:
                self.expire(store, max(1, self.ops - dice.randrange(2)))

    def load(self, store: SimStoreObject, fence: int) -> None:
        def judged(value: values.Value) -> Step:
            shown = _shown(value)
            return lambda s: _raised(s, fence) if s[1:] == shown else None

        self.recorder.call(
            store,
            f"load f{fence}",
            proposer.LoadState(fence),
            effect=lambda s: _raised(s, fence),
            judged=judged,
            outdated=lambda s: s if s[0] > fence else None,
        )

    def save(self, store: SimStoreObject, fence: int, op: int) -> None:
        reminders = _saves(op)
        alone = reminders is not None and reminders.alone

        def effect(s: Any) -> Any:
            if s[1] == op:
                return s
            reminded = s[3]
            if reminders is not None:
                reminded = op if reminders.record else None
            return (fence, op, s[2] if alone else op, reminded) if s[0] <= fence else None

        self.recorder.call(
            store,
            f"save f{fence} op{op}",
            proposer.SaveState(fence, op, b"%d" % op, reminders=reminders),
            effect=effect,
            judged=lambda _: effect,
            outdated=lambda s: s if s[0] > fence else None,
        )

    def read(self, store: SimStoreObject, timeout: float | None = None) -> None:
        def judged(reading: values.Reading) -> Step:
            shown = _shown(reading.value)
            return lambda s: s if s[1:] == shown else None

        self.recorder.call(
            store, "read", proposer.ReadValue(), effect=lambda s: s, judged=judged, timeout=timeout
        )

    def expire(self, store: SimStoreObject, op: int) -> None:
        """Remove the state if the save `op` has written it."""
        expiry = self.dice.getrandbits(40) + 1

        def function(value: values.Value) -> values.Written | values.Unchanged:
            if not isinstance(value, values.StateValue) or value.op != op:
                return values.Unchanged(result=False)
            return functions.expire(1.0, 1.0, expiry)(value)

        def effect(s: Any) -> Any:
            there = s[1] == op and s[2] is not None and s[2] >= 0
            return (s[0], op, -expiry, s[3]) if there else None

        def judged(removed: bool) -> Step | Refusal:
            if removed:
                return lambda s: s if s[1:3] == (op, -expiry) else effect(s)
            return Refusal(lambda s: s if effect(s) is None else None)

        work = proposer.ChangeValue(0, function)
        self.recorder.call(store, f"expire op{op}", work, effect=effect, judged=judged)

    def finish(self) -> None:
        """Read the stored value in the end."""
        for _ in range(3):
            self.read(self.recorder.world.store_object(), FINAL_TIMEOUT_S)


def _raised(state: Any, fence: int) -> Any:
    return (fence, *state[1:]) if state[0] <= fence else None


def _saves(op: int) -> values.SavedReminders | None:
    """Return the reminders that a save of this id has: of six, three have some, and one has that
    there are none; two of these four are alone."""
    if op % 6 < 2:
        return None
    return values.SavedReminders("7", op, b"%d" % op if op % 6 != 3 else None, op % 6 in (3, 4))


def _shown(value: values.Value) -> tuple[int, int | None, int | None]:
    if not isinstance(value, values.StateValue):
        return (0, None, None)
    data = -value.expiry or None if value.data is None else int(value.data)
    reminders = value.reminders
    return (value.op, data, None if reminders is None else int(reminders.record))


class TableCalls:
    """Calls on a shard table. The model: epoch, claimer, and the id of the last write."""

    first = (0, 0, 0)

    def __init__(self, world: ReplicationWorld) -> None:
        self.dice = world.dice
        self.recorder = Recorder(world, TABLE_KEY)
        self.stores = [world.store_object() for _ in range(STORE_OBJECTS)]
        self.epoch = self.ops = 0
        self.ruled: dict[SimStoreObject, int] = {}
        self.written: dict[SimStoreObject, int] = {}

    def step(self) -> None:
        """Make one call."""
        store, drawn = self.dice.choice(self.stores), self.dice.random()
        if drawn < 0.3 or not self.ruled:
            if self.dice.random() < 0.6 or not self.epoch:
                self.epoch += 1
            self.claim(store, self.epoch)
        elif drawn < 0.85 and store in self.ruled:
            op = self.written.get(store, 0)
            if not op or self.dice.random() < 0.7:
                self.ops += 1
                op = self.written[store] = self.ops
            self.write(store, self.ruled[store], op)
        else:
            self.read(store)

    def claim(self, store: SimStoreObject, epoch: int) -> None:
        claimer = store.proposer.session

        def effect(s: Any) -> Any:
            if s[:2] == (epoch, claimer):
                return s
            return (epoch, claimer, s[2]) if s[0] < epoch else None

        def judged(result: object) -> Step | Refusal:
            if isinstance(result, StaleEpoch):
                return Refusal(lambda s: s if s[0] == result.stored and s[0] >= epoch else None)
            assert isinstance(result, values.TableValue)
            self.ruled[store] = epoch
            op = result.op
            return lambda s: effect(s) if s[2] == op else None

        work = proposer.ChangeValue(epoch, functions.claim("t", epoch, "crc32/10", claimer))
        self.recorder.call(store, f"claim e{epoch}", work, effect=effect, judged=judged)

    def write(self, store: SimStoreObject, epoch: int, op: int) -> None:
        claimer = store.proposer.session

        def effect(s: Any) -> Any:
            if s[2] == op:
                return s
            return (epoch, claimer, op) if s[:2] == (epoch, claimer) else None

        def judged(result: object) -> Step | Refusal:
            if isinstance(result, StaleEpoch):
                return Refusal(lambda s: s if s[:2] != (epoch, claimer) else None)
            return effect

        work = proposer.ChangeValue(
            epoch, functions.write_homes("t", epoch, claimer, {}, op), patience=0.1
        )
        self.recorder.call(store, f"write e{epoch} op{op}", work, effect=effect, judged=judged)

    def read(self, store: SimStoreObject, timeout: float | None = None) -> None:
        def judged(reading: values.Reading) -> Step:
            table = reading.value
            shown = self.first
            if isinstance(table, values.TableValue):
                shown = (table.epoch, table.claimer, table.op)
            return lambda s: s if s == shown else None

        self.recorder.call(
            store, "read", proposer.ReadValue(), effect=lambda s: s, judged=judged, timeout=timeout
        )

    def finish(self) -> None:
        """Read the stored value in the end."""
        for _ in range(2):
            self.read(self.recorder.world.store_object(), FINAL_TIMEOUT_S)


class ListCalls:
    """Calls on a list of remembered entities. The model: the fence, and the ids."""

    first = (-1, frozenset[str]())

    def __init__(self, world: ReplicationWorld) -> None:
        self.dice = world.dice
        self.recorder = Recorder(world, LIST_KEY)
        self.stores = [world.store_object() for _ in range(STORE_OBJECTS)]
        self.owners = [(0, 1)]
        self.ids = 0

    def step(self) -> None:
        """Make one call."""
        dice = self.dice
        added: tuple[str, ...] = ()
        removed: tuple[str, ...] = ()
        if dice.random() < 0.2:
            self.owners.append((dice.randrange(STORE_OBJECTS), len(self.owners) + 1))
        elif dice.random() < 0.6:
            self.ids += 1
            added = (str(self.ids),)
        else:
            removed = (str(dice.randint(0, self.ids)),)
        owner, fence = self.owners[-1] if dice.random() < 0.7 else dice.choice(self.owners[-3:])
        if dice.random() < 0.15:
            self.read(self.stores[owner])
        else:
            self.change(self.stores[owner], fence, added, removed)

    def change(
        self, store: SimStoreObject, fence: int, added: tuple[str, ...], removed: tuple[str, ...]
    ) -> None:
        def effect(s: Any) -> Any:
            return (fence, s[1].union(added).difference(removed)) if s[0] <= fence else None

        def judged(result: object) -> Step | Refusal:
            if isinstance(result, StaleFence):
                return Refusal(lambda s: s if s[0] > fence else None)
            return effect

        work = proposer.ChangeValue(fence, functions.change_list("t", "7", added, removed, fence))
        name = f"change f{fence} +{added} -{removed}"
        self.recorder.call(store, name, work, effect=effect, judged=judged)

    def read(self, store: SimStoreObject, timeout: float | None = None) -> None:
        def judged(reading: values.Reading) -> Step:
            ids = (
                reading.value.entity_ids
                if isinstance(reading.value, values.ListValue)
                else frozenset()
            )
            return lambda s: s if s[1] == ids else None

        self.recorder.call(
            store, "read", proposer.ReadValue(), effect=lambda s: s, judged=judged, timeout=timeout
        )

    def finish(self) -> None:
        """Read the stored value in the end."""
        for _ in range(2):
            self.read(self.recorder.world.store_object(), FINAL_TIMEOUT_S)


@dataclass(slots=True)
class Holder:
    """An owner's lease: the counter, and its end by the owner's clock."""

    counter: int
    until: float


class LeaseCalls:
    """Owners of one lease, whose clocks are up to 3 % off. Two must never hold it at a time. The
    history has only the last reads; `broken` has the verdict."""

    first = (0,)

    def __init__(self, world: ReplicationWorld) -> None:
        self.world, self.dice = world, world.dice
        self.recorder = Recorder(world, LEASE_KEY)
        self.stores = [world.store_object() for _ in range(STORE_OBJECTS)]
        self.held: dict[SimStoreObject, Holder] = {}
        self.busy: set[SimStoreObject] = set()
        self.broken = ""

    def step(self) -> None:
        """Make one call, and look who holds the lease."""
        self.world.run(self.dice.expovariate(10.0))
        for store in self.stores:
            if store in self.busy or self.dice.random() < 0.4:
                continue
            holder = self.held.get(store)
            time = self.dice.choice((0.3, 0.8))
            if holder is None or holder.until <= store.clock:
                self.held.pop(store, None)
                self.acquire(store, time)
            elif self.dice.random() < 0.2:
                del self.held[store]
                self.submit(
                    store, proposer.ChangeValue(0, functions.release(name(store), holder.counter))
                )
            else:
                self.renew(store, holder, time)

    def look(self) -> None:
        """Note that two owners hold the lease."""
        holders = [store for store, held in self.held.items() if held.until > store.clock]
        if len(holders) > 1:
            self.broken = f"two hold the lease: {[self.held[store] for store in holders]}"

    def submit(
        self,
        store: SimStoreObject,
        work: proposer.Operation,
        end: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """Run one operation of an owner; `end` gets the result, if there is one."""
        self.busy.add(store)

        def over(outcome: proposer.Outcome) -> None:
            label = f"lease {type(outcome).__name__}"
            self.recorder.outcomes[label] = self.recorder.outcomes.get(label, 0) + 1
            self.busy.discard(store)
            if isinstance(outcome, proposer.Completed):
                end(outcome.result)
            self.look()

        store.submit(LEASE_KEY, work, self.dice.choice(TIMEOUTS_S), over)

    def acquire(self, store: SimStoreObject, time: float) -> None:
        def seen(reading: values.Reading) -> None:
            began = store.clock
            request = self.dice.getrandbits(40) + 1
            function = functions.acquire(name(store), time, reading, request)

            def got(counter: int | None) -> None:
                if counter is not None:
                    self.hold(store, Holder(counter, began + time))

            if function is not None:
                self.submit(store, proposer.ChangeValue(0, function), got)

        self.submit(store, proposer.ReadValue(), seen)

    def renew(self, store: SimStoreObject, holder: Holder, time: float) -> None:
        began = store.clock

        def got(kept: bool) -> None:
            if kept and self.held.get(store) is holder:
                holder.until = max(holder.until, began + time)
            elif not kept:
                self.held.pop(store, None)

        self.submit(
            store, proposer.ChangeValue(0, functions.renew(name(store), holder.counter, time)), got
        )

    def hold(self, store: SimStoreObject, holder: Holder) -> None:
        if holder.until > store.clock:
            label = "lease held"
            self.recorder.outcomes[label] = self.recorder.outcomes.get(label, 0) + 1
            self.held[store] = holder

    def finish(self) -> None:
        """Nothing is left to read: `look` has the verdict."""


def name(store: SimStoreObject) -> str:
    """Return the owner's name."""
    return str(store.proposer.session)


KINDS: dict[str, type[StateCalls] | type[TableCalls] | type[ListCalls] | type[LeaseCalls]] = {
    "states": StateCalls,
    "tables": TableCalls,
    "lists": ListCalls,
    "leases": LeaseCalls,
}

USED = (STATE_KEY, TABLE_KEY, LIST_KEY, LEASE_KEY)
PARTITIONS_USED = sorted({values.partition_of(key) for key in USED})
"""The partitions of these keys; 0 is also the partition of the store's own keys."""
