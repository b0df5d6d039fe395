"""The router of a type with instances: wire ids, rows, and the choice of a sender."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.errors import AskTimeout, BufferFull, ConfigError, NodeLost, UnknownEntityType
from shardbus.ids import NodeId, shard_of
from shardbus.routing import instance_routes, instance_sender
from shardbus.routing.instance_policies import Choice, spread
from shardbus.routing.instance_routes import InstanceRoutes, wire_id
from shardbus.routing.instance_sender import InstanceSender
from shardbus.routing.pending_message import PendingMessage
from shardbus.routing.router import Router
from shardbus.sharding import events
from shardbus.sharding.instances import Instances, row_of
from shardbus.sharding.messages import Home, ShardHomes
from shardbus.sharding.region.region import ShardRegion
from shardbus.transport.asks import CoarseClock, Unsent
from shardbus.wire.schema import Interface
from tests.virtual_time import virtual
from tests.waiting import turns, until

A, B, C = (NodeId("10.0.0.1", port, port) for port in (1, 2, 3))


class Out:
    """A session that takes everything."""

    writable = True

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.payloads: list[bytes] = []
        self.asks: list[tuple[int, Any]] = []
        """The timeout in ms, and the future, of each ask."""

    def tell(self, key: Any, entity_id: str, payload: bytes, accepted: bool = False) -> None:
        self.sent.append(entity_id)
        self.payloads.append(payload)

    def ask(
        self, key: Any, entity_id: str, payload: bytes, timeout_ms: int, waiter: Any, *args: Any
    ) -> None:
        self.tell(key, entity_id, payload)
        self.asks.append((timeout_ms, waiter))

    def flush(self) -> None: ...
    def leave(self, leaves: Any) -> None: ...


class Owner:
    def __init__(self) -> None:
        self.outs = {node: Out() for node in (A, B, C)}
        self.drops: list[str] = []
        self.answered: list[bool] = []

    def out_for(self, node: NodeId) -> Any:
        return self.outs[node]

    def is_here(self, node: NodeId) -> bool:
        return node == A

    def send_to_leaving(self, pending: PendingMessage) -> None: ...

    def ask_failed(self, entity_type: str, waited_s: float) -> None: ...

    def why_away(self) -> str:
        return ""

    def perform(self, effect: object) -> None: ...
    def lost(self, pending: PendingMessage, reason: str, *, answered: bool) -> None:
        self.drops.append(reason)
        self.answered.append(answered)


def router_on(here: NodeId | None = A, buffer_size: int = 1000) -> tuple[Router, Owner]:
    interface = Interface("quote", 4, "crc32/4~N", instances=Instances(exact=3), router="nearest")
    owner, loop = Owner(), asyncio.get_running_loop()
    region = ShardRegion("quote", None, interface.layout, ShardingSettings(buffer_size=buffer_size))
    router = Router(interface, region, owner, loop, CoarseClock())
    rows_of(router).here, rows_of(router).sender_name = here, str(here)
    router.handle(events.CoordinatorAt(C))
    return router, owner


def rows_of(router: Router) -> InstanceRoutes:
    assert router.rows is not None
    return router.rows


def home(router: Router, instance: int, node: NodeId, fence: int) -> None:
    row = row_of(shard_of("x", 4), instance)
    homes = ShardHomes(1, (Home(row, node, fence),))
    router.handle(events.MessageReceived(C, homes))


async def test_a_wire_id_belongs_to_a_row_of_its_entitys_shard() -> None:
    router, _ = router_on()
    shard = shard_of("x", 4)
    assert router.shard_of(wire_id("x", 2)) == row_of(shard, 2)
    assert [router.has_shard(s) for s in ("3~1", "3", "4~1", "3~0", "3~1001")] == [
        True, False, False, False, False
    ]  # fmt: skip
    for wrong in ("x", "x~0", "~2", "a~b~2", "x~y"):
        with pytest.raises(ConfigError, match="names no instance"):
            router.shard_of(wrong)
    with pytest.raises(ConfigError, match="has a ~"):
        rows_of(router).of("x~2")
    with pytest.raises(ConfigError, match="with its instance"):
        rows_of(router).of("x" * 254)


async def test_S3_47_nearest_prefers_the_own_zone_also_if_it_is_known_late() -> None:
    router, owner = router_on()
    sender = InstanceSender(router, Choice("nearest"))
    home(router, 2, B, 1)
    home(router, 3, C, 2)
    for zones in ({}, {A: "west", B: "west", C: "east"}, {A: "east", B: "west", C: "east"}):
        for out in owner.outs.values():
            out.sent.clear()
        rows_of(router).set_zones(zones)
        sender.tell(sender.key("note"), "x", b"")
        if zones:
            near = B if zones[A] == "west" else C
            assert [node for node, out in owner.outs.items() if out.sent] == [near]
    client, _ = router_on(here=None)
    rows_of(client).set_zones({A: "west"})
    assert rows_of(client).zone == ""


async def test_a_sender_goes_to_its_own_instance_and_to_another_while_it_moves() -> None:
    router, owner = router_on()
    sender = InstanceSender(router, Choice("nearest"))
    home(router, 2, B, 1)
    sender.tell(sender.key("note"), "x", b"")
    home(router, 1, A, 2)
    sender.tell(sender.key("note"), "x", b"")
    router.handle(events.NodeGone(A))
    sender.tell(sender.key("note"), "x", b"")
    assert (owner.outs[B].sent, owner.outs[A].sent) == (["x~2", "x~2"], ["x~1"])


async def test_without_any_home_a_message_waits_for_the_one_that_it_was_hashed_to() -> None:
    router, owner = router_on()
    sender = InstanceSender(router, Choice("nearest"))
    sender.tell(sender.key("note"), "x", b"")
    wire = sender.pick("x")
    for instance, node in ((1, A), (2, B), (3, C)):
        home(router, instance, node, instance)
    sent = {node: out.sent for node, out in owner.outs.items() if out.sent}
    assert list(sent.values()) == [[wire]]


@pytest.mark.parametrize("policy", ["nearest", "round-robin", "random", "least-busy", "hash"])
async def test_what_was_sent_blindly_goes_to_an_instance_with_a_home(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hash` waits for its own instance, which gets none here."""
    router, owner = router_on()
    sender = InstanceSender(router, Choice(policy, "ACME" if policy == "hash" else ""))
    delivered: list[PendingMessage] = []
    deliver = router.deliver
    monkeypatch.setattr(
        router, "deliver", lambda message: (delivered.append(message), deliver(message))[1]
    )
    sender.tell(sender.key("note"), "x", b"")
    ask = sender.ask(sender.key("get"), "x", b"", 5000, lambda payload: payload)
    waiting = {int(pending.entity_id[-1]) for pending in delivered}
    instance = min({1, 2, 3} - waiting)
    home(router, instance, B, 1)
    if policy == "hash":
        await turns()
        assert (owner.outs[B].sent, router.region.buffered[0]) == ([], 2)
    else:
        await until(lambda: not router.region.buffered[0], "both messages were sent")
        assert owner.outs[B].sent == [f"x~{instance}"] * 2
    ask.cancel()
    router.close()


