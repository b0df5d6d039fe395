"""Stop messages: the message that an entity gets before it goes, its permitted actions then, and an
entity that does not go."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import ConfigError, Entity, ShardBus, StopReason, handler
from shardbus.errors import EntityFailed, Unhandled
from shardbus.wire.schema import encode_value
from tests.unit.entities.entity_kit import Bench, Keeper, Log, LogEntity
from tests.waiting import turns, until

PATIENCE = 55 * 20
"""Ticks of the default deadline."""


@dataclass
class Goodbye:
    word: str


class Obedient(LogEntity):
    """Stops on its stop message."""

    def __init__(self) -> None:
        self.log.maybe_fail()

    async def on_start(self) -> None:
        await self.log.start_gate.wait()

    async def on_stop(self, reason: StopReason) -> None:
        self.log.rows.append(reason)

    @handler
    def passivate(self, n: int) -> int:
        self.context.passivate(stop_message="stop")
        return self.hit(n)

    @handler
    def leave(self) -> None:
        self.context.stop()

    def receive(self, message: str) -> None:
        self.log.rows.append(message)
        if message == "stop":
            self.context.stop()


class Stubborn(Obedient):
    """Notes its stop message, and goes on until it is sent `leave`."""

    def receive(self, message: str) -> None:
        self.log.rows.append(message)


def bench(log: Log, cls: type[Any] = Obedient, /, **options: Any) -> Bench:
    bus = ShardBus("shop")
    declared = {k: options.pop(k) for k in ("stop_message", "supervision") if k in options}
    bus.entity("page", **declared)(cls)
    cls.log = log
    return Bench(bus, **options)


# Receivers of the stop message, and the time


async def test_S2_27_at_a_handoff_the_stop_message_comes_behind_the_mailbox() -> None:
    b = bench(log := Log(), stop_message="stop")
    await b.ask("idle", "hit", 0)
    asks = [b.ask("e", "slow", 1), b.ask("e", "hit", 2)]
    await turns()
    b.stop()
    assert log.rows == [0, "stop", StopReason.HANDOFF]
    log.gate.set()
    assert await asyncio.gather(*asks) == [1, 2]
    await b.stopped()
    assert log.rows[3:] == [1, 2, "stop", StopReason.HANDOFF]
    assert b.host.counts.stopped == {"handoff": 2}
    assert b.host.counts.cut_off == 0


async def test_T_SU21_a_shutdown_sends_the_stop_message_too() -> None:
    b = bench(log := Log(), stop_message="stop")
    await b.ask("e", "hit", 1)
    b.stop(StopReason.SHUTDOWN)
    await b.stopped()
    assert log.rows == [1, "stop", StopReason.SHUTDOWN]


@pytest.mark.parametrize("why", ["idle", "own idle", "limit"])
async def test_a_passivation_by_the_node_sends_the_stop_message_too(why: str) -> None:
    limit = 1 if why == "limit" else 0
    b = bench(log := Log(), stop_message="stop", passivate_after=10, active_entity_limit=limit)
    await b.ask("e", "hit", 1)
    activation = b.activation("e")
    assert activation is not None
    if why == "own idle":
        activation.set_idle_timeout(1)
        b.pass_ticks(30)
    elif why == "idle":
        b.pass_ticks(300)
    else:
        b.pass_ticks(1)
        await b.ask("f", "hit", 1)
        log.rows.remove(1)
    await until(lambda: b.activation("e") is None, "the end")
    assert log.rows == [1, "stop", StopReason.PASSIVATION]
    assert b.host.counts.stopped == {"passivation": 1}


async def test_an_entity_with_a_stop_message_handles_messages_until_it_stops() -> None:
    b = bench(log := Log(), Stubborn, stop_message="stop", passivate_after=10)
    await b.ask("e", "hit", 1)
    b.pass_ticks(300)
    b.pass_ticks(300)
    assert log.rows == [1, "stop"], "told once"
    assert await b.ask("e", "hit", 2) == 2
    activation = b.activation("e")
    assert await b.ask("e", "leave") is None
    assert await b.ask("e", "hit", 3) == 3
    assert b.activation("e") is not activation
    assert log.rows == [1, "stop", 2, StopReason.PASSIVATION, 3]


async def test_a_handoff_waits_for_an_entity_with_a_stop_message() -> None:
    b = bench(log := Log(), Stubborn, stop_message="stop", passivate_after=10)
    await b.ask("e", "hit", 1)
    b.pass_ticks(300)
    activation = b.activation("e")
    assert activation is not None
    b.stop()
    await turns()
    assert (b.down, log.rows) == ([], [1, "stop"])
    activation.stop()
    await b.stopped()
    assert log.rows == [1, "stop", StopReason.HANDOFF]


async def test_a_starting_entity_gets_its_stop_message_once_it_has_started() -> None:
    b = bench(log := Log(), stop_message="stop")
    log.start_gate.clear()
    waiting = b.ask("e", "hit", 1)
    await turns()
    b.stop()
    await turns()
    assert b.down == []
    log.start_gate.set()
    assert await waiting == 1
    await b.stopped()
    assert log.rows == [1, "stop", StopReason.HANDOFF]


async def test_an_entity_that_stops_before_its_stop_message_handles_its_mailbox() -> None:
    b = bench(log := Log(), stop_message="stop")
    first = b.ask("e", "slow", 1)
    b.tell("e", "leave")
    last = b.ask("e", "hit", 2)
    await turns()
    b.stop()
    log.gate.set()
    assert await asyncio.gather(first, last) == [1, 2]
    await b.stopped()
    assert log.rows == [1, 2, "stop", StopReason.HANDOFF]


async def test_a_stop_message_has_room_in_a_full_mailbox() -> None:
    b = bench(log := Log(), stop_message="stop", mailbox=2)
    asks = [b.ask("e", "slow", 1), b.ask("e", "hit", 2), b.ask("e", "hit", 3)]
    await turns()
    b.stop()
    log.gate.set()
    await asyncio.gather(*asks)
    await b.stopped()
    assert log.rows == [1, 2, 3, "stop", StopReason.HANDOFF]


async def test_an_unhandled_stop_message_starts_no_activation() -> None:
    """It belongs to the incarnation that it was for, as its timers' messages do."""
    b = bench(log := Log(), Stubborn, stop_message="stop", passivate_after=10)
    first = b.ask("e", "slow", 1)
    await turns()
    activation = b.activation("e")
    assert activation is not None
    activation.stop()
    b.host.tell_self(activation, "", encode_value("tick"), "")
    log.gate.set()
    assert await first == 1
    await turns()
    assert log.rows == [1, StopReason.STOPPED]
    assert b.activation("e") is None
    assert b.host.counts.started == {"message": 1}


