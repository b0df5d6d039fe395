"""Passivation: which entities of a type leave memory, by idle time and by a limit on their number.

A type declares both by `passivation_settings.Passivation`.

**Idle time.** Every message writes the coarse time into its activation. Periodically all
activations are checked, and those unused for `passivate_after` are passivated, both some in each
turn of the loop (`in_turns`). One that was used meanwhile stays.

**The limit.** Each start over the limit schedules a pass at the end of the loop's turn, which
passivates the excess. The policy (`eviction`) names the victims, as follows, because a message
notifies only its own activation:

    policy names a victim ──> it is busy, or has messages, or its shard moves ──> spared
                          ──> used since the policy last knew               ──> the policy gets
                          │                                                    the use
                          ──> else                                          ──> passivated

    and names the next.

So a type without a limit pays nothing, and one with a limit pays per start, not per message. A
policy that counts uses also gets them from a check of 5000 entities a second: a use then means "at
least one message since the last check".

**Bounds.** One pass makes a bounded number of checks: 16 for each entity that may leave, which are
at least 256 or twice the starts since the last pass. So the starts of one turn exceed the limit,
and, if all entities have been used since their last check, so does up to a thirty-second of the
limit for some turns. After a full round without a victim, being used spares no entity any more;
after a second one all are busy, and the next pass waits for the next sweep or for a sixteenth more
entities. A busy entity is never passivated, and a stopping one does not count: both exceed the
limit. An entity that only waits for its next attempt to start, with no message for it, is not busy.

Source: S2.38, S4.25, B.79-B.81, B.85, B.86, B.88, B.89.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from shardbus.config.settings import ShardingSettings
from shardbus.entities import eviction
from shardbus.entities.activation import Activation, LifeState
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.in_turns import InTurns
from shardbus.entities.supervision import EntityCounts
from shardbus.errors import Refused
from shardbus.transport.asks import CoarseClock

USES_CHECKED_MAX = 5000
"""Entities checked for uses in one sweep, for a policy that counts uses."""
PASS_MIN = 256
"""Entities that may leave in any pass."""
LOOKED_AT_ONCE = 5000
"""Entities that one turn checks for their idle time."""
STOPPED_AT_ONCE = 100
"""Idle entities that one turn passivates."""
CHECKS = 16
"""Checks in one pass, for each entity that may leave."""


def policy_of(settings: ShardingSettings, limit: int) -> eviction.EvictionPolicy:
    """Return the policy that the settings name."""
    match settings.passivation_strategy:
        case "slru":
            return eviction.Segmented(limit, settings.passivation_protected)
        case "mru":
            return eviction.MostRecent()
        case "lfu":
            return eviction.LeastFrequent()
        case "composite":
            window, protected = settings.passivation_window, settings.passivation_protected
            return eviction.CompositePolicy(limit, window, protected)
        case _:
            return eviction.LeastRecent()


class Passivator:
    """Passivates entities of one type. `active`: activations by id, of open shards.
    `passivate(activation)` stops one; `abandoned(activation)` is true if one fails to start and no
    message waits for it."""

    def __init__(
        self,
        settings: ShardingSettings,
        loop: asyncio.AbstractEventLoop,
        active: Mapping[str, Activation],
        counts: EntityCounts,
        passivate: Callable[[Activation], None],
        abandoned: Callable[[Activation], bool],
        gate: SuspensionGate,
    ) -> None:
        self.settings, self.limit = settings, settings.active_entity_limit
        self.limited = self.limit > 0
        self.evicted = 0
        """Entities passivated because of the limit."""
        self._loop, self._active, self._counts = loop, active, counts
        self._passivate, self._abandoned = passivate, abandoned
        self._policy = policy_of(settings, self.limit) if self.limited else None
        self._last_uses: dict[str, int] = {}
        """Ids that count for the limit, and the last use that the policy knows of."""
        self._pass: asyncio.Handle | None = None
        self._threshold = self.limit
        """A start beyond this number of entities schedules a pass."""
        self._since = 0
        """Starts over the limit since the last pass."""
        self._fruitless = 0
        """Checks since the last victim."""
        self._round: list[Activation] = []
        """Entities still to be checked for uses, of those in memory when the round began."""
        self._measured = (0, 0)
        self._own_timeouts: dict[Activation, None] = {}
        self._gate = gate
        self._checked = InTurns(loop, self._find_idle, LOOKED_AT_ONCE)
        self._idle = InTurns(loop, self._passivate_idle, STOPPED_AT_ONCE)
        self._tick = self._swept = 0

    def resize(self, limit: int, activations: Iterable[Activation]) -> None:
        """Set another limit, 0 for none. `activations`: all that are in memory.

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
            self._policy, self._last_uses, self._round = None, {}, []
        elif self._policy is not None:
            self._policy.resize(limit)
        else:
            self._policy = policy_of(self.settings, limit)
            for activation in sorted(activations, key=lambda activation: activation.used):
                self._policy.started(activation.key, activation.used)
                self._last_uses[activation.key] = activation.used
        self._schedule_pass()

    # ---- starts and stops

    def started(self, activation: Activation) -> None:
        """Note that an entity is in memory; only called with a limit."""
        assert self._policy is not None
        self._policy.started(activation.key, activation.used)
        self._last_uses[activation.key] = activation.used
        if len(self._last_uses) > self._threshold:
            self._since += 1
            if self._pass is None:
                self._pass = self._loop.call_soon(self._evict)

    def forget(self, activation: Activation) -> None:
        """Note that an entity stops or has left memory."""
        self._own_timeouts.pop(activation, None)
        if self._policy is not None and self._last_uses.pop(activation.key, None) is not None:
            self._policy.stopped(activation.key)

    def own_idle_timeout(self, activation: Activation) -> None:
        """Note that an entity chose its own idle timeout."""
        self._own_timeouts[activation] = None

    def stop(self) -> None:
        """Cancel the pass and the checks: the node ends."""
        self._checked.stop()
        self._idle.stop()
        if self._pass is not None:
            self._pass.cancel()

    # ---- the limit

    def _schedule_pass(self) -> None:
        if self._pass is None and self._policy is not None and len(self._last_uses) > self.limit:
            self._pass = self._loop.call_soon(self._evict)

    def _evict(self) -> None:
        """Passivate the excess, or a part of it: one pass."""
        self._pass = None
        most = max(PASS_MIN, 2 * self._since)
        self._since = 0
        victims = self._choose(most)
        self.evicted += len(victims)
        for activation in victims:
            self._passivate(activation)
        if len(self._last_uses) <= self.limit:
            self._threshold = self.limit
        elif self._fruitless <= 2 * len(self._last_uses):
            self._schedule_pass()
        else:
            self._fruitless, self._threshold = 0, len(self._last_uses) + len(self._last_uses) // 16

    def _choose(self, most: int) -> list[Activation]:
        """Return up to `most` victims; they count no more."""
        policy, uses, victims = self._policy, self._last_uses, list[Activation]()
        if policy is None:
            return victims
        for _ in range(CHECKS * most):
            if len(uses) <= self.limit or len(victims) == most:
                break
            entity_id = policy.victim()
            if entity_id is None or self._fruitless > 2 * len(uses):
                break
            activation = self._active.get(entity_id)
            self._fruitless += 1
            if activation is None or not self._at_rest(activation):
                policy.spared(entity_id)
            elif activation.used > uses[entity_id] and self._fruitless <= len(uses):
                uses[entity_id] = activation.used
                policy.used(entity_id, activation.used)
            else:
                self._fruitless = 0
                del uses[entity_id]
                policy.stopped(entity_id)
                victims.append(activation)
        return victims

    # ---- checks

    def sweep(self, tick: int) -> None:
        """Passivate entities that were idle for too long, and collect uses for the policy. Called
        about once a second; it goes on in the next turns if they are many."""
        if self._policy is not None:
            if self._policy.counts_uses:
                self._collect_uses(self._policy)
            self._schedule_pass()
        if self._checked or self._idle:
            return  # the last one is not over
        self._tick, after = tick, self._passivate_after
        if after and tick - self._swept >= after // 4:
            self._swept = tick
            self._checked.add(self._active.values())
        else:
            self._checked.add(self._own_timeouts)

    @property
    def _passivate_after(self) -> int:
        """Return the ticks after which idle entities leave memory; 0 for never."""
        return 0 if self.settings.remember else _ticks(self.settings.passivate_after)

    def _find_idle(self, some: list[Activation]) -> None:
        """Add those that were idle for too long to the ones that leave."""
        after, tick = self._passivate_after, self._tick
        since = tick - after if after else -1
        own = self._own_timeouts
        self._idle.add(
            activation
            for activation in some
            if (activation.used <= since or activation in own) and self._is_late(activation, after)
        )

    def _is_late(self, activation: Activation, after: int) -> bool:
        """True if an entity in memory was idle for its own time, or else for `after` ticks."""
        extras = activation.extras
        if extras is not None and extras.idle_timeout is not None:
            after = _ticks(extras.idle_timeout)
        return 0 < after <= self._tick - activation.used and self._at_rest(activation)

    def _passivate_idle(self, some: list[Activation]) -> None:
        if self._gate.closed:
            return
        after, active = self._passivate_after, self._active
        for activation in some:
            here = active.get(activation.key) is activation or activation in self._own_timeouts
            if here and self._is_late(activation, after):
                self._passivate(activation)

    def _collect_uses(self, policy: eviction.EvictionPolicy) -> None:
        """Give the policy uses that it does not know of yet."""
        unchecked, uses = self._round, self._last_uses
        if not unchecked:
            unchecked.extend(self._active.values())
        for activation in unchecked[-USES_CHECKED_MAX:]:
            entity_id = activation.key
            here = activation.state is not LifeState.GONE
            if here and activation.used > uses.get(entity_id, activation.used):
                uses[entity_id] = activation.used
                policy.used(entity_id, activation.used)
        del unchecked[-USES_CHECKED_MAX:]
        if isinstance(policy, eviction.CompositePolicy):
            before, after = self._measured, (self._counts.accepted, self._counts.all_started)
            self._measured = after
            policy.measure(after[0] - before[0], after[1] - before[1])

    def _at_rest(self, activation: Activation) -> bool:
        """True if an entity may be passivated: it handles nothing, has no work under way and no
        message, not even in its stash. A remembered one that fails to start is tried again for
        ever."""
        if activation.extras is not None and activation.extras.stash:
            return False
        return activation.idle or (not self.settings.remember and self._abandoned(activation))


def _ticks(seconds: float) -> int:
    """Return the ticks of a time, one at least; 0 for none."""
    return max(CoarseClock.ticks(seconds), 1) if seconds > 0 else 0