async def test_a_message_routed_anew_is_not_bound_by_what_another_sender_sent() -> None:
    """Its instance is no more, and the next one has no home. Then the other one gets a home."""
    router, owner = router_on()
    entity_id = next(
        str(n)
        for n in range(1000)
        if shard_of(str(n), 4) == shard_of("x", 4) and spread(wire_id(str(n), 3), 2) == 1
    )
    router.tell(router.key("note"), wire_id(entity_id, 3), b"any")
    InstanceSender(router, Choice("hash", "k")).tell(router.key("note"), "x", b"bound")
    rows_of(router).set_count(2)
    assert rows_of(router).rerouted >= 1
    home(router, 2, B, 1)
    await until(lambda: b"any" in owner.outs[B].payloads, "the instance with a home got it")
    router.close()


async def test_an_ask_of_first_is_not_bound_by_what_another_sender_sent() -> None:
    router, owner = router_on()
    by_hash, first = (InstanceSender(router, Choice(policy, "")) for policy in ("hash", "first"))
    by_hash.tell(router.key("note"), "x", b"bound")
    ask = first.ask(router.key("get"), "x", b"any", 5000, lambda payload: payload)
    blindly = int(first.pick("x")[-1])
    home(router, 1 + blindly % 3, B, 1)
    await until(lambda: b"any" in owner.outs[B].payloads, "the instance with a home got it")
    ask.cancel()
    router.close()


@pytest.mark.parametrize("blind", [True, False])
async def test_first_asks_an_instance_that_got_its_home_after_the_first_ask(blind: bool) -> None:
    router, owner = router_on()
    sender = InstanceSender(router, Choice("first", after=5))
    blindly = int(sender.pick("x")[-1])
    late = 1 + blindly % 3
    if not blind:
        home(router, late, B, 1)
    answer = sender.ask(router.key("get"), "x", b"", 5000, lambda payload: payload)
    home(router, late, B, 1)
    await until(lambda: owner.outs[B].asks, "the instance with a home got it")
    home(router, blindly, A, 2)
    owner.outs[B].asks[0][1].set_exception(NodeLost("died"))
    await until(lambda: owner.outs[A].asks, "another instance got it")
    owner.outs[A].asks[0][1].set_result(7)
    assert await answer == 7
    assert (owner.outs[A].sent, owner.outs[B].sent) == ([f"x~{blindly}"], [f"x~{late}"])
    router.close()