async def test_entities_waiting_for_the_store_get_stop_messages_last() -> None:
    b = bench(log := Log(), stop_message="stop", remember=True)
    waiting = [b.ask("e", "hit", n) for n in (1, 2)]
    b.stop()
    assert await asyncio.gather(*waiting) == [1, 2]
    await b.stopped()
    assert log.rows == [1, 2, "stop", StopReason.HANDOFF]


# Which message


@pytest.mark.parametrize(
    ("message", "expected"),
    [("finish", "handler"), ("other", "other"), (Goodbye("now"), "now"), (5, 5)],
)
async def test_a_stop_message_finds_its_handler(message: object, expected: object) -> None:
    rows: list[object] = []

    class Ends(Entity):
        @handler
        def finish(self) -> None:
            rows.append("handler")
            self.context.stop()

        @handler
        def hit(self) -> None: ...

        async def receive(self, message: Goodbye | str | int) -> None:
            await asyncio.sleep(0)
            rows.append(message.word if isinstance(message, Goodbye) else message)
            self.context.stop()

    bus = ShardBus("shop")
    bus.entity("page", stop_message=message)(Ends)
    b = Bench(bus)
    await b.ask("e", "hit")
    b.stop()
    await b.stopped()
    assert rows == [expected]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("stop", "there is no receive"),
        ("hit", "that handler needs arguments; name a handler without arguments"),
        (object(), "cannot travel"),
    ],
)
def test_a_stop_message_without_a_handler_is_refused_at_the_class(
    message: object, text: str
) -> None:
    class Mute(Entity):
        @handler
        def hit(self, n: int) -> None: ...

    with pytest.raises(ConfigError, match=f"'mute': stop_message: .*{text}"):
        ShardBus("shop").entity("mute", stop_message=message)(Mute)


