"""The world of one entity: its host, its mailbox, its stash, and a store that answers when
the world says so.

    ask add | save | twice | pipe | stash | fail | slow     messages for the entity; `twice` saves
                             two times at once, `pipe` answers when its work ends
    unstash, passivate, idle its stash comes back; it leaves memory; nothing comes for long
    work                     piped work, or the wait of `slow`, ends
    ok, last ok              its oldest call of the store ends well; the last one does
    unknown, refused         the oldest call has no known outcome; was certainly not done
    change, change if        an operator replaces the state; only if it is the state that was read
    stop, start              the shard leaves this host; it comes back under the next fence
    wait                 longer than an operator waits

Laws: one object of an entity lives at a time. An outcome of work comes to the object that began it.
An ask has one outcome, and a definite error means that no handler had it. The value of a refused
change is never stored. An entity is carried only if the outcome of each save is known. A remembered
entity that did not passivate is on the list, and runs at rest; then no call, no message and no work
is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.entities import remembering
from shardbus.entities.activation import Message
from shardbus.errors import AskTimeout, StaleFence, StateChanged, StoreUnavailable
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.wire.stored_state import revision_of
from tests.explore.on_a_loop import AskOutcomes, LoopOfWorld
from tests.unit.entities.entity_kit import Bench

ID = "x"
OTHERS = "a", "b", "c"
"""Remembered entities that are on the list at first."""
STARTING_MAX = 2
IDLE_TICKS = 20 * 3600
"""More than an entity stays in memory without a message, and than an ask has time."""
VERBS = "add", "save", "twice", "pipe", "stash", "fail", "slow"
EMPTY = revision_of(None)


@dataclass
class Items:
    names: list[str] = field(default_factory=list)


@dataclass
class Done:
    life: int


@dataclass(eq=False)
class Call:
    """A call of the store that waits for its outcome."""

    verb: str
    entity_id: str
    outcome: asyncio.Future[None]


def names_of(messages: Iterable[Message] | None) -> tuple[str, ...]:
    """Return the handlers that messages are for."""
    return tuple(message.invoker.name for message in messages or ())


class SlowKeeper:
    """States in memory under fences; each call waits until the world ends it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.journals: Any = None
        self.states: dict[str, tuple[int, bytes | None]] = {}
        self.at_once = False

    async def load(self, entity_type: str, shard: str, entity_id: str, fence: int) -> bytes | None:
        await self._wait("load", entity_id)
        return self._checked(entity_type, entity_id, fence)

    async def save(
        self, entity_type: str, shard: str, entity_id: str, fence: int, data: bytes | None
    ) -> None:
        try:
            await self._wait("save", entity_id)
        except StoreUnavailable as error:
            if not error.definite:  # it was written, and the answer was lost
                self._checked(entity_type, entity_id, fence)
                self.states[entity_id] = (fence, data)
            raise
        self._checked(entity_type, entity_id, fence)
        self.states[entity_id] = (fence, data)

    def refuse_unsent(self, entity_type: str, shard: str, entity_id: str) -> None: ...

    async def _wait(self, verb: str, entity_id: str) -> None:
        if self.at_once:
            await asyncio.sleep(0)
            return
        call = Call(verb, entity_id, asyncio.get_running_loop().create_future())
        self.calls.append(call)
        await call.outcome

    def _checked(self, entity_type: str, entity_id: str, fence: int) -> bytes | None:
        stored, data = self.states.get(entity_id, (fence, None))
        if stored > fence:
            raise StaleFence(entity_type, entity_id, fence, stored)
        self.states[entity_id] = (fence, data)
        return data


