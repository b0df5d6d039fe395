"""`definite` never lies, over seeds: of an ask that failed with `definite` True no handler has
begun, and none begins later.

Faults come at every stage of an ask: the message, mailbox, stash, start, stored state, handler,
inner asks, answer, links, moves, the death of nodes and of the store. Each handler notes the number
of its ask as it begins."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar

import pytest

from shardbus import Entity, Rejection, ShardBus, handler
from shardbus.entities.entity_type import Directive
from shardbus.errors import (
    BufferFull,
    MailboxFull,
    MessageTooLarge,
    RequestError,
    SchemaError,
    ShardBusError,
    StateUnreadable,
    Unhandled,
)
from shardbus.testing import TestCluster
from tests.markers import long_only, soak_only

ENTITIES, SENDERS, ASKS, FAULTS = 12, 4, 60, 6
PASSING = (
    BufferFull,
    MailboxFull,
    MessageTooLarge,
    SchemaError,
    StateUnreadable,
)
"""Errors that a handler may have got from elsewhere, and lets pass."""


class Dice:
    """The dice of a run's application, and its notes."""

    random: ClassVar[Random]
    asks: ClassVar[int]
    unreadable: ClassVar[bool]
    """Stored states cannot be read at times."""
    begun: ClassVar[set[int]]
    outcomes: ClassVar[list[tuple[int, str, object]]]
    """The number of each ask, its request, and its outcome."""

    @classmethod
    def begin(cls, seed: int) -> None:
        cls.random, cls.asks, cls.unreadable = Random(seed), 0, False
        cls.begun, cls.outcomes = set(), []

    @classmethod
    def one_in(cls, n: float) -> bool:
        return cls.random.random() < 1 / n


@dataclass
class Timely:
    """A message whose own check fails at times, as one that looks at the clock does."""

    n: int

    def __post_init__(self) -> None:
        if Dice.one_in(4):
            raise ValueError("too late")


@dataclass
class Kept:
    """A state that cannot be read at times."""

    n: int = 0

    def __post_init__(self) -> None:
        if Dice.unreadable and Dice.one_in(3):
            raise ValueError("unreadable today")


@dataclass
class SoldOut(Rejection):
    n: int


async def outcome(n: int, what: str, call: Callable[[], Any]) -> object:
    """Note and return the outcome of an ask: the answer or the error."""
    try:
        outcome = await call()
    except (ShardBusError, TypeError) as error:
        outcome = error
    Dice.outcomes.append((n, what, outcome))
    return outcome


class Job(Entity):
    state: Kept

    async def on_start(self) -> None:
        await asyncio.sleep(Dice.random.choice([0, 0, 0.05]))
        if Dice.one_in(8):
            raise (OSError if Dice.one_in(2) else RuntimeError)("no start")

    @handler
    def quick(self, n: int, what: str) -> object:
        Dice.begun.add(n)
        return self._do(n, what)

    @handler
    async def slow(self, n: int, what: str) -> object:
        Dice.begun.add(n)
        await asyncio.sleep(Dice.random.choice([0, 0.01, 0.3]))
        if what == "inner":
            return await self._inner()
        if what == "save":
            self.state.n += 1
            await self.save()
        return self._do(n, what)

    @handler
    def timely(self, message: Timely, what: str) -> object:
        Dice.begun.add(message.n)
        return self._do(message.n, what)

    @handler
    async def timely_async(self, message: Timely, what: str) -> object:
        Dice.begun.add(message.n)
        return self._do(message.n, what)

    @handler
    def typed(self, n: int) -> int:
        Dice.begun.add(n)
        answer: Any = n if Dice.one_in(2) else "no int"
        return answer

    def receive(self, message: object) -> object:
        match message:
            case [int() as n, str() as what]:
                Dice.begun.add(n)
                return self._do(n, what)
            case Exception():
                raise message
        return self.unhandled(message)

    def _do(self, n: int, what: str) -> object:
        match what:
            case "odd":
                return object()
            case "big":
                return b"x" * (8 * 1024 * 1024 + 1)
            case "fail":
                raise KeyError("mine")
            case "pass":
                raise Dice.random.choice(PASSING)("of another")
            case "declined":
                raise Unhandled("of another")
            case "unhandled":
                self.unhandled(n)
            case "reject":
                raise SoldOut(n)
            case "stash":
                self.context.stash()
            case "pipe":
                self.context.pipe_to_self(self._inner(), answer=True)
            case "unstash":
                self.context.unstash_all()
            case "stop":
                self.context.stop()
            case "passivate":
                self.context.passivate()
        return n

    async def _inner(self) -> object:
        """Ask another entity; let its error pass, or handle it."""
        entity_id = f"e{int(self.context.entity_id[1:]) + 1 + Dice.random.randrange(3)}"
        outcome = await ask(lambda kind: self.context.ref(kind, entity_id), inner=True)
        if isinstance(outcome, Exception) and not Dice.one_in(3):
            raise outcome
        return 0


class Mute(Entity):
    """Has no `receive`."""

    @handler
    def quick(self, n: int, what: str) -> int:
        Dice.begun.add(n)
        return n


