"""Limits on entities in memory: who goes, who may not, and that nothing is lost by it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbus import ConfigError, Entity, Refused, ShardBus, StopReason, handler
from shardbus.config.settings import ShardingSettings
from shardbus.entities import passivation
from shardbus.entities.passivation import CHECKS, PASS_MIN
from tests.unit.entities.entity_kit import Bench, Log
from tests.waiting import turns, until

STRATEGIES = ["lru", "slru", "mru", "lfu", "composite"]


class Counted(Entity):
    """At most one of each id is in memory."""

    log: Log
    live: Counter[str]

    def __init__(self) -> None:
        self.live[self.context.entity_id] += 1
        assert self.live[self.context.entity_id] == 1

    async def on_stop(self, reason: StopReason) -> None:
        self.log.stopped.append((self.context.entity_id, reason))
        await self.log.end_gate.wait()
        self.live[self.context.entity_id] -= 1

    @handler
    def hit(self, n: int = 0) -> int:
        self.log.rows.append((self.context.entity_id, n))
        return n

    @handler
    async def slow(self, n: int = 0) -> int:
        await self.log.gate.wait()
        return self.hit(n)

    @handler
    def deferred(self, n: int = 0) -> int:
        if not self.log.gate.is_set():
            self.context.stash()
        return self.hit(n)

    @handler
    def unstash(self) -> None:
        self.context.unstash_all()

    @handler
    def timeout(self, seconds: float) -> None:
        self.context.set_idle_timeout(seconds)


def bench(log: Log, **options: Any) -> Bench:
    bus = ShardBus("shop")
    bus.entity("page")(Counted)
    Counted.log, Counted.live = log, Counter()
    return Bench(bus, **options)


async def use(b: Bench, entity_ids: str) -> None:
    """Use these one after the other, each in a later tick than the one before."""
    for entity_id in entity_ids.split():
        b.host.runner.advance(b.host.runner.tick + 1)
        await b.ask(entity_id, "hit")
        await turns(3)


def here(b: Bench) -> set[str]:
    return set(b.host.ids(Bench.SHARD))


# Who goes


@pytest.mark.parametrize(
    ("strategy", "uses", "victims"),
    [
        ("lru", "a b c a d e", "b c"),
        ("lru", "a b c d a", "a b"),
        ("slru", "a a b c d e f", "b c d"),
        ("mru", "a b c d e", "c d"),
        ("composite", "a b c d e", "c d"),
    ],
)
async def test_T_SU14_each_policy_passivates_its_victims(
    strategy: str, uses: str, victims: str
) -> None:
    b = bench(log := Log(), active_entity_limit=3, passivation_strategy=strategy)
    await use(b, uses)
    assert log.gone == victims
    assert {reason for _, reason in log.stopped} == {StopReason.PASSIVATION}
    assert b.host.counts.stopped == {"passivation": len(victims.split())}
    assert b.host.passivator.evicted == len(victims.split())


async def test_a_policy_that_counts_uses_gets_them_at_sweeps() -> None:
    b = bench(log := Log(), active_entity_limit=3, passivation_strategy="lfu", passivate_after=0)
    await use(b, "often seldom")
    for _ in range(5):
        b.pass_ticks(20)
        await use(b, "often")
    b.pass_ticks(20)
    await use(b, "new newer newest")
    assert log.gone == "seldom new"


async def test_several_uses_between_two_checks_count_as_one() -> None:
    b = bench(log := Log(), active_entity_limit=2, passivation_strategy="lfu", passivate_after=0)
    await use(b, "steady burst")
    await use(b, "burst " * 10)
    for _ in range(3):
        b.pass_ticks(20)
        await use(b, "steady")
    b.pass_ticks(20)
    await use(b, "new newer")
    assert log.gone == "new burst"


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_policy_keeps_the_limit_and_loses_nothing(strategy: str) -> None:
    b = bench(log := Log(), active_entity_limit=10, passivation_strategy=strategy)
    for n in range(600):
        b.tell(f"e{n * n % 41}", "hit", n)
        if n % 7 == 0:
            await turns(2)
            assert b.host.entities <= 10
        if n % 50 == 0:
            b.pass_ticks(20)
    await turns(3)
    assert log.rows == [(f"e{n * n % 41}", n) for n in range(600)]
    assert b.host.entities == len(here(b)) == 10
    assert b.dropped == {}


# Who may not


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_B89_an_entity_that_waits_is_not_passivated(strategy: str) -> None:
    b = bench(log := Log(), active_entity_limit=3, passivation_strategy=strategy)
    busy = b.ask("busy", "slow", 7)
    waiting = b.ask("busy", "hit", 8)
    await use(b, "a b c d e f g h")
    assert "busy" in here(b)
    assert b.host.entities == 3
    log.gate.set()
    assert await asyncio.gather(busy, waiting) == [7, 8]
    assert not any(entity_id == "busy" for entity_id, _ in log.stopped)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_limit_over_busy_entities_waits_without_a_busy_loop(strategy: str) -> None:
    b = bench(log := Log(), active_entity_limit=4, passivation_strategy=strategy)
    asks = [b.ask(f"e{n}", "slow", n) for n in range(40)]
    await turns(5)
    assert b.host.entities == 40
    assert b.host.passivator._pass is None, "it looks again and again"
    log.gate.set()
    assert await asyncio.gather(*asks) == list(range(40))
    b.pass_ticks(20)
    await turns(5)
    assert b.host.entities == 4


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_an_entity_with_stashed_messages_is_busy(strategy: str) -> None:
    b = bench(
        log := Log(), active_entity_limit=2, passivation_strategy=strategy, passivate_after=10
    )
    asks = [b.ask(f"e{n}", "deferred", n) for n in range(10)]
    b.pass_ticks(300)
    b.pass_ticks(300)
    await turns(10)
    assert log.stopped == []
    assert b.host.passivator._pass is None
    log.gate.set()
    b.tell_many("unstash", *((f"e{n}", ()) for n in range(10)))
    assert await asyncio.gather(*asks) == list(range(10))
    b.pass_ticks(20)
    await turns(5)
    assert b.host.entities == 2


async def test_an_entity_that_becomes_idle_is_evicted_without_a_sweep() -> None:
    b = bench(log := Log(), active_entity_limit=4)
    asks = [b.ask(f"e{n}", "slow", n) for n in range(40)]
    await turns(5)
    log.gate.set()
    await asyncio.gather(*asks)
    for n in range(5):
        b.tell(f"new{n}", "hit", n)
        await turns(3)
    assert b.host.entities == 4


async def test_entities_of_a_shard_on_the_move_stay_and_others_make_room() -> None:
    b = bench(log := Log(), active_entity_limit=2)
    await use(b, "a b")
    b.host.set_arrivals(Bench.SHARD, False, None)
    b.host.start_shard("1", 1)
    b.host.set_arrivals("1", True, None)
    for entity_id in "xyz":
        b.host.activate(b.host.shards["1"], entity_id)
    await turns(5)
    assert log.gone == "x y z"
    b.host.activate(b.host.shards[Bench.SHARD], "c")
    await turns(5)
    assert here(b) == {"a", "b", "c"}
    b.host.set_arrivals(Bench.SHARD, True, None)
    b.pass_ticks(20)
    await turns(5)
    assert len(here(b)) == 2


async def test_a_shard_that_stops_frees_its_places_at_once() -> None:
    b = bench(log := Log(), active_entity_limit=3)
    await use(b, "a b c")
    b.host.start_shard("1", 1)
    b.host.set_arrivals("1", True, None)
    log.end_gate.clear()
    b.stop()
    for entity_id in "xyz":
        b.host.activate(b.host.shards["1"], entity_id)
    await turns(5)
    assert log.gone == "a b c"


# Bounds


async def test_starts_of_one_turn_exceed_the_limit_for_one_turn() -> None:
    b = bench(Log(), active_entity_limit=50)
    b.tell_many("hit", *((f"e{n}", (n,)) for n in range(2000)))
    assert b.host.entities == 2000
    await turns(2)
    assert b.host.entities == 50


@pytest.mark.parametrize("limit", [2000, 20_000])
async def test_when_all_have_been_used_since_the_limit_gives_by_a_part(limit: int) -> None:
    b = bench(Log(), active_entity_limit=limit)
    old = [(f"old{n}", (0,)) for n in range(limit)]
    b.tell_many("hit", *old)
    b.pass_ticks(1)
    b.tell_many("hit", *old)
    b.pass_ticks(1)
    highest = 0
    for turn in range(0, limit // 2, 100):
        b.tell_many("hit", *((f"new{turn + n}", (0,)) for n in range(100)))
        highest = max(highest, b.host.entities)
        await turns(1)
    least_looks = CHECKS * PASS_MIN
    assert highest <= limit + limit // 32 + 100 + (limit > least_looks) * 100
    await turns(5)
    assert b.host.entities == limit


async def test_entities_used_all_the_time_do_not_keep_the_pass_running() -> None:
    b = bench(Log(), active_entity_limit=30)
    for n in range(60):
        b.tell_many("hit", *((f"e{k}", (n,)) for k in range(30)), (f"new{n}", (n,)))
        b.host.runner.advance(b.host.runner.tick + 1)
        await turns(3)
        assert b.host.entities <= 30


async def test_all_of_them_used_in_each_tick_do_not_keep_more_in_memory() -> None:
    limit = CHECKS * PASS_MIN + 1000
    b = bench(Log(), active_entity_limit=limit)
    b.tell_many("hit", *((f"e{k}", (0,)) for k in range(limit)))
    for n in range(10):
        b.host.runner.advance(b.host.runner.tick + 1)
        b.tell_many("hit", *((entity_id, (n,)) for entity_id in [*b.host.active]), (f"n{n}", (n,)))
        await turns(1)
    assert b.host.entities <= limit + 2


async def test_a_type_without_a_limit_keeps_nothing_about_its_entities() -> None:
    b = bench(Log())
    await use(b, "a b c")
    assert b.host.passivator._last_uses == {}
    assert not b.host.passivator.limited


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_the_policy_forgets_entities_that_left(strategy: str) -> None:
    b = bench(Log(), active_entity_limit=20, passivation_strategy=strategy, passivate_after=10)
    await use(b, " ".join(f"e{n}" for n in range(50)))
    policy = b.host.passivator._policy
    assert policy is not None
    assert len(policy) == len(b.host.passivator._last_uses) == 20
    for _ in range(5):
        b.pass_ticks(300)
    await turns()
    assert b.host.entities == len(policy) == len(b.host.passivator._last_uses) == 0


# Beside each other


async def test_idle_entities_leave_even_if_there_is_room() -> None:
    b = bench(Log(), active_entity_limit=100, passivate_after=10)
    await use(b, "a")
    b.pass_ticks(150)
    await use(b, "b")
    b.pass_ticks(150)
    await turns()
    assert here(b) == {"b"}
    assert b.host.passivator.evicted == 0


@pytest.mark.parametrize(
    "wrong", [math.inf, -math.inf, math.nan, -1.0, 1e-9, 1e300, "5 days ago", True]
)
async def test_an_own_idle_timeout_that_is_no_duration_is_refused_at_the_call(wrong: Any) -> None:
    b = bench(log := Log(), passivate_after=0)
    await b.ask("e", "timeout", 5.0)
    activation = b.activation("e")
    assert activation is not None
    with pytest.raises(ConfigError, match="set_idle_timeout"):
        activation.set_idle_timeout(wrong)
    b.pass_ticks(99)
    assert not log.gone
    await turns()
    b.pass_ticks(1)
    assert log.gone == "e"


@pytest.mark.parametrize(("said", "goes"), [("2s", True), (2, True), (0, False), ("off", False)])
async def test_an_own_idle_timeout_is_read_as_the_setting_is(said: Any, goes: bool) -> None:
    b = bench(log := Log(), passivate_after=0)
    await b.ask("e", "hit")
    activation = b.activation("e")
    assert activation is not None
    activation.set_idle_timeout(said)
    b.pass_ticks(40)
    assert log.gone == ("e" if goes else "")


async def test_an_own_idle_timeout_does_not_hold_a_place() -> None:
    b = bench(log := Log(), active_entity_limit=2, passivate_after=10)
    await b.ask("a", "timeout", 0)
    await use(b, "b c")
    assert log.gone == "a"
    assert b.host.passivator._own_timeouts == {}


# Many at a time


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn checks three entities for their idle time, and stops two."""
    monkeypatch.setattr(passivation, "LOOKED_AT_ONCE", 3)
    monkeypatch.setattr(passivation, "STOPPED_AT_ONCE", 2)