def test_a_stop_message_of_another_kind_than_receive_takes_is_refused() -> None:
    with pytest.raises(ConfigError, match="stop_message"):
        ShardBus("shop").entity("page", stop_message=5)(Obedient)


# A stop message of its own


async def test_S2_40_messages_behind_an_own_stop_message_wait() -> None:
    b = bench(log := Log(), Stubborn)
    first = b.ask("e", "slow", 1)
    before = [b.ask("e", "passivate", 2), b.ask("e", "hit", 3)]
    await turns()
    log.gate.set()
    assert await asyncio.gather(first, *before) == [1, 2, 3]
    await turns()
    after = [b.ask("e", "hit", n) for n in (4, 5)]
    await turns()
    assert log.rows == [1, 2, 3, "stop"]
    old = b.activation("e")
    assert old is not None
    old.stop()
    assert await asyncio.gather(*after) == [4, 5]
    assert log.rows == [1, 2, 3, "stop", StopReason.PASSIVATION, 4, 5]
    assert b.activation("e") is not old
    assert b.host.counts.started == {"message": 1, "restart": 1}


async def test_an_entity_that_stops_on_its_own_stop_message_leaves_memory() -> None:
    b = bench(log := Log())
    assert await b.ask("e", "passivate", 1) == 1
    assert b.activation("e") is None
    assert log.rows == [1, "stop", StopReason.PASSIVATION]


async def test_an_entity_that_holds_handles_only_its_own_timers() -> None:
    class Waits(Obedient):
        async def receive(self, message: str) -> None:
            self.log.rows.append(message)
            if message == "stop":
                for n in range(3):
                    self.context.schedule_once(0.0, f"tick {n}")
            elif message == "tick 0":
                await self.log.gate.wait()
            elif message == "tick 2":
                self.context.stop()

    b = bench(log := Log(), Waits)
    await b.ask("e", "passivate", 1)
    later = b.ask("e", "hit", 2)
    await until(lambda: "tick 0" in log.rows, "the first tick")
    await turns(20)
    assert log.rows == [1, "stop", "tick 0"]
    log.gate.set()
    assert await later == 2
    expected = [1, "stop", "tick 0", "tick 1", "tick 2", StopReason.PASSIVATION, 2]
    assert log.rows == expected


async def test_stashed_messages_go_first_to_the_next_activation() -> None:
    class Stashes(Obedient):
        @handler
        def deferred(self, n: int) -> int:
            if not self.log.gate.is_set():
                self.context.stash()
            return self.hit(n)

    b = bench(log := Log(), Stashes)
    deferred = b.ask("e", "deferred", 1)
    await b.ask("e", "passivate", 2)
    log.gate.set()
    log.rows.clear()
    later = b.ask("e", "hit", 3)
    assert await asyncio.gather(deferred, later) == [1, 3]
    assert log.rows == [1, 3]


async def test_a_handoff_waits_for_the_next_activation_of_an_entity_that_holds() -> None:
    b = bench(log := Log(), Stubborn)
    await b.ask("e", "passivate", 1)
    held = [b.ask("e", "hit", n) for n in (2, 3)]
    activation = b.activation("e")
    assert activation is not None
    b.stop()
    await turns()
    assert b.down == []
    activation.stop()
    assert await asyncio.gather(*held) == [2, 3]
    await b.stopped()
    assert log.rows == [1, "stop", StopReason.PASSIVATION, 2, 3, StopReason.HANDOFF]
    assert b.dropped == {}


async def test_a_stop_message_without_a_handler_changes_nothing() -> None:
    class Mistaken(Obedient):
        @handler
        def part(self) -> None:
            self.context.passivate(stop_message=7)

    b = bench(log := Log(), Mistaken, supervision={ConfigError: "resume"})
    with pytest.raises(EntityFailed, match="no handler takes 7"):
        await b.ask("e", "part")
    assert await b.ask("e", "hit", 1) == 1
    assert log.rows == [1]