def application() -> ShardBus:
    bus = ShardBus("shop")
    directives = {OSError: Directive.STOP, KeyError: Directive.RESUME}
    bus.entity(
        "job",
        shards=6,
        mailbox=3,
        handoff_timeout=2.0,
        entity_restart_backoff_min=0.05,
        supervision=lambda error: directives.get(type(error), Directive.RESTART),
    )(Job)
    bus.entity("mute", shards=6)(Mute)
    return bus


WHAT = [
    *["answer", "odd", "fail", "pass", "declined", "unhandled", "reject", "stash", "stash", "pipe"],
    *["unstash", "stop", "passivate", "inner", "save"],
]


async def ask(ref: Callable[[type], Any], *, inner: bool = False) -> object:
    """Send one ask of any kind, and return its outcome."""
    Dice.asks += 1
    n, what = Dice.asks, Dice.random.choice(WHAT)
    if Dice.one_in(200):
        what = "big"
    match Dice.random.randrange(10 if inner else 12):
        case 0:
            return await outcome(n, "no such handler", lambda: ref(Mute).ask([n, what]))
        case 1:
            return await outcome(n, what, lambda: ref(Job).ask([n, what]))
        case 2:
            return await outcome(n, "odd message", lambda: ref(Job).ask([n, object()]))
        case 3:
            return await outcome(n, "no such message", lambda: ref(Job).ask(n))
        case 4:
            return await outcome(n, what, lambda: ref(Job).timely({"n": n}, what))
        case 5:
            return await outcome(n, what, lambda: ref(Job).timely_async({"n": n}, what))
        case 6 | 7:
            return await outcome(n, what, lambda: ref(Job).quick(n, what))
        case 8:
            return await outcome(n, "typed", lambda: ref(Job).typed(n))
        case 9 if Dice.one_in(5):
            return await outcome(n, "too large", lambda: ref(Job).quick(n, "x" * 9_000_000))
        case _:
            return await outcome(n, what, lambda: ref(Job).slow(n, what))


async def send(cluster: TestCluster, dice: Random) -> None:
    """Ask from the client and from nodes, some asks at a time to one entity."""
    asks: list[asyncio.Future[object]] = []
    for _ in range(ASKS):
        entity_id = f"e{dice.randrange(ENTITIES)}"
        node = dice.choice(cluster.nodes)
        sender: Any = node if node.up and dice.random() < 0.5 else cluster.client()
        reference = partial(_reference, sender, entity_id)
        asks += [asyncio.ensure_future(ask(reference)) for _ in range(dice.choice([1, 1, 6]))]
        await asyncio.sleep(dice.choice([0, 0.1, 0.2]))
    await asyncio.wait(asks, timeout=15.0)  # a node that died asks no more


def _reference(sender: Any, entity_id: str, kind: type) -> Any:
    return sender.ref(kind, entity_id)


async def harm(cluster: TestCluster, dice: Random) -> None:
    """Do something to the cluster, and mend it."""
    nodes = [node for node in cluster.nodes if node.up and not node.paused]
    node = dice.choice(nodes)
    match dice.randrange(6):
        case 0 if len(nodes) > 2:
            await cluster.kill(node, machine=dice.random() < 0.3)
            await cluster.add()
        case 1 if len(nodes) > 2:
            await cluster.add()
            await cluster.leave(node)
        case 2:
            others = [other for other in nodes if other is not node]
            await cluster.partition([node, "client"], others)
            await cluster.advance(dice.uniform(0.1, 1.0))
            await cluster.heal()
        case 3:
            cluster.store.stop()
            await cluster.advance(dice.uniform(0.1, 1.0))
            cluster.store.start()
        case 4:
            await cluster.pause(node)
            await cluster.advance(dice.uniform(0.1, 1.0))
            await cluster.resume(node)
        case _:
            Dice.unreadable = not Dice.unreadable


async def run(seed: int) -> list[tuple[int, str, object]]:
    """Return the asks of a run of this seed, with their outcomes."""
    Dice.begin(seed)
    dice = Random(seed)
    async with TestCluster(application(), nodes=3, seed=seed) as cluster:
        senders = [cluster.spawn(send(cluster, dice)) for _ in range(SENDERS)]
        for _ in range(FAULTS):
            await cluster.advance(dice.uniform(0.2, 1.0))
            await harm(cluster, dice)
        for sender in senders:
            await sender
        await cluster.advance(30.0)  # a refused ask must not begin later
    return Dice.outcomes


@pytest.mark.parametrize("seed", [0, 1, *long_only(2, 3), *soak_only(*range(4, 16))])
async def test_no_handler_has_begun_of_an_ask_that_failed_definitely(seed: int) -> None:
    outcomes = await run(seed)
    lies, seen = [], Counter[tuple[str, bool]]()
    for n, what, outcome in outcomes:
        if isinstance(outcome, RequestError):
            seen[type(outcome).__name__, outcome.definite] += 1
            if outcome.definite and n in Dice.begun:
                lies.append(f"{n} {what}: {type(outcome).__name__}: {outcome}")
    assert not lies
    assert {name for name, definite in seen if definite} >= {"Unhandled", "SchemaError"}
    assert {name for name, definite in seen if not definite} >= {"EntityFailed", "Unhandled"}
