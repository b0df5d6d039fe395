"""One place: at no instant do two activations of an entity handle messages.

The world's clock gives the order, whatever the clocks of the nodes show. An activation handles a
message from the first line of the handler to its last one, each `await` between them included:

    activation 1   ├ handler ┤   ├ handler ──── await ──── ┤
    activation 2                            ├ handler ┤             two places
    activation 1                                         ├ handler ┤     two places

The second case counts although the two handlers do not overlap: an activation handles nothing once
its successor has handled a message. That others have removed its node is no excuse, as it is for
the mere life of an activation (I1).

Some causes are beyond every node, and excused: a store that lost or restored data, or granted the
lease of a downing decision twice; a wall that refuses connections in the name of living nodes; an
operator who downs a living node.

A paused process and a suspended node execute no handler. Theirs are judged when they continue. So
is a handler that is being cancelled: one that was cut off while its node was suspended gets its
cancellation when the node goes on, in the next turn of the loop, and handles nothing any more.

Source: docs/simulation.md; S2.4, S4.13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shardbus.entities.context import Context, key_of
from shardbus.simulation.membership.checks import Violation

if TYPE_CHECKING:
    from shardbus.simulation.nodes.world import NodeWorld

EntityKey = tuple[str, str]
"""Entity type and entity id, with the number of an instance."""


@dataclass(eq=False, repr=False)
class OnePlace:
    """Records which activations handle messages. `broken(rule, detail)` keeps a violation, and
    returns it. Types of `overlap` may have two places."""

    _world: NodeWorld
    _broken: Callable[[str, str], Violation]
    _overlap: Container[str] = ()
    _latest: dict[EntityKey, Context] = field(default_factory=dict)
    _former: dict[EntityKey, dict[Context, None]] = field(default_factory=dict)
    _open: dict[EntityKey, dict[OpenHandler, None]] = field(default_factory=dict)

    def begins(self, activation: Context) -> None:
        """Record that a handler begins.

        Raises:
            Violation: another activation handles messages.
        """
        key = (activation.entity_type, key_of(activation))
        latest = self._latest.get(key)
        if latest is not activation and latest is not None:
            former = self._former.setdefault(key, {})
            if activation in former or activation.fence < latest.fence:
                self._two(activation, latest, "begins to handle a message")
                return
            former[latest] = None
            for other in self._open.get(key, ()):
                if self._runs(other):
                    self._two(other.activation, activation, "is in a handler")
        self._latest[key] = activation

    def continues(self, activation: Context) -> None:
        """Record that a handler has waited and continues.

        Raises:
            Violation: another activation has handled a message since.
        """
        latest = self._latest.get((activation.entity_type, key_of(activation)), activation)
        if latest is not activation:
            self._two(activation, latest, "continues a handler")

    def handler(self, activation: Context, task: asyncio.Task[Any] | None = None) -> OpenHandler:
        """Return the context of a handler that may wait; `task` runs it."""
        return OpenHandler(self, activation, task)

    def opened(self, handler: OpenHandler) -> None:
        """Record that a handler begins which may wait."""
        self.begins(handler.activation)
        self._open.setdefault(handler.key, {})[handler] = None

    def closed(self, handler: OpenHandler) -> None:
        """Record that such a handler has ended."""
        handlers = self._open[handler.key]
        del handlers[handler]
        if not handlers:
            del self._open[handler.key]

    def _two(self, former: Context, latest: Context, what: str) -> None:
        if former.entity_type not in self._overlap and not self._excused(former):
            key = (former.entity_type, key_of(former))
            raise self._broken(
                "place", f"{key} {what} at {former.node}, its place is {latest.node}"
            )

    def _excused(self, former: Context) -> bool:
        world = self._world
        beyond = world.store.lied or world.leases.twice or world.network.rejected
        return beyond or former.node in world.downed_by_operators

    def _runs(self, handler: OpenHandler) -> bool:
        """True if the handler may continue now: its node handles, and it is not cancelled."""
        return not handler.cancelled and any(
            sim_node.handles and str(sim_node.process.id) == handler.activation.node
            for sim_node in self._world.all_nodes()
        )


class OpenHandler:
    """A handler from its first line to its last one."""

    __slots__ = ("_places", "_task", "activation", "key")

    def __init__(
        self, places: OnePlace, activation: Context, task: asyncio.Task[Any] | None
    ) -> None:
        self._places, self._task = places, task
        self.activation = activation
        self.key: EntityKey = (activation.entity_type, key_of(activation))

    @property
    def cancelled(self) -> bool:
        """True if its task is asked to end."""
        return self._task is not None and self._task.cancelling() > 0

    def __enter__(self) -> None:
        self._places.opened(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the handler. One that is cancelled, or is removed with its dead process, handles
        nothing any more."""
        self._places.closed(self)
        if kind is None:
            self._places.continues(self.activation)