# Who does not go


async def test_T_SU6_an_entity_that_ignores_its_stop_message_is_cut_off_at_a_handoff() -> None:
    b = bench(log := Log(), Stubborn, stop_message="stop", handoff_timeout=0.1)
    await b.ask("e", "hit", 1)
    b.stop()
    await turns()
    assert b.down == []
    await b.stopped()
    assert log.rows == [1, "stop"]
    assert b.host.counts.cut_off == 1
    assert b.host.counts.stopped == {"handoff": 1}


async def test_C18_an_entity_that_ignores_its_stop_message_is_cut_off_at_a_passivation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    b = bench(log := Log(), Stubborn, stop_message="stop", passivate_after=10)
    await b.ask("e", "hit", 1)
    b.pass_ticks(300)
    old = b.activation("e")
    b.pass_ticks(PATIENCE - 20)
    assert b.activation("e") is old
    b.pass_ticks(20)
    assert b.activation("e") is None
    assert (b.host.counts.cut_off, b.host.counts.stopped) == (1, {"passivation": 1})
    assert "did not stop in time" in caplog.text
    assert await b.ask("e", "hit", 2) == 2
    assert log.rows == [1, "stop", 2]


async def test_C18_messages_for_an_entity_that_holds_too_long_start_the_next_activation() -> None:
    b = bench(log := Log(), Stubborn)
    await b.ask("e", "passivate", 1)
    held = [b.ask("e", "hit", n) for n in (2, 3)]
    b.pass_ticks(PATIENCE)
    assert await asyncio.gather(*held) == [2, 3]
    assert log.rows == [1, "stop", 2, 3]
    b.pass_ticks(5 * PATIENCE)
    assert b.host.counts.cut_off == 1


async def test_C18_an_on_stop_that_does_not_return_is_cut_off_at_a_passivation_too() -> None:
    class Hangs(Obedient):
        async def on_stop(self, reason: StopReason) -> None:
            try:
                await self.log.gate.wait()
            finally:
                self.log.rows.append("cancelled")

    b = bench(log := Log(), Hangs, passivate_after=10)
    await b.ask("e", "hit", 1)
    b.pass_ticks(300)
    await turns()
    waiting = b.ask("e", "hit", 2)
    b.pass_ticks(PATIENCE - 20)
    assert not waiting.done()
    b.pass_ticks(20)
    assert await waiting == 2
    await until(lambda: "cancelled" in log.rows, "the end of on_stop")
    assert b.host.counts.cut_off == 1


async def test_the_asker_of_a_handler_that_is_cut_off_gets_an_error() -> None:
    b = bench(log := Log())
    ask = b.ask("e", "slow", 1)
    await turns()
    b.host.stop_shards([Bench.SHARD], StopReason.HANDOFF, 0.0)
    assert ask.done()
    assert isinstance(ask.exception(), EntityFailed)
    assert "did not stop in time" in str(ask.exception())
    log.gate.set()
    await turns(20)
    assert log.rows == []


@pytest.mark.parametrize("waiting", [0, 2])
async def test_a_tell_whose_handler_is_cut_off_counts_as_failed_and_not_as_delivered(
    waiting: int,
) -> None:
    b = bench(log := Log())
    for n in range(1 + waiting):
        b.tell("e", "slow", n)
    await turns()
    b.host.stop_shards([Bench.SHARD], StopReason.HANDOFF, 0.0)
    counts = b.host.counts
    assert b.dropped == {"failed": 1} | ({"stopped": waiting} if waiting else {})
    assert (counts.begun - counts.undone, b.missing) == (0, 0)
    log.gate.set()
    await turns(20)
    assert log.rows == []


async def test_an_entity_that_stops_in_time_is_not_cut_off_later() -> None:
    b = bench(Log(), stop_message="stop", passivate_after=10)
    await b.ask("e", "hit", 1)
    b.pass_ticks(300)
    await until(lambda: b.activation("e") is None, "the end")
    await b.ask("e", "hit", 2)
    b.pass_ticks(1)
    b.host.stopper.sweep(b.host.runner.tick + 2 * PATIENCE)
    assert b.activation("e") is not None
    assert b.host.counts.cut_off == 0


