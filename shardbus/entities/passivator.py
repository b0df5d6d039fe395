"""Which entities of one type stay in memory on this node: idle time, and a limit on their number.

**Idle time.** Every message writes the coarse time into its entity; every so often all of them are
looked at, and who was not used for `passivate_after` goes.

**The limit.** Each start over it orders a pass, at the end of the loop's turn, that passivates as
many as there are too many. The policy (`replacement`, `admission`) names them, and is asked in this
way, because a message tells nobody but its own entity that it came:

    policy names a victim ──> at work, or has messages, or its shard moves ──> spared
                          ──> used since we last knew                   ──> the policy hears of it
                          ──> else                                      ──> it goes

    and names the next.

So a type without a limit pays nothing, and one with a limit pays per start, not per message. A
policy that counts uses hears of them besides, from a look at a few thousand entities a second: a
use then means «at least one message since the last look».

**Bounds.** A turn takes a bounded number of looks, twice the number of starts that it follows and
more: 32 for each. So the limit is exceeded by the starts of one turn, and, when all entities have
been used since they were last looked at, by at most a thirty-second of it for some turns. After a
full round that found nobody, being used saves nobody any more; after another, all are busy, and the
next pass waits for the next sweep or for a sixteenth more. Who is busy is never passivated, and who
is still stopping counts no more: both come on top. Who only waits for its next try to start, and
nobody for it, is not busy.

Source: S2.38, S4.25; B.79-B.81, B.85, B.86, B.88, B.89; C.18.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from shardbus.config.settings import ShardingSettings
from shardbus.entities.admission import CompositePolicy
from shardbus.entities.context import Context
from shardbus.entities.eviction import (
    EvictionPolicy,
    LeastFrequent,
    LeastRecent,
    MostRecent,
    Segmented,
)
from shardbus.entities.supervision import EntityCounts
from shardbus.errors import Refused
from shardbus.transport.asks import CoarseClock

HEARD_MAX = 5000
"""Entities that a policy which counts uses looks at in one sweep."""
TURN_MIN = 256
"""So many may always go in one turn."""
LOOKS = 16
"""Looks in one turn, for each that may go."""


def policy_of(settings: ShardingSettings, limit: int) -> EvictionPolicy:
    """The policy that the settings name."""
    match settings.passivation_strategy:
        case "slru":
            return Segmented(limit, settings.passivation_protected)
        case "mru":
            return MostRecent()
        case "lfu":
            return LeastFrequent()
        case "composite":
            window, protected = settings.passivation_window, settings.passivation_protected
            return CompositePolicy(limit, window, protected)
        case _:
            return LeastRecent()


class Passivator:
    """See the module. `active`: entities by id, of shards that are not on the move.
    `passivate(cell)` is called for who shall go; `abandoned(cell)` says whether it fails to start,
    and nobody waits for it."""

    def __init__(
        self,
        settings: ShardingSettings,
        loop: asyncio.AbstractEventLoop,
        active: Mapping[str, Context],
        counts: EntityCounts,
        passivate: Callable[[Context], None],
        abandoned: Callable[[Context], bool],
    ) -> None:
        self.settings, self.limit = settings, settings.active_entity_limit
        self.limited = self.limit > 0
        self.evicted = 0
        """How many went because there were too many."""
        self._loop, self._active, self._counts = loop, active, counts
        self._passivate, self._abandoned = passivate, abandoned
        self._policy = policy_of(settings, self.limit) if self.limited else None
        self._known: dict[str, int] = {}
        """Who counts, and the last use that the policy knows of."""
        self._pass: asyncio.Handle | None = None
        self._threshold = self.limit
        """More than so many order a pass."""
        self._since = 0
        """Starts over the limit since the last pass."""
        self._barren = 0
        """Looks since somebody was found."""
        self._round: list[Context] = []
        """Who is still to be looked at, of those that were here when the round began."""
        self._measured = (0, 0)
        self._own_timeouts: dict[Context, None] = {}
        self._swept = 0

    def resize(self, limit: int, activations: Iterable[Context]) -> None:
        """Another limit from now on, 0 for none. `cells`: who is in memory.

        Raises:
            Refused: entities of this type are remembered. Nothing has changed.
        """
        if self.settings.remember:
            raise Refused(
                "its entities are remembered: there is no limit on them",
                hint="a passivated entity would be forgotten",
            )
        self.limit = self._threshold = limit
        self.limited = limit > 0
        if not self.limited:
            self._policy, self._known, self._round = None, {}, []
        elif self._policy is not None:
            self._policy.resize(limit)
        else:
            self._policy = policy_of(self.settings, limit)
            for activation in sorted(activations, key=lambda activation: activation.used):
                self._policy.started(activation.entity_id, activation.used)
                self._known[activation.entity_id] = activation.used
        self._order()

    # ---- who comes and goes

    def started(self, activation: Context) -> None:
        """An entity is in memory now; only where there is a limit."""
        assert self._policy is not None
        self._policy.started(activation.entity_id, activation.used)
        self._known[activation.entity_id] = activation.used
        if len(self._known) > self._threshold:
            self._since += 1
            if self._pass is None:
                self._pass = self._loop.call_soon(self._evict)

    def forget(self, activation: Context) -> None:
        """It is gone, or on its way."""
        self._own_timeouts.pop(activation, None)
        if self._policy is not None and self._known.pop(activation.entity_id, None) is not None:
            self._policy.stopped(activation.entity_id)

    def own_idle_timeout(self, activation: Context) -> None:
        """The entity chose its own idle timeout."""
        self._own_timeouts[activation] = None

    def stop(self) -> None:
        """The node ends."""
        if self._pass is not None:
            self._pass.cancel()

    # ---- the limit

    def _order(self) -> None:
        if self._pass is None and self._policy is not None and len(self._known) > self.limit:
            self._pass = self._loop.call_soon(self._evict)

    def _evict(self) -> None:
        """A pass."""
        self._pass = None
        most = max(TURN_MIN, 2 * self._since)
        self._since = 0
        victims = self._choose(most)
        self.evicted += len(victims)
        for activation in victims:
            self._passivate(activation)
        if len(self._known) <= self.limit:
            self._threshold = self.limit
        elif self._barren <= 2 * len(self._known):
            self._order()
        else:
            self._barren, self._threshold = 0, len(self._known) + len(self._known) // 16

    def _choose(self, most: int) -> list[Context]:
        """Up to so many that shall go; they do not count any more."""
        policy, known, victims = self._policy, self._known, list[Context]()
        if policy is None:
            return victims
        for _ in range(LOOKS * most):
            if len(known) <= self.limit or len(victims) == most:
                break
            entity_id = policy.victim()
            if entity_id is None or self._barren > 2 * len(known):
                break
            activation = self._active.get(entity_id)
            self._barren += 1
            if activation is None or not self._at_rest(activation):
                policy.spared(entity_id)
            elif activation.used > known[entity_id] and self._barren <= len(known):
                known[entity_id] = activation.used
                policy.used(entity_id, activation.used)
            else:
                self._barren = 0
                del known[entity_id]
                policy.stopped(entity_id)
                victims.append(activation)
        return victims

    # ---- looking

    def sweep(self, tick: int) -> None:
        """Look who was used, and who was idle for too long. Called about once a second."""
        for activation in list(self._own_timeouts):
            timeout = activation.extras.idle_timeout if activation.extras is not None else None
            if timeout and self._at_rest(activation) and tick - activation.used >= _ticks(timeout):
                self._passivate(activation)
        if self._policy is not None:
            if self._policy.counts_uses:
                self._hear(self._policy)
            self._order()
        after = self.settings.passivate_after
        if after <= 0 or self.settings.remember or tick - self._swept < _ticks(after) // 4:
            return
        self._swept = tick
        idle_since = tick - _ticks(after)
        idle = [c for c in self._active.values() if c.used <= idle_since and self._at_rest(c)]
        for activation in idle:
            if activation not in self._own_timeouts:
                self._passivate(activation)

    def _hear(self, policy: EvictionPolicy) -> None:
        """Tell the policy of uses that it does not know of yet."""
        waiting, known = self._round, self._known
        if not waiting:
            waiting.extend(self._active.values())
        for activation in waiting[-HEARD_MAX:]:
            entity_id = activation.entity_id
            if not activation.gone and activation.used > known.get(entity_id, activation.used):
                known[entity_id] = activation.used
                policy.used(entity_id, activation.used)
        del waiting[-HEARD_MAX:]
        if isinstance(policy, CompositePolicy):
            before, now = self._measured, (self._counts.accepted, self._counts.all_started)
            self._measured = now
            policy.measure(now[0] - before[0], now[1] - before[1])

    def _at_rest(self, activation: Context) -> bool:
        """It handles nothing, no work of its own is under way, and no message waits for it, not in
        its stash either. A remembered one is tried for as long as it fails to start."""
        if activation.extras is not None and activation.extras.stash:
            return False
        return activation.idle or (not self.settings.remember and self._abandoned(activation))


def _ticks(seconds: float) -> int:
    return int(seconds * 1000) // CoarseClock.TICK_MS
