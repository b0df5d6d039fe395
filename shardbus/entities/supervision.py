"""Starting an entity: its object, its state, `on_start`, and what happens when one of them fails.

A start that fails is tried again for as long as the entity is wanted, the first time at once, then
with a doubling backoff; messages wait meanwhile:

    it fails ──> supervision says `stop` ──> it ends, and what waits for it is refused
             ──> anything else ────────────> backoff ──> again
                                                └─ idle for too long, or one too many, and nobody
                                                   waits for it: passivated

A store that does not answer is no failure of the entity's, so nobody is asked about that. At a
hand-off it is wanted for as long as messages
wait, since they come before those that the next home will get; a stop message alone, which it could
not answer, is not waited for. Then only a store that does not answer is asked again, until the
entity is cut off. That a newer activation has loaded the state is a failure too: the entity lives
elsewhere, and this shard will be told to stop, or has been: then it ends. What waits for one that
ends is for the shard's next home.

Source: S2.47, S2.48, S2.69, S4.16-S4.20; C.18, C.19; docs/how-to/define-entities.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from shardbus.config.settings import ShardingSettings
from shardbus.entities.context import NOBODY, Context
from shardbus.entities.entity_type import Directive, EntityType, StopReason
from shardbus.errors import StaleFence, StoreError

log = logging.getLogger("shardbus.entity")

MOVES = (StopReason.HANDOFF, StopReason.SHUTDOWN)
"""Such a stop comes after what waits for the entity."""

FAILURE_MEMORY_TICKS = 200
"""A failure so long ago (10 s) does not lengthen the next backoff."""


class StateLoader(Protocol):
    """Where entities' state is kept."""

    async def load(self, entity_type: str, entity_id: str, fence: int) -> bytes | None: ...
    async def save(
        self, entity_type: str, entity_id: str, fence: int, data: bytes | None
    ) -> None: ...


class EntityCounts:
    """What happened to messages and entities, for metrics."""

    __slots__ = ("accepted", "cut_off", "dropped", "failures", "started", "stopped", "tell")

    def __init__(self) -> None:
        self.accepted = 0
        self.cut_off = 0
        self.failures = 0
        self.dropped: dict[str, int] = {}
        self.started: dict[str, int] = {}
        self.stopped: dict[str, int] = {}
        self.tell: Callable[[int, str, int], None] | None = None
        """Has the sender told: by which link, why, how many."""

    @property
    def all_started(self) -> int:
        """Entities started, for whatever cause."""
        return sum(self.started.values())

    def drop(self, reason: str, count: int = 1, via: int = NOBODY) -> None:
        """Messages that no handler will see; `via`: what stands for tells in place of their
        correlation id."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        if via < NOBODY and self.tell is not None:
            self.tell(via, reason, count)


def _may_pass(error: BaseException) -> bool:
    """Whether a start that failed so may succeed soon: the store did not answer."""
    return isinstance(error, StoreError) and not isinstance(error, StaleFence)


def _wanted(activation: Context) -> bool:
    """Whether it shall start, though it may have been told to stop meanwhile."""
    if activation.stopping in MOVES:
        return _awaited(activation)
    return activation.stopping is None


def _awaited(activation: Context) -> bool:
    """Whether messages of others wait for it."""
    return any(not message.own for message in activation.mailbox or ())


class Supervisor:
    """Starts entities of one type. `tick` is the node's coarse time."""

    def __init__(self, kind: EntityType, settings: ShardingSettings, keeper: StateLoader) -> None:
        self.counts = EntityCounts()
        self.tick = 0
        self._kind, self._settings, self._keeper = kind, settings, keeper
        self._pausing: set[Context] = set()
        """Who waits for its next try."""

    async def start(self, activation: Context) -> None:
        """Construct, load the state, run `on_start`; again after a backoff while that fails."""
        while _wanted(activation):
            backoff = self._backoff(activation)
            if backoff:
                await self._pause(activation, backoff)
            try:
                self.construct(activation)
                if self._kind.state_class is not None:
                    await self._load(activation)
                if self._kind.starts:
                    await activation.entity.on_start()
                    activation.gone = activation.stopping in (
                        StopReason.STOPPED,
                        StopReason.PASSIVATION,
                    )
                return
            except Exception as e:  # StaleFence too: the region will learn that the shard has moved
                if self.gives_up(activation, e):
                    return

    async def _pause(self, activation: Context, seconds: float) -> None:
        self._pausing.add(activation)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._pausing.discard(activation)

    def abandoned(self, activation: Context) -> bool:
        """It waits for its next try, and nobody waits for it: who asked has given up since."""
        if activation not in self._pausing:
            return False
        mailbox = activation.mailbox
        while mailbox and mailbox[0].session is not None and mailbox[0].deadline <= self.tick:
            mailbox.popleft()
            self.counts.drop("expired")
        return not _awaited(activation)

    def gives_up(self, activation: Context, error: BaseException) -> bool:
        """A start failed; whether it is not tried again. If supervision says so, what waits for the
        entity is not for a next incarnation, which would fail alike."""
        activation.end_incarnation()
        activation.entity = None
        stops = self.directive(error) is Directive.STOP
        self.failed(activation, "failed to start", error, again=not stops)
        if self._ends(activation, error):
            return True
        if stops:
            activation.stopping = StopReason.FAILURE
            activation.more().refusal = error
        return stops

    def directive(self, error: BaseException) -> Directive:
        """What the supervision says of a failure."""
        if isinstance(error, StoreError) or not isinstance(error, Exception):
            return Directive.RESTART  # memory may be ahead of the store, or half-way
        try:
            return Directive(self._kind.supervision(error))
        except Exception:
            log.exception("the supervision of %s failed", self._kind.name)
            return Directive.RESTART

    def _ends(self, activation: Context, error: BaseException) -> bool:
        """Whether it is not tried again: it shall stop, and nobody waits for it, or in vain."""
        told = None if activation.stop_request is None else activation.stop_request.reason
        reason = activation.stopping or told
        if reason is None or (reason in MOVES and _may_pass(error) and _awaited(activation)):
            return False
        activation.stopping = reason
        return True

    def construct(self, activation: Context) -> None:
        cls: Any = self._kind.cls
        entity = cls.__new__(cls)
        entity.context = activation
        entity.__init__()
        activation.entity = entity

    async def _load(self, activation: Context) -> None:
        read, cls = self._kind.read_state, self._kind.state_class
        assert read is not None
        assert cls is not None
        data = await self._keeper.load(
            self._kind.name, activation.entity_id, activation.shard.fence
        )
        activation.entity.state = cls() if data is None else read(data)

    def _backoff(self, activation: Context) -> float:
        """0 unless it failed more than once lately; then doubling."""
        if activation.failures <= 1:
            return 0.0
        least, most = (
            self._settings.entity_restart_backoff_min,
            self._settings.entity_restart_backoff,
        )
        return min(most, least * 2.0 ** min(activation.failures - 2, 16))

    def failed(
        self, activation: Context, what: str, error: BaseException, *, again: bool = True
    ) -> None:
        """Count and log a failure; `again`: the entity will start again, after a longer backoff
        than the last time."""
        self.counts.failures += 1
        if again:
            if self.tick - activation.failed_at > FAILURE_MEMORY_TICKS:
                activation.failures = 0
            activation.failures, activation.failed_at = activation.failures + 1, self.tick
        log.warning(
            "%s %r %s: %s: %s",
            self._kind.name,
            activation.entity_id,
            what,
            type(error).__name__,
            error,
            exc_info=None if isinstance(error, StoreError) else error,
        )