@pytest.mark.usefixtures("few_at_once")
async def test_many_idle_entities_leave_in_several_turns() -> None:
    b = bench(log := Log(), passivate_after=10)
    await use(b, "a b c d e f g")
    b.pass_ticks(300)
    assert log.gone == "a b", "no more in one turn"
    b.pass_ticks(1)
    assert log.gone == "a b", "one check at a time"
    await turns(10)
    assert log.gone == "a b c d e f g"


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize(
    ("meanwhile", "stays"),
    [("used", "c"), ("suspended", "c d e f g"), ("moving", "c d e f g"), ("closed", "c d e f g")],
)
async def test_an_idle_entity_is_spared_if_something_happens_before_its_turn(
    meanwhile: str, stays: str
) -> None:
    b = bench(Log(), passivate_after=10)
    await use(b, "a b c d e f g")
    b.pass_ticks(300)
    match meanwhile:
        case "used":
            b.tell("c", "hit")
        case "suspended":
            b.gate.valid_until = b.now
            assert b.gate.close_if_due()
        case "moving":
            b.host.set_arrivals(Bench.SHARD, False, None)
        case _:
            b.host.passivator.stop()
    await turns(10)
    b.gate.valid_until = math.inf
    b.gate.poll()
    await turns(10)
    assert here(b) == set(stays.split())


