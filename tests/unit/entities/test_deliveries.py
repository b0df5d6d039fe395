"""Deliveries at entities, in whole nodes in one process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus import (
    BufferFull,
    ConfigError,
    DeliveryFailed,
    Entity,
    EntityFailed,
    KeyReused,
    Rejection,
    ShardBus,
    handler,
)
from shardbus.deliveries import record
from shardbus.entities.entity_sends import LIST, delivers
from shardbus.errors import SchemaError
from shardbus.testing import EntityProbe, TestCluster

bus = ShardBus("deliveries")
runs: dict[str, int] = {}


@dataclass
class Broke(Rejection):
    left: int


@dataclass
class Balance:
    cents: int = 0
    got: list[int] = field(default_factory=list)


@bus.entity(name="account", shards=6)
class Account(Entity):
    state: Balance

    @handler
    async def credit(self, cents: int) -> int:
        self.state.cents += cents
        self.state.got.append(cents)
        await self.save()
        return self.state.cents

    @handler
    def earn(self, cents: int) -> int:
        self.state.cents += cents
        return self.state.cents

    @handler
    async def pay(self, payee: str, cents: int) -> None:
        self.state.cents -= cents
        self.deliver(self.context.ref(Account, payee).credit, cents)
        await self.save()

    @handler
    async def put_away(self, vault: str, cents: int) -> None:
        self.state.cents -= cents
        self.deliver(self.context.ref(Vault, vault).store, cents)
        await self.save()

    @handler
    async def promise(self, payee: str) -> None:
        self.deliver(self.context.ref(Account, payee).credit, 1)
        raise ValueError("before the save")

    @handler
    async def late(self, cents: int) -> None:
        self.state.cents += cents
        await self.save()
        raise ValueError("after the save")

    @handler
    def refuse(self) -> None:
        runs["refuse"] = runs.get("refuse", 0) + 1
        raise Broke(self.state.cents)

    @handler
    def fail(self) -> None:
        raise ValueError("always")

    @handler
    async def have_credited(self, other: str, cents: int, key: str) -> str:
        """Credit another account, as an entity, and return the outcome."""
        try:
            return str(await self.context.ref(Account, other).credit.ask(cents, key=key))
        except KeyReused as reused:
            return f"reused, definite: {reused.definite}"

    @handler
    def balance(self) -> Balance:
        return self.state

    async def receive(self, message: object) -> None:
        self.state.got.append(-1)


@bus.entity(name="till", shards=6)
class Till(Entity):
    def __init__(self) -> None:
        self.taken: list[int] = []

    @handler
    def take(self, number: int) -> None:
        self.taken.append(number)

    @handler
    def refuse(self) -> None:
        raise Broke(len(self.taken))

    @handler
    def report(self) -> list[int]:
        return self.taken


@bus.entity(name="teller", shards=6, supervision={ConnectionError: "resume"})
class Teller(Entity):
    """Its handlers end in the ways that an application may choose."""

    state: Balance
    fails = 0
    fired = 0

    @handler
    async def pay(self, cents: int) -> None:
        self.deliver(self.context.ref(Vault, "teller's").store, cents)
        await self.context.remind("receipt", after=5)
        if cents > self.state.cents:
            raise Broke(self.state.cents)
        self.state.cents -= cents
        await self.save()

    @handler
    async def late(self, cents: int) -> None:
        self.state.cents += cents
        await self.save()
        raise ConnectionError("after the save")

    @handler
    def receipt(self) -> None:
        Teller.fired += 1

    @handler
    async def take(self, cents: int) -> int:
        self.state.cents += cents
        if Teller.fails:
            Teller.fails -= 1
            raise ConnectionError("the audit log does not answer")
        await self.save()
        return self.state.cents

    @handler
    async def close_account(self) -> int:
        left = self.state.cents
        await self.clear()
        return left

    @handler
    async def look_up(self) -> None:
        self.context.pipe_to_self(asyncio.sleep(5), answer=True)

    @handler
    def cents(self) -> int:
        return self.state.cents

    async def receive(self, message: object) -> None: ...


@bus.entity(name="vault", shards=6)
class Vault(Entity):
    state: Balance
    shut = broken = False

    @handler
    async def store(self, cents: int) -> None:
        while Vault.shut:
            await asyncio.sleep(1)
        if Vault.broken:
            raise ValueError("its lock is broken")
        self.state.cents += cents

    @handler
    def balance(self) -> int:
        return self.state.cents


@bus.entity(name="box", shards=6, durable_mailbox=True)
class Box(Vault):
    """A vault with a durable mailbox."""


async def test_a_delivery_takes_effect_and_is_stored_before_it_is_confirmed() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        account = cluster.client().ref(Account, "a")
        await account.credit.deliver(5)
        await account.earn.deliver(7)
        for _ in range(1):
            await cluster.kill(cluster.where(Account, "a") or cluster.nodes[0])
        await cluster.settle()
        assert (await account.balance()).cents == 12


async def test_the_client_tells_with_an_acknowledgement() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        client = cluster.client()
        await client.tell("account", "a", "credit", 5, ack=True)
        await client.tell(Account, "a", {"any": "message"}, ack=True)
        assert (await client.ref(Account, "a").balance()).got == [5, -1]


async def test_windows_are_kept_and_order_with_them() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        till = cluster.client().ref(Till, "t")
        await asyncio.gather(*(till.take.deliver(n) for n in range(120)))
        assert await till.report() == list(range(120))
        under_way = [till.take.deliver_nowait(n) for n in range(50)]
        with pytest.raises(BufferFull, match="window"):
            till.take.deliver_nowait(50)
        await asyncio.gather(*under_way)


async def test_errors_of_handlers() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        account = cluster.client().ref(Account, "a")
        with pytest.raises(Broke) as refused:
            await account.refuse.deliver()
        assert refused.value.left == 0
        await account.late.deliver(3)
        assert (await account.balance()).cents == 3
        call: Any = account.credit
        with pytest.raises(SchemaError):
            await call.deliver("three")
        poison, behind = account.fail.deliver(), account.credit.deliver(4)
        with pytest.raises(DeliveryFailed) as failed:
            await poison
        assert (failed.value.reason, failed.value.definite) == ("poison", True)
        await behind
        assert (await account.balance()).cents == 7


async def test_an_ask_with_a_key_runs_once() -> None:
    runs.clear()
    async with TestCluster(bus, nodes=2) as cluster:
        client = cluster.client()
        account = client.ref(Account, "a")
        assert [await account.credit.ask(5, key="one") for _ in range(2)] == [5, 5]
        assert await account.credit.ask(5, key="two") == 10
        await cluster.kill(cluster.where(Account, "a") or cluster.nodes[0])
        await cluster.settle()
        assert await account.credit.ask(5, key="one") == 5
        for _ in range(2):
            with pytest.raises(Broke) as refused:
                await account.refuse.ask(key="three")
            assert refused.value.left == 10
        assert runs == {"refuse": 1}
        call: Any = account.credit
        with pytest.raises(ConfigError, match="a key is a text"):
            call.ask(5, key="")


async def test_an_ask_whose_result_was_lost_says_so() -> None:
    async with TestCluster(bus, nodes=2, seed=3) as cluster:
        account = cluster.client().ref(Account, "a")
        assert await account.credit.ask(5, key="one") == 5
        saved = cluster.store.next_save(Account, "a")
        asked = asyncio.ensure_future(account.credit.ask(6, key="two"))
        await saved  # the effect is stored, and its result is not
        await cluster.kill(cluster.where(Account, "a") or cluster.nodes[0])
        for call in (asked, account.credit.ask(6, key="two")):
            with pytest.raises(EntityFailed, match="'two' has been handled, and its") as lost:
                await call
            assert (lost.value.type, lost.value.definite) == ("ResultLost", False)
        assert (await account.balance()).got == [5, 6]


async def test_no_result_is_lost_of_a_handler_that_leaves_the_save_to_the_node() -> None:
    async with TestCluster(bus, nodes=2, seed=3) as cluster:
        account = cluster.client().ref(Account, "a")
        assert await account.earn.ask(5, key="one") == 5
        saved = cluster.store.next_save(Account, "a")
        asked = asyncio.ensure_future(account.earn.ask(6, key="two"))
        await saved  # of the effect and its result
        await cluster.kill(cluster.where(Account, "a") or cluster.nodes[0])
        assert [await asked, await account.earn.ask(6, key="two")] == [11, 11]
        assert (await account.balance()).cents == 11


async def test_a_key_is_for_one_request() -> None:
    """As an idempotency key of a payment service: the repeat of a request gets its result, another
    request gets an error, and its handler is not called."""
    async with TestCluster(bus, nodes=4) as cluster:
        account = cluster.client().ref(Account, "a")
        assert await account.credit.ask(5, key="one") == 5
        with pytest.raises(Broke):
            await account.refuse.ask(key="two")
        others: list[tuple[Any, tuple[Any, ...], str]] = [
            (account.earn, (5,), "one"),
            (account.credit, (6,), "one"),
            (account.refuse, (), "one"),
            (account.credit, (5,), "two"),
        ]
        for _ in range(2):
            for call, arguments, key in others:
                with pytest.raises(KeyReused, match=repr(key)) as reused:
                    await call.ask(*arguments, key=key)
                assert reused.value.definite
            assert (await account.balance()).got == [5]
            await cluster.kill(cluster.where(Account, "a") or cluster.nodes[0])
            await cluster.settle()
        assert await account.credit.ask(5, key="one") == 5
        assert await cluster.client().ref(Account, "b").credit.ask(6, key="one") == 6


async def test_a_key_is_for_one_request_of_entities_too() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        asker = cluster.client().ref(Account, "asker")
        assert await asker.have_credited("a", 5, "one") == "5"
        assert await asker.have_credited("a", 5, "one") == "5"
        assert await asker.have_credited("a", 6, "one") == "reused, definite: True"


async def test_a_key_is_for_one_request_of_types_without_state() -> None:
    async with EntityProbe(Till, "t") as probe:
        await probe.ref.take.ask(1, key="one")
        await probe.ref.take.ask(1, key="one")
        with pytest.raises(KeyReused):
            await probe.ref.take.ask(2, key="one")
        assert await probe.ref.report() == [1]


async def test_an_entity_delivers_what_its_save_has_stored() -> None:
    async with TestCluster(bus, nodes=3) as cluster:
        client = cluster.client()
        payer, payee = client.ref(Account, "a"), client.ref(Account, "b")
        for _ in range(10):
            await payer.pay("b", 3)
        await cluster.advance(5)
        assert (await payee.balance()).got == [3] * 10
        with pytest.raises(Exception, match="before the save"):
            await payer.promise("b")
        await cluster.advance(5)
        assert (await payee.balance()).got == [3] * 10
        assert (await payer.balance()).cents == -30


async def test_the_next_home_delivers_without_a_message_for_the_payer() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        payer = cluster.client().ref(Account, "a")
        await payer.balance()
        home = cluster.where(Account, "a")
        assert home is not None
        pays = payer.pay.tell("b", 3)
        await pays
        listed = lambda: any(  # noqa: E731
            name == "account" + LIST and row.entity_ids
            for (name, _), row in cluster.world.store.data.remembered.items()
        )
        for _ in range(1000):
            if listed():
                break
            await cluster.advance(0.001)
        assert listed()
        await cluster.kill(home)
        await cluster.advance(40)
        assert not listed()


async def test_an_entity_that_started_before_its_shard_read_the_list_leaves_it() -> None:
    """Its former home died between the save without pending deliveries and the change of the
    list. The list comes page by page, and each of its entities is started then."""
    async with TestCluster(bus, nodes=1) as cluster:
        await cluster.client().ref(Account, "a").credit(1)
        host = cluster.world.sim_nodes["node1"].node.regions["account"].host
        hosted = host.find("a", "").shard
        row = cluster.world.store.data.remembered["account" + LIST, hosted.shard]
        row.entity_ids[:] = ["a"]
        host.deliveries.sends.lists.recovery.put(hosted, ["a"])
        await cluster.advance(3)
        assert row.entity_ids == []


async def test_pending_deliveries_go_on_after_a_stop_of_everything_without_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An orderly stop leaves the payer's shard without a home, and nobody sends to it again."""
    async with TestCluster(bus, nodes=2, seed=5) as cluster:
        monkeypatch.setattr(Vault, "shut", True)
        await cluster.client().ref(Account, "a").put_away("v", 7)
        await cluster.advance(1)
        for node in list(cluster.nodes):
            await cluster.leave(node)
        monkeypatch.setattr(Vault, "shut", False)
        node = await cluster.add()
        await cluster.advance(60)
        vault = node.entity(Vault, "v")
        assert vault is not None
        assert vault.state.cents == 7


