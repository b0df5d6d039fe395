"""`EntityProbe`: one entity, without a cluster, in virtual time.

The entity runs on a whole node of its own, so it starts, loads, saves, restarts, idles and stops as
in production. Other entities that it asks run there, too, or fakes of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Generic, TypeVar, cast

from shardbus.app import ShardBus
from shardbus.client.asynchronous import AsyncClient
from shardbus.entities.activation import Activation
from shardbus.entities.host import Host
from shardbus.testing.cluster import TestCluster
from shardbus.testing.store import ClusterStore
from shardbus.testing.world import AppNode

E = TypeVar("E")
T = TypeVar("T")


class EntityProbe(Generic[E]):
    """One entity and the means to test it; use it by `async with`, or by `with`.

    Args:
        kind: the class of the entity. One without `@bus.entity` is declared with the defaults.
        entity_id: its id.
        state: its stored state before it starts; by default nothing.
        fakes: classes in place of other entity types, as `{Stock: FakeStock}`.
        settings: settings by their dotted names, as for `TestCluster`.
        seed: draws every delay.
    """

    def __init__(
        self,
        kind: type[E],
        entity_id: str,
        *,
        state: object = None,
        fakes: Mapping[type, type] | None = None,
        settings: Mapping[str, object] | None = None,
        seed: int = 0,
    ) -> None:
        self.kind, self.entity_id, self._state = kind, entity_id, state
        bus = getattr(kind, "__shardbus__", None)
        if bus is None:
            bus = ShardBus("probe")
            bus.entity()(kind)
        self.cluster: TestCluster = TestCluster(bus, 1, seed, settings=settings, fakes=fakes)

    def __enter__(self) -> EntityProbe[E]:
        self.cluster.__enter__()
        if self._state is not None:
            self.store.put(self.kind, self.entity_id, self._state)
        return self

    def __exit__(self, *error: Any) -> None:
        self.cluster.__exit__(*error)

    async def __aenter__(self) -> EntityProbe[E]:
        return self.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self.__exit__(*error)

    # ---- messages

    @property
    def client(self) -> AsyncClient:
        """A client of the probe's node, which also reaches other entities."""
        return self.cluster.client()

    @property
    def ref(self) -> E:
        """A reference to the entity: `await probe.ref.add(2)`."""
        return self.client.ref(self.kind, self.entity_id)

    def ask(self, message: object, *args: Any, timeout: float | None = None) -> Awaitable[Any]:
        """Ask a handler by its name, or `receive`, as `client.ask` does."""
        return cast(
            "Awaitable[Any]",
            self.client.ask(self._name, self.entity_id, message, *args, timeout=timeout),
        )

    async def tell(self, message: object, *args: Any) -> None:
        """Send a message without an answer. Returns when the entity has handled it."""
        await self.client.tell(self._name, self.entity_id, message, *args)
        await self.client.flush()
        await self.cluster.until(lambda: not self.busy, what=f"{self.entity_id!r} is still busy")

    async def advance(self, seconds: float) -> None:
        """Let that much virtual time pass: for timers, timeouts and idling."""
        await self.cluster.advance(seconds)

    async def crash(self) -> None:
        """End the process as SIGKILL does, and start another one. Unsaved data is gone; the next
        message starts the entity."""
        [node] = self.cluster.nodes
        await self.cluster.kill(node)
        await self.cluster.add(node.name)

    def run(self, work: Awaitable[T]) -> T:
        """Run a coroutine in virtual time, for a test that is not async."""
        return self.cluster.run(work)

    # ---- the entity

    @property
    def entity(self) -> E | None:
        """The object, None if the entity is not in memory."""
        activation = self._activation()
        return activation.entity if activation is not None else None

    @property
    def running(self) -> bool:
        """True if the entity is in memory."""
        return self._activation() is not None

    @property
    def busy(self) -> bool:
        """True while it starts, handles a message, or has one that waits."""
        activation = self._activation()
        return activation is not None and bool(activation.busy or activation.mailbox)

    @property
    def store(self) -> ClusterStore:
        """The store of the probe: read it, break it."""
        return self.cluster.store

    @property
    def saved(self) -> Any:
        """The stored state, None if there is none."""
        return self.store.state(self.kind, self.entity_id)

    @property
    def starts(self) -> dict[str, int]:
        """How often the entity's type has started in this process, by cause: message, restart,
        remembered, carried."""
        return dict(self._host.counts.started)

    @property
    def stops(self) -> dict[str, int]:
        """How often it has stopped in this process, by reason: passivation, stopped, failure."""
        return dict(self._host.counts.stopped)

    @property
    def _name(self) -> str:
        return cast("str", self.kind.__shardbus_interface__.name)  # type: ignore[attr-defined]

    @property
    def _process(self) -> AppNode:
        [process] = self.cluster.world.sim_nodes.values()
        assert isinstance(process, AppNode)
        return process

    @property
    def _host(self) -> Host:
        return self._process.node.regions[self._name].host

    def _activation(self) -> Activation | None:
        return self._process.activation(self._name, self.entity_id)
