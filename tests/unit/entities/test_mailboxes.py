"""The bound in bytes on all mailboxes of a type: every mailbox counts, however it came to be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.errors import MailboxFull
from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns

BLOB = 1000


class Gates:
    def __init__(self) -> None:
        self.gates: dict[int, asyncio.Event] = {}

    def __getitem__(self, n: int) -> asyncio.Event:
        return self.gates.setdefault(n, asyncio.Event())


class Mail(Entity):
    gates: Gates
    stashes = False

    @handler
    async def wait(self, n: int) -> int:
        await self.gates[n].wait()
        return n

    @handler
    async def put(self, n: int, blob: bytes) -> None:
        await self.gates[n].wait()

    @handler
    def put_aside(self) -> None:
        if not self.stashes:
            self.stashes = True
            self.context.stash()

    @handler
    async def bring_back(self, n: int) -> None:
        self.context.unstash_all()
        await self.gates[n].wait()

    @handler
    async def pipe(self, n: int) -> None:
        self.context.pipe_to_self(asyncio.sleep(0, "done"))
        await self.gates[n].wait()

    @handler
    async def part(self, n: int) -> None:
        self.context.passivate(stop_message="last")
        await self.gates[n].wait()

    @handler
    def last(self) -> None:
        """Holds: what comes now waits for the next incarnation."""

    def receive(self, message: object) -> None:
        """What came of its work."""


def bench(gates: Gates) -> Bench:
    bus = ShardBus("m")
    bus.entity("mail")(Mail)
    Mail.gates = gates
    return Bench(bus, mailbox_bytes=10 * BLOB, passivate_after=0)


def burst(b: Bench, n: int) -> list[asyncio.Future[Any]]:
    """More than there is room for."""
    return [b.ask("e", "put", n, bytes(BLOB)) for _ in range(40)]


def refused(outcomes: list[asyncio.Future[Any]]) -> int:
    return sum(o.done() and isinstance(o.exception(), MailboxFull) for o in outcomes)


# How an entity that handles something comes to its mailbox


async def with_the_first_message(b: Bench, gates: Gates) -> None:
    b.tell("e", "wait", 1)


async def which_is_empty_again(b: Bench, gates: Gates) -> None:
    b.tell("e", "wait", 0)
    b.tell("e", "wait", 1)
    gates[0].set()
    await turns()


async def with_its_stash(b: Bench, gates: Gates) -> None:
    b.tell("e", "put_aside")
    b.tell("e", "bring_back", 1)


async def with_an_outcome(b: Bench, gates: Gates) -> None:
    b.tell("e", "pipe", 1)
    await turns()


async def with_a_stop_message(b: Bench, gates: Gates) -> None:
    b.tell("e", "part", 1)


async def and_holds(b: Bench, gates: Gates) -> None:
    await with_a_stop_message(b, gates)
    gates[1].set()
    await turns()


@pytest.mark.parametrize(
    "way",
    [
        with_the_first_message,
        which_is_empty_again,
        with_its_stash,
        with_an_outcome,
        with_a_stop_message,
        and_holds,
    ],
)
async def test_B107_the_bound_in_bytes_holds_for_every_mailbox(way: Any) -> None:
    """What is in one is reckoned by its first and last message, so it is about the bound."""
    b = bench(gates := Gates())
    await way(b, gates)
    activation = b.activation("e")
    assert activation is not None
    assert activation.busy
    b.pass_ticks(20)
    outcomes = burst(b, 2)
    assert 24 <= refused(outcomes) <= 34
    b.pass_ticks(20)
    more = burst(b, 2)
    assert refused(more) == 40
    gates[1].set()
    gates[2].set()
    activation.stop()
    await asyncio.gather(*outcomes, *more, return_exceptions=True)


async def test_who_is_idle_again_is_looked_at_no_more() -> None:
    b = bench(gates := Gates())
    await which_is_empty_again(b, gates)
    gates[1].set()
    await turns()
    b.pass_ticks(20)
    assert not b.host.runner.mailbox_limits._activations
