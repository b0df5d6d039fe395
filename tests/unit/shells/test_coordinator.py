"""The shell of a coordinator: stores that do not answer, and the operator's commands."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.errors import (
    ConfigError,
    Refused,
    StaleEpoch,
    StaleFence,
    StoreError,
    StoreUnavailable,
)
from shardbus.ids import Address, NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.allocation.strategies import External
from shardbus.sharding.coordinator import strategy_calls
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.messages import Home
from shardbus.sharding.overrides import PLACES_MAX, Overrides
from shardbus.shells import coordinator as coordinator_shell
from shardbus.shells.coordinator import CoordinatorShell
from shardbus.shells.overrides import RESERVED, OverridesStore
from shardbus.shells.reminded_shards import SelfActing
from shardbus.store.entity_state import EntityStates
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.store.protocol import Save, StoredTable
from tests.records import replace
from tests.waiting import PATIENCE_S, turns, until

A, B = NodeId("a", 1, 1), NodeId("b", 1, 1)
LAYOUT = "crc32/8"
SETTINGS = replace(ShardingSettings(), coordinator_failure_backoff=0.0)


class Stuck(MemoryStore):
    """Hangs in the steps that `hangs` names; `calls` has its calls there. With
    `late`, it first executes the call that it never confirms."""

    def __init__(self, data: MemoryData | None = None) -> None:
        super().__init__(data)
        self.hangs: set[str] = set()
        self.hung: list[asyncio.Future[None]] = []
        self.calls: list[tuple[str, int]] = []
        self.late = False
        self.fails: dict[str, list[Exception]] = {}
        """Errors that a step raises, one at each call."""

    async def _hang(self, step: str, number: int) -> None:
        self.calls.append((step, number))
        self._fail(step)
        if step in self.hangs:
            hung = asyncio.get_running_loop().create_future()
            self.hung.append(hung)
            await hung

    def _fail(self, step: str) -> None:
        if errors := self.fails.get(step):
            raise errors.pop()

    def go_on(self) -> None:
        """Hang no more; who still waits is answered."""
        self.hangs = set()
        for hung in self.hung:
            if not hung.done():
                hung.set_result(None)

    async def load_table(self, entity_type: str) -> StoredTable | None:
        await self._hang("load", 0)
        return await super().load_table(entity_type)

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        await self._hang("claim", epoch)
        return await super().claim_epoch(entity_type, epoch, layout)

    async def write_homes(
        self,
        entity_type: str,
        epoch: int,
        homes: Mapping[str, tuple[NodeId, int] | None],
        op_id: int,
    ) -> None:
        if self.late:
            await super().write_homes(entity_type, epoch, homes, op_id)
        await self._hang("write", op_id)
        await super().write_homes(entity_type, epoch, homes, op_id)

    async def remembered_shards(self, entity_type: str) -> list[str]:
        self._fail("remembered")
        return await super().remembered_shards(entity_type)

    async def page_remembered(
        self, entity_type: str, shard: str, after: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        self._fail("page")
        return await super().page_remembered(entity_type, shard, after, limit)

    async def remove_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        self._fail("remove")
        await super().remove_remembered(entity_type, shard, entity_ids, fence)

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        await self._hang("read", fence)
        return await super().load_state(entity_type, shard, entity_id, fence)

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        await self._hang("save", saves[0].fence)
        return await super().save_states(saves)


class Owner:
    """The services of a coordinator shell."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.sent: list[ev.Message] = []
        self.homes_asked: list[str] = []
        self.started: list[str] = []
        self.met: list[int] = []
        self.ends = 0

    def send(self, to: NodeId, entity_type: str, message: ev.Message) -> None:
        self.sent.append(message)

    def epoch_claimed(self, entity_type: str, epoch: int) -> None: ...

    def epoch_met(self, entity_type: str, epoch: int) -> None:
        self.met.append(epoch)

    def ended(self, entity_type: str) -> None:
        self.ends += 1

    def note(self, entity_type: str, note: ev.Note) -> None:
        self.notes.append(note.kind)

    def ask_homes(self, entity_type: str, shards: list[str]) -> list[str]:
        self.homes_asked = shards
        return [shard for shard in shards if not shard.isdigit()]

    async def start_entity(self, entity_type: str, entity_id: str) -> None:
        self.started.append(entity_id)