async def test_what_a_lost_session_never_sent_goes_to_no_other_instance() -> None:
    """It may be older than messages that its instance has got."""
    router, owner = router_on()
    key = router.key("note")
    router.resend([Unsent(key, "", wire_id("x", 1), b"unsent", 0, None, ())])
    home(router, 2, B, 1)
    assert (owner.outs[B].sent, router.waiting) == ([], 1)
    home(router, 1, A, 2)
    assert owner.outs[A].payloads == [b"unsent"]
    router.close()


@virtual
async def test_an_ask_of_all_whose_number_comes_late_has_the_rest_of_its_time() -> None:
    """Each instance that has answered by then is in the answer, with AskTimeout for the others."""
    router, owner = router_on()
    for instance, node in ((1, A), (2, B)):
        home(router, instance, node, instance)
    sender = InstanceSender(router, Choice("all"))
    answer = sender.ask(router.key("get"), "x", b"", 300, lambda payload: payload)
    await asyncio.sleep(0.1)
    rows_of(router).set_count(2)
    [(timeout_ms, quick)], [(_, silent)] = owner.outs[A].asks, owner.outs[B].asks
    assert timeout_ms == 200
    quick.set_result(7)
    await asyncio.sleep(0.21)
    assert not answer.done()
    silent.set_exception(AskTimeout("no answer in time"))
    answers = await answer
    assert (answers[str(A)], type(answers[str(B)])) == (7, AskTimeout)
    router.close()


@virtual
async def test_an_ask_of_all_whose_number_is_not_known_in_time_fails() -> None:
    router, owner = router_on()
    home(router, 1, A, 1)
    sender = InstanceSender(router, Choice("all"))
    answer = sender.ask(router.key("get"), "x", b"", 300, lambda payload: payload)
    with pytest.raises(AskTimeout, match="the number of instances of 'quote' is not known"):
        await answer
    rows_of(router).set_count(2)
    assert (owner.outs[A].sent, router.waiting) == ([], 0)
    router.close()


@virtual
async def test_both_asks_of_first_share_the_time_of_the_call() -> None:
    router, owner = router_on()
    home(router, 1, A, 1)
    home(router, 2, B, 2)
    sender = InstanceSender(router, Choice("first", after=0.1))
    answer = sender.ask(router.key("get"), "x", b"", 300, lambda payload: payload)
    await asyncio.sleep(0.1001)
    [(first_ms, _)], [(second_ms, second)] = owner.outs[A].asks, owner.outs[B].asks
    assert (first_ms, second_ms) == (300, 200)
    second.set_result(7)
    assert await answer == 7
    late = sender.ask(router.key("get"), "x", b"", 50, lambda payload: payload)
    await asyncio.sleep(0.06)
    owner.outs[A].asks[-1][1].set_exception(AskTimeout("no answer in time"))
    with pytest.raises(AskTimeout):
        await late
    assert (len(owner.outs[B].asks), rows_of(router).hedged) == (1, 1)
    router.close()


async def test_a_described_number_is_used() -> None:
    router, _ = router_on()
    assert (rows_of(router).count, rows_of(router).counted) == (3, False)
    rows_of(router).set_count(2)
    assert (rows_of(router).count, rows_of(router).counted) == (2, True)
    assert len(rows_of(router).of("x").routes) == 2


async def test_messages_of_all_wait_in_order_until_the_number_is_known() -> None:
    router, owner = router_on()
    for instance in (1, 2):
        home(router, instance, B, 1)
    sender = InstanceSender(router, Choice("all"))
    key = sender.key("get")
    sender.tell(key, "x", b"1")
    ask = sender.ask(key, "x", b"2", 1000, lambda payload: payload)
    given_up = sender.ask(key, "x", b"3", 1000, lambda payload: payload)
    sender.tell(key, "x", b"4")
    given_up.cancel()
    assert (router.waiting, router.buffered_tells, owner.outs[B].payloads) == (4, 2, [])
    rows_of(router).set_count(2)
    assert owner.outs[B].payloads == [b"1", b"1", b"2", b"2", b"4", b"4"]
    assert router.waiting == 0
    ask.cancel()
    router.close()


async def test_messages_of_all_that_wait_for_the_number_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(instance_routes, "UNCOUNTED_MAX", 3)
    router, owner = router_on()
    sender = InstanceSender(router, Choice("all"))
    key = sender.key("get")
    for _ in range(3):
        sender.tell(key, "x", b"")
    with pytest.raises(BufferFull):
        sender.tell(key, "x", b"")
    with pytest.raises(BufferFull):
        await sender.ask(key, "x", b"", 1000, lambda payload: payload)
    assert owner.drops == ["buffer_full"] * 2
    router.refuse(UnknownEntityType("no such type"), "unknown_type")
    assert owner.drops == ["buffer_full"] * 2 + ["unknown_type"] * 3
    assert router.waiting == 0
    router.close()


