"""Cycles of asks: an entity that waits, directly or through others, for its own answer.

An entity takes its next message when its handler has returned. So an ask that it is sent on behalf
of what it waits for would wait until the deadline. It is refused at once instead:

    A handles m, asks B          B gets the ask with the chain  [A#7]
      B handles it, asks C       C gets the ask with the chain  [A#7, B#3]
        C handles it, asks A     A is busy, and #7 is what it is busy with:
                                 ReentrancyError A -> B -> C -> A, told to C

A *chain* travels with the asks that handlers make, and with nothing else: not with tells, not with
asks of code outside entities. Its numbers name runs of handlers, `CallChain`, so that an ask on
behalf of a run that is over waits its turn like any other. An entity counts as waiting for what its
handler has asked until that has its outcome: who gave up after a timeout waits no more. A chain
keeps the last CHAIN_MAX entities; a longer cycle ends by AskTimeout, and so do two entities that
ask each other while each handles another message.

Whose code makes an ask, the current task says: a handler runs under an `EagerTask`. A task that a
handler has made is on the chain only while the handler waits for it (`gather`, `TaskGroup`, `wait`,
`wait_for`, `shield` or `await`), which the callbacks of tasks and futures tell.

Source: B.122, N.20; docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from shardbus.entities.eager import BEGUN, OWNER, EagerTask
from shardbus.routing.router import Router
from shardbus.transport.asks import Key
from shardbus.wire.batch import CHAIN_MAX, Hop
from shardbus.wire.schema import Decode

FUTURES_MAX = 64
"""Futures and tasks looked at to find whether a handler waits for a task."""
KEPT_MIN = 64

Target = tuple[str, str]
"""An entity: its type and id."""


class CallChain:
    """One run of an entity's handler that has asked. No other in the cluster has its `number`."""

    __slots__ = ("_asks", "_kept_max", "chain", "hop")

    def __init__(self, entity: Target, number: int, upstream: Sequence[Hop]) -> None:
        self.hop: Hop = (*entity, number)
        self.chain = (*upstream[-(CHAIN_MAX - 1) :], self.hop)
        """What travels with its asks."""
        self._asks: dict[Target, asyncio.Future[Any]] = {}
        self._kept_max = KEPT_MIN

    def asked(self, target: Target, answer: asyncio.Future[Any]) -> None:
        """It asked an entity."""
        if len(self._asks) >= self._kept_max:
            self._asks = {t: future for t, future in self._asks.items() if not future.done()}
            self._kept_max = max(KEPT_MIN, 2 * len(self._asks))
        self._asks[target] = answer

    def unanswered(self) -> list[Target]:
        """Whom it asked, and waits for."""
        return [target for target, answer in self._asks.items() if not answer.done()]

    def closed_by(self, chain: Sequence[Hop]) -> tuple[Target, ...] | None:
        """The cycle that an ask to this entity closes, or None: this run is not on its chain, or
        does not wait for what is."""
        me: Target = self.hop[:2]
        for at, hop in enumerate(chain):
            if hop == self.hop:
                cycle = (*((type, id) for type, id, _ in chain[at:]), me)
                answer = self._asks.get(cycle[1])
                return None if answer is None or answer.done() else cycle
        return None


class NodeRouter(Router):
    """A router whose askers may be entities of this node."""

    def ask(
        self, key: Key, entity_id: str, payload: bytes, timeout_ms: int, decode: Decode
    ) -> asyncio.Future[Any]:
        owner = OWNER.get()
        if owner is not None:
            asking: CallChain | None = owner.asking_now()
            if asking is not None:
                answer = self.ask_in_chain(
                    key, entity_id, payload, timeout_ms, decode, asking.chain
                )
                asking.asked((key[0], entity_id), answer)
                return answer
        route = self._by_id.get(entity_id) or self.route_of(entity_id)
        out = route.out
        if out is None:
            return super().ask(key, entity_id, payload, timeout_ms, decode)
        answer = self._create_future()
        out.ask(key, entity_id, payload, timeout_ms, answer, decode)
        return answer


def turn_that_waits(task: asyncio.Task[Any], turns: dict[int, EagerTask]) -> EagerTask | None:
    """The turn whose code waits for the end of a task, however indirectly. `turns` has them by the
    `id` of their own tasks, the youngest last."""
    look: list[Any] = [task]
    found: dict[int, Any] = {id(task): task}
    while look and len(found) < FUTURES_MAX:
        for waiter in _waiters(look.pop()):
            if isinstance(waiter, EagerTask):
                return waiter
            if id(waiter) in turns:
                return turns[id(waiter)]
            if id(waiter) not in found:
                found[id(waiter)] = waiter
                look.append(waiter)
    for turn in reversed(turns.values()):
        if turn.awaits is BEGUN:
            break
        if id(turn.awaits) in found:
            return turn
    return None


def _waiters(future: Any) -> Iterator[Any]:
    """Who goes on when a future or task is done, as far as asyncio's own callbacks tell: a task
    that awaits it is the callback's `self`, the future of `gather`, `wait` or `shield` is in its
    closure, that of `wait_for` among its arguments."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        known = [getattr(callback, "__self__", None)]
        if isinstance(callback, partial):
            known += callback.args
        known += [
            activation.cell_contents for activation in getattr(callback, "__closure__", None) or ()
        ]
        for one in known:
            if isinstance(one, asyncio.TaskGroup):
                yield one._parent_task  # type: ignore[attr-defined]
            elif asyncio.isfuture(one):
                yield one
