"""Cycles of asks: an entity that waits, directly or through others, for its own answer.

An entity handles its next message when its handler has returned. So an ask that comes to it on
behalf of the very ask that its own handler waits for would wait until the deadline. It is refused
at once:

    A handles m, asks B          B gets the ask with the chain  [A#7]
      B handles it, asks C       C gets the ask with the chain  [A#7, B#3]
        C handles it, asks A     A is busy, and with #7:
                                 C gets ReentrancyError A -> B -> C -> A

A *chain* travels with the asks that handlers make, and with nothing else: not with tells, not with
asks of code outside entities. Its numbers name runs of handlers (`CallChain`), so that an ask on
behalf of a run that is over is queued like any other. An entity waits for its handler's ask until
that has its outcome; a handler that gave up after a timeout waits no more. A chain keeps the last
CHAIN_MAX entities. A longer cycle ends by AskTimeout, and so do two entities that ask each other
while each handles another message.

The current task shows which handler makes an ask: a handler runs under an `EagerTask`. A task that
a handler has made belongs to the chain only while the handler waits for it (`gather`, `TaskGroup`,
`wait`, `wait_for`, `shield` or `await`).

Who waits for a task is read from its callbacks (`tasks.waiters`).

Source: B.122, N.20; docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from shardbus.wire.batch import CHAIN_MAX, Chain, Hop

KEPT_MIN = 64
"""Asks that a run keeps before it forgets the answered ones."""

Target = tuple[str, str]
"""An entity: its type and id."""


class CallChain:
    """One run of an entity's handler that has asked. Its number is unique in the cluster.

    `upstream` is the chain of its own message, or the run that asked by it, whose chain is not
    needed before this one's is: an ask that is answered where it is awaited needs none."""

    __slots__ = ("_asks", "_chain", "_kept_max", "_number", "_upstream", "entity")

    def __init__(self, entity: Target, number: int, upstream: Sequence[Hop] | CallChain) -> None:
        self.entity, self._number, self._upstream = entity, number, upstream
        self._chain: Chain | None = None
        self._asks: dict[Target, asyncio.Future[Any]] = {}
        self._kept_max = KEPT_MIN

    @property
    def hop(self) -> Hop:
        """The place of this run in the chains of others."""
        return (*self.entity, self._number)

    @property
    def chain(self) -> Chain:
        """The chain that its asks carry, always the same object."""
        chain = self._chain
        if chain is None:
            upstream = chain_of(self._upstream)
            chain = self._chain = (*upstream[-(CHAIN_MAX - 1) :], self.hop)
            self._upstream = ()
        return chain

    def note_ask(self, target: Target, answer: asyncio.Future[Any]) -> None:
        """Note that the handler asked an entity."""
        if len(self._asks) >= self._kept_max:
            self._asks = {t: future for t, future in self._asks.items() if not future.done()}
            self._kept_max = max(KEPT_MIN, 2 * len(self._asks))
        self._asks[target] = answer

    def unanswered(self) -> list[Target]:
        """Return the entities whose answers are open."""
        return [target for target, answer in self._asks.items() if not answer.done()]

    def closed_by(self, chain: Sequence[Hop]) -> tuple[Target, ...] | None:
        """Return the cycle that an ask with this chain closes; None if this run is not on the
        chain, or does not wait for the next entity on it."""
        own_hop = self.hop
        for at, hop in enumerate(chain):
            if hop == own_hop:
                cycle = (*((type, id) for type, id, _ in chain[at:]), self.entity)
                answer = self._asks.get(cycle[1])
                return None if answer is None or answer.done() else cycle
        return None


def chain_of(upstream: Sequence[Hop] | CallChain) -> Sequence[Hop]:
    """Return a chain, given as such or by the run whose asks carry it."""
    return upstream.chain if isinstance(upstream, CallChain) else upstream