class EntityWorld:
    """One host. `remember` and `carry` are options of the type. `only`: the alphabet, all of it if
    that is empty."""

    def __init__(self, *only: str, remember: bool = False, carry: bool = False) -> None:
        self.said: list[str] = []
        self.only = only
        self.broken: list[str] = []
        """Laws that were broken within the entity: the host catches its errors."""
        self.world, self.ask_outcomes, self.keeper = LoopOfWorld(), AskOutcomes(), SlowKeeper()
        self.remember, self.carry = remember, carry
        self.data = MemoryData()
        self.work: list[asyncio.Future[None]] = []
        self.lives: dict[str, int] = {}
        self.made, self.asks, self.fence = 0, 0, 7
        self.unknown: dict[int, int] = {}
        """Saves of a life without a known outcome."""
        self.changes: list[Any] = []
        self.excused: set[str] = set()
        """Asks whose time is over: who asked knows it."""
        self.on = True
        self.must_run = {ID: False} | dict.fromkeys(OTHERS, remember)
        """Which entities must run at rest."""
        self._starting, remembering.STARTING_MAX = remembering.STARTING_MAX, STARTING_MAX
        self.bench = self.world.run(self._bench)
        assert self.bench.kind.states is not None
        self.changed = self.bench.kind.states.write(Items(["operator"]))
        self.world.wait(0.2)

    def _bench(self) -> Bench:
        bus = ShardBus("test")
        world = self

        class Page(Entity):
            """Obeys its messages, and reports its life to the world."""

            state: Items

            def __init__(self) -> None:
                world.made += 1
                self.life, self.closed, self.count = world.made, True, 0

            async def on_start(self) -> None:
                world.begins(self.context.entity_id, self.life)

            async def on_stop(self, reason: StopReason) -> None:
                world.ends(self.context.entity_id, self.life, reason)

            def dehydrate(self) -> bytes:
                world.freezes(self.life)
                return b"%d" % self.count

            def rehydrate(self, data: bytes) -> None:
                self.count = int(data)

            async def receive(self, message: Done) -> str:
                world.expect(
                    message.life == self.life,
                    f"life {self.life} gets the outcome of work of life {message.life}",
                )
                if self.closed:
                    self.context.stash()
                return "done"

            @handler
            def add(self, n: int) -> int:
                world.handles(self, n)
                self.count += 1
                return n

            @handler
            async def save_it(self, n: int) -> int:
                world.handles(self, n)
                self.state.names.append(str(n))
                await world.saves(self.life, self.save())
                return n

            @handler
            async def twice(self, n: int) -> int:
                world.handles(self, n)
                self.state.names.append(str(n))
                await asyncio.gather(
                    *(world.saves(self.life, self.save()) for _ in range(2)),
                    return_exceptions=True,
                )
                return n

            @handler
            def pipe(self, n: int) -> None:
                world.handles(self, n)
                self.context.pipe_to_self(world.works(self.life), answer=True)

            @handler
            def stash(self, n: int) -> int:
                if self.closed:
                    self.context.stash()
                else:
                    world.handles(self, n)
                return n

            @handler
            def unstash(self) -> None:
                self.closed = False
                self.context.unstash_all()

            @handler
            async def slow(self, n: int) -> int:
                world.handles(self, n)
                await world.works(self.life)
                return n

            @handler
            def fail(self, n: int) -> None:
                world.handles(self, n)
                raise ValueError(n)

            @handler
            def passivate(self) -> None:
                world.must_run[self.context.entity_id] = False
                self.context.passivate()

        options: dict[str, Any] = {"remember": True} if self.remember else {}
        if self.carry:
            options |= {"handoff": "ordered", "carry": True}
        if self.remember:
            options |= {"supervision": {ValueError: "stop"}}
        bus.entity("page", **options)(Page)
        store = MemoryStore(self.data)
        if self.remember:
            store._open = True
            task = store.add_remembered("page", Bench.SHARD, OTHERS, 1)
            self.world.loop.create_task(task)
        return Bench(bus, store, self.keeper)

    # ---- reports of the entity

    def begins(self, entity_id: str, life: int) -> None:
        self.lives[entity_id] = life
        if self.remember:
            self.must_run[entity_id] = True

    def ends(self, entity_id: str, life: int, reason: StopReason) -> None:
        self.expect(
            self.lives.pop(entity_id, life) == life, f"life {life} ends, another one has begun"
        )
        self.said.append(f"life {life} ends: {reason.value}")
        if reason is StopReason.PASSIVATION:
            self.must_run[entity_id] = False

    def handles(self, entity: Any, n: int) -> None:
        lives = self.lives.get(ID)
        self.expect(lives == entity.life, f"life {entity.life} handles {n} in that of {lives}")
        self.said.append(f"handles {n}")
        self.ask_outcomes.handled.add(str(n))

    async def works(self, life: int) -> Done:
        future = asyncio.get_running_loop().create_future()
        self.work.append(future)
        await future
        return Done(life)

    async def saves(self, life: int, save: Awaitable[None]) -> None:
        self.unknown[life] = self.unknown.get(life, 0) + 1
        await save
        self.unknown[life] -= 1

    def freezes(self, life: int) -> None:
        unknown = self.unknown.get(life, 0)
        self.expect(not unknown, f"life {life} is carried, with {unknown} saves in doubt")

    def expect(self, holds: bool, law: str) -> None:
        if not holds:
            self.broken.append(law)

    # ---- events

    def events(self) -> Iterable[str]:
        verbs = [f"ask {verb}" for verb in VERBS] if self.on else []
        verbs += ["wait"]
        if self.keeper.calls:
            verbs += ["ok", "unknown", "refused"]
        if len(self.keeper.calls) > 1:
            verbs.append("last ok")
        if self.work:
            verbs.append("work")
        if self.on:
            verbs += ["unstash", "passivate", "stop", "idle", "change", "change if"]
        elif self.bench.down:
            verbs.append("start")
        return [event for event in verbs if not self.only or event in self.only]

    def do(self, event: str) -> None:
        run, bench = self.world.run, self.bench
        match event.split():
            case ["ask", verb]:
                self._ask(verb)
            case ["unstash" | "passivate" as verb]:
                run(bench.tell, ID, verb)
            case ["idle"]:
                self.excused.update(self.ask_outcomes.open())
                run(bench.pass_ticks, IDLE_TICKS)
            case ["work"]:
                self._end_work()
            case ["ok"]:
                self._end_call(0, None)
            case ["last", "ok"]:
                self._end_call(-1, None)
            case ["unknown" | "refused"]:
                self._end_call(0, StoreUnavailable("down", definite=event == "refused"))
            case ["change", *condition]:
                revision = EMPTY if condition else ""
                task = self.world.spawn(
                    bench.host.change_state(Bench.SHARD, ID, self.changed, revision)
                )
                self.changes.append(task)
            case ["stop"]:
                self.on = False
                run(bench.stop, StopReason.HANDOFF)
            case ["start"]:
                self._start()
            case ["wait"]:
                self.world.wait(3.0)
        self.world.raise_uncaught()
        self._check()

    def _ask(self, verb: str) -> None:
        self.asks += 1
        method = "save_it" if verb == "save" else verb
        self.ask_outcomes.futures[str(self.asks)] = self.world.run(
            self.bench.ask, ID, method, self.asks
        )

    def _end_work(self) -> None:
        future = self.work.pop(0)
        if not future.done():
            self.world.run(future.set_result, None)

    def _end_call(self, at: int, error: Exception | None) -> None:
        mine = [n for n, call in enumerate(self.keeper.calls) if call.entity_id == ID]
        call = self.keeper.calls.pop(mine[at] if mine else at)
        if call.outcome.done():
            return
        if error is None:
            self.world.run(call.outcome.set_result, None)
        else:
            self.world.run(call.outcome.set_exception, error)

    def _start(self) -> None:
        self.on, host = True, self.bench.host
        carrying = host.carrying
        carried = carrying.take(Bench.SHARD) if carrying is not None else ()
        self.bench.down.clear()
        self.fence += 1
        if carrying is not None:
            carrying.put(Bench.SHARD, self.fence, carried)
        self.world.run(host.start_shard, Bench.SHARD, self.fence)
        self.world.run(host.set_arrivals, Bench.SHARD, True, None)

    # ---- laws

    def _check(self) -> None:
        assert not self.broken, self.broken[0]
        self.ask_outcomes.check()
        starting = sum(c.verb == "load" and c.entity_id in OTHERS for c in self.keeper.calls)
        assert starting <= STARTING_MAX, f"{starting} remembered entities start at once"
        for change in self.changes:
            if change.done() and change.exception() is not None:
                refused = not isinstance(change.exception(), AskTimeout | StoreUnavailable)
                refused = refused or isinstance(change.exception(), StateChanged)
                kept = self.keeper.states.get(ID, (0, None))[1]
                others = [c for c in self.changes if c is not change]
                assert not refused or others or kept != self.changed, (
                    f"the change that was refused is stored: {change.exception()!r}"
                )

    def key(self) -> Hashable:
        host = self.bench.host
        activation = self.bench.activation(ID)
        about: Hashable = None
        if activation is not None:
            extras = activation.extras
            about = (
                activation.state, activation.stopping, activation.busy,
                names_of(activation.mailbox), names_of(extras.stash if extras else None),
                len(extras.work) if extras else 0,
                getattr(activation.entity, "closed", None),
            )  # fmt: skip
        calls = tuple((c.verb, c.entity_id) for c in self.keeper.calls if not c.outcome.done())
        return (
            about, calls, len(self.work), self.on, bool(self.bench.down),
            len(self.ask_outcomes.open()), tuple(self.lives),
            sum(not c.done() for c in self.changes),
            self.keeper.states.get(ID, (0, None))[1] is not None, host.runner.waiting,
            self.unknown.get(self.lives.get(ID, 0), 0), tuple(self.must_run.values()),
        )  # fmt: skip

    def rest(self) -> None:
        self.keeper.at_once = True
        for _ in range(4):
            while self.keeper.calls:
                self._end_call(0, None)
            while self.work:
                self._end_work()
            self.world.wait(3.0)
        if not self.on and self.bench.down:
            self.do("start")
        self.world.wait(20.0)
        while self.work:
            self._end_work()
        if self.remember and self.on:
            self._check_remembered()
        if self.on:
            self.do("unstash")
            self.world.wait(2.0)
        self._check()
        open_asks = set(self.ask_outcomes.open()) - self.excused
        assert not open_asks, f"asks {open_asks} have no outcome"
        runner = self.bench.host.runner
        assert runner.waiting == 0, f"{runner.waiting} messages wait"
        assert all(change.done() for change in self.changes), "a change has no outcome"

    def _check_remembered(self) -> None:
        listed = {i for entry in self.data.remembered.values() for i in entry.entity_ids}
        for entity_id, expected in self.must_run.items():
            if expected:
                assert entity_id in listed, f"{entity_id} is forgotten"
                assert self.bench.entity(entity_id), f"{entity_id} is remembered, and does not run"

    def close(self) -> None:
        remembering.STARTING_MAX = self._starting
        for future in self.ask_outcomes.futures.values():
            if future.done() and not future.cancelled():
                future.exception()
        for change in self.changes:
            if change.done() and not change.cancelled():
                change.exception()
        Bench.made.clear()
        self.world.run(self.bench.host.close)
        self.world.close()