@pytest.mark.usefixtures("few_at_once")
async def test_own_idle_timeouts_count_among_many() -> None:
    b = bench(Log(), passivate_after=10)
    for entity_id, seconds in [("a", 0), ("b", 300), ("c", 5), ("d", 10)]:
        await b.ask(entity_id, "timeout", seconds)
    await use(b, "e f g")
    b.pass_ticks(300)
    await turns(10)
    assert here(b) == {"a", "b"}


async def test_messages_for_a_victim_start_its_next_activation_in_order() -> None:
    b = bench(log := Log(), active_entity_limit=1)
    log.end_gate.clear()
    await use(b, "a b")
    after = [b.ask("a", "hit", n) for n in range(1, 4)]
    await turns()
    assert log.rows == [("a", 0), ("b", 0)]
    log.end_gate.set()
    assert await asyncio.gather(*after) == [1, 2, 3]
    assert log.rows == [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("a", 3)]
    await until(lambda: here(b) == {"a"}, "one of them")


# Another limit, while it runs


def resize(b: Bench, limit: int) -> None:
    b.host.set_active_entity_limit(limit)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_B85_the_limit_changes_while_the_node_runs(strategy: str) -> None:
    b = bench(Log(), active_entity_limit=5, passivation_strategy=strategy)
    many = " ".join(f"e{n}" for n in range(12))
    sizes = []
    for limit in (5, 3, 8, 0, 4, 1):
        resize(b, limit)
        await turns(5)
        await use(b, many)
        sizes.append(b.host.entities)
    assert sizes == [5, 3, 8, 12, 4, 1]


