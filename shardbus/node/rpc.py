"""Questions between nodes: what is shown of the cluster is asked of those who know.

A question is an ask of the reserved type `$node`; its method is the question, its payload the
arguments, its answer plain data. The coordinator knows where shards are, each node knows what runs
in its own. What a coordinator is told to do is asked in the same way, and answered once it is
decided; a refusal is an answer, too.

Source: S2.82-S2.84; B.54, B.61, B.63, B.69, B.77.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from shardbus.admin.checkup import own
from shardbus.errors import (
    BufferFull,
    Refused,
    RequestError,
    ShardBusError,
    Unhandled,
    UnknownEntityType,
)
from shardbus.ids import Address, NodeId
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.events import Rebalance
from shardbus.transport.asks import Unsent, refuse
from shardbus.transport.session import Session
from shardbus.wire.batch import AskRun
from shardbus.wire.schema import decode_value, encode_value

if TYPE_CHECKING:
    from shardbus.node.node import Node
    from shardbus.shells.region import RegionShell

UNREACHABLE_S = 0.5

WORK_MAX = 1000
"""Questions that are being answered at a time, of those that take a while."""


STOP_PART = 0.5
"""The part of an asker's patience that stopping shards may take; then it hears how far it is."""


def _pace(coordinator: Coordinator) -> dict[str, Any]:
    """How fast the coordinator moves shards, and what holds it."""
    balance = coordinator.rebalancing
    moving, most = balance.moves_in_flight
    held = balance.why_not()
    return {"paused": balance.paused, "held": held, "moving": moving, "moves_at_a_time": most}


def _refusal(error: ShardBusError) -> dict[str, Any]:
    """A refusal as an answer."""
    return {"refused": [type(error).__name__, error.message, error.hint]}


