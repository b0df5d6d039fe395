"""Durable mailboxes: a message is stored before it is handled, and takes effect once, whatever ends
or moves; in whole nodes in one process, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from zlib import crc32

import pytest

from shardbus import (
    ConfigError,
    Entity,
    EventSourced,
    Rejection,
    ShardBus,
    event,
    handler,
)
from shardbus import (
    Refused as RefusedOrder,
)
from shardbus.admin.pages import states as state_pages
from shardbus.deliveries.durable_mailbox import StoredMail, write_mail
from shardbus.deliveries.numbers import MARK, DeliveryNumber, NumberKind
from shardbus.entities import durable_mailboxes
from shardbus.entities.durable_mailboxes import LIST, DurableMailboxes
from shardbus.shells.message_account import account_of
from shardbus.store.memory import _Remembered
from shardbus.store.memory_journals import MemoryJournal
from shardbus.testing import TestCluster
from shardbus.testing.virtual_time import Pending
from tests.markers import long_only

bus = ShardBus("mailboxes")
failing: set[int] = set()
"""Numbers whose handler raises."""
calls: list[int] = []
"""Numbers whose handler has begun."""
held: set[int] = set()
"""Numbers whose handler waits."""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(durable_mailboxes, "LOOKED_AT_ONCE", 1)
    yield
    failing.clear()
    calls.clear()
    held.clear()


@dataclass
class Refused(Rejection):
    number: int


@dataclass(frozen=True)
class Added:
    number: int


@dataclass
class Taken:
    numbers: list[int] = field(default_factory=list)


@bus.entity(name="stored", shards=6, durable_mailbox=True)
class Stored(Entity):
    state: Taken

    @handler
    async def add(self, number: int) -> None:
        calls.append(number)
        while number in held:
            await asyncio.sleep(0.01)
        if number in failing:
            raise ValueError(f"{number} fails")
        self.state.numbers.append(number)
        await self.save()

    @handler
    async def slow(self, number: int) -> None:
        await asyncio.sleep(0.6)
        self.state.numbers.append(number)

    @handler
    def put(self, number: int) -> None:
        calls.append(number)
        self.state.numbers.append(number)

    @handler
    def refuse(self, number: int) -> None:
        calls.append(number)
        raise Refused(number)

    @handler
    def aside(self, number: int) -> None:
        calls.append(number)
        self.context.stash()

    @handler
    def get(self) -> list[int]:
        return self.state.numbers

    @handler
    async def copy(self, other: str) -> list[int]:
        """Send the last number to another entity, and return the numbers there."""
        to = self.context.ref(Stored, other)
        await to.add.tell(self.state.numbers[-1])
        return await to.get()

    def receive(self, message: object) -> None:
        self.state.numbers.append(-1)


@bus.entity(name="memory", shards=6, durable_mailbox=True)
class Memory(Entity):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    @handler
    def add(self, number: int) -> None:
        calls.append(number)
        self.numbers.append(number)

    @handler
    def get(self) -> list[int]:
        return self.numbers


def left_in_store(cluster: TestCluster) -> list[object]:
    """Return the journals and lists of mailboxes that are in the store."""
    data = cluster.world.store.data
    journals: list[object] = [key for key in data.journals if key[0].startswith("$mailbox/")]
    return journals + [
        key for key, ids in data.remembered.items() if LIST in str(key) and ids.entity_ids
    ]


async def on_node(cluster: TestCluster, act: Callable[[], Any]) -> Any:
    """Return the result of a call in the loop of the first node."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append((act(), None))
        except RefusedOrder as error:
            ended.append((None, error))

    cluster.nodes[0]._process.loop.call_soon(run)
    await cluster.advance(0.01)
    value, error = ended[0]
    if error is not None:
        raise error
    return value


