"""Reminders of simulated nodes, judged from outside; and wall clocks that jump.

Two entity types set reminders when they take messages: `reminded` has no state, `reminded-kept`
saves one. Some of their handlers fail before they are done. Each reminder is recorded when the
entity has the confirmation that it is stored, when its handler is called, and when that has
returned:

    remind   none is early, by the clock of its node
             once its handler has returned, the delivery is not called again under that fence,
             whatever the store does
             a state never has the effect of one delivery twice
             in the quiet: each that is due has been called, or its effect is stored

A store that lost or restored data excuses the last three.

Source: docs/simulation.md; docs/how-to/reminders.md.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from shardbus.entities.context import Context, key_of
from shardbus.entity import Entity, handler
from shardbus.reminders.record import Reminder
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.nodes.checker import DeliveryChecker
from shardbus.simulation.nodes.world import NodeWorld
from shardbus.simulation.timeline import WALL_OFFSET_S

REMINDED, REMINDED_KEPT = "reminded", "reminded-kept"
REMINDING = (REMINDED, REMINDED_KEPT)
SETS = 0.3
"""The part of messages that set a reminder."""
HELD = 40
"""Reminders of one entity."""
AFTER_S = (0.05, 15.0)
FAILS = 0.1
"""The part of calls that fail before they are done."""
JUMPS_S = (3600.0, -3600.0, 30.0, -30.0, 0.0)
JUMPS = 4
SOON_S = 20.0
"""In the quiet, reminders that are due within this time are waited for."""
EFFECTS = 400
"""Deliveries that a state keeps."""


class CallFailed(Exception):
    """A planned failure of a reminder's handler."""


class RemindingApplication(Protocol):
    """The target of the entities' calls."""

    checker: DeliveryChecker
    dice: Random

    async def handle_slowly(self) -> None: ...


@dataclass
class Effects:
    """The state of a `reminded-kept` entity: the deliveries that have had their effect."""

    deliveries: dict[str, int] = field(default_factory=dict)