class NodeRpc:
    """Asks other nodes, and answers theirs."""

    TYPE = "$node"

    def __init__(self, node: Node) -> None:
        self._node = node
        self._answers: dict[str, Callable[..., Any]] = {
            "stats": self.stats,
            "table": self.table,
            "shard": self.shard,
            "plan": self.plan,
            "rebalance": self.rebalance,
            "running": self.running,
            "entities": self.entities,
            "leave": self.leave,
            "places": self.places,
            "place": self.place,
            "slow": self.slow,
            "stop": self.stop,
            "limit": self.limit,
            "checkup": lambda: own(node),
        }
        self._work: set[asyncio.Task[None]] = set()
        self._keys = {name: (self.TYPE, name) for name in self._answers}
        self.on_leave: Callable[[], None] | None = None

    async def ask(self, node: NodeId, question: str, *args: object, of: str = "") -> Any:
        """Ask a node; this one answers itself. `of`: the entity type whose patience counts.

        Raises:
            RequestError: no answer in time, or the node is gone.
        """
        if node == self._node.me:
            answer = self._answers[question](*args)
            return await answer if isinstance(answer, Coroutine) else answer
        future: asyncio.Future[Any] = self._node.loop.create_future()
        session = self._node.endpoint.session_to(node.address, node)
        timeout = round(1000 * self._patience(node, of))
        session.ask(self._keys[question], "", encode_value(args), timeout, future, decode_value)
        return await future

    def _patience(self, node: NodeId, of: str) -> float:
        """Seconds for its answer: few for a node that somebody cannot reach."""
        kind = self._node.kinds.get(of)
        settings = self._node.settings.sharding if kind is None else kind.settings
        seconds = settings.shard_region_query_timeout
        view = self._node.view
        lost = view is not None and node in view.unreachable
        return min(seconds, UNREACHABLE_S) if lost else seconds

    async def ask_all(self, question: str, *args: object, of: str = "") -> dict[NodeId, Any]:
        """Ask every member; those that did not answer in time are missing. One whose application
        does not know the type is not silent, and has nothing of it: its answer is None."""
        nodes = self.members()
        answers = await asyncio.gather(
            *(self.ask(node, question, *args, of=of) for node in nodes), return_exceptions=True
        )
        return {
            node: None if isinstance(answer, UnknownEntityType) else answer
            for node, answer in zip(nodes, answers, strict=True)
            if not isinstance(answer, BaseException) or isinstance(answer, UnknownEntityType)
        }

    def members(self) -> list[NodeId]:
        """Who is asked when all are."""
        view = self._node.view
        return [m.node for m in view.members] if view is not None else []

    def unsent(self, rpc: list[Unsent], error: RequestError) -> None:
        """The link ended before it carried these: no answer will come."""
        for question in rpc:
            if question.waiting is not None:
                refuse(question.waiting, error)

    def asked(self, session: Session, run: AskRun) -> None:
        """Another node asks."""
        answer = self._answers.get(run.method)
        for payload, corr in zip(run.payloads, run.corrs, strict=True):
            try:
                if answer is None:
                    raise Unhandled(f"nobody knows {run.method!r} here")
                value = answer(*decode_value(payload))
                if not isinstance(value, Coroutine):
                    session.reply(corr, encode_value(value))
                elif len(self._work) < WORK_MAX:
                    self._answer_later(session, corr, value)
                else:
                    value.close()
                    raise BufferFull(f"{WORK_MAX} questions are being answered")
            except (RequestError, TypeError) as e:
                session.fail(corr, e)

    def _answer_later(self, session: Session, corr: int, value: Coroutine[Any, Any, Any]) -> None:
        async def work() -> None:
            try:
                answer = encode_value(await value)
            except (RequestError, TypeError) as e:
                if session.lost is None:
                    session.fail(corr, e)
            else:
                if session.lost is None:
                    session.reply(corr, answer)

        task = self._node.loop.create_task(work())
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _kind(self, name: str) -> RegionShell:
        kind = self._node.kinds.get(name)
        if kind is None:
            raise UnknownEntityType(f"there is no entity type {name!r}")
        return kind

    # ---- answers

    def stats(self) -> dict[str, dict[str, int]]:
        """Type to its shards here and how many entities each has in memory."""
        return {
            name: {shard: hosted.live for shard, hosted in kind.host.shards.items()}
            for name, kind in self._node.kinds.items()
        }

    def _coordinator(self, name: str) -> Coordinator | None:
        """The coordinator of a type, if it rules here."""
        self._kind(name)
        found = self._node.singletons[name].coordination.coordinator
        rules = found is not None and found.state in (
            CoordinatorState.RULING,
            CoordinatorState.RETIRING,
        )
        return found if rules else None

    def table(self, name: str) -> dict[str, Any] | None:
        """The coordinator's table of a type; None if the coordinator that rules is not here."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        homes = coordinator.table.homes
        load_of = coordinator.rebalancing.load_of
        shards = [
            [shard, str(home.node), home.fence, coordinator.state_of(shard), load_of(shard)]
            for shard, home in homes.items()
        ]
        return {"epoch": coordinator.epoch, "shards": shards, **_pace(coordinator)}

    def shard(self, name: str, shard: str) -> dict[str, Any] | None:
        """Where a shard is and how it came there, the changes with their age in seconds; None if
        the coordinator is not here."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        home, now = coordinator.table.homes.get(shard), self._node.loop.time()
        changes = []
        for c in coordinator.history.of(shard):
            ends = (node and str(node) for node in (c.source, c.target))
            changes.append([now - c.at, *ends, c.why, c.epoch, c.fence, c.seconds])
        return {
            "epoch": coordinator.epoch,
            "node": str(home.node) if home is not None else None,
            "fence": home.fence if home is not None else None,
            "state": coordinator.state_of(shard),
            "changes": changes,
        }

    def plan(self, name: str, add: int, remove: list[str]) -> dict[str, Any] | None:
        """What would move with so many nodes more and without these; None if the coordinator is not
        here."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        seen = coordinator.plan(add, tuple(NodeId.parse(node) for node in remove))
        nodes = {**seen.before, **seen.after}
        return {
            "moves": [[shard, str(a), str(b)] for shard, (a, b) in seen.moved.items()],
            "nodes": [[str(n), seen.before.get(n, 0), seen.after.get(n, 0)] for n in nodes],
            "rounds": seen.rounds,
            "settled": seen.settled,
            **_pace(coordinator),
        }

    def rebalance(self, name: str) -> dict[str, Any] | None:
        """Look at the balance now; None if the coordinator is not here."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        self._node.singletons[name].coordination.handle(Rebalance())
        return _pace(coordinator)

    async def slow(self, name: str, paused: bool | None, moves: int | None) -> Any:
        """Pause rebalancing or resume it, and bound the moves at a time. Answered once it is
        stored."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        try:
            coordination = self._node.singletons[name].coordination
            await coordination.direct(lambda told: told.slowed(paused, moves))
        except ShardBusError as e:
            return _refusal(e)
        return _pace(coordinator)

    async def stop(self, name: str, shards: list[str]) -> Any:
        """Stop these shards; which have stopped, and which are still to."""
        if self._coordinator(name) is None:
            return None
        patience = STOP_PART * self._kind(name).settings.shard_region_query_timeout
        try:
            coordination = self._node.singletons[name].coordination
            left = await coordination.stop_shards(shards, patience)
        except ShardBusError as e:
            return _refusal(e)
        return {"stopped": [s for s in shards if s not in left], "stopping": left}

    def places(self, name: str) -> dict[str, Any] | None:
        """Where somebody said that shards of the type shall live."""
        if self._coordinator(name) is None:
            return None
        told = self._node.singletons[name].coordination.overrides
        return {"places": {shard: str(place) for shard, place in told.places.items()}}

    async def place(self, name: str, changes: dict[str, str]) -> dict[str, Any] | None:
        """These shards shall live there; empty takes a place away. Answered once it is stored."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        try:
            if not coordinator.rebalancing.takes_places:
                raise Refused(
                    f"{name!r} has a strategy of its own, which would move the shard back",
                    hint=f"set sharding.types.{name}.allocation = external to place it by hand",
                )
            places = {s: Address.parse(text) if text else None for s, text in changes.items()}
            coordination = self._node.singletons[name].coordination
            await coordination.direct(lambda told: told.placed(places))
        except ShardBusError as e:
            return _refusal(e)
        return self.places(name)

    def running(self, name: str, shard: str, entity_id: str) -> bool:
        """Whether the entity is in memory here."""
        return self._kind(name).host.find(entity_id, shard) is not None

    def entities(
        self, name: str, shard: str, prefix: str, after: str, limit: int
    ) -> list[list[str]]:
        """Up to `limit` entities (id, shard) in memory here, by id, after `after`."""
        host = self._kind(name).host
        shards = [shard] if shard else list(host.shards)
        found = [(i, s) for s in shards for i in host.ids(s) if i.startswith(prefix) and i > after]
        return [list(row) for row in sorted(found)[:limit]]

    def limit(self, name: str, wanted: int | None) -> list[int] | None:
        """The limit on entities in memory here, how many there are, and how many went because of
        it; `wanted` is the limit from now on. None if this node does not host the type, or does not
        take a limit."""
        kind = self._kind(name)
        if not kind.hosts:
            return None
        if wanted is not None:
            try:
                kind.host.set_active_entity_limit(wanted)
            except Refused:
                return None
        passivator = kind.host.passivator
        return [passivator.limit, kind.host.entities, passivator.evicted]

    def leave(self) -> bool:
        """This node shall leave, as at a SIGTERM."""
        if self.on_leave is None:
            return False
        self.on_leave()
        return True