@pytest.mark.parametrize("strategy", ["lru", "slru", "lfu"])
async def test_a_limit_set_later_knows_the_last_uses(strategy: str) -> None:
    b = bench(log := Log(), passivation_strategy=strategy)
    await use(b, "a b c d a c")
    resize(b, 2)
    await turns(5)
    assert here(b) == {"a", "c"}
    assert log.gone == "b d"


async def test_a_much_lower_limit_is_reached_in_several_passes() -> None:
    b = bench(Log(), active_entity_limit=5000)
    b.tell_many("hit", *((f"e{n}", (n,)) for n in range(5000)))
    await turns(2)
    resize(b, 10)
    await turns(1)
    assert b.host.entities == 5000 - PASS_MIN
    await turns(30)
    assert b.host.entities == 10


# Remembered


@pytest.mark.parametrize(
    ("declared", "section", "result"),
    [
        ({"remember": True, "active_entity_limit": 5}, {}, {}),
        ({"remember": True}, {}, {"active_entity_limit": 5}),
        ({"active_entity_limit": 5}, {}, {"remember": True}),
        ({"active_entity_limit": 5}, {"remember": True}, {}),
    ],
)
def test_a_limit_on_remembered_entities_is_refused(
    declared: dict[str, object], section: dict[str, Any], result: dict[str, object]
) -> None:
    chosen = ShardingSettings(**section, types={"page": result})
    with pytest.raises(ConfigError, match="both remember and active_entity_limit"):
        chosen.for_type("page", declared)


