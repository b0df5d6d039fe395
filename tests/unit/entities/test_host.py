"""Hosting: admission, the ends of entities and shards, and messages that wait for the next
incarnation."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.entities import host
from shardbus.entities.activation import Shard
from shardbus.entities.activation_table import INDEX_S, ActivationTable
from shardbus.errors import LocalProtocolError, Unhandled
from shardbus.wire.schema import encode_value
from tests.unit.entities.entity_kit import Asker, Bench, Log, LogEntity
from tests.waiting import PATIENCE_S, turns, until


class LivePage(LogEntity):
    """At most one of each id is alive."""

    alive: dict[str, int]

    async def on_start(self) -> None:
        me = self.context.entity_id
        assert self.alive.get(me, 0) == 0
        self.alive[me] = 1

    async def on_stop(self, reason: StopReason) -> None:
        self.log.rows.append((self.context.entity_id, reason))
        await self.log.end_gate.wait()
        self.alive[self.context.entity_id] -= 1

    @handler
    def passivate(self, n: int) -> int:
        self.log.rows.append(n)
        self.context.passivate()
        return n

    @handler
    async def stop_later(self, n: int) -> int:
        self.context.stop()
        await asyncio.sleep(0)
        self.log.rows.append(n)
        return n

    @handler
    def timeout(self, seconds: float) -> None:
        self.context.set_idle_timeout(seconds)


def bench(log: Log | None = None, cls: type[Any] = LivePage, /, **options: Any) -> Bench:
    bus = ShardBus("shop")
    supervision = options.pop("supervision", None)
    bus.entity("page", supervision=supervision)(cls)
    cls.log = log or Log()
    cls.alive = {}
    return Bench(bus, **options)


# Ends of entities


@pytest.mark.parametrize(
    ("method", "reason"), [("passivate", "passivation"), ("stop_later", "stopped")]
)
async def test_an_entity_that_stops_itself_gets_its_reason(method: str, reason: str) -> None:
    b = bench(log := Log())
    assert await b.ask("e", method, 1) == 1
    await until(lambda: b.activation("e") is None, "the end")
    assert log.rows == [1, ("e", StopReason(reason))]
    assert b.host.counts.stopped == {reason: 1}
    assert b.host.entities == 0


async def test_an_entity_stopped_by_supervision_gets_that_reason() -> None:
    b = bench(log := Log(), supervision={ValueError: "stop"})
    b.tell("e", "bad")
    await until(lambda: b.activation("e") is None and b.host.counts.stopped, "the end")
    assert log.rows == [("e", StopReason.FAILURE)]


async def test_an_on_stop_that_raises_does_not_keep_the_entity() -> None:
    class Clumsy(LivePage):
        async def on_stop(self, reason: StopReason) -> None:
            self.alive[self.context.entity_id] -= 1
            raise ValueError("at the end")

    b = bench(None, Clumsy)
    await b.ask("e", "passivate", 1)
    assert b.activation("e") is None
    assert b.host.counts.failures == 1


async def test_messages_that_wait_start_a_new_activation_in_order() -> None:
    b = bench(log := Log())
    first = b.ask("e", "slow", 0)
    await turns()
    rest = [b.ask("e", m, n) for n, m in enumerate(["hit", "passivate", "hit", "hit"], 1)]
    log.gate.set()
    assert await asyncio.gather(first, *rest) == [0, 1, 2, 3, 4]
    assert log.rows == [0, 1, 2, ("e", StopReason.PASSIVATION), 3, 4]
    assert b.host.counts.started == {"message": 1, "restart": 1}


async def test_entities_that_passivate_after_each_message_get_each_one() -> None:
    class Once(Entity):
        log: Log

        @handler
        def once(self, n: int) -> int:
            self.context.passivate()
            return n

        @handler
        async def wait(self) -> None:
            await self.log.gate.wait()

    b = bench(log := Log(), Once)
    b.tell("e", "wait")
    asks = [b.ask("e", "once", n) for n in range(2000)]
    log.gate.set()
    assert await asyncio.wait_for(asyncio.gather(*asks), PATIENCE_S) == list(range(2000))
    assert b.host.entities == 0


async def test_messages_for_a_stopping_entity_wait_for_the_next_activation() -> None:
    b = bench(log := Log())
    log.end_gate.clear()
    await b.ask("e", "passivate", 1)
    after = [b.ask("e", "hit", n) for n in (2, 3)]
    await turns()
    assert log.rows == [1, ("e", StopReason.PASSIVATION)]
    log.end_gate.set()
    assert await asyncio.gather(*after) == [2, 3]
    assert log.rows == [1, ("e", StopReason.PASSIVATION), 2, 3]


async def test_the_next_activation_gets_the_stash_before_the_mailbox() -> None:
    class Stashes(LivePage):
        @handler
        def deferred(self, n: int) -> int:
            if not self.log.end_gate.is_set():
                self.context.stash()
            return self.hit(n)

    b = bench(log := Log(), Stashes)
    log.end_gate.clear()
    stashed = [b.ask("e", "deferred", n) for n in (1, 2)]
    await b.ask("e", "passivate", 0)
    later = b.ask("e", "hit", 3)
    log.rows.clear()
    log.end_gate.set()
    assert await asyncio.gather(*stashed, later) == [1, 2, 3]
    assert log.rows == [1, 2, 3]


# Idle entities


@pytest.mark.parametrize("method", ["hit", "slow"])
async def test_idle_entities_are_passivated(method: str) -> None:
    """The used one gets a message for a plain function, or for a coroutine."""
    b = bench(log := Log(), passivate_after=10.0)
    log.gate.set()
    await asyncio.gather(b.ask("idle", "hit", 1), b.ask("used", "hit", 2))
    b.pass_ticks(100)
    await b.ask("used", method, 3)
    assert b.activation("idle") is not None
    b.pass_ticks(100)
    await until(lambda: b.activation("idle") is None, "passivation")
    assert b.activation("used") is not None
    assert ("idle", StopReason.PASSIVATION) in log.rows


@pytest.mark.parametrize("options", [{"passivate_after": "off"}, {"remember": True}])
async def test_some_types_are_never_passivated(options: dict[str, Any]) -> None:
    b = bench(None, **options)
    await b.ask("e", "hit", 1)
    for _ in range(10):
        b.pass_ticks(100_000)
    assert b.activation("e") is not None


async def test_an_entity_that_waits_is_not_idle() -> None:
    b = bench(log := Log(), passivate_after=10.0)
    b.ask("e", "slow", 1)
    await turns()
    for _ in range(5):
        b.pass_ticks(300)
    assert b.activation("e") is not None
    log.gate.set()
    await until(lambda: 1 in log.rows, "the handler")
    await turns()
    b.pass_ticks(300)
    await until(lambda: b.activation("e") is None, "passivation")


async def test_an_entity_may_choose_its_own_idle_timeout() -> None:
    b = bench(None, passivate_after=10.0)
    await b.ask("never", "timeout", 0)
    await b.ask("sooner", "timeout", 1)
    b.pass_ticks(20)
    await until(lambda: b.activation("sooner") is None, "passivation")
    b.pass_ticks(1000)
    assert b.activation("never") is not None


# Ends of shards


async def test_a_shard_stops_after_its_mailboxes_and_reports_it_once() -> None:
    b = bench(log := Log())
    await b.ask("idle", "hit", 0)
    asks = [b.ask("e", "slow", 1), b.ask("e", "hit", 2), b.ask("e", "slow", 3)]
    await turns()
    b.stop()
    b.stop()
    await turns()
    assert (b.down, b.activation("idle")) == ([], None)
    log.gate.set()
    assert await asyncio.gather(*asks) == [1, 2, 3]
    await b.stopped()
    assert log.rows == [0, ("idle", StopReason.HANDOFF), 1, 2, 3, ("e", StopReason.HANDOFF)]
    await turns()
    assert b.down == ["0"]
    assert b.host.shards == {}


async def test_a_shard_without_entities_is_down_at_once() -> None:
    b = bench()
    b.stop()
    assert b.down == ["0"]
    b.host.stop_shards(["unknown"], StopReason.HANDOFF)
    assert b.down == ["0", "unknown"]


async def test_a_shutdown_gives_its_reason() -> None:
    b = bench(log := Log())
    await b.ask("e", "hit", 1)
    b.stop(StopReason.SHUTDOWN)
    await b.stopped()
    assert log.rows[-1] == ("e", StopReason.SHUTDOWN)


@pytest.mark.parametrize("method", ["passivate", "stop_later"])
async def test_a_handoff_waits_for_a_passivation_that_has_begun(method: str) -> None:
    """The next incarnation handles its waiting messages, here, before the shard is given
    away."""
    b = bench(log := Log())
    log.end_gate.clear()
    await b.ask("e", method, 1)
    waiting = [b.ask("e", "hit", n) for n in (2, 3)]
    b.stop()
    await turns()
    assert b.down == []
    log.end_gate.set()
    assert await asyncio.gather(*waiting) == [2, 3]
    await b.stopped()
    reason = StopReason.PASSIVATION if method == "passivate" else StopReason.STOPPED
    assert log.rows == [1, ("e", reason), 2, 3, ("e", StopReason.HANDOFF)]
    assert b.dropped == {}


async def test_TSU6_an_entity_that_does_not_stop_is_cut_off() -> None:
    b = bench(log := Log(), handoff_timeout=0.1)
    log.end_gate.clear()
    b.ask("slow", "slow", 1)
    waiting = b.ask("slow", "hit", 2)
    await b.ask("ending", "hit", 3)
    await turns()
    b.stop()
    await b.stopped()
    with pytest.raises(Unhandled, match="stopped"):
        await waiting
    log.gate.set()
    log.end_gate.set()
    await turns(20)
    assert b.down == ["0"]
    assert 1 not in log.rows
    assert b.host.entities == 0


@pytest.mark.parametrize("passes_on", [True, False])
async def test_an_entity_cut_off_while_it_passivates_is_not_started_again(
    passes_on: bool,
) -> None:
    """Its `on_stop` hangs, and messages wait for the next activation. The hand-off has no time for
    that: it ends."""
    b = bench(log := Log())
    b.host.draining.passes_on = passes_on
    log.end_gate.clear()
    await b.ask("e", "passivate", 1)
    waiting = [b.ask("e", "hit", n) for n in (2, 3)]
    b.host.stop_shards([Bench.SHARD], StopReason.HANDOFF, 0.0)
    assert b.down == [Bench.SHARD]
    assert b.host.counts.started == {"message": 1}
    assert (b.host.entities, b.host.counts.cut_off) == (0, 1)
    left = b.take_unhandled()
    assert b.take_unhandled() == []
    if passes_on:
        assert [(i, m.corr) for i, m in left] == [("e", 2), ("e", 3)]
        assert not any(w.done() for w in waiting)
    else:
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(o) for o in outcomes] == [Unhandled] * 2
        assert b.dropped == {"stopped": 2}
    log.end_gate.set()
    await turns(20)
    assert b.down == [Bench.SHARD]
    assert log.rows == [1, ("e", StopReason.PASSIVATION)]


@pytest.mark.parametrize("handoff_timeout", [60.0, 20.0])
async def test_an_entity_cut_off_at_a_passivation_starts_again_while_its_shard_stays(
    handoff_timeout: float,
) -> None:
    b = bench(log := Log(), handoff_timeout=handoff_timeout)
    log.end_gate.clear()
    await b.ask("e", "passivate", 1)
    waiting = b.ask("e", "hit", 2)
    first = b.activation("e")
    LivePage.alive["e"] = 0  # its code does not count any more
    b.pass_ticks(int(handoff_timeout - 5) * 20 - 1)
    assert b.activation("e") is first
    b.pass_ticks(1)
    await turns()
    assert waiting.done()
    assert waiting.result() == 2
    assert b.activation("e") is not first
    assert b.host.counts.cut_off == 1
    log.end_gate.set()


async def test_B59_a_shard_that_has_lost_its_lease_ends_its_current_messages_and_no_more() -> None:
    b = bench(log := Log())
    await b.ask("idle", "hit", 0)
    running, waiting = b.ask("e", "slow", 1), b.ask("e", "hit", 2)
    await turns()
    b.host.stop_shards([Bench.SHARD], StopReason.FAILURE, 60.0)
    log.gate.set()
    assert await running == 1
    with pytest.raises(Unhandled, match="stopped"):
        await waiting
    await b.stopped()
    assert log.rows == [0, ("idle", StopReason.FAILURE), 1, ("e", StopReason.FAILURE)]


@pytest.mark.parametrize(
    ("reason", "patience", "at_once"),
    [
        (StopReason.HANDOFF, None, False),
        (StopReason.SHUTDOWN, 60.0, False),
        (StopReason.HANDOFF, 0.0, True),
        (StopReason.FAILURE, 60.0, True),
    ],
)
async def test_a_shard_with_many_entities_stops_in_several_turns_if_there_is_time(
    monkeypatch: pytest.MonkeyPatch, reason: StopReason, patience: float | None, at_once: bool
) -> None:
    monkeypatch.setattr(host, "STOPPED_AT_ONCE", 2)
    b = bench(log := Log())
    for entity_id in "abcdefg":
        await b.ask(entity_id, "hit", 0)
    log.rows.clear()
    b.ask("g", "hit", 1)
    b.host.stop_shards([Bench.SHARD], reason, patience)
    stopped = [row[0] for row in log.rows if isinstance(row, tuple)]
    assert stopped == list("abcdefg" if at_once else "ab")
    await b.stopped()
    ends = [(entity_id, reason) for entity_id in "abcdefg"]
    assert sorted(row for row in log.rows if isinstance(row, tuple)) == ends
    assert b.host.counts.cut_off == 0


async def test_many_shards_with_few_entities_stop_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "STOPPED_AT_ONCE", 2)
    b = bench(log := Log())
    for entity_id in "abcdefg":
        b.host.start_shard(entity_id, 7)
        b.host.set_arrivals(entity_id, True, None)
        b.host.activate(b.host.shards[entity_id], entity_id)
    await turns()
    log.rows.clear()
    b.host.stop_shards(list("abcdefg"), StopReason.HANDOFF)
    stopped = [row[0] for row in log.rows if isinstance(row, tuple)]
    assert len(stopped) <= 2
    await until(lambda: sorted(b.down) == list("abcdefg"), "the shards' end")
    assert b.host.counts.stopped == {"handoff": 7}


async def test_entities_that_are_cut_off_before_their_turn_stop_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "STOPPED_AT_ONCE", 2)
    b = bench(Log())
    for entity_id in "abcdefg":
        await b.ask(entity_id, "hit", 0)
    b.stop()
    b.host.stop_shards([Bench.SHARD], StopReason.FAILURE, 0.0)
    assert b.down == [Bench.SHARD]
    assert b.host.entities == 0
    await turns(20)
    assert b.down == [Bench.SHARD]
    assert sum(b.host.counts.stopped.values()) == 7


@pytest.mark.parametrize("handing_off", [True, False])
async def test_B59_an_entity_without_time_left_is_cut_off_at_once(handing_off: bool) -> None:
    b = bench(log := Log())
    b.ask("e", "slow", 1)
    waiting = b.ask("e", "hit", 2)
    await turns()
    if handing_off:
        b.stop()
    b.host.stop_shards([Bench.SHARD], StopReason.FAILURE, 0.0)
    assert b.down == [Bench.SHARD]
    with pytest.raises(Unhandled, match="stopped"):
        await waiting
    log.gate.set()
    await turns(20)
    assert log.rows == []


async def test_an_entity_that_cannot_start_does_not_keep_its_shard() -> None:
    class Broken(Entity):
        handled: list[int]

        async def on_start(self) -> None:
            raise ValueError("never")

        @handler
        def hit(self, n: int) -> int:
            type(self).handled.append(n)  # pragma: no cover
            return n

    Broken.handled = []
    b = bench(None, Broken, entity_restart_backoff_min=0.01, entity_restart_backoff=0.02)
    waiting = [b.ask("e", "hit", n) for n in range(3)]
    await until(lambda: b.host.counts.failures > 2, "a few attempts")
    b.stop()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unhandled] * 3
    await b.stopped()


# Arrivals


def session(tag: object) -> Any:
    asker = Asker()
    asker.tag = tag  # type: ignore[assignment]
    return asker


@pytest.mark.parametrize(
    ("arrivals", "via", "stopping", "lets_in"),
    [
        (False, None, False, {"local"}),
        (True, None, False, {"local", "a", "b"}),
        (True, "a", False, {"local", "a"}),
        (False, "a", False, {"local"}),
        (False, None, True, set()),
    ],
)
def test_a_shard_admits_messages_by_their_session(
    arrivals: bool, via: str | None, stopping: bool, lets_in: set[str]
) -> None:
    hosted = Shard("0", 1)
    hosted.admit(arrivals, via)
    hosted.stopping = StopReason.HANDOFF if stopping else None
    answers = {tag: hosted.lets_in(session(tag), False) for tag in "ab"}
    answers["local"] = hosted.lets_in(session("self"), True)
    assert {who for who, let in answers.items() if let} == lets_in
    assert hosted.open is (arrivals and via is None)


async def test_entities_leave_the_hot_path_while_their_shard_is_closed() -> None:
    b = bench()
    await b.ask("e", "hit", 1)
    activation = b.activation("e")
    b.host.start_shard("other", 1)
    for arrivals, via, active in [
        (False, None, False),
        (True, "n2", False),
        (True, None, True),
        (True, "n2", False),
        (True, None, True),
        (True, None, True),
    ]:
        b.host.set_arrivals("0", arrivals, via)
        assert ("e" in b.host.active) is active
        assert b.activation("e") is activation
        assert b.host.ids("0") == ["e"]
        assert b.host.entities == 1
    b.host.set_arrivals("unknown", True, None)
    assert await b.ask("e", "hit", 2) == 2
    assert b.activation("e") is activation


async def test_an_entity_started_in_a_closed_shard_joins_the_hot_path_when_it_opens() -> None:
    b = bench()
    b.host.set_arrivals("0", False, None)
    activation = b.host.activate(b.host.shards["0"], "e")
    assert b.host.active == {}
    b.host.set_arrivals("0", True, None)
    assert b.host.active == {"e": activation}
    assert await b.ask("e", "hit", 1) == 1


async def test_entities_that_come_and_go_while_shards_move_are_where_their_shard_is() -> None:
    b = bench()
    b.host.start_shard("other", 1)
    b.host.set_arrivals("other", True, None)
    await b.ask("stays", "hit", 1)
    await b.ask("ends", "hit", 1)
    b.host.set_arrivals("other", False, None)  # from now on there is an index
    ended = b.activation("ends")
    assert ended is not None
    ended.passivate()
    await until(lambda: b.activation("ends") is None, "the end")
    await b.ask("ends", "hit", 2)
    await b.ask("new", "hit", 1)
    here = {name: b.activation(name) for name in ("stays", "ends", "new")}
    b.host.set_arrivals("0", False, None)
    assert b.host.active == {}
    assert b.host.shards["0"].activations == here
    assert b.host.shards["other"].activations == {}


async def test_all_entities_are_looked_through_once_for_all_shards_that_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    make = ActivationTable._make_index
    monkeypatch.setattr(
        ActivationTable, "_make_index", lambda table: (made.append(1), make(table))[1]
    )
    b = bench()
    timers: list[tuple[float, Any]] = []
    later = b.host.loop.call_later
    monkeypatch.setattr(
        b.host.loop, "call_later", lambda *call: (timers.append(call[:2]), later(*call))[1]
    )
    shards = [b.SHARD, "1", "2", "3"]
    for shard in shards[1:]:
        b.host.start_shard(shard, 1)
        b.host.set_arrivals(shard, True, None)
    entities = {b.host.activate(b.host.shards[shard], f"e{shard}"): shard for shard in shards}
    for shard in shards[:2]:
        b.host.set_arrivals(shard, False, None)
    assert len(made) == 1
    [forget] = [callback for delay, callback in timers if delay == INDEX_S]
    forget()
    b.host.stop_shards(shards[2:], StopReason.HANDOFF)
    assert len(made) == 2
    assert b.host.active == {}
    await until(lambda: set(b.down) == set(shards[2:]), "the stop of two shards")
    assert {entity.shard.shard for entity in entities} == set(shards)


async def test_a_passivation_in_a_closed_shard_is_found() -> None:
    b = bench()
    await b.ask("e", "hit", 1)
    activation = b.activation("e")
    b.host.set_arrivals("0", False, None)
    assert activation is not None
    activation.passivate()
    await until(lambda: b.activation("e") is None, "the end")
    assert b.host.entities == 0


# Actions that contexts forbid


async def test_stashing_without_a_message_is_refused() -> None:
    b = bench()
    await b.ask("e", "hit", 1)
    activation = b.activation("e")
    assert activation is not None
    with pytest.raises(LocalProtocolError, match="no message is being handled"):
        activation.stash()
    activation.unstash_all()


async def test_a_timer_of_a_former_activation_reaches_no_entity() -> None:
    b = bench(log := Log())
    await b.ask("e", "hit", 1)
    old = b.activation("e")
    assert old is not None
    await b.ask("e", "passivate", 2)
    await until(lambda: b.activation("e") is None, "the end")
    await b.ask("e", "hit", 3)
    b.host.tell_self(old, "", encode_value("late"), "")
    assert b.dropped == {}
    assert log.rows == [1, 2, ("e", StopReason.PASSIVATION), 3]


async def test_an_entity_that_stops_as_it_starts_refuses_the_message() -> None:
    class Unwilling(Entity):
        async def on_start(self) -> None:
            self.context.stop()

        @handler
        def hit(self) -> int:
            raise AssertionError("it has stopped")

    bus = ShardBus("test")
    bus.entity(name="unwilling")(Unwilling)
    b = Bench(bus)
    for _ in range(2):
        with pytest.raises(Unhandled):
            await b.ask("e", "hit")
    assert b.activation("e") is None


def test_a_walk_names_each_entity_once_in_parts() -> None:
    """However many shards there are, each activation is looked at once."""
    looked: list[str] = []

    class Counted:
        def __init__(self, entity_id: str, shard: Shard) -> None:
            self.key, self.shard = entity_id, shard

        def __getattribute__(self, name: str) -> Any:
            if name == "key":
                looked.append(name)
            return object.__getattribute__(self, name)

    shards = {str(n): Shard(str(n), 1) for n in range(100)}
    table = ActivationTable(Mock(), shards)
    for n in range(1000):
        hosted = shards[str(n % 100)]
        home: dict[str, Any] = table.active if n % 2 else hosted.activations
        home[f"e{n}"] = Counted(f"e{n}", hosted)
    parts = list(table.walk(64))
    rows = [row for part in parts for row in part]
    assert sorted(rows) == sorted((f"e{n}", str(n % 100)) for n in range(1000))
    assert max(map(len, parts)) == 64
    assert len(looked) == 1000