async def by(ref: Any, way: str, *args: Any) -> Any:
    """Call a handler in one of the ways: ask, deliver, key."""
    if way == "deliver":
        return await ref.deliver(*args)
    return await (ref.ask(*args, key="k") if way == "key" else ref(*args))


@pytest.mark.parametrize("way", ["ask", "deliver", "key"])
async def test_a_refusal_before_the_save_delivers_and_reminds_nothing(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a later save of another handler."""
    monkeypatch.setattr(Teller, "fired", 0)
    async with TestCluster(bus, nodes=1) as cluster:
        teller = cluster.client().ref(Teller, "t")
        with suppress(Broke):
            await by(teller.pay, way, 30)
        await cluster.advance(20)
        await teller.take(50)
        await cluster.advance(20)
        assert cluster.store.state(Vault, "teller's") is None
        assert Teller.fired == 0
        await teller.pay(20)
        await cluster.advance(20)
        vault = cluster.store.state(Vault, "teller's")
        assert vault is not None
        assert (vault.cents, Teller.fired) == (20, 1)


async def test_a_refusal_forgets_no_delivery_that_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for its confirmation; the next save is without it only once it is confirmed."""
    async with TestCluster(bus, nodes=1) as cluster:
        teller = cluster.client().ref(Teller, "t")
        monkeypatch.setattr(Vault, "shut", True)
        await teller.take(50)
        await teller.pay(20)
        with suppress(Broke):
            await teller.pay(60)
        await teller.take(1)
        monkeypatch.setattr(Vault, "shut", False)
        await cluster.kill(cluster.nodes[0])
        await cluster.add()
        await cluster.advance(60)
        vault = cluster.store.state(Vault, "teller's")
        assert vault is not None
        assert vault.cents == 20


@pytest.mark.parametrize("way", ["deliver", "key"])
async def test_a_delivery_that_fails_is_handled_anew_with_the_stored_state_in_spite_of_resume(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Teller, "fails", 2)
    async with TestCluster(bus, nodes=1) as cluster:
        teller = cluster.client().ref(Teller, "t")
        while way == "key" and Teller.fails:
            with pytest.raises(EntityFailed):
                await by(teller.take, way, 100)
        await by(teller.take, way, 100)
        assert await teller.cents() == 100


@pytest.mark.parametrize("way", ["ask", "deliver", "key"])
async def test_a_removed_state_stays_removed_whatever_is_stored_of_the_message(way: str) -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        teller = cluster.client().ref(Teller, "t")
        await teller.take(100)
        await by(teller.close_account, way)
        assert cluster.store.state(Teller, "t") in (None, Balance())
        await cluster.kill(cluster.where(Teller, "t") or cluster.nodes[0])
        await cluster.settle()
        assert await teller.cents() == 0


@pytest.mark.parametrize("way", ["deliver", "key"])
async def test_work_cannot_answer_what_takes_effect_once(way: str) -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        teller = cluster.client().ref(Teller, "t")
        with pytest.raises((DeliveryFailed, EntityFailed), match="cannot be answered later"):
            await by(teller.look_up, way)


def test_classes_that_deliver_are_known() -> None:
    assert delivers(bus.types["account"])
    assert not delivers(bus.types["till"])


@pytest.mark.parametrize("kind", ["entity", "mailbox", "caller"])
async def test_poison_is_replayed_unless_its_sender_got_an_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"delivery.attempts": 1}
    monkeypatch.setattr(Vault, "broken", True)
    async with TestCluster(bus, nodes=1, settings=settings) as cluster:
        client = cluster.client()
        if kind == "entity":
            await client.ref(Account, "a").put_away("v", 7)
        elif kind == "mailbox":
            await client.ref(Box, "v").store.tell(7)
        else:
            delivery: Any = cluster.nodes[0].ref(Vault, "v").store.deliver(7)
            with pytest.raises(DeliveryFailed):
                await delivery
        await cluster.advance(60)
        letters = cluster.nodes[0]._process.node.records.letters
        kept = [one for ring in letters.rings.values() for one in ring]
        assert [(one.reason, one.answered) for one in kept] == [("poison", kind == "caller")]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (Account, "credit"),
        (Account, "earn"),
        (Account, "late"),
        (Account, "refuse"),
        (Teller, "late"),
        (Till, "take"),
        (Till, "refuse"),
    ],
)
async def test_an_entity_remembers_a_bounded_number_of_producers_and_results(
    kind: type[Any], method: str, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way its handler ends. Forgotten ones are counted."""
    kept, sent = 3, 5
    monkeypatch.setattr(record, "RESULTS_MAX", kept)
    settings = {"delivery.producers": kept, "delivery.attempts": 1}
    async with TestCluster(bus, nodes=1, settings=settings) as cluster:
        arguments = () if method == "refuse" else (1,)
        for number in range(sent):
            client = await cluster.connect(f"c{number}")
            to = getattr(client.ref(kind, "a"), method)
            with suppress(Broke, DeliveryFailed, EntityFailed):
                if keyed:
                    await to.ask(*arguments, key=f"k{number}")
                else:
                    await to.deliver(*arguments)
        host = cluster.nodes[0]._process.node.regions[kind.__name__.lower()].host
        [remembered] = [s.records["a"] for s in host.shards.values() if "a" in s.records]
        rows = remembered.results if keyed else remembered.done
        assert len(rows) == kept
        assert host.deliveries.decisions["forgotten"] >= sent - kept