async def test_a_tell_of_all_that_waited_is_sent_to_every_instance_with_room() -> None:
    router, owner = router_on(buffer_size=1)
    home(router, 3, B, 1)
    sender = InstanceSender(router, Choice("all"))
    sender.tell(sender.key("set"), "x", b"")
    rows_of(router).set_count(3)
    assert owner.outs[B].sent == ["x~3"]
    assert (router.waiting, owner.drops, owner.answered) == (1, ["buffer_full"], [False])
    router.close()


async def test_a_tell_of_all_that_waited_is_not_refused_by_a_full_send_buffer() -> None:
    class Full(Out):
        def tell(self, key: Any, entity_id: str, payload: bytes, accepted: bool = False) -> None:
            if not accepted:
                raise BufferFull("the send buffer is full")
            super().tell(key, entity_id, payload)

    router, owner = router_on()
    owner.outs[B] = Full()
    for instance in (1, 2, 3):
        home(router, instance, B, 1)
    sender = InstanceSender(router, Choice("all"))
    sender.tell(sender.key("set"), "x", b"")
    rows_of(router).set_count(3)
    assert owner.outs[B].sent == ["x~1", "x~2", "x~3"]
    router.close()


async def test_a_tell_that_is_routed_anew_without_room_does_not_count_as_answered() -> None:
    router, owner = router_on(buffer_size=2)
    key = next(f"{n}" for n in range(100) if spread(f"{n}", 3) == 3)
    for choice in (Choice("hash", key), Choice("all"), Choice("all")):
        sender = InstanceSender(router, choice)
        sender.tell(sender.key("set"), "x", choice.policy.encode())
    rows_of(router).set_count(1)
    assert (router.waiting, owner.drops, owner.answered) == (2, ["buffer_full"], [False])
    router.close()


async def test_open_asks_are_counted_until_they_have_an_outcome() -> None:
    router, _ = router_on()
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    for answer in (first, second):
        rows_of(router).note_open("x~1", A, answer)
    asks = rows_of(router).open_asks
    assert (asks.by_wire_id, asks.by_node) == ({"x~1": 2}, {A: 2})
    first.set_result(None)
    second.cancel()
    await asyncio.sleep(0)
    assert (asks.by_wire_id, asks.by_node) == ({}, {})


async def test_choices_share_their_senders_and_so_their_turns() -> None:
    router, _ = router_on()
    sender = InstanceSender(router, Choice("nearest"))
    turns = [sender.by(Choice("round-robin")).pick("x") for _ in range(6)]
    assert sorted(turns) == ["x~1", "x~1", "x~2", "x~2", "x~3", "x~3"]


@pytest.mark.parametrize("patience", [0.0, 0.01], ids=["later on", "at the first use of a shard"])
async def test_all_names_the_instances_without_a_home_and_waits_for_none(
    patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_sender, "HOMES_WITHIN_S", patience)
    router, _ = router_on()
    rows_of(router).set_count(3)
    home(router, 2, B, 1)
    router.handle(events.NodeGone(B))
    sender = InstanceSender(router, Choice("all"))
    ask = sender.ask(sender.key("get"), "x", b"", 600_000, lambda payload: payload)
    answers = await until(lambda: ask.done() and ask.result(), "an answer without a home")
    assert {name: str(error) for name, error in answers.items()} == {
        "~1": "instance 1 has no home yet",
        str(B): f"{B} died",
        "~3": "instance 3 has no home yet",
    }
    router.close()


@pytest.mark.parametrize("full", [1, 2, 3])
async def test_a_tell_of_all_is_definite_only_if_no_instance_got_it(full: int) -> None:
    class Full(Out):
        def tell(self, key: Any, entity_id: str, payload: bytes, accepted: bool = False) -> None:
            raise BufferFull("the send buffer is full")

    router, owner = router_on()
    rows_of(router).set_count(3)
    nodes = (A, B, C)
    owner.outs[nodes[full - 1]] = Full()
    for instance, node in enumerate(nodes, 1):
        home(router, instance, node, instance)
    rows_of(router).set_count(3)
    sender = InstanceSender(router, Choice("all"))
    with pytest.raises(BufferFull) as refused:
        sender.tell(sender.key("set"), "x", b"")
    assert sum(len(owner.outs[node].sent) for node in nodes) == full - 1
    assert refused.value.definite is (full == 1)
    router.close()
