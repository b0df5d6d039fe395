"""The router: the order of returned messages, the counts, and refusals before a wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    MessageTooLarge,
    NodeLost,
    UnknownEntityType,
)
from shardbus.ids import NodeId
from shardbus.routing.paths import placed_within
from shardbus.routing.pending_message import PendingMessage
from shardbus.routing.router import Router
from shardbus.sharding import events
from shardbus.sharding.messages import Home, ShardHomes
from shardbus.sharding.region.region import ShardRegion
from shardbus.transport.asks import CoarseClock, Failure, PendingAsk, Unsent
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from shardbus.wire.schema import Interface, decode_value

A, B = NodeId("10.0.0.1", 7355, 1), NodeId("10.0.0.2", 7355, 2)
ADD = ("page", "add")


class Out:
    """A session that records its messages."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.flushed: list[Any] = []
        self.writable = True
        self.outbox = self
        self.until_room = "until there is room"

    def tell(self, key: Any, entity_id: str, payload: bytes, accepted: bool = False) -> None:
        self.sent.append(payload.decode())

    def leave(self, leaves: Any) -> None: ...

    def flush(self) -> None:
        self.sent.append("flush")

    def ask(self, key: Any, entity_id: str, payload: bytes, *rest: Any) -> None:
        self.sent.append(payload.decode())

    def flush_shard(self, name: str, shard: str, hops: int, timeout_ms: int, waiter: Any) -> None:
        self.flushed.append(waiter)


class Owner:
    """The owner of a router: it has a session to each node and counts dropped messages."""

    def __init__(self) -> None:
        self.outs = {A: Out(), B: Out()}
        self.here: NodeId | None = None
        self.effects: list[object] = []
        self.drops: list[tuple[str, bool]] = []

    def out_for(self, node: NodeId) -> Any:
        return self.outs[node]

    def is_here(self, node: NodeId) -> bool:
        return node == self.here

    def send_to_leaving(self, pending: PendingMessage) -> None: ...

    def ask_failed(self, entity_type: str, waited_s: float) -> None: ...

    def why_away(self) -> str:
        return ""

    def perform(self, effect: object) -> None:
        self.effects.append(effect)

    def lost(self, pending: PendingMessage, reason: str, *, answered: bool) -> None:
        self.drops.append((reason, answered))


class Sender:
    """A router whose region knows a coordinator, with one shard."""

    def __init__(self, **settings: Any) -> None:
        interface = Interface("page", 1, "crc32/1")
        self.clock = CoarseClock()
        self.owner = Owner()
        region = ShardRegion("page", None, interface.layout, ShardingSettings(**settings))
        loop = asyncio.get_running_loop()
        self.router = Router(interface, region, self.owner, loop, self.clock)
        self.router.handle(events.CoordinatorAt(A))

    def tell(self, text: str) -> Any:
        return self.router.tell(ADD, "x", text.encode())

    def home(self, node: NodeId, fence: int) -> None:
        message = ShardHomes(1, (Home("0", node, fence),))
        self.router.handle(events.MessageReceived(A, message))


def unsent(text: str, waiting: PendingAsk | None = None) -> Unsent:
    return Unsent(ADD, "", "x", text.encode(), 0, waiting, ())


async def test_messages_of_a_lost_session_keep_their_order_before_what_waits() -> None:
    sender = Sender()
    sender.tell("3")
    sender.tell("4")
    sender.router.resend([unsent("1"), unsent("2")])
    sender.home(A, 1)
    assert sender.owner.outs[A].sent == ["1", "2", "3", "4"]


async def test_messages_of_a_lost_session_follow_a_known_route_at_once() -> None:
    sender = Sender()
    sender.home(A, 1)
    sender.router.resend([unsent("1"), unsent("2")])
    assert sender.owner.outs[A].sent == ["1", "2"]


async def test_messages_for_a_dead_node_go_to_the_next_home() -> None:
    sender = Sender()
    sender.home(A, 1)
    sender.router.gone(A, [unsent("1")])
    sender.tell("2")
    assert sender.owner.outs[A].sent == []
    sender.home(B, 2)
    assert sender.owner.outs[B].sent == ["1", "2"]


@pytest.mark.parametrize("here", [True, False], ids=["here", "elsewhere"])
async def test_what_waited_for_a_home_here_is_handed_over_before_anything_arrives(
    here: bool,
) -> None:
    sender = Sender()
    sender.owner.here = A if here else B
    sender.tell("1")
    sender.home(A, 1)
    assert sender.owner.outs[A].sent == (["1", "flush"] if here else ["1"])


async def test_a_refused_type_fails_no_asks_of_the_type_that_it_lives_within() -> None:
    sender = Sender()
    outer = sender.router
    inner = Router(
        placed_within(Interface("item", 1, ""), outer.interface),
        outer.region,
        sender.owner,
        asyncio.get_running_loop(),
        sender.clock,
        outer,
    )
    of_outer = outer.ask(ADD, "x", b"outer", 1000, decode_value)
    of_inner = inner.ask(inner.key("add"), "x/1", b"inner", 1000, decode_value)
    inner.refuse(UnknownEntityType("no such type"), "unknown_type")
    with pytest.raises(UnknownEntityType):
        await of_inner
    with pytest.raises(UnknownEntityType):
        inner.tell(inner.key("add"), "x/1", b"")
    sender.home(A, 1)
    assert (of_outer.done(), sender.owner.outs[A].sent) == (False, ["outer"])
    of_outer.cancel()


