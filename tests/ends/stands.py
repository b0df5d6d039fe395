"""The shells that await a store, each with its goal (`table`)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any, cast
from unittest.mock import AsyncMock

from shardbus.config.settings import ShardingSettings
from shardbus.entities.activation import Activation, Shard
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.remembering import RememberedEntities
from shardbus.errors import RequestError
from shardbus.ids import NodeId
from shardbus.membership.events import AcquireLease
from shardbus.node.membership_store import MembershipStore
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.allocation.strategies import External
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.events import Note
from shardbus.shells.coordinator import CoordinatorShell
from shardbus.shells.leases import LeaseShell
from shardbus.shells.overrides import OverridesStore
from shardbus.shells.store_reach import StoreReach
from shardbus.store.entity_state import EntityStates
from shardbus.store.guarded import GuardedStore
from shardbus.store.protocol import Save, StateStore
from shardbus.store.server_watch import ServerWatch
from shardbus.task_set import TaskSet
from tests.ends.table import CALL_S, EndingStore
from tests.records import replace

NAME = "shard/page/1"
TTL = 8.0
ME, NEXT = NodeId("a", 1, 1), NodeId("b", 1, 2)
LAYOUT = "crc32/8"


class Leases:
    """A lease that is acquired, dropped and acquired again."""

    def __init__(self, store: EndingStore) -> None:
        self.events: list[str] = []
        self.store = store
        settings = ShardingSettings(use_lease="shards", lease_ttl=TTL, lease_retry_interval=1.0)
        self.shell = LeaseShell(cast("StateStore", store), "a", settings, self)
        self.shell.clock = asyncio.get_running_loop().time

    def begin(self) -> None:
        self.shell.want(NAME)

    def again(self) -> None:
        self.shell.drop(NAME)

    def close(self) -> None:
        self.shell.close()

    def on_held(self, name: str) -> None:
        self.events.append("held")

    def on_lost(self, name: str, left: float) -> None:
        self.events.append("lost")
        self.shell.drop(name)

    def on_free(self, name: str) -> None:
        self.events.append("free")
        self.shell.want(name)

    def on_note(self, note: Note) -> None: ...

    def missing(self) -> str:
        if not self.shell.holds(NAME):
            return "the lease is not held"
        return "" if self.events.count("held") <= 1 + self.events.count("free") else "held twice"

    def left(self) -> str:
        return f"{len(self.shell._tasks)} calls" if self.shell._tasks else ""


class ReturnedLease(Leases):
    """A lease that is held, and given back."""

    def begin(self) -> None:
        """The return of the lease is the call that may end in any way."""
        ends, self.store.ends = self.store.ends, type(self.store.ends)()
        self.shell.want(NAME)

        def give_back() -> None:
            self.store.ends = ends
            self.shell.drop(NAME)

        self.timer = asyncio.get_running_loop().call_later(0.1, give_back)

    def close(self) -> None:
        self.timer.cancel()
        super().close()

    def again(self) -> None: ...


class Remembered:
    """An entity that is put on the list of its shard, and starts then."""

    def __init__(self, store: EndingStore) -> None:
        self.events: list[str] = []
        loop = asyncio.get_running_loop()
        self.shard = Shard("1", 7)
        self.lists = RememberedEntities(
            "page",
            cast("StateStore", store),
            loop,
            ShardingSettings(shard_failure_backoff=2.0),
            SuspensionGate(),
            start=lambda activation: self.events.append(f"starts {activation.key}"),
            again=lambda hosted, entity_id: None,
            settled=lambda hosted: None,
            start_elsewhere=AsyncMock(),
        )
        self.added = ["a"]

    def begin(self) -> None:
        self.lists.open(self.shard)
        self._add("a")

    def again(self) -> None:
        self.added.append("b")
        self._add("b")

    def _add(self, key: str) -> None:
        self.lists.add(self.shard, cast("Activation", Keyed(key)))

    def close(self) -> None:
        self.lists.stop()

    def missing(self) -> str:
        starts = [f"starts {key}" for key in self.added]
        if sorted(self.events) != starts:
            return f"{self.events} instead of {starts}"
        return "a write is under way" if self.lists.busy(self.shard) else ""

    def left(self) -> str:
        return f"{len(self.lists._tasks)} calls" if self.lists._tasks else ""


class Keyed:
    """The part of an activation that a list uses."""

    def __init__(self, key: str) -> None:
        self.key = key


class Coordinating:
    """A coordinator that loads and claims its table, gives a shard a home, and stores that."""

    def __init__(self, store: EndingStore) -> None:
        self.events: list[str] = []
        settings = replace(ShardingSettings(), coordinator_failure_backoff=1.0)

        def make() -> Coordinator:
            return Coordinator("t", ME, LAYOUT, settings, External())

        stored = cast("StateStore", store)
        overrides = OverridesStore("t", EntityStates(stored, ME.port))
        self.shell = CoordinatorShell("t", make, stored, self, overrides, store_timeout=3.0)
        self.ended_as = 0

    def begin(self) -> None:
        self.shell.begin(0)
        self.shell.update(ev.MembersChanged((ME,)), 0)
        self._register()

    def _register(self) -> None:
        self.shell.received(ME, msg.Register(ME, False, LAYOUT, ()))

    def again(self) -> None:
        self.shell.update(ev.MembersChanged((ME,)), 0)
        self._register()

    def close(self) -> None:
        self.shell.stop()

    def send(self, to: NodeId, entity_type: str, message: ev.Message) -> None:
        self.events.append(type(message).__name__)

    def epoch_claimed(self, entity_type: str, epoch: int) -> None: ...
    def epoch_met(self, entity_type: str, epoch: int) -> None: ...

    def ended(self, entity_type: str) -> None:
        """The singleton begins another one at once."""
        self.ended_as += 1
        asyncio.get_running_loop().call_later(0.5, self.begin)

    def note(self, entity_type: str, note: ev.Note) -> None: ...

    def ask_homes(self, entity_type: str, shards: list[str]) -> list[str]:
        return []

    async def start_entity(self, entity_type: str, entity_id: str) -> None: ...

    def missing(self) -> str:
        machine = self.shell.machine
        if machine is None or machine.state is not CoordinatorState.RULING:
            return "no coordinator rules"
        return "" if "RegisterAck" in self.events else "the region is not registered"

    def left(self) -> str:
        return f"{len(self.shell._tasks)} calls" if self.shell._tasks else ""


class Probing:
    """A node that coordinates, loses its store for two probes, and reaches it again."""

    def __init__(self, store: EndingStore) -> None:
        self.events: list[str] = []
        self.store = store
        self.reach = StoreReach(
            cast("StateStore", store), 60.0, lambda: [NEXT], self._ask, self._give_way
        )

    async def _ask(self, node: NodeId, types: list[str]) -> bool:
        raise RequestError("no answer")

    def _give_way(self) -> None:
        self.events.append("gives way")

    def begin(self) -> None:
        self.reach.start()

    def again(self) -> None:
        self.reach.suspect("t")

    def close(self) -> None:
        self.reach.stop()
        self.calls = len(self.store.calls)

    def missing(self) -> str:
        if self.events:
            return "it has given way although no other node reaches the store"
        return "it has ceased to probe" if self.store.silent() else ""

    def left(self) -> str:
        more = len(self.store.calls) - self.calls
        return f"{more} probes" if more else ""


class Asking:
    """Membership that requests a lease, and is answered once for each request."""

    def __init__(self, store: EndingStore) -> None:
        self.events: list[str] = []
        self.shell = MembershipStore(cast("StateStore", store), self._post, lambda: None)
        self.requests = 0

    def _post(self, event: object) -> None:
        self.events.append(type(event).__name__)

    def begin(self) -> None:
        self.requests += 1
        self.shell.perform(AcquireLease("downing/1", "a", 1e9))

    def again(self) -> None:
        self.begin()

    def close(self) -> None:
        self.shell.close()

    def missing(self) -> str:
        return (
            ""
            if len(self.events) == self.requests
            else f"{self.events} for {self.requests} requests"
        )

    def left(self) -> str:
        return f"{len(self.shell._tasks)} calls" if self.shell._tasks else ""


class Watching:
    """The watch over a server that fails for two probes."""

    def __init__(self, store: EndingStore) -> None:
        self.events: list[str] = []
        self.store = store
        self.tasks = TaskSet()

        async def probe() -> None:
            await store.load_table("t")

        async def no_problems() -> tuple[str, ...]:
            return ()

        self.watch = ServerWatch("memory", probe, no_problems, check_every=5.0)

    def begin(self) -> None:
        self.watch.start()

    def again(self) -> None:
        self.watch.start()

    def close(self) -> None:
        self.tasks.spawn(self.watch.close())
        self.calls = len(self.store.calls)

    def missing(self) -> str:
        return "it has ceased to probe" if self.store.silent() else ""

    def left(self) -> str:
        more = len(self.store.calls) - self.calls
        return f"{more} probes" if more else ""


class Saving:
    """An entity that is loaded and saved, and saved again meanwhile. Each caller has one outcome,
    and the stored value agrees with all of them."""

    def __init__(self, store: EndingStore) -> None:
        self.events: list[str] = []
        self.store = store
        self.states = EntityStates(cast("StateStore", store), 1)
        self.tasks = TaskSet()
        self.begun: list[bytes] = []
        self.stored: list[bytes] = []
        self.doubtful: list[bytes] = []

    def begin(self) -> None:
        self._save(b"1")

    def again(self) -> None:
        self._save(b"2")

    def _save(self, data: bytes) -> None:
        self.begun.append(data)
        self.tasks.spawn(self._load_and_save(data))

    async def _load_and_save(self, data: bytes) -> None:
        try:
            await self.states.load("t", "1", "a", 7)
        except Exception:
            self.events.append(f"{data!r} not loaded")
            return
        try:
            await self.states.save("t", "1", "a", 7, data)
        except Exception as error:
            if not getattr(error, "definite", False):
                self.doubtful.append(data)
            self.events.append(f"{data!r} {type(error).__name__}")
        else:
            self.stored.append(data)
            self.events.append(f"{data!r} saved")

    def close(self) -> None:
        self.tasks.cancel()

    def missing(self) -> str:
        if len(self.events) != len(self.begun):
            return f"outcomes {self.events} of {self.begun}"
        row = self.store.data.states.get(("t", "a"))
        data = row.data if row is not None else None
        possible: set[bytes | None] = {*self.stored[-1:], *self.doubtful}
        if not self.stored:
            possible.add(None)
        return "" if data in possible else f"{data!r} is stored, after {self.events}"

    def left(self) -> str:
        return f"{len(self.tasks)} callers" if self.tasks else ""


class SameLoop:
    """The thread of a guarded store, which is here the loop of the table."""

    def __init__(self) -> None:
        self.loop, self.calls = asyncio.get_running_loop(), 0

    def end(self) -> None: ...


class Stubborn:
    """A store whose calls go on when they are cancelled, as some drivers' calls do."""

    def __init__(self, store: EndingStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*arguments: Any) -> Any:
            work = asyncio.ensure_future(method(*arguments))
            while not work.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            return work.result()

        return call


