"""Deaf entities: busy, with messages that wait, and without anything of theirs that runs.

An entity is busy while a handler, a start or an `on_stop` of it runs. One that waits has a task,
and one that goes on in the next turn of the loop has a callback there. If neither is there, nothing
ever makes the entity take its next message: a defect of shardbus, which no other figure shows. So
the entities with a mailbox are looked at once a second:

    busy, no task that runs, not held by the gate, not RESTING or LISTING
        and the same message is first ──> for LOOKS looks ──> deaf: logged once, counted, named

An entity that works has a task, or another first message at the next look. One without waiting
messages is found with the first that arrives.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import msgspec

from shardbus.entities.activation import Activation, LifeState, Message
from shardbus.entities.runner import EntityRunner
from shardbus.guarded_log import GuardedLog
from shardbus.transport.asks import CoarseClock

log = GuardedLog("shardbus.entity")

LOOKS = 4
"""Looks in a row, about a second apart, at which an entity seems deaf before it counts."""
NAMED_MAX = 10
"""Entities that are named."""
WAITING = (LifeState.LISTING, LifeState.RESTING)
"""States in which an entity without a task waits for the store, or for its own `stop()`."""


class Suspect(msgspec.Struct):
    """An entity that seems deaf: its first message, the tick and the number of looks since."""

    first: Message
    since: int
    looks: int = 1


class DeafEntities:
    """The deaf entities of one type, which has this name in the log."""

    def __init__(self, entity_type: str, runner: EntityRunner) -> None:
        self._type, self._runner = entity_type, runner
        self._suspects: dict[Activation, Suspect] = {}

    def sweep(self, tick: int) -> None:
        """Look at the entities with a mailbox. Called about once a second, by the loop."""
        suspects: dict[Activation, Suspect] = {}
        for activation in self._runner.mailbox_limits.with_messages():
            if not self._seems_deaf(activation) or not activation.mailbox:
                continue
            first, suspect = activation.mailbox[0], self._suspects.get(activation)
            if suspect is None or suspect.first is not first:
                suspects[activation] = Suspect(first, tick)
                continue
            suspects[activation] = suspect
            suspect.looks += 1
            if suspect.looks == LOOKS:
                self._report(activation, tick - suspect.since)
        self._suspects = suspects

    def _seems_deaf(self, activation: Activation) -> bool:
        task = activation.task
        runs = task is not None and not task.done()
        waits = runs or activation.state in WAITING or self._runner.holds(activation)
        return activation.busy and not waits

    def _report(self, activation: Activation, ticks: int) -> None:
        seconds = ticks * CoarseClock.TICK_MS // 1000
        about = {"shard": activation.shard.shard, "fence": activation.shard.fence}
        log.error(
            "%s %r is busy without a task since %d s: it takes no message",
            self._type,
            activation.key,
            seconds,
            extra=about,
        )

    @property
    def count(self) -> int:
        """Entities that are deaf now."""
        return sum(suspect.looks >= LOOKS for suspect in self._suspects.values())

    def named(self) -> list[str]:
        """Return the ids of up to `NAMED_MAX` entities that are deaf now."""
        deaf = (a.key for a, suspect in self._suspects.items() if suspect.looks >= LOOKS)
        return [key for key, _ in zip(deaf, range(NAMED_MAX), strict=False)]
