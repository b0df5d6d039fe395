"""The shards and entities of one type on one node: who is here, who may come in, who goes.

`active` holds the entities of every shard that lets all arrivals in; it is the hot path's one
look-up. The entities of a shard that is on the move are kept in the shard itself, where only the
slow path looks, and the slow path asks the region machine first.

Source: S0.5, S0.9, S0.23, S0.24, S2.38-S2.46, S2.60, S4.25; C.14, C.17, C.18; B.50, B.79, B.89.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from shardbus.errors import LocalProtocolError, RequestError, StaleFence, Unhandled
from shardbus.runtime.context import Context, Message
from shardbus.runtime.entity_type import EntityType, StopReason
from shardbus.runtime.execution import Execution
from shardbus.runtime.recovery import Recovery
from shardbus.runtime.remembering import Memory
from shardbus.runtime.starting import Keeper
from shardbus.settings import ShardingSettings
from shardbus.store.protocol import StateStore
from shardbus.transport.asks import Clock
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain
from shardbus.wire.schema import encode_value, method_of

log = logging.getLogger("shardbus.entity")


MOVES_MAX = 100
MOVE_AGAIN_S = 2.0


class HostedShard:
    """One shard that this node hosts."""

    __slots__ = ("arrivals", "cells", "fence", "live", "shard", "stopping", "via")

    def __init__(self, shard: str, fence: int) -> None:
        self.shard, self.fence = shard, fence
        self.arrivals = False
        """What comes over links is let in; with `via`, only from that node."""
        self.via: object | None = None
        self.cells: dict[str, Context] = {}
        """Its entities, while they are not in `active`."""
        self.live = 0
        self.stopping = False

    @property
    def open(self) -> bool:
        """Everything is let in."""
        return self.arrivals and self.via is None

    def lets_in(self, session: Session, local: bool) -> bool:
        """Whether a message that came by this session (`local`: from this node itself) is for
        us."""
        if local:
            return not self.stopping
        return self.arrivals and (self.via is None or self.via == session.tag)


class Host:
    """See the module. `on_down(shard)` is called when the last entity of a stopping shard
    stopped."""

    def __init__(
        self,
        kind: EntityType,
        settings: ShardingSettings,
        node_name: str,
        loop: asyncio.AbstractEventLoop,
        keeper: Keeper,
        ref: Callable[[Any, str], Any],
        on_down: Callable[[str], None],
        store: StateStore,
        shard_of: Callable[[str], str],
        start_elsewhere: Callable[[str], Awaitable[None]],
    ) -> None:
        self.kind, self.settings, self.node_name, self.loop = kind, settings, node_name, loop
        self.name, self.ref = kind.name, ref
        self.execution = Execution(kind, settings, loop, keeper, self._gone)
        self.counts = self.execution.counts
        self.active: dict[str, Context] = {}
        self.shards: dict[str, HostedShard] = {}
        self._keeper, self._on_down = keeper, on_down
        self._shard_of, self._start_elsewhere = shard_of, start_elsewhere
        self._moves: set[asyncio.Task[None]] = set()
        self._moving = asyncio.Semaphore(MOVES_MAX)
        self.recovery = Recovery(settings, loop, self._revive)
        self.memory: Memory | None = None
        if settings.remember:
            self.memory = Memory(
                kind.name,
                store,
                loop,
                pause_max=settings.shard_failure_backoff,
                start=self._remembered,
                recover=self.recovery.put,
                settled=self._maybe_down,
            )
        self._own_timeouts: dict[Context, None] = {}
        self._swept = 0

    # ---- shards

    def start_shard(self, shard: str, fence: int) -> None:
        """The shard lives here now; nothing comes in until `set_arrivals` opens it."""
        hosted = self.shards[shard] = HostedShard(shard, fence)
        if self.memory is not None:
            self.memory.open(hosted)

    def set_arrivals(self, shard: str, local: bool, via: object | None) -> None:
        """Let in what comes over links: all of it, from one node only, or nothing."""
        hosted = self.shards.get(shard)
        if hosted is None:
            return
        was_open = hosted.open
        hosted.arrivals, hosted.via = local, via
        if hosted.open and not was_open:
            self.active.update(hosted.cells)
            hosted.cells = {}
        elif was_open and not hosted.open:
            self._take_out([hosted])

    def _take_out(self, shards: list[HostedShard]) -> None:
        """Move the shards' entities from the hot path to the shards."""
        chosen = set(map(id, shards))
        for cell in [c for c in self.active.values() if id(c.shard) in chosen]:
            cell.shard.cells[cell.entity_id] = cell
            del self.active[cell.entity_id]

    def stop_shards(self, shards: list[str], reason: StopReason) -> None:
        """Stop every entity of these shards after the messages that are in its mailbox."""
        hosted = [
            self.shards[s] for s in shards if s in self.shards and not self.shards[s].stopping
        ]
        self._take_out([h for h in hosted if h.open])
        for h in hosted:
            h.arrivals, h.stopping = False, True
            for cell in list(h.cells.values()):
                self.execution.stop(cell, reason)
            for cell in self.memory.abandon(h) if self.memory is not None else ():
                self.execution.settle(cell)
            self._maybe_down(h)
        left = [h for h in hosted if self.shards.get(h.shard) is h]
        if left:
            patience = max(1.0, self.settings.handoff_timeout - 5.0)
            self.loop.call_later(patience, self._cut_off, left)
        for shard in shards:
            if shard not in self.shards and shard not in {h.shard for h in hosted}:
                self._on_down(shard)

    def _cut_off(self, shards: list[HostedShard]) -> None:
        for hosted in shards:
            if self.shards.get(hosted.shard) is hosted:
                for cell in list(hosted.cells.values()):
                    log.error("%s %r did not stop in time: cut off", self.name, cell.entity_id)
                    self.execution.cut_off(cell)
                if self.memory is not None:
                    self.memory.close(hosted)
                self._maybe_down(hosted)

    def _maybe_down(self, hosted: HostedShard) -> None:
        if hosted.stopping and not hosted.cells and self.shards.get(hosted.shard) is hosted:
            if self.memory is not None:
                if self.memory.busy(hosted):
                    return
                self.memory.close(hosted)
            del self.shards[hosted.shard]
            self._on_down(hosted.shard)

    # ---- entities

    def find(self, entity_id: str, shard: str) -> Context | None:
        """The entity if it is in memory."""
        cell = self.active.get(entity_id)
        if cell is None and shard in self.shards:
            cell = self.shards[shard].cells.get(entity_id)
        return cell

    def activate(
        self,
        hosted: HostedShard,
        entity_id: str,
        cause: str = "message",
        mailbox: deque[Message] | None = None,
        chain: Chain = (),
    ) -> Context:
        """Start an entity that is not in memory; it begins with what is in its mailbox. `chain`:
        the entities that wait for that."""
        cell = Context(self, hosted, entity_id)
        cell.mailbox = mailbox
        (self.active if hosted.open else hosted.cells)[entity_id] = cell
        hosted.live += 1
        cell.used = self.execution.tick
        started = self.counts.started
        started[cause] = started.get(cause, 0) + 1
        if self.memory is None or self.memory.knows(hosted, entity_id):
            self._begin(cell, chain)
        else:
            cell.busy = True
            self.memory.add(hosted, cell)
        return cell

    def _begin(self, cell: Context, chain: Chain = ()) -> None:
        self.execution.start(cell, chain)
        if cell.mailbox and not cell.busy:
            self.execution.settle_soon(cell)

    def _remembered(self, cell: Context) -> None:
        """The store knows the entity now. If its shard shall stop already, it still handles what
        has come for it."""
        if cell.gone:
            return
        reason, cell.stopping, cell.busy = cell.stopping, None, False
        self._begin(cell)
        if reason is not None:
            self.execution.stop(cell, reason)

    def _revive(self, hosted: HostedShard, entity_id: str) -> Context | None:
        """Start a remembered entity, if it does not run and its shard is still here."""
        here = self.shards.get(hosted.shard) is hosted and not hosted.stopping
        if self.memory is None or not here or not self.memory.knows(hosted, entity_id):
            return None
        if self.find(entity_id, hosted.shard) is not None:
            return None
        if self._shard_of(entity_id) != hosted.shard:
            self._move(hosted, entity_id)
            return None
        return self.activate(hosted, entity_id, "remembered")

    def _gone(self, cell: Context) -> None:
        """It has stopped. What still waits for it starts a new incarnation."""
        hosted = cell.shard
        if self.active.get(cell.entity_id) is cell:
            del self.active[cell.entity_id]
        elif hosted.cells.get(cell.entity_id) is cell:
            del hosted.cells[cell.entity_id]
        else:
            return
        hosted.live -= 1
        reason = cell.stopping.value if cell.stopping is not None else StopReason.FAILURE.value
        self.counts.stopped[reason] = self.counts.stopped.get(reason, 0) + 1
        self._own_timeouts.pop(cell, None)
        waiting = list(cell.mailbox or ())
        cell.busy, cell.mailbox, cell.entity = True, None, None
        if cell.extras is not None:
            cell.extras.cancel_timers()
            waiting = cell.extras.stash + waiting
        refuses, cell.gone = hosted.stopping or cell.gone, True
        if waiting and not refuses:
            self.activate(hosted, cell.entity_id, "restart", deque(waiting))
        elif self.memory is not None and not hosted.stopping:
            self._stopped_alone(self.memory, hosted, cell)
        if waiting and refuses:
            self.counts.drop("stopped", len(waiting))
            for m in waiting:
                if m.session is not None:
                    m.session.fail(m.corr, Unhandled(f"{self.name} {cell.entity_id!r} stopped"))
        self._maybe_down(hosted)

    def _stopped_alone(self, memory: Memory, hosted: HostedShard, cell: Context) -> None:
        """A remembered entity stopped and its shard did not: it is forgotten if it wanted to be,
        else it comes back."""
        if cell.stopping is StopReason.PASSIVATION:
            memory.forget(hosted, cell.entity_id)
        else:
            backoff = self.settings.entity_restart_backoff
            self.loop.call_later(backoff, self._revive, hosted, cell.entity_id)

    def _move(self, hosted: HostedShard, entity_id: str) -> None:
        """The entity belongs to another shard since the shard function changed: start it there,
        then forget it here."""

        async def move() -> None:
            async with self._moving:
                try:
                    await self._start_elsewhere(entity_id)
                except RequestError as e:
                    log.warning("%s %r does not start elsewhere: %s", self.name, entity_id, e)
                    self.loop.call_later(MOVE_AGAIN_S, self._revive, hosted, entity_id)
                else:
                    if self.memory is not None:
                        self.memory.forget(hosted, entity_id)

        task = self.loop.create_task(move())
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    def close(self) -> None:
        """The process ends."""
        for task in self._moves:
            task.cancel()
        if self.memory is not None:
            self.memory.stop()
        self.recovery.stop()
        self.execution.close()

    # ---- what contexts ask for

    def request_stop(self, cell: Context, *, passivate: bool) -> None:
        """The entity wants to stop, after what it is doing."""
        if cell.stopping is None:
            reason = StopReason.PASSIVATION if passivate else StopReason.STOPPED
            self.execution.stop(cell, reason)

    def tell_self(self, cell: Context, message: object) -> None:
        """A timer's message to its own entity."""
        if self.find(cell.entity_id, cell.shard.shard) is not cell:
            return
        invoker = self.kind.invokers.get(method_of(message)) or self.kind.invokers.get("")
        if invoker is None:
            self.counts.drop("unhandled")
        else:
            self.execution.receive(
                cell, Message(invoker, encode_value(message), None, 0, 0), counts=False
            )

    def stash(self, cell: Context) -> None:
        """Put the current message aside."""
        message = cell.handling
        if message is None:
            raise LocalProtocolError("no message is being handled that could be stashed")
        extras = cell.more()
        invoker, payload, session, corr, chain = message
        extras.stash.append(Message(invoker, payload, session, corr, 2**62, chain))
        extras.stashed = session is not None

    def unstash_all(self, cell: Context) -> None:
        """Queue what was put aside, before everything else."""
        if cell.extras is None or not cell.extras.stash:
            return
        stash, cell.extras.stash = cell.extras.stash, []
        if cell.mailbox is None:
            cell.mailbox = deque()
        cell.mailbox.extendleft(reversed(stash))
        if not cell.busy and cell.handling is None:
            self.loop.call_soon(self.execution.settle, cell)

    async def save(self, cell: Context, data: bytes | None) -> None:
        """Write the entity's state under its fence."""
        try:
            await self._keeper.save(self.name, cell.entity_id, cell.shard.fence, data)
        except StaleFence:
            cell.stopping = cell.stopping or StopReason.FAILURE
            raise

    # ---- idle entities

    def own_idle_timeout(self, cell: Context) -> None:
        """The entity chose its own idle timeout."""
        self._own_timeouts[cell] = None

    def sweep(self, tick: int) -> None:
        """Passivate who has been idle for too long. Called about once a second."""
        for cell in list(self._own_timeouts):
            timeout = cell.extras.idle_timeout if cell.extras is not None else None
            if timeout and not cell.busy and tick - cell.used >= _ticks(timeout):
                self.execution.stop(cell, StopReason.PASSIVATION)
        limit = self.settings.passivate_after
        if limit <= 0 or self.settings.remember or tick - self._swept < _ticks(limit) // 4:
            return
        self._swept = tick
        idle_since = tick - _ticks(limit)
        idle = [c for c in self.active.values() if c.used <= idle_since and not c.busy]
        for cell in idle:
            if cell not in self._own_timeouts:
                self.execution.stop(cell, StopReason.PASSIVATION)

    @property
    def entities(self) -> int:
        """How many are in memory."""
        return sum(hosted.live for hosted in self.shards.values())

    def ids(self, shard: str) -> list[str]:
        """The entities of a shard that are in memory."""
        hosted = self.shards.get(shard)
        if hosted is None:
            return []
        return list(hosted.cells) + [i for i, c in self.active.items() if c.shard is hosted]


def _ticks(seconds: float) -> int:
    return int(seconds * 1000) // Clock.TICK_MS