class World:
    """One coordinator shell over a store that hangs."""

    def __init__(self, store: Stuck, me: NodeId = A) -> None:
        self.store, self.owner, self.me = store, Owner(), me

        self.strategy: Any = External()
        self.threaded = False

        def make() -> Coordinator:
            strategy, threaded = self.strategy, self.threaded
            return Coordinator("t", me, LAYOUT, SETTINGS, strategy, threaded=threaded)

        overrides = OverridesStore("t", EntityStates(store, me.port))
        self.it = CoordinatorShell(
            "t", make, store, self.owner, overrides, store_timeout=PATIENCE_S
        )

    def begin(self) -> None:
        self.it.begin(0)
        self.it.update(ev.MembersChanged((self.me,)), 0)
        self.it.received(self.me, msg.Register(self.me, False, LAYOUT, ()))

    def hang(self, *steps: str) -> None:
        """Let these steps of the store hang; without any, none. Only then its timeout is short."""
        self.store.hangs = set(steps)
        self.it._store_timeout = 0.02 if steps else PATIENCE_S

    async def rule(self) -> None:
        self.begin()
        await until(lambda: self.rules, "a coordinator that rules")

    async def place(self, **places: Address | None) -> Overrides:
        return await self.it.override(lambda old: old.placed(places))

    @property
    def rules(self) -> bool:
        return self.it.machine is not None and self.it.machine.state is CoordinatorState.RULING

    def calls_of(self, step: str) -> list[int]:
        return [number for name, number in self.store.calls if name == step]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store = Stuck()
    await store.start()
    world = World(store)
    yield world
    world.it.stop()


@pytest.mark.parametrize("late", [True, False])
async def test_S276_a_write_without_an_answer_is_tried_again_as_the_same_operation(
    world: World, late: bool
) -> None:
    await world.rule()
    world.hang("write")
    world.store.late = late
    world.it.received(A, msg.GetShardHome(("1",)))
    await until(lambda: len(world.calls_of("write")) >= 3, "three attempts")
    assert len(set(world.calls_of("write"))) == 1
    assert world.owner.notes.count("persist_failed") >= 2
    assert not any(isinstance(message, msg.HostShard) for message in world.owner.sent)
    world.hang()
    await until(
        lambda: any(isinstance(message, msg.HostShard) for message in world.owner.sent),
        "the home, told once it is durable",
    )
    assert world.rules, "no answer is no word of another coordinator"


@pytest.mark.parametrize("step", ["load", "claim", "read"])
async def test_S276_a_table_that_is_not_given_is_asked_for_again(world: World, step: str) -> None:
    world.hang(step)
    world.begin()
    await until(lambda: len(world.calls_of(step)) >= 3, "three attempts")
    assert not world.rules
    assert world.owner.notes.count("store_failed") >= 2
    world.hang()
    await until(lambda: world.rules, "a coordinator that rules")
    assert set(world.calls_of("claim")) == {1}, "the claim may have worked: it is the same"


