"""Deliveries in runs of whole nodes: the entities that receive them, their senders, and the rules.

Senders number their deliveries to each entity from 1, without a gap, and never give one up. Each
entity keeps, in its state, the last number of each sender. Some deliveries make it pay another
entity by `self.deliver`, under numbers of its own, which are in its state, too. Handlers fail
before they save, and after.

    D1   a confirmed delivery is in the state of every later activation
    D2   each number comes once, after the one before it
    D4   at rest, each payment that is stored at its payer is stored at its payee, and no other
    D6   at rest, no delivery of a living process or of an entity is pending, and no entity is
         listed for one

After a store has lost acknowledged data, D1, D2 and D4 do not hold.

Source: docs/how-to/deliver.md; docs/simulation.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from shardbus.app import ShardBus
from shardbus.entities.context import Context
from shardbus.entities.entity_sends import LIST
from shardbus.entity import Entity, handler
from shardbus.errors import RequestError
from shardbus.simulation.membership.checks import Violation

if TYPE_CHECKING:
    from shardbus.simulation.nodes.world import NodeWorld, SimProcess

DELIVERED = "delivered"
ENTITIES = 6
FAILS = 0.1
"""The part of handlings that fail, before or after the save."""
PAYS = 0.5
"""The part of deliveries upon which the entity delivers itself."""


class PlannedFailure(Exception):
    """A planned failure of a handler."""


@dataclass
class Accounts:
    """The last number of each sender, and the number of payments to each entity."""

    last: dict[str, int] = field(default_factory=dict)
    paid: dict[str, int] = field(default_factory=dict)


class EffectsChecker:
    """Checks the rules of the module's text. `broken` keeps a violation and returns it."""

    def __init__(
        self, world: NodeWorld, broken: Callable[[str, str], Violation], dice: Random
    ) -> None:
        self.world, self._broken, self.dice = world, broken, dice
        self.confirmed: dict[tuple[str, str], int] = {}
        """By sender and entity: the last number that was confirmed."""
        self.open: dict[tuple[str, int], SimProcess] = {}
        """Deliveries without an end, with their process."""
        self.senders = 0

    @property
    def _lied(self) -> bool:
        return self.world.store.lied

    def on_started(self, context: Context, accounts: Accounts) -> None:
        """Check the state that a new activation has loaded (D1)."""
        for (sender, entity_id), seq in self.confirmed.items():
            lacks = entity_id == context.entity_id and accounts.last.get(sender, 0) < seq
            if lacks and not self._lied:
                text = f"{entity_id} lacks {seq} of {sender}, which was confirmed"
                raise self._broken("D1", text)

    def on_handled(self, context: Context, accounts: Accounts, sender: str, seq: int) -> None:
        """Check the number of a delivery (D2)."""
        last = accounts.last.get(sender, 0)
        if seq != last + 1 and not self._lied:
            text = f"{context.entity_id} handles {seq} of {sender} after {last}"
            raise self._broken("D2", text)

    def fail_sometimes(self) -> None:
        """Raise a planned failure."""
        if self.dice.random() < FAILS:
            raise PlannedFailure

    def unfinished(self, stored: dict[str, Accounts]) -> str:
        """Return the deliveries pending at rest (D6), or a payment that has not arrived (D4)."""
        pending = [key for key, by in self.open.items() if by.ended_at is None and by.in_touch]
        if pending:
            return f"{pending[0]} and {len(pending) - 1} more are not confirmed"
        for sim_node in self.world.sim_nodes.values():
            if sim_node.ended_at is None and sim_node.process.member:
                sends = sim_node.node.regions[DELIVERED].host.deliveries.sends
                if sends is not None and sends.unconfirmed:
                    return f"{sim_node.name} has deliveries of entities"
        if self._lied:
            return ""
        for payer, accounts in stored.items():
            for payee, paid in accounts.paid.items():
                got = stored.get(payee, Accounts()).last.get(f"of {payer}", 0)
                if got != paid:
                    return f"{payer} has paid {paid} times to {payee}, which has {got}"
        listed = self.world.store.data.remembered
        left = [key for key, ids in listed.items() if DELIVERED + LIST in key and ids.entity_ids]
        return f"{left[0]} lists entities" if left else ""


def declare(bus: ShardBus, checker: Callable[[], EffectsChecker], shards: int, mode: Any) -> type:
    """Declare the type of entities that receive deliveries. Returns its class."""

    class Delivered(Entity):
        state: Accounts

        async def on_start(self) -> None:
            checker().on_started(self.context, self.state)

        @handler
        async def take(self, sender: str, seq: int, payee: str) -> None:
            check, accounts = checker(), self.state
            check.on_handled(self.context, accounts, sender, seq)
            accounts.last[sender] = seq
            if payee:
                number = accounts.paid[payee] = accounts.paid.get(payee, 0) + 1
                self.deliver(
                    self.context.ref(Delivered, payee).credit, self.context.entity_id, number
                )
            check.fail_sometimes()
            await self.save()
            check.fail_sometimes()

        @handler
        def credit(self, payer: str, seq: int) -> None:
            """Take a payment, without a save: the node makes that."""
            check = checker()
            check.on_handled(self.context, self.state, f"of {payer}", seq)
            self.state.last[f"of {payer}"] = seq
            check.fail_sometimes()

    return bus.entity(DELIVERED, shards=shards, handoff=mode, carry=mode == "ordered")(Delivered)


class SimDeliverer:
    """Delivers from one process until it is stopped, or its process ends."""

    def __init__(self, home: SimProcess, checker: Any, cls: type, dice: Random) -> None:
        checker.senders += 1
        self.name, self.stopped = f"d{checker.senders}", False
        self._home, self._checker, self._cls, self._dice = home, checker, cls, dice
        self._seqs: dict[str, int] = {}
        home.spawn(self._run())

    async def _run(self) -> None:
        dice = self._dice
        while not self.stopped:
            await asyncio.sleep(dice.expovariate(2.0))
            ref_of = self._ref_of()
            if ref_of is None:
                continue
            entity_id = f"e{dice.randrange(ENTITIES)}"
            for _ in range(dice.randint(1, 5)):
                self._deliver(ref_of(entity_id), entity_id)

    def _ref_of(self) -> Callable[[str], Any] | None:
        """Return the maker of references in the home, None while it cannot send."""
        home: Any = self._home
        if home.hosts:
            ready = home.node.members.is_up and not home.process.leaving
            return (lambda entity_id: home.node.ref(self._cls, entity_id)) if ready else None
        client = home.client
        return None if client is None else (lambda entity_id: client.ref(self._cls, entity_id))

    def _deliver(self, ref: Any, entity_id: str) -> None:
        dice, checker = self._dice, self._checker
        payee = f"e{dice.randrange(ENTITIES)}" if dice.random() < PAYS else ""
        seq = self._seqs.get(entity_id, 0) + 1
        try:
            future = ref.take.deliver(self.name, seq, payee, within=0)
        except RequestError:
            return
        self._seqs[entity_id] = seq
        line = (self.name, entity_id)
        checker.open[f"{self.name} {entity_id}", seq] = self._home

        def ended(done: asyncio.Future[None]) -> None:
            checker.open.pop((f"{self.name} {entity_id}", seq), None)
            if not done.cancelled() and done.exception() is None:
                checker.confirmed[line] = max(seq, checker.confirmed.get(line, 0))

        future.add_done_callback(ended)
