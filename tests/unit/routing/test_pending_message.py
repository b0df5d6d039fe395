"""Messages that could not leave at once leave unchanged, with everything that they had."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.errors import BufferFull, RequestError, Unhandled
from shardbus.routing.pending_message import PendingMessage, rejection
from shardbus.routing.router import Router
from shardbus.sharding.region.region import ShardRegion
from shardbus.sharding.region.route import (
    REJECT_BUFFER_FULL,
    REJECT_DROPPED_IN_MOVE,
    REJECT_EXPIRED,
    REJECT_HOP_LIMIT,
    REJECT_NO_INSTANCE,
    REJECT_REFUSED,
    REJECT_STOPPED,
)
from shardbus.transport.asks import CoarseClock, PendingAsk, Unsent
from shardbus.wire.batch import AskRun, Flush, Relayed, Run, TellRun
from shardbus.wire.schema import Interface, decode_value
from tests.unit.transport.session_pair import Side

ADD = ("counter", "add")
CHAIN = (("page", "a", 1),)


class Waiter:
    def resolve(self, payload: bytes) -> None: ...
    def fail(self, error: Exception) -> None: ...


def future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def sent(*envelopes: PendingMessage) -> list[Run]:
    side, clock = Side("a"), CoarseClock()
    for envelope in envelopes:
        envelope.send(side.session.outbox, clock)
    side.session.outbox.flush()
    return [run for batch in side.batches for run in batch]


async def test_each_kind_of_message_leaves_as_what_it_is() -> None:
    deadline, at = CoarseClock().after(1000), 1100
    assert sent(
        PendingMessage(ADD, "17", "x", b"p"),
        PendingMessage(ADD, "17", "x", b"p", 0, future(), decode_value, deadline),
        PendingMessage(ADD, "17", "x", b"p", 0, future(), decode_value, deadline, CHAIN),
        PendingMessage(ADD, "17", "x", b"p", 1, Waiter(), None, deadline, CHAIN),
        PendingMessage(None, "17", "counter", b"", 1, Waiter(), None, deadline),
    ) == [
        TellRun("counter", "add", ["x"], [b"p"]),
        AskRun("counter", "add", at, ["x"], [b"p"], [1]),
        AskRun("counter", "add", at, ["x"], [b"p"], [2], CHAIN),
        Relayed("counter", "17", "x", "add", b"p", 3, at, 1, CHAIN),
        Flush("counter", "17", 4, at, 1),
    ]


async def test_an_ask_with_an_outcome_is_not_sent() -> None:
    done = future()
    done.cancel()
    assert sent(PendingMessage(ADD, "17", "x", b"p", 0, done, decode_value, 20, CHAIN)) == []


async def test_an_ask_of_a_lost_session_keeps_its_chain() -> None:
    side, clock = Side("a"), CoarseClock()
    interface = Interface("counter", 12, "crc32/12")
    region = ShardRegion("counter", None, interface.layout, ShardingSettings())
    shell: Any = None
    router = Router(interface, region, shell, asyncio.get_running_loop(), clock)
    router.route_of("x").out = side.session.outbox
    waiting = PendingAsk(future(), decode_value, clock.after(1000))
    router.resend(
        [
            Unsent(ADD, "", "x", b"p", 0, waiting, CHAIN),
            Unsent(ADD, "", "x", b"q", 0, None, ()),
        ]
    )
    side.session.outbox.flush()
    ask, tell = [run for batch in side.batches for run in batch]
    assert isinstance(ask, AskRun)
    assert (ask.ids, ask.chain) == (["x"], CHAIN)
    assert tell == TellRun("counter", "add", ["x"], [b"q"])


@pytest.mark.parametrize(
    ("reason", "cls"),
    [(REJECT_BUFFER_FULL, BufferFull)]
    + [
        (reason, Unhandled)
        for reason in (
            REJECT_DROPPED_IN_MOVE,
            REJECT_EXPIRED,
            REJECT_HOP_LIMIT,
            REJECT_NO_INSTANCE,
            REJECT_REFUSED,
            REJECT_STOPPED,
        )
    ],
)
def test_what_the_region_rejects_is_definite_and_blames_no_node(
    reason: str, cls: type[RequestError]
) -> None:
    error = rejection("counter", reason)
    assert type(error) is cls
    assert error.definite
    assert "'counter'" in error.message