def test_a_limit_for_every_type_is_none_for_the_remembered_ones() -> None:
    chosen = ShardingSettings(active_entity_limit=5)
    assert chosen.for_type("page", {}).active_entity_limit == 5
    assert chosen.for_type("meter", {"remember": True}).active_entity_limit == 0
    assert chosen.for_type("meter", {"remember": True, "active_entity_limit": 0})


async def test_a_limit_on_remembered_entities_is_refused_while_they_run() -> None:
    b = bench(Log(), remember=True)
    with pytest.raises(Refused, match="remembered"):
        resize(b, 5)
    assert not b.host.passivator.limited


# In general

STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 14), st.sampled_from(["hit", "slow"])),
    st.tuples(st.just("turn"), st.integers(1, 3), st.just("")),
    st.tuples(st.just("sweep"), st.integers(1, 60), st.just("")),
    st.tuples(st.just("gate"), st.integers(0, 1), st.just("")),
    st.tuples(st.just("end"), st.integers(0, 1), st.just("")),
    st.tuples(st.just("limit"), st.integers(0, 6), st.just("")),
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(deadline=None, max_examples=60)
@given(steps=st.lists(STEP, max_size=60))
def test_the_bound_holds_and_every_message_is_handled_once_and_in_order(
    strategy: str, steps: list[tuple[str, int, str]]
) -> None:
    asyncio.run(_play(strategy, steps))


async def _play(strategy: str, steps: Iterable[tuple[str, int, str]]) -> None:
    b = bench(log := Log(), active_entity_limit=3, passivation_strategy=strategy)
    passivator, sent = b.host.passivator, list[tuple[str, int]]()
    for n, (what, number, method) in enumerate(steps):
        match what:
            case "send":
                b.tell(f"e{number}", method, n)
                sent.append((f"e{number}", n))
            case "turn":
                await turns(number)
            case "sweep":
                b.pass_ticks(number)
            case "limit":
                resize(b, number)
            case _:
                gate = log.gate if what == "gate" else log.end_gate
                gate.set() if number else gate.clear()
    log.gate.set()
    log.end_gate.set()
    await turns(20)
    b.pass_ticks(20)
    await turns(20)
    for k in range(15):
        entity = [row for row in log.rows if row[0] == f"e{k}"]
        assert entity == [row for row in sent if row[0] == f"e{k}"]
    assert b.dropped == {}
    assert not passivator.limited or b.host.entities <= passivator.limit
    assert all(count in (0, 1) for count in Counted.live.values())
    assert sum(Counted.live.values()) == b.host.entities