def mailboxes_of(cluster: TestCluster, kind: type) -> DurableMailboxes:
    """Return the mailboxes of a type on the first node."""
    region = cluster.nodes[0]._process.node.regions[kind.__name__.lower()]
    mailboxes = region.host.deliveries.mailboxes
    assert mailboxes is not None
    return mailboxes


async def test_tells_and_deliveries_are_stored_handled_and_removed() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        client = cluster.client()
        ref = client.ref(Stored, "a")
        for number in range(5):
            await ref.add.tell(number)
        await ref.add.deliver(5)
        await client.tell("stored", "a", "add", 6, ack=True)
        await client.tell(Stored, "a", {"any": "message"}, ack=True)
        assert await ref.get() == [0, 1, 2, 3, 4, 5, 6, -1]
        assert calls == list(range(7))
        assert left_in_store(cluster)
        await cluster.advance(40)
        assert not left_in_store(cluster)
        await ref.add.deliver(7)
        assert await ref.get() == [0, 1, 2, 3, 4, 5, 6, -1, 7]


@pytest.mark.parametrize("end", ["kill", "leave"])
async def test_a_confirmed_message_outlives_every_node(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards of nodes that died have homes at once; those of nodes that left have none."""
    async with TestCluster(bus, nodes=2) as cluster:
        ref = cluster.client().ref(Stored, "a")
        held.add(1)
        await ref.add.deliver(1)
        await ref.add.deliver(2)
        for node in list(cluster.nodes):
            await (cluster.kill(node) if end == "kill" else cluster.leave(node))
        held.clear()
        monkeypatch.setattr(DurableMailboxes, "sweep", lambda mailboxes, tick: None)
        await cluster.add("later")
        await cluster.settle()
        await cluster.advance(20)
        calls_after = list(calls)
        client = await cluster.connect("c2")
        assert await client.ref(Stored, "a").get() == [1, 2]
        assert calls_after[-1] == 2, "no message, no client and no sweep is needed"


async def test_no_message_is_confirmed_before_the_store_lists_its_entity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        lists, held_back = mailboxes_of(cluster, Stored).lists, list[Any]()
        add = lists.add
        monkeypatch.setattr(lists, "add", lambda *entry: held_back.append(entry))
        confirmation = asyncio.ensure_future(cluster.client().ref(Stored, "a").add.deliver(1))
        await cluster.advance(2)
        [entry] = held_back
        assert not confirmation.done(), "the next home would not find it"
        add(*entry)
        await confirmation


async def test_a_poison_message_is_given_up_and_the_others_go_on() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        ref = cluster.client().ref(Stored, "a")
        failing.add(1)
        await ref.add.deliver(1)
        await ref.add.deliver(2)
        assert await ref.get() == [], "an ask does not wait for the next attempt"
        await cluster.advance(250)
        assert await ref.get() == [2]
        assert calls.count(1) == 10
        mailboxes = mailboxes_of(cluster, Stored)
        assert mailboxes.counts.given_up == {"poison": 1}
        letters = cluster.nodes[0]._process.node.records.letters.rings["stored"]
        assert [letter.reason for letter in letters] == ["poison"]
        assert not left_in_store(cluster)


async def test_an_operator_retries_and_skips() -> None:
    async with TestCluster(bus, nodes=1, settings={"delivery.on_poison": "stop"}) as cluster:
        ref = cluster.client().ref(Stored, "a")
        failing.add(1)
        await ref.add.deliver(1)
        await ref.add.deliver(2)
        await cluster.advance(500)
        mailboxes = mailboxes_of(cluster, Stored)
        [(key, mail)] = mailboxes.stuck(10)
        assert (key, mail.place, mail.failures >= 10) == ("a", 1, True)
        with pytest.raises(RefusedOrder):
            await on_node(cluster, lambda: mailboxes.skip("a", 2))
        before = calls.count(1)
        assert await on_node(cluster, lambda: mailboxes.retry("a")) == 1
        await cluster.advance(0.1)
        assert calls.count(1) == before + 1
        await on_node(cluster, lambda: mailboxes.skip("a", 1))
        await cluster.advance(3)
        assert await ref.get() == [2]
        assert mailboxes.counts.given_up == {"skipped": 1}


async def test_rejections_and_undecodable_messages_are_given_up() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        ref = cluster.client().ref(Stored, "a")
        await ref.refuse.deliver(1)
        call: Any = ref.add
        await call.tell("one")
        await call.deliver("two")
        await ref.add.deliver(3)
        assert await ref.get() == [3]
        assert calls == [1, 3]
        letters = cluster.nodes[0]._process.node.records.letters.rings["stored"]
        assert sorted(letter.reason for letter in letters) == ["refused", "refused", "rejected"]


@pytest.mark.parametrize("end", ["comes back", "attempts", "an operator"])
async def test_a_message_whose_handler_is_gone_waits_for_a_release_that_has_it(end: str) -> None:
    settings = {"delivery.on_poison": "skip" if end == "attempts" else "stop"}
    async with TestCluster(bus, nodes=1, settings=settings) as cluster:
        ref = cluster.client().ref(Stored, "a")
        mailboxes = mailboxes_of(cluster, Stored)
        invokers = mailboxes._host.deliveries.invokers
        failing.add(1)
        await ref.add.deliver(1)
        await ref.add.deliver(2)
        gone = MARK + "add"
        invoker = invokers.pop(gone)
        failing.clear()
        calls.clear()
        await cluster.advance(40)
        [(_, mail)] = mailboxes.stuck(10)
        assert (mail.place, mail.error, calls) == (1, "its handler is gone", [])
        assert mailboxes.counts.given_up == {}
        if end == "comes back":
            invokers[gone] = invoker
            await cluster.advance(40)
            assert calls == [1, 2]
        elif end == "attempts":
            await cluster.advance(400)
            assert mailboxes.counts.given_up == {"refused": 2}
        else:
            for number in (1, 2):
                await on_node(cluster, partial(mailboxes.skip, "a", number))
                await cluster.advance(1)
            assert mailboxes.counts.given_up == {"skipped": 2}
        assert mailboxes.waiting == 0


async def test_a_message_is_not_stashed() -> None:
    async with TestCluster(bus, nodes=1, settings={"delivery.attempts": 1}) as cluster:
        ref = cluster.client().ref(Stored, "a")
        await ref.aside.deliver(1)
        await ref.add.deliver(2)
        await cluster.advance(3)
        assert await ref.get() == [2]


async def test_a_full_mailbox_refuses_and_its_producer_sends_again() -> None:
    settings = {"sharding.durable_mailbox_messages": 4}
    async with TestCluster(bus, nodes=1, settings=settings) as cluster:
        ref = cluster.client().ref(Stored, "a")
        held.add(0)
        under_way = [asyncio.ensure_future(ref.add.deliver(n)) for n in range(10)]
        await cluster.advance(1)
        assert sum(one.done() for one in under_way) == 4
        host = cluster.nodes[0]._process.node.regions["stored"].host
        assert host.counts.dropped["mailbox_full"] >= 4
        held.clear()
        await asyncio.gather(*under_way)
        assert await ref.get() == list(range(10))


async def tell_many(cluster: TestCluster, numbers: Iterable[int]) -> list[asyncio.Future[None]]:
    """Tell an entity these numbers, one after the other, and do not wait for room."""
    ref, tells = cluster.client().ref(Stored, "a"), []
    for number in numbers:
        tells.append(asyncio.ensure_future(ref.add.tell(number)))
        await cluster.advance(0.01)
    return tells


@pytest.mark.parametrize(
    "bounds", [{"durable_mailbox_messages": 4}, {"durable_mailbox_bytes": 500}, {}]
)
async def test_tells_to_a_full_mailbox_wait_at_their_sender(bounds: dict[str, int]) -> None:
    """Whichever bound is met: of the entity, or of all mailboxes of the type."""
    settings = {f"sharding.{name}": value for name, value in bounds.items()}
    settings |= {} if bounds else {"sharding.mailbox_bytes": 3000}
    async with TestCluster(bus, nodes=1, settings=settings) as cluster:
        host = cluster.nodes[0]._process.node.regions["stored"].host
        boxes, limits = host.deliveries.mailboxes, host.runner.mailbox_limits
        assert boxes is not None
        held.add(0)
        tells = await tell_many(cluster, range(100))
        assert not tells[-1].done()
        assert len(boxes._boxes["a"].machine.mails()) < 60
        held.clear()
        await asyncio.gather(*tells)
        assert await cluster.client().ref(Stored, "a").get() == list(range(100))
        assert "mailbox_full" not in host.counts.dropped
        assert limits.pauses > 0
        assert not limits.paused


async def test_senders_wait_for_a_slow_entity_longer_than_for_one_that_stands_still() -> None:
    settings = {"sharding.durable_mailbox_messages": 4, "sharding.mailbox_patience": 2}
    async with TestCluster(bus, nodes=1, settings=settings) as cluster:
        ref = cluster.client().ref(Stored, "a")
        tells = [asyncio.ensure_future(ref.slow.tell(number)) for number in range(10)]
        await cluster.advance(0.1)
        tells += [asyncio.ensure_future(ref.slow.tell(number)) for number in range(10, 20)]
        await cluster.advance(20)
        await asyncio.gather(*tells)
        assert await ref.get() == list(range(20))
        host = cluster.nodes[0]._process.node.regions["stored"].host
        assert "mailbox_full" not in host.counts.dropped


async def test_tells_to_a_mailbox_that_stands_still_are_dropped_and_counted() -> None:
    settings = {"sharding.durable_mailbox_messages": 4, "sharding.mailbox_patience": 3}
    async with TestCluster(bus, nodes=1, settings=settings) as cluster:
        host = cluster.nodes[0]._process.node.regions["stored"].host
        held.add(0)
        tells = await tell_many(cluster, range(40))
        await cluster.advance(4)
        await asyncio.gather(*tells)
        lost = host.counts.dropped["mailbox_full"]
        assert 0 < lost <= 36
        held.clear()
        await cluster.advance(1)
        numbers = await cluster.client().ref(Stored, "a").get()
        assert numbers == list(range(40 - lost))
        await asyncio.gather(*await tell_many(cluster, range(40, 43)))
        assert await cluster.client().ref(Stored, "a").get() == [*numbers, 40, 41, 42]


async def test_an_operator_removes_a_state_for_which_messages_wait_only_with_a_word_on_them() -> (
    None
):
    async with TestCluster(bus, nodes=1) as cluster:
        ref = cluster.client().ref(Stored, "a")
        await ref.add.deliver(1)
        failing.add(2)
        await ref.add.deliver(2)
        await ref.add.deliver(3)
        await cluster.advance(0.5)
        process = cluster.nodes[0]._process
        admin, loop = process.admin, process.node.regions["stored"].host.loop

        async def remove(*, keep_messages: bool = False) -> Any:
            command = state_pages.remove_state(admin, "stored", "a", "me", "", keep_messages)
            return await Pending(cluster._time, cluster._time.begin(command, loop))

        with pytest.raises(RefusedOrder, match="2 messages wait in the durable mailbox"):
            await remove()
        assert await ref.get() == [1]
        assert (await remove(keep_messages=True))["removed"]
        assert await ref.get() == []
        failing.clear()
        await cluster.advance(30)
        assert await ref.get() == [2, 3]
        assert (await remove())["removed"]
        assert await ref.get() == []


async def test_a_passivated_entity_starts_for_its_message() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        ref = cluster.client().ref(Stored, "a")
        await ref.put.tell(1)
        await cluster.advance(300)
        assert not cluster.nodes[0].entities(Stored)
        await ref.put.tell(2)
        await cluster.advance(1)
        assert await ref.get() == [1, 2]


async def test_asks_keep_their_order_behind_messages() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        ref = cluster.client().ref(Stored, "a")
        for number in range(20):
            await ref.add.tell(number)
            assert await ref.get() == list(range(number + 1))


async def test_while_the_store_is_away_tells_wait_and_deliveries_are_sent_again() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        client = cluster.client()
        ref = client.ref(Stored, "a")
        await ref.add.deliver(0)
        await cluster.lose_store(cluster.nodes[0])
        await ref.add.tell(1)
        under_way = asyncio.ensure_future(ref.add.deliver(2))
        await cluster.advance(30)
        assert not under_way.done()
        await cluster.heal()
        await under_way
        await cluster.advance(40)
        assert sorted(await ref.get()) == [0, 1, 2]


@pytest.mark.parametrize("kind", [Stored, Memory])
@pytest.mark.parametrize("mode", ["buffer", "ordered", "drop"])
async def test_nothing_confirmed_is_lost_or_repeated_by_moves(mode: str, kind: Any) -> None:
    settings = {"sharding.handoff": mode}
    async with TestCluster(bus, nodes=3, settings=settings) as cluster:
        client = cluster.client()
        refs = [client.ref(kind, f"e{n}") for n in range(6)]
        under_way = []
        for number in range(30):
            under_way += [asyncio.ensure_future(ref.add.deliver(number)) for ref in refs]
            if number == 10:
                await cluster.add("later")
            if number == 20:
                await cluster.leave(cluster.nodes[0])
            await cluster.advance(0.05)
        await asyncio.gather(*under_way)
        await cluster.settle()
        await cluster.advance(40)
        for ref in refs:
            if kind is Stored:
                assert await ref.get() == list(range(30))
        if kind is Memory:  # its numbers are lost with the object, so its calls are looked at
            lost_records = mode == "drop"
            assert set(calls) == set(range(30))
            assert lost_records or len(calls) == 30 * len(refs)
        assert not left_in_store(cluster)


def test_declarations_that_cannot_be() -> None:
    other = ShardBus("refused")

    class Plain(Entity):
        @handler
        def hit(self) -> None: ...

    class Sourced(EventSourced):
        state: Taken

        @event
        def added(self, happened: Added) -> None: ...

        @handler
        def hit(self) -> None: ...

    declare: Any = other.entity
    with pytest.raises(ConfigError, match="instances"):
        declare(durable_mailbox=True, instances=3)(Plain)
    with pytest.raises(ConfigError, match="true or false"):
        declare(durable_mailbox=1)(Plain)
    with pytest.raises(ConfigError, match="event-sourced"):
        declare(durable_mailbox=True)(Sourced)


@pytest.mark.parametrize("seed", [0, *long_only(*range(1, 12))])
async def test_each_confirmed_message_counts_once_whatever_fails(seed: int) -> None:
    """Nodes are killed, suspended and lose the store, shards move; senders deliver all the time."""
    dice = Random(seed)
    async with TestCluster(bus, nodes=3, seed=seed) as cluster:
        client = cluster.client()
        refs = [client.ref(Stored, f"e{n}") for n in range(5)]
        under_way: dict[asyncio.Future[None], tuple[int, int]] = {}
        for number in range(60):
            for at, ref in enumerate(refs):
                under_way[asyncio.ensure_future(ref.add.deliver(number))] = (at, number)
            if number % 10 == 5:
                node = dice.choice([node for node in cluster.nodes if node.runs])
                match dice.randrange(4):
                    case 0:
                        await cluster.kill(node)
                        await cluster.add(f"after{number}")
                    case 1:
                        await cluster.leave(node)
                        await cluster.add(f"after{number}")
                    case 2:
                        await cluster.lose_store(node)
                    case _:
                        await cluster.pause(node)
                await cluster.advance(dice.random() * 10)
                await cluster.heal()
                for paused in cluster.nodes:
                    if paused.paused:
                        await cluster.resume(paused)
            if number % 7 == 3:
                failing.add(number)
            if number % 7 == 6:
                failing.clear()
            await cluster.advance(dice.random() * 0.5)
        failing.clear()
        await cluster.advance(120)
        for delivered in under_way:
            await delivered
        await cluster.settle()
        await cluster.advance(120)
        for ref in refs:
            assert await ref.get() == list(range(60))
        assert not left_in_store(cluster)


async def test_the_account_of_messages_is_exact() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        client = cluster.client()
        failing.add(3)
        for number in range(8):
            ref = client.ref(Stored, f"e{number % 3}")
            await ref.add.tell(number)
            await ref.add.deliver(number)
            await ref.get()
            await client.ref(Memory, "m").add.tell(number)
        await client.ref(Stored, "e0").refuse.tell(9)
        await cluster.advance(300)
        for node in cluster.nodes:
            for region in node._process.node.regions.values():
                assert account_of(region).missing == 0


async def test_messages_on_the_list_of_another_shard_reach_their_entity() -> None:
    """As after a change of the shard function."""
    async with TestCluster(bus, nodes=2) as cluster:
        client, store = cluster.client(), cluster.world.store
        right = cluster.nodes[0]._process.node.regions["stored"].router.shard_of("a")
        wrong = next(shard for shard in map(str, range(6)) if shard != right)
        deliver, bodies = NumberKind.DELIVER, (b"\x91\x01", b"\x91\x02")
        numbers = [DeliveryNumber(deliver, "p", 0, n, 0, body) for n, body in enumerate(bodies, 1)]
        entries = [write_mail(StoredMail(0, "!add", number)) for number in numbers]
        kind, name = "$mailbox/stored", f"{wrong}/a"
        store.data.journals[kind, name] = MemoryJournal(wrong, 0, entries=entries)
        store.data.remembered["stored" + LIST, wrong] = _Remembered(0, ["a"])
        await client.ref(Stored, "other").get()
        for at in range(20):
            await client.ref(Stored, f"e{at}").get()  # starts every shard
        await cluster.advance(40)
        assert await client.ref(Stored, "a").get() == [1, 2]
        assert not left_in_store(cluster)


async def test_entities_of_one_node_send_and_ask_each_other() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        ref = cluster.client().ref(Stored, "a")
        await ref.add.deliver(5)
        assert await ref.copy("b") == [5]


async def test_a_shard_leaves_though_a_message_is_stored_while_it_stops() -> None:
    """The append of a message ends after its entity has left memory, while another entity keeps the
    shard: the entity that starts for it stops with the shard, too."""
    async with TestCluster(bus, nodes=2) as cluster:
        client = cluster.client()
        slow, quick = two_of_one_shard()
        await client.ref(Stored, slow).add.deliver(0)
        await client.ref(Stored, quick).add.deliver(0)
        home = cluster.where(Stored, slow)
        assert home is not None
        assert cluster.where(Stored, quick) is home
        held.add(1)
        await client.ref(Stored, slow).add.deliver(1)
        cluster.store.slow(0.5)
        await client.ref(Stored, quick).add.tell(1)
        await cluster.advance(0.02)
        leaving = cluster.spawn(cluster.leave(home))
        await cluster.advance(10)
        held.clear()
        await cluster.advance(10)
        assert leaving.done(), "its shards wait for no deadline"
        assert await client.ref(Stored, quick).get() == [0, 1]
        assert await client.ref(Stored, slow).get() == [0, 1]


def two_of_one_shard() -> tuple[str, str]:
    """Return the ids of two entities in one of six shards."""
    first = "e0"
    shard = crc32(first.encode()) % 6
    return first, next(f"e{n}" for n in range(1, 100) if crc32(f"e{n}".encode()) % 6 == shard)