async def test_a_message_over_the_limit_is_refused_and_does_not_wait() -> None:
    sender = Sender()
    with pytest.raises(MessageTooLarge):
        sender.router.tell(ADD, "x", bytes(PAYLOAD_BYTES_MAX + 1))
    assert sender.router.region.buffered == (0, 0)


async def test_a_tell_over_the_buffer_raises_and_an_ask_fails() -> None:
    sender = Sender(buffer_size=1)
    sender.tell("1")
    with pytest.raises(BufferFull):
        sender.tell("2")
    answer = sender.router.ask(ADD, "x", b"3", 1000, decode_value)
    with pytest.raises(BufferFull):
        await answer
    assert sender.owner.drops == [("buffer_full", True)] * 2
    assert not sender.router.buffered_asks


async def test_a_tell_that_is_given_up_later_has_no_answer() -> None:
    """Its sender has gone on, and an older one that finds no room then is no refusal either."""
    sender = Sender(buffer_size=2)
    sender.tell("1")
    answer = sender.router.ask(ADD, "x", b"2", 1000, decode_value)
    sender.router.resend([Unsent(ADD, "", "x", b"0", 0, None, (), 0, "")])
    assert sender.owner.drops == [("buffer_full", False)]
    assert sender.router.give_up("undelivered") == 2
    assert sender.owner.drops[1:] == [("undelivered", False), ("undelivered", True)]
    answer.cancel()


async def test_a_rejected_flush_is_no_dropped_message() -> None:
    sender = Sender(buffer_size=1)
    sender.tell("1")
    errors: list[Exception] = []

    class Waiter:
        def resolve(self, payload: bytes) -> None: ...
        def fail(self, error: Exception) -> None:
            errors.append(error)

    flush = PendingMessage(None, "0", "page", b"", 1, Waiter(), None, 100)
    sender.router.arrived(flush, None)
    assert [type(error) for error in errors] == [BufferFull]
    assert sender.owner.drops == []


@pytest.mark.parametrize("error", [AskTimeout("late"), NodeLost("gone")])
async def test_only_the_echo_of_a_flush_opens_the_next_home(error: Failure) -> None:
    sender = Sender()
    sender.home(A, 1)
    sender.home(B, 2)
    sender.tell("1")
    [flush] = sender.owner.outs[A].flushed
    flush.fail(error)
    assert sender.owner.outs[B].sent == []
    flush.resolve(b"")
    assert sender.owner.outs[B].sent == ["1"]


async def test_an_ask_that_ends_without_a_home_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender()
    monkeypatch.setattr(type(sender.router.region), "why_waiting", lambda self, shard: "it hangs")
    answer = sender.router.ask(ADD, "x", b"late", 1000, decode_value)
    sender.clock.tick += 100
    assert sender.router.expire() == 1
    with pytest.raises(AskTimeout, match="no home for shard 0 of 'page' in time: it hangs"):
        await answer


async def test_an_ask_that_waits_ends_at_its_deadline_and_is_not_sent() -> None:
    sender = Sender()
    answer = sender.router.ask(ADD, "x", b"late", 1000, decode_value)
    sender.tell("in time")
    assert sender.router.expire() == 0
    sender.clock.tick += 100
    assert sender.router.expire() == 1
    with pytest.raises(AskTimeout, match="no home for shard 0 of 'page' in time"):
        await answer
    sender.home(A, 1)
    assert sender.owner.outs[A].sent == ["in time"]


async def test_a_refused_type_fails_what_waits_and_what_follows() -> None:
    sender = Sender()
    waiting = sender.router.ask(ADD, "x", b"1", 1000, decode_value)
    sender.tell("told")
    assert (sender.router.region.buffered[0], sender.router.buffered_tells) == (2, 1)
    sender.router.refuse(UnknownEntityType("no such type"), "unknown_type")
    assert sender.owner.drops == [("unknown_type", False)]
    assert sender.router.region.buffered == (0, 0)
    with pytest.raises(UnknownEntityType):
        await waiting
    with pytest.raises(UnknownEntityType):
        sender.tell("2")
    late = sender.router.ask(ADD, "x", b"3", 1000, decode_value)
    with pytest.raises(UnknownEntityType):
        await late
    sender.router.admit()
    sender.tell("4")
    sender.home(A, 1)
    assert sender.owner.outs[A].sent == ["4"]


async def test_a_tell_returns_what_to_wait_for() -> None:
    sender = Sender()
    sender.home(A, 1)
    assert sender.tell("1") is sender.router.done
    sender.owner.outs[A].writable = False
    assert sender.tell("2") == "until there is room"


async def test_a_replaced_session_is_used_by_every_route() -> None:
    sender = Sender()
    sender.home(A, 1)
    lost: Any = sender.owner.outs[A]
    lost.tag = A
    sender.owner.outs[A] = Out()
    sender.router.reconnect(lost)
    sender.tell("1")
    assert (lost.sent, sender.owner.outs[A].sent) == ([], ["1"])


async def test_routes_of_many_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbus.routing.router.ROUTES_MAX", 10)
    sender = Sender()
    first = sender.router.route_of("x-0")
    for n in range(100):
        sender.router.route_of(f"x-{n}")
        assert len(sender.router._by_id) <= 10
    assert sender.router.route_of("x-0") is first