class ReminderChecker:
    """Records each reminder, and checks the rule of the module's text."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(f"reminders {seed}")
        self._world: NodeWorld
        self._checker: DeliveryChecker
        self._pending: dict[str, int] = {}
        """When each stored reminder is due that was not called yet, in ms."""
        self._saving: dict[str, tuple[str, str, str]] = {}
        """The type, id and delivery of each stored reminder whose effect a save had."""
        self._done: dict[tuple[str, str, str], int] = {}
        """By delivery: the fence under which its handler has returned."""
        self.called = 0

    def attach(self, world: NodeWorld, checker: DeliveryChecker) -> None:
        """Belong to this run."""
        self._world, self._checker = world, checker

    def begin(self, seconds: float) -> None:
        """Schedule the jumps of wall clocks."""
        for _ in range(self.dice.randint(0, JUMPS)):
            self._world.later(self.dice.uniform(0.1, 0.9) * seconds, self._jump)

    def _jump(self) -> None:
        nodes = [n for n in self._world.sim_nodes.values() if n.ended_at is None]
        if nodes:
            node, offset = self.dice.choice(nodes), self.dice.choice(JUMPS_S)
            node.loop.clock.wall_offset = WALL_OFFSET_S + offset
            self._world.trace.mark(self._world.now, node.name, f"has its clock at {offset:+g} s")

    def heal(self) -> None:
        """Set all clocks right."""
        for node in self._world.sim_nodes.values():
            node.loop.clock.wall_offset = WALL_OFFSET_S

    # ---- entities

    async def set_sometimes(self, entity: Entity, mark: str) -> None:
        """Set a reminder in some messages, and record it once it is stored."""
        dice, context = self.dice, entity.context
        if dice.random() >= SETS or len(context.reminders()) >= HELD:
            return
        after, every = dice.uniform(*AFTER_S), None
        late: Any = dice.choice(("once", "once", "all"))
        if dice.random() < 0.2:
            every = dice.uniform(1.0, 4.0)
        due = round((context.now().timestamp() + after) * 1000)
        await context.remind(mark, handler="ring", after=after, every=every, late=late, data=mark)
        saves = getattr(entity, "save", None) if isinstance(entity, KeptState) else None
        if saves is not None:
            if dice.random() < 0.2:
                return  # stored before the answer, which no code here sees
            await saves()
        self._pending.setdefault(mark, due)
        self._note(context, f"sets {mark} at {due}")

    def on_called(self, context: Context, reminder: Reminder, mark: str) -> None:
        """Record that a handler is called."""
        self._note(context, f"rings {mark} {reminder.number}")
        if context.now() < reminder.due:
            raise self._broken(f"{mark} is called at {context.now()}, due at {reminder.due}")
        key = (context.entity_type, key_of(context), reminder.delivery)
        if self._done.get(key) == context.fence and not self._world.store.lied:
            raise self._broken(f"{key} is called again under fence {context.fence:x}")
        self.called += 1

    def on_done(self, context: Context, reminder: Reminder, mark: str) -> None:
        """Record that a handler is about to return."""
        self._done[context.entity_type, key_of(context), reminder.delivery] = context.fence
        self._pending.pop(mark, None)

    def on_effect(self, context: Context, reminder: Reminder, mark: str, effects: Effects) -> None:
        """Add the effect of a delivery to a state, before its save."""
        if reminder.delivery in effects.deliveries and not self._world.store.lied:
            raise self._broken(f"{key_of(context)} has the effect of {reminder.delivery} twice")
        effects.deliveries[reminder.delivery] = 1
        self._saving[mark] = (context.entity_type, key_of(context), reminder.delivery)
        while len(effects.deliveries) > EFFECTS:
            del effects.deliveries[next(iter(effects.deliveries))]

    def _broken(self, detail: str) -> Violation:
        violation = Violation("remind", detail)
        self._checker.violation = self._checker.violation or violation
        return violation

    def _note(self, context: Context, what: str) -> None:
        place = f"{context.entity_type} {context.entity_id} {what}"
        self._world.trace.hashed(self._world.now, context.node, place)

    # ---- the quiet

    def missing(self) -> str:
        """Return a reminder that is due, or soon will be, and was not called. Empty if there is
        none."""
        if self._world.store.lied:
            return ""
        soon = (WALL_OFFSET_S + self._world.now + SOON_S) * 1000
        late = [(due, mark) for mark, due in self._pending.items() if due <= soon]
        late = [(due, mark) for due, mark in late if not self._has_effect(mark)]
        return f"reminder {min(late)} was not called" if late else ""

    def _has_effect(self, mark: str) -> bool:
        """True if the store has the effect of a call whose handler did not see the end of its
        save."""
        if mark not in self._saving:
            return False
        kind, entity_id, delivery = self._saving[mark]
        state = self._world.store.data.states.get((kind, entity_id))
        return state is not None and delivery.encode() in (state.data or b"")


class KeptState:
    """Marks the entities that save."""


def reminding_classes(
    application: RemindingApplication, reminders: ReminderChecker
) -> dict[str, type]:
    """Return the two classes, by the names of their types."""

    class Reminded(Entity):
        def __init__(self) -> None:
            application.checker.on_started(self.context)

        @handler
        async def take(self, sender: str, seq: int) -> int:
            with application.checker.places.handler(self.context, asyncio.current_task()):
                message = application.checker.on_handled(self.context, sender, seq)
                try:
                    await reminders.set_sometimes(self, f"{self.context.entity_id}/{sender}/{seq}")
                except BaseException:
                    application.checker.on_raised(message)
                    raise
            return seq

        @handler
        def note(self, sender: str, seq: int) -> int:
            application.checker.places.begins(self.context)
            application.checker.on_handled(self.context, sender, seq)
            return seq

        @handler
        async def ring(self, mark: str) -> None:
            with application.checker.places.handler(self.context, asyncio.current_task()):
                reminder = self.context.reminder
                assert reminder is not None
                reminders.on_called(self.context, reminder, mark)
                await application.handle_slowly()
                if reminder.number >= 3:
                    await self.context.forget(reminder.name)
                if reminders.dice.random() < FAILS:
                    raise CallFailed
                await self.finish(reminder, mark)
                reminders.on_done(self.context, reminder, mark)

        async def finish(self, reminder: Reminder, mark: str) -> None:
            """Store the effect."""

    class RemindedKept(Reminded, KeptState):
        state: Effects

        async def finish(self, reminder: Reminder, mark: str) -> None:
            reminders.on_effect(self.context, reminder, mark, self.state)
            await self.save()

    return {REMINDED: Reminded, REMINDED_KEPT: RemindedKept}