@pytest.mark.parametrize("step", ["load", "claim", "write"])
async def test_a_store_that_raises_what_it_may_not_is_logged_and_tried_again(
    world: World, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that ended by it would leave a coordinator that waits for ever."""
    world.store.fails[step] = [OverflowError("too large"), OverflowError("too large")]
    await world.rule()
    world.it.received(A, msg.GetShardHome(("1",)))
    await until(
        lambda: any(isinstance(message, msg.HostShard) for message in world.owner.sent),
        "a home",
    )
    logged = [record.exc_info for record in caplog.records if record.exc_info]
    assert len(logged) == 2
    assert all(info is not None and info[0] is OverflowError for info in logged)


# -- directions ------------------------------------------------------------------------------------

THERE = Address("10.0.0.3", 7355)


async def successor(world: World) -> World:
    """A coordinator on another node that rules over the same store now."""
    store = Stuck(world.store._held)
    await store.start()
    other = World(store, B)
    await other.rule()
    return other


async def test_B69_what_was_told_is_stored_before_it_counts(world: World) -> None:
    await world.rule()
    world.hang("save")
    with pytest.raises(StoreUnavailable):
        await world.place(s1=THERE)
    assert world.it.overrides == Overrides()
    world.hang()
    world.store.go_on()
    assert (await world.place(s1=THERE)).places == {"s1": THERE}
    assert (await world.place(s2=A.address)).places == {"s1": THERE, "s2": A.address}
    assert (await world.place(s1=None, s9=None)).places == {"s2": A.address}
    assert world.it.overrides.places == {"s2": A.address}


async def test_B69_whoever_takes_over_knows_what_was_told(world: World) -> None:
    await world.rule()
    await world.place(s1=THERE)
    other = await successor(world)
    assert other.it.overrides.places == {"s1": THERE}
    other.it.stop()


async def test_B69_a_coordinator_that_was_replaced_is_told_nothing(world: World) -> None:
    await world.rule()
    other = await successor(world)
    with pytest.raises(Refused, match="has moved"):
        await world.place(s1=THERE)
    other.it.stop()
    again = await successor(world)
    assert again.it.overrides == Overrides()
    again.it.stop()
    with pytest.raises(Refused):
        await again.place(s1=THERE)


async def test_B69_two_that_tell_at_once_both_count(world: World) -> None:
    await world.rule()
    await asyncio.gather(*(world.place(**{f"s{i}": THERE}) for i in range(20)))
    assert len(world.it.overrides.places) == 20
    other = await successor(world)
    assert len(other.it.overrides.places) == 20
    other.it.stop()


async def test_B69_directions_that_cannot_be_read_count_as_none(world: World) -> None:
    states = EntityStates(world.store, 7)
    for broken in (b"", b"\xc1", b"\x81\xa6places\x81\xa1s\xa3???"):
        await states.save(RESERVED, "all", "t", 0, broken)
        assert await OverridesStore("t", states).load(0) == Overrides()


def test_B69_places_are_bounded() -> None:
    places = {str(shard): THERE for shard in range(PLACES_MAX + 1)}
    with pytest.raises(ConfigError, match="at most"):
        Overrides().placed(places)
    places.popitem()
    assert len(Overrides().placed(places).placed({"0": None}).places) == PLACES_MAX - 1


async def test_B77_a_pause_is_stored_like_a_place(world: World) -> None:
    await world.rule()
    await world.place(s1=THERE)
    await world.it.override(lambda old: old.slowed(True, 3))
    await world.it.override(lambda old: old.slowed(None, None))
    other = await successor(world)
    assert other.it.overrides == Overrides({"s1": THERE}, True, 3)
    assert other.it.machine is not None
    assert (other.it.machine.rebalancing.paused, other.it.machine.rebalancing.moves_in_flight) == (
        True,
        (0, 3),
    )
    other.it.stop()


# -- stops -----------------------------------------------------------------------------------------


async def shard_at_home(world: World) -> Home:
    """Shard 1 runs at the coordinator's own node."""
    await world.rule()
    world.it.received(A, msg.GetShardHome(("1",)))
    hosted = await until(lambda: said(world, msg.HostShard), "a home")
    home: Home = hosted.homes[0]
    world.it.received(A, msg.ShardStarted((home,)))
    return home


def said(world: World, kind: type) -> Any:
    """The last message of that kind."""
    return next((m for m in reversed(world.owner.sent) if isinstance(m, kind)), None)


async def test_TSU16_whoever_stops_shards_hears_when_they_have_stopped(world: World) -> None:
    home = await shard_at_home(world)
    both = [
        asyncio.ensure_future(world.it.stop_shards(shards, 20.0)) for shards in (("1",), ("1", "2"))
    ]
    await until(lambda: said(world, msg.BeginHandOff), "the beginning")
    world.it.received(A, msg.BeginHandOffAck(A, (home,)))
    assert not any(stop.done() for stop in both)
    world.it.received(A, msg.ShardStopped(A, (home,)))
    assert await asyncio.gather(*both) == [[], []]


async def test_TSU16_what_takes_longer_is_told_and_goes_on(world: World) -> None:
    home = await shard_at_home(world)
    assert await world.it.stop_shards(("2", "1"), 0.01) == ["1"]
    assert world.it.machine is not None
    assert world.it.machine.stopping == ("1",)
    again = asyncio.ensure_future(world.it.stop_shards(("1",), 20.0))
    world.it.received(A, msg.BeginHandOffAck(A, (home,)))
    world.it.received(A, msg.ShardStopped(A, (home,)))
    assert await again == []


async def test_TSU16_a_coordinator_that_ends_refuses_who_waits_for_stops_at_once(
    world: World,
) -> None:
    await shard_at_home(world)
    waits = asyncio.ensure_future(world.it.stop_shards(("1",), 3600.0))
    await until(lambda: said(world, msg.BeginHandOff), "the beginning")
    world.it.stop()
    await turns()
    assert waits.done(), "it waits for a coordinator that has ended"
    with pytest.raises(Refused, match="has moved"):
        await waits
    with pytest.raises(Refused, match="has moved"):
        await world.it.stop_shards(("1",), 3600.0)


# -- faults of the store ---------------------------------------------------------------------------


async def soon(condition: Callable[[], Any], what: str) -> None:
    """Wait for some turns of the loop: here each wait of the shell and of the machine is zero."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"waited in vain: {what}")


FAULTS = [
    (StoreUnavailable("away"), "StoreUnavailable"),
    (StoreError("broken"), "StoreError"),
]


@pytest.mark.parametrize("error", [error for error, _ in FAULTS], ids=[name for _, name in FAULTS])
@pytest.mark.parametrize("step", ["load", "claim", "read", "remembered", "page", "remove", "write"])
async def test_a_step_that_fails_is_repeated_until_the_store_works(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    """After the faults the coordinator rules, knows its overrides, has requested the shards with
    remembered entities, has moved a former shard's entities, and gives homes."""
    monkeypatch.setattr(coordinator_shell, "RETRY_S", 0.0)
    store = world.store
    await store.add_remembered("t", "3", ["x"], 0)
    await store.add_remembered("t", "former", ["y", "z"], 0)
    await OverridesStore("t", EntityStates(store, 9)).save(0, Overrides({"s1": THERE}))
    world.it._remember = True
    store.fails[step] = [error] * 3
    world.begin()
    await soon(lambda: world.rules and world.owner.homes_asked, "the remembered shards")
    await soon(lambda: "former" not in lists(world), "the end of the former list")
    world.it.received(A, msg.GetShardHome(("1",)))
    await soon(lambda: said(world, msg.HostShard), "a home")
    assert store.fails[step] == [], "the step was tried again"
    assert world.it.overrides.places == {"s1": THERE}
    assert {"3", "former"} == set(world.owner.homes_asked)
    assert {"y", "z"} <= set(world.owner.started)


def lists(world: World) -> set[str]:
    return {shard for (_, shard), row in world.store._held.remembered.items() if row.entity_ids}


@pytest.mark.parametrize("step", ["remembered", "page", "remove"])
async def test_a_coordinator_that_ends_repeats_no_start_of_remembered_entities(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(coordinator_shell, "RETRY_S", 0.0)
    await world.store.add_remembered("t", "former", ["y"], 0)
    world.it._remember = True
    world.store.fails[step] = [StoreUnavailable("away")] * 1000
    world.begin()
    await soon(lambda: len(world.store.fails[step]) < 998, "attempts")
    world.it.stop()
    await soon(lambda: not len(world.it._tasks), "the end of the attempts")
    assert len(world.store.fails[step]) > 0


@pytest.mark.parametrize("step", ["claim", "read"])
async def test_a_claim_under_a_stale_epoch_is_repeated_under_a_higher_one(
    world: World, step: str
) -> None:
    other = await successor(world)
    await other.place(s1=THERE)
    other.it.stop()
    await soon(lambda: not len(other.it._tasks), "its end")
    error = StaleEpoch("t", 1, 6) if step == "claim" else StaleFence("$directions", "t", 1, 6)
    world.store.fails[step] = [error]
    world.begin()
    await soon(lambda: world.rules, "a coordinator that rules")
    assert world.it.machine is not None
    assert world.it.machine.epoch > 6
    assert world.it.overrides.places == {"s1": THERE}


async def test_a_call_of_the_store_has_the_configured_timeout(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []
    timeout = asyncio.timeout

    def noted(seconds: float | None) -> asyncio.Timeout:
        limits.append(seconds)
        return timeout(seconds)

    monkeypatch.setattr(asyncio, "timeout", noted)
    world.it._store_timeout = 17.5
    await world.rule()
    assert limits
    assert set(limits) == {17.5}


async def test_a_write_under_a_stale_epoch_ends_the_coordinator(world: World) -> None:
    await world.rule()
    world.store.fails["write"] = [StaleEpoch("t", 1, 6)]
    world.it.received(A, msg.GetShardHome(("1",)))
    await soon(lambda: world.owner.ends, "its end")
    assert world.it.machine is None
    assert not said(world, msg.HostShard)


async def test_a_machine_that_was_dropped_gets_no_late_answer_of_the_store(world: World) -> None:
    world.store.hangs = {"load"}
    world.begin()
    await soon(lambda: world.calls_of("load"), "the question")
    world.it.stop()
    world.it.begin(0)
    successor_machine = world.it.machine
    handled: list[object] = []
    assert successor_machine is not None
    handle = successor_machine.handle
    successor_machine.handle = lambda event, now: (handled.append(event), handle(event, now))[1]  # type: ignore[method-assign]
    world.store.hung[0].set_result(None)
    await turns(20)
    assert not any(isinstance(event, ev.TableLoaded) for event in handled)


async def test_early_requests_are_kept_for_a_coordinator_and_dropped_when_old(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kept in (True, False):
        monkeypatch.setattr(coordinator_shell, "EARLY_S", 3600.0 if kept else -1.0)
        world.it.received(B, msg.GetShardHome(("1",)))
        world.it.received(B, msg.ShardStopped(B, ()))
        assert [event.message for _, event in world.it._early] == [msg.GetShardHome(("1",))]
        world.it.prepare()
        assert world.it._early == deque()
        machine = world.it.machine
        assert machine is not None
        world.it.stop()


async def test_a_coordinator_that_ends_asks_for_no_homes_of_reminded_shards_any_more(
    world: World,
) -> None:
    world.it._reminded.self_acting = lambda: SelfActing(listed=("t",))
    for _ in range(3):
        await world.rule()
        await turns()
        assert len(world.it._reminding) == 1
        world.it.stop()
        await turns()
        assert len(world.it._reminding) == 0


async def test_a_coordinator_whose_claim_the_store_has_lost_ends(world: World) -> None:
    """The next one claims a higher epoch, so that the store has the table again."""
    await world.rule()
    await world.it.check_claim()
    assert world.rules
    epoch = world.it.machine.epoch if world.it.machine is not None else 0
    world.store._held.tables.clear()
    await world.it.check_claim()
    assert world.it.machine is None
    world.begin()
    await until(lambda: world.rules, "the next coordinator")
    assert world.store._held.tables["t"].epoch > epoch


async def test_a_coordinator_rules_on_while_its_claim_cannot_be_checked(world: World) -> None:
    await world.rule()
    world.hang("load_table")
    await world.it.check_claim()
    assert world.rules


# -- a strategy of the user's ----------------------------------------------------------------------


class Own:
    """Asks a service that answers when a test says so."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.threads: list[int] = []

    def allocate(self, table: Any, loads: Any, shards: Sequence[str], candidates: Any) -> Any:
        self.threads.append(threading.get_ident())
        self.go_on.wait(PATIENCE_S)
        return dict.fromkeys(shards, A)

    def rebalance(self, *_: Any) -> Any:
        return []


def hosted(world: World) -> list[str]:
    messages = [message for message in world.owner.sent if isinstance(message, msg.HostShard)]
    return [home.shard for message in messages for home in message.homes]


@pytest.fixture
async def blocking(world: World) -> AsyncIterator[Own]:
    blocking = Own()
    world.strategy, world.threaded = blocking, True
    await world.rule()
    yield blocking
    blocking.go_on.set()


async def test_a_strategy_of_the_users_runs_in_a_thread(world: World, blocking: Own) -> None:
    world.it.received(A, msg.GetShardHome(("1",)))
    await until(lambda: blocking.threads, "a call")
    assert blocking.threads != [threading.get_ident()]
    assert hosted(world) == []
    blocking.go_on.set()
    await until(lambda: hosted(world) == ["1"], "a home")


async def test_a_strategy_that_hangs_is_called_once_by_all_coordinators_of_a_node(
    world: World, blocking: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy_calls, "ANSWER_S", 0.01)
    world.it.received(A, msg.GetShardHome(("1",)))
    await until(lambda: hosted(world) == ["1"], "a home without it")
    world.it.stop()
    world.begin()
    await until(lambda: world.rules, "another coordinator")
    world.it.received(A, msg.GetShardHome(("2",)))
    await until(lambda: "2" in hosted(world), "a home without it again")
    assert len(blocking.threads) == 1


async def test_a_forecast_of_a_strategy_that_hangs_is_refused(
    world: World, blocking: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_shell, "ANSWER_S", 0.01)
    machine = world.it.machine
    assert machine is not None
    with pytest.raises(Refused, match="the strategy of 't' has not answered"):
        await world.it.ask_strategy(machine, lambda: blocking.go_on.wait(PATIENCE_S))
    blocking.go_on.set()
    monkeypatch.setattr(coordinator_shell, "ANSWER_S", PATIENCE_S)
    assert await world.it.ask_strategy(machine, lambda: 7) == 7


async def test_the_reason_for_waiting_names_the_stores_error(world: World) -> None:
    await world.rule()
    world.store.fails["write"] = [StoreUnavailable("the disk is full")] * 100_000
    world.it.received(A, msg.GetShardHome(("1",)))
    await until(lambda: "persist_failed" in world.owner.notes, "a failed write")
    world.it.received(A, msg.GetShardHome(("1",)))

    def reasons() -> list[str]:
        return [m.reason for m in world.owner.sent if isinstance(m, msg.Wait)]

    await until(
        lambda: "its home is being stored: the disk is full" in reasons(), "the reason, with why"
    )
