"""Full durable mailboxes on whole nodes over seeds, and planted faults that the rules find.

Clients tell and deliver numbers to entities that are slower than their senders, while shards move
and the store fails. The bounds are small, so that most messages meet a full mailbox.

    held    senders of tells are held back: a mailbox exceeds its bound by no more than was under
            way when it became full, and by messages that a move has forwarded: no sender of those
            could wait
    kept    in the end each number that a sender has told, or that was confirmed, is in the state
            once, and the numbers of a sender are in order; no tell is dropped while the entity goes
            on
    stored  no message is appended that the mailbox has refused and not taken since

Source: docs/how-to/deliver.md; docs/simulation.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from shardbus import DeliveryFailed, Entity, ShardBus, handler
from shardbus.deliveries.durable_mailbox import Acceptance, AppendMail, DurableMailbox
from shardbus.deliveries.numbers import DeliveryNumber
from shardbus.entities.activation import Activation, Message
from shardbus.entities.durable_mailboxes import DurableMailboxes
from shardbus.entities.mailbox_table import EntityMailbox
from shardbus.entities.mailboxes import MailboxLimits
from shardbus.testing import TestCluster
from tests.markers import long_only

Patch = pytest.MonkeyPatch

IDS = ["a", "b", "c"]
TELLS, DELIVERIES = 100, 12
"""Of each sender to each entity."""
UNDER_WAY = 30
"""Messages above the bound, at most: those under way from two senders."""
PATIENCE_S = 300.0
"""Longer than an entity pauses after failures of the store: none is taken for one that stands
still, whose tells would be dropped."""
FAULTS = ["leave", "add", "store fails", "none"]


@dataclass
class Numbers:
    by_sender: dict[str, list[int]] = field(default_factory=dict)


class Broken(AssertionError):
    """A rule is broken; its text begins with the name."""


class MailboxRules:
    """Observes the mailboxes of a run."""

    def __init__(self, patch: Patch, bound: int) -> None:
        self._bound, self._refused = bound, set[tuple[int, str, int, int]]()
        self._owed = Counter[EntityMailbox]()
        """Messages in a mailbox that were forwarded, since it was last within its bound."""
        self.refusals = self.most = 0
        accept, append, take = (
            DurableMailbox.accept,
            DurableMailboxes._append,
            DurableMailboxes.take,
        )

        def accepts(
            machine: DurableMailbox, number: DeliveryNumber, message: Any, size: int
        ) -> Acceptance:
            accepted = accept(machine, number, message, size)
            key = (id(machine), number.producer, number.era, number.seq)
            if accepted is Acceptance.FULL:
                self.refusals += 1
                self._refused.add(key)
            elif accepted is Acceptance.TAKEN:
                self._refused.discard(key)
            return accepted

        def appends(boxes: DurableMailboxes, box: EntityMailbox, effect: AppendMail) -> None:
            for mail in effect.group:
                assert mail.stored is not None
                number = mail.stored.number
                if (id(box.machine), number.producer, number.era, number.seq) in self._refused:
                    self._note(f"stored: {number.seq} of {number.producer} was refused")
            append(boxes, box, effect)

        def takes(boxes: DurableMailboxes, activation: Activation, message: Message) -> None:
            take(boxes, activation, message)
            box = boxes._boxes.get(activation.key)
            if box is not None:
                waiting = box.machine.waiting
                self.most = max(self.most, waiting)
                self._owed[box] += boxes._host.runner.mailbox_limits.owed
                if waiting <= self._bound:
                    del self._owed[box]
                elif waiting > self._bound + UNDER_WAY + self._owed[box]:
                    self._note(f"held: {waiting} wait, the bound is {self._bound}")

        self.broken = ""
        patch.setattr(DurableMailbox, "accept", accepts)
        patch.setattr(DurableMailboxes, "_append", appends)
        patch.setattr(DurableMailboxes, "take", takes)

    def _note(self, text: str) -> None:
        self.broken = self.broken or text


def application(rng: Random) -> tuple[ShardBus, type]:
    """Return an application with a type of slow entities, and the class."""
    bus = ShardBus("full")

    @bus.entity("slow", shards=4, durable_mailbox=True, passivate_after=rng.choice([0.5, 60.0]))
    class Slow(Entity):
        state: Numbers

        @handler
        async def put(self, sender: str, number: int, padding: bytes) -> None:
            await asyncio.sleep(0.02)
            self.state.by_sender.setdefault(sender, []).append(number)
            await self.save()

        @handler
        def numbers(self) -> dict[str, list[int]]:
            return self.state.by_sender

    return bus, Slow


async def story(cluster: TestCluster, slow: type, rng: Random, rules: MailboxRules) -> None:
    """Send, disturb, and compare in the end."""
    expected: dict[tuple[str, str], list[int]] = {}
    padding = bytes(rng.choice([0, 40]))

    async def tell(client: Any, sender: str, entity_id: str) -> None:
        call = client.ref(slow, entity_id).put
        for number in range(TELLS):
            await call.tell(sender, number, padding)
            expected.setdefault((sender, entity_id), []).append(number)
            await asyncio.sleep(0.004)

    async def deliver(client: Any, sender: str, entity_id: str) -> None:
        call = client.ref(slow, entity_id).put
        for number in range(DELIVERIES):
            with contextlib.suppress(DeliveryFailed):
                await call.deliver(sender, number, padding, within=0)
                expected.setdefault((sender, entity_id), []).append(number)

    clients = [cluster.client() for _ in range(2)]
    work = [
        cluster.spawn(send(client, f"{send.__name__} {n}", entity_id))
        for n, client in enumerate(clients)
        for send in (tell, deliver)
        for entity_id in IDS
    ]
    for fault in rng.sample(FAULTS, 2):
        await cluster.advance(0.2 + rng.random())
        match fault:
            case "leave":
                await cluster.leave(cluster.nodes[0])
                await cluster.add()
            case "add":
                await cluster.add()
            case "store fails":
                cluster.store.fail(0.3)
                await cluster.advance(1)
                cluster.store.start()
    while not all(each.done() for each in work):
        if rules.broken:
            raise Broken(rules.broken)
        await cluster.advance(1)
    for each in work:
        await each
    await cluster.advance(30)
    if rules.broken:
        raise Broken(rules.broken)
    for entity_id in IDS:
        kept = await clients[0].ref(slow, entity_id).within(60).numbers()
        sent = {sender: numbers for (sender, to), numbers in expected.items() if to == entity_id}
        if kept != sent:
            raise Broken(f"kept: {entity_id} has {kept}, it was sent {sent}")


def run(patch: Patch, seed: int) -> MailboxRules:
    """Run a seed. Raises Broken."""
    rng = Random(seed)
    bound = rng.choice([3, 8])
    rules = MailboxRules(patch, bound)
    bus, slow = application(rng)
    settings = {"sharding.durable_mailbox_messages": bound, "sharding.mailbox_patience": PATIENCE_S}

    async def whole() -> None:
        async with TestCluster(bus, nodes=2, seed=seed, settings=settings) as cluster:
            await story(cluster, slow, rng, rules)

    asyncio.run(whole())
    return rules


@pytest.fixture(autouse=True)
def _log_nothing() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", [*range(4), *long_only(*range(4, 40))])
def test_senders_wait_and_nothing_is_lost(seed: int, monkeypatch: Patch) -> None:
    rules = run(monkeypatch, seed)
    assert rules.refusals > 0
    assert rules.most >= rules._bound


def holds_no_sender_back(patch: Patch) -> None:
    def exceeds(self: MailboxLimits, activation: Activation, *, fits: bool) -> bool:
        return True

    patch.setattr(MailboxLimits, "exceeds_stored", exceeds)


def drops_tells_above_the_bound(patch: Patch) -> None:
    def exceeds(self: MailboxLimits, activation: Activation, *, fits: bool) -> bool:
        return False

    patch.setattr(MailboxLimits, "exceeds_stored", exceeds)


def stores_a_delivery_that_it_refuses(patch: Patch) -> None:
    accepts = DurableMailboxes._accepts

    def careless(
        self: DurableMailboxes,
        box: EntityMailbox,
        number: DeliveryNumber,
        message: Message,
        size: int,
    ) -> bool:
        refused = self._host.counts.dropped.get("mailbox_full", 0)
        taken = accepts(self, box, number, message, size)
        return taken or self._host.counts.dropped.get("mailbox_full", 0) > refused

    patch.setattr(DurableMailboxes, "_accepts", careless)


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        (holds_no_sender_back, "held"),
        (drops_tells_above_the_bound, "kept"),
        (stores_a_delivery_that_it_refuses, "stored"),
    ],
)
def test_a_planted_fault_is_found(
    fault: Callable[[Patch], None], rule: str, monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    with pytest.raises(Broken, match=f"^{rule}: "):
        run(monkeypatch, 0)