class Guarding:
    """An entity of a guarded store that is saved, and saved again meanwhile, and then loaded. The
    loaded value stays stored, as nobody saves any more; a load that cannot know that fails."""

    def __init__(self, store: EndingStore) -> None:
        self.events: list[str] = []
        self.store = store
        self.guarded: Any = GuardedStore(cast("StateStore", Stubborn(store)), "memory", 5.0)
        self.guarded._thread = SameLoop()
        self.tasks = TaskSet()
        self.begun = 0
        self.loaded: list[bytes | None] = []
        self.timer: Any = None

    def begin(self) -> None:
        self._begin(b"1")
        self.timer = asyncio.get_running_loop().call_later(CALL_S, self._load_soon)

    def again(self) -> None:
        self._begin(b"2")

    def _begin(self, data: bytes) -> None:
        self.begun += 1
        self.tasks.spawn(self._save(data))

    def _load_soon(self) -> None:
        self.begun += 1
        self.tasks.spawn(self._load())

    async def _save(self, data: bytes) -> None:
        try:
            await self.guarded.save_states([Save("t", "1", "a", 7, data, int(data))])
        except Exception as error:
            self.events.append(f"{data!r} {type(error).__name__}")
        else:
            self.events.append(f"{data!r} saved")

    async def _load(self) -> None:
        try:
            self.loaded.append(await self.guarded.load_state("t", "1", "a", 7))
        except Exception as error:
            self.events.append(f"load: {type(error).__name__}")
        else:
            self.events.append("loaded")

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.tasks.cancel()

    def missing(self) -> str:
        if len(self.events) != self.begun:
            return f"outcomes {self.events} of {self.begun} calls"
        row = self.store.data.states.get(("t", "a"))
        data = row.data if row is not None else None
        if self.loaded and self.loaded != [data]:
            return f"{self.loaded} was loaded, and then {data!r} is stored"
        return (
            "saves are noted"
            if self.guarded._writes._writes or self.guarded._writes._awaited
            else ""
        )

    def left(self) -> str:
        return f"{len(self.tasks)} callers" if self.tasks else ""


STANDS: dict[str, Any] = {
    stand.__name__: stand
    for stand in (
        Leases, ReturnedLease, Remembered, Coordinating, Probing, Asking, Watching, Saving,
        Guarding,
    )
}  # fmt: skip