# Failures on the way


@pytest.mark.parametrize("is_own", [False, True])
async def test_an_entity_that_fails_on_its_stop_message_stops(is_own: bool) -> None:
    class Fails(Obedient):
        def receive(self, message: str) -> None:
            raise ValueError(message)

    b = bench(log := Log(), Fails, stop_message=None if is_own else "stop")
    await b.ask("e", "passivate" if is_own else "hit", 1)
    b.stop()
    await b.stopped()
    assert log.rows == [1, StopReason.PASSIVATION if is_own else StopReason.HANDOFF]
    assert b.host.counts.failures == 1


async def test_an_entity_that_fails_before_its_stop_message_starts_again_for_it() -> None:
    b = bench(log := Log(), stop_message="stop")
    first = b.ask("e", "slow", 1)
    failing, last = b.ask("e", "bad"), b.ask("e", "hit", 2)
    await turns()
    b.stop()
    log.gate.set()
    with pytest.raises(EntityFailed):
        await failing
    assert await asyncio.gather(first, last) == [1, 2]
    await b.stopped()
    assert log.rows == [1, 2, "stop", StopReason.HANDOFF]


async def test_an_entity_that_cannot_start_does_not_delay_its_shard() -> None:
    b = bench(log := Log(), stop_message="stop", entity_restart_backoff_min=0.01)
    log.fail = [ValueError(str(n)) for n in range(1000)]
    waiting = b.ask("e", "hit", 1)
    await until(lambda: b.host.counts.failures > 2, "a few attempts")
    b.stop()
    with pytest.raises(Unhandled, match="stopped"):
        await waiting
    await b.stopped()
    assert b.host.counts.cut_off == 0


# Stored commands


@dataclass
class Ledger:
    commands: list[int] | None = None


class Account(Entity):
    """Puts commands aside until it has recovered, stores each, and goes when it has none left."""

    state: Ledger
    recovered: asyncio.Event
    done: list[int]

    async def on_start(self) -> None:
        self.ready = self.recovered.is_set()
        if not self.ready:
            self.context.schedule(0.001, "look")

    @handler
    async def store(self, n: int) -> None:
        if not self.ready:
            self.context.stash()
            return
        self.state.commands = [*(self.state.commands or []), n]
        await self.save()
        self.done.append(n)

    def receive(self, message: str) -> None:
        if message == "look" and self.recovered.is_set() and not self.ready:
            self.ready = True
            self.context.unstash_all()
        elif message == "stop":
            if self.ready:
                self.context.stop()
            else:
                self.context.stash()


ORDERS = [
    order
    for order in itertools.permutations(["first", "second", "recover", "stop"])
    if order.index("first") < order.index("second")
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("settled", [False, True], ids=["at once", "in turns"])
async def test_T_SU22_no_order_of_commands_recovery_and_stop_message_loses_a_command(
    order: tuple[str, ...], settled: bool
) -> None:
    """Messages after the begin of the hand-off go to the next home, as senders would send it."""
    bus = ShardBus("shop")
    bus.entity("account", stop_message="stop")(Account)
    Account.recovered, Account.done = asyncio.Event(), []
    b, keeper = Bench(bus), Keeper()
    b.host.saver._keeper = b.host._keeper = b.host.runner._supervisor._keeper = keeper
    later = []
    for step in order:
        match step:
            case "stop":
                b.stop()
            case "recover":
                Account.recovered.set()
            case _:
                n = 1 if step == "first" else 2
                if "stop" in order[: order.index(step)]:
                    later.append(n)
                else:
                    b.tell("e", "store", n)
        if settled:
            await turns(20)
    await b.stopped()
    home = Bench(bus)
    home.host.saver._keeper = home.host._keeper = home.host.runner._supervisor._keeper = keeper
    for n in later:
        home.tell("e", "store", n)
    await until(lambda: Account.done == [1, 2], "both commands")
    assert home.entity("e") is None or home.entity("e").state.commands == [1, 2]
    assert keeper.states["e"][1] is not None
    assert (b.dropped, home.dropped) == ({}, {})
