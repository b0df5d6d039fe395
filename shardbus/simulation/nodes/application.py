"""The application of simulated nodes: the entities that receive, and the senders.

Three entity types, for the three ways of keeping state: `plain` keeps nothing, `kept` saves its
state with each message, `remembered` is restarted by itself. In runs with instances there is a
fourth, `spread`, whose entities run several times. Each reports to the checker. In some runs their
starts wait or fail, and their ends wait; in others their handlers fail, in every way. With unfair
links one more, `on-role`, lives on the nodes with the role `core` only, and in some runs there are
hundreds that get no message.

Senders live in nodes and in clients. Each sends messages in bursts, tells and asks mixed, to drawn
entities, until it is stopped or its process ends. `NodeOptions` has the counts. In a dense run some
bursts are storms: each message goes to an entity that no sender has used.

Source: docs/simulation.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from shardbus.app import ShardBus
from shardbus.entities.context import Context
from shardbus.entities.entity_type import StopReason
from shardbus.entity import Entity, handler
from shardbus.errors import RequestError
from shardbus.sharding.handoff_modes import MODES, HandoffMode
from shardbus.simulation.membership.options import ROLE
from shardbus.simulation.nodes import event_sourcing, reminders
from shardbus.simulation.nodes.checker import DeliveryChecker, SentMessage
from shardbus.simulation.nodes.delivering import DELIVERED, EffectsChecker, declare
from shardbus.simulation.nodes.options import NodeOptions
from shardbus.simulation.nodes.world import SimClient, SimNode, SimProcess

PLAIN, KEPT, REMEMBERED, SPREAD = "plain", "kept", "remembered", "spread"
ON_ROLE = "on-role"
KINDS = {
    "thin": (PLAIN, PLAIN, KEPT, REMEMBERED),
    "dense": (PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, KEPT, REMEMBERED),
}
ASKS = 0.4
"""The part of messages that are asks. In a dense run each burst draws its own."""
ASKS_DENSE = (0.0, 0.05, ASKS, 1.0)
START_S = 0.5
"""Seconds, at most, that a slow start or end waits."""


class NotReady(Exception):
    """A planned failure of an entity's start."""


class UnprintableFailure(Exception):
    """A planned failure of a handler, without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class HandlerPanic(BaseException):
    """A planned failure of a handler that is no Exception."""


FAILURES: tuple[Callable[[], BaseException], ...] = (
    NotReady,
    UnprintableFailure,
    HandlerPanic,
    SystemExit,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
    lambda: ValueError("caf\udce9" * 10_000),
    lambda: BaseExceptionGroup("both", [SystemExit(1), UnprintableFailure()]),
)
"""The errors of failing handlers. Not KeyboardInterrupt: in this process it is the user's."""


@dataclass
class MessageCount:
    """The state of a `kept` entity: the number of messages it has handled."""

    count: int = 0


class SimApplication:
    """The application of one run. `checker` must be set before the first message."""

    awaits = False
    """Senders begin to await each answer at once, so that entities of their node may handle the ask
    there. They go on without it, so that a seed has the same messages."""

    def __init__(self, load: NodeOptions, *, reminds: bool = False) -> None:
        self.checker: DeliveryChecker
        self.reminders = reminders.ReminderChecker(load.seed) if reminds else None
        """Of a run with entities that set reminders."""
        self.effects: EffectsChecker
        """Set in runs with deliveries."""
        self.events: event_sourcing.EventChecker
        """Set in runs with event-sourced entities."""
        self.dice = Random(f"stage {load.seed}")
        self.on_ask: Callable[[SentMessage, SimProcess], object] = lambda message, by: None
        """Called with each ask that is sent, and its process."""
        self.bus = ShardBus("test")
        self._thinks, self._waits_s = load.thinks, load.waits_s
        self._slow_starts, self._failing_starts = load.slow_starts, load.failing_starts
        self._failing_handlers, self.failed = load.failing_handlers, 0
        self._declare(load)

    def _declare(self, load: NodeOptions) -> None:
        application = self

        class Plain(Entity):
            def __init__(self) -> None:
                application.checker.on_started(self.context)

            @handler
            async def take(self, sender: str, seq: int) -> int:
                with application.checker.places.handler(self.context, asyncio.current_task()):
                    message = application.checker.on_handled(self.context, sender, seq)
                    await application.end_slowly(message)
                return seq

            @handler
            def note(self, sender: str, seq: int) -> int:
                application.checker.places.begins(self.context)
                application.handled(self.context, sender, seq)
                return seq

        class Slow(Plain):
            async def on_start(self) -> None:
                await application.prepare_start()

            async def on_stop(self, reason: StopReason) -> None:
                await application.wait_sometimes()

        class Kept(Entity):
            state: MessageCount

            def __init__(self) -> None:
                application.checker.on_started(self.context)

            async def on_start(self) -> None:
                application.checker.on_loaded(self.context, self.state.count)
                await application.prepare_start()

            def dehydrate(self) -> bytes:
                application.checker.on_frozen(self.context, self.state.count)
                return b"%d" % self.state.count

            def rehydrate(self, data: bytes) -> None:
                application.checker.on_carried(self.context, int(data), self.state.count)

            @handler
            async def take(self, sender: str, seq: int) -> int:
                with application.checker.places.handler(self.context, asyncio.current_task()):
                    application.handled(self.context, sender, seq)
                    self.state.count += 1
                    await self.save()
                    application.checker.on_saved(self.context, self.state.count)
                return seq

            @handler
            def note(self, sender: str, seq: int) -> int:
                application.checker.places.begins(self.context)
                application.handled(self.context, sender, seq)
                return seq

        starts = self._slow_starts or self._failing_starts
        plain: type[Plain] = Slow if starts else Plain

        remembered = type("Remembered", (plain,), {})
        self.classes, self.modes = self._types(load, plain, Kept, remembered)

    def _types(
        self, load: NodeOptions, plain: type, kept: type, remembered: type
    ) -> tuple[dict[str, type], dict[str, HandoffMode | None]]:
        """Declare the types; return their classes and the modes of their hand-offs."""
        entity, limit = partial(self.bus.entity, shards=load.shards), load.limit
        mode: Any = load.handoff
        other: Any = load.handoff_of(stateful=True)
        classes = {
            PLAIN: entity(PLAIN, active_entity_limit=limit, handoff=mode)(plain),
            KEPT: entity(KEPT, handoff=other, carry=other == "ordered")(kept),
            REMEMBERED: entity(REMEMBERED, remember=True, handoff=other)(remembered),
        }
        modes = {PLAIN: MODES[mode], KEPT: MODES[other], REMEMBERED: MODES[other]}
        if load.instances:
            cls = type("Spread", (plain,), {})
            spread = entity(SPREAD, instances=load.instances, router="random", handoff="buffer")
            classes[SPREAD] = spread(cls)  # direct moves do not keep instances apart
            modes[SPREAD] = MODES["buffer"]
        if load.deliveries:
            check = partial(getattr, self, "effects")
            classes[DELIVERED] = declare(self.bus, check, load.shards, other)
            modes[DELIVERED] = MODES[other]
        if load.events:
            checker, dice = partial(getattr, self, "events"), Random(f"ledgers {load.seed}")
            classes |= event_sourcing.declare_ledgers(self.bus, checker, load.shards, other, dice)
            modes |= dict.fromkeys((event_sourcing.LEDGER, event_sourcing.TALLY), MODES[other])
        if load.on_role:
            of_role = type("OnRole", (plain,), {})
            classes[ON_ROLE] = entity(ON_ROLE, role=ROLE, handoff=mode)(of_role)
            modes[ON_ROLE] = MODES[mode]
        if self.reminders is not None:
            for name, cls in reminders.reminding_classes(self, self.reminders).items():
                chosen = mode if name == reminders.REMINDED else other
                classes[name] = entity(name, handoff=chosen, reminders=True)(cls)
                modes[name] = MODES[chosen]
        for number in range(load.types):
            entity(f"type{number}")(type(f"Type{number}", (plain,), {}))
        return classes, modes

    def calm(self) -> None:
        """Let every start succeed at once from now on."""
        self._slow_starts = self._failing_starts = 0.0

    async def prepare_start(self) -> None:
        """Wait or fail, as the options say, when an entity starts."""
        await self.wait_sometimes()
        if self._failing_starts and self.dice.random() < self._failing_starts:
            raise NotReady

    def handled(self, context: Context, sender: str, seq: int) -> None:
        """Record that an entity handles a message, and fail, as the options say."""
        self.fail_sometimes(self.checker.on_handled(context, sender, seq))

    def fail_sometimes(self, message: SentMessage) -> None:
        """Raise an error of the kinds that code may raise, as the options say, when a handler has a
        message."""
        if self._failing_handlers and self.dice.random() < self._failing_handlers:
            self.failed += 1
            self.checker.on_raised(message)
            raise self.dice.choice(FAILURES)()

    async def wait_sometimes(self) -> None:
        """Wait, as the options say, when an entity starts or ends."""
        if self._slow_starts and self.dice.random() < self._slow_starts:
            await asyncio.sleep(self.dice.uniform(0.0, START_S))

    async def handle_slowly(self) -> None:
        """Wait in some handlers. Most return at once."""
        if self.dice.random() < self._thinks:
            await asyncio.sleep(self.dice.uniform(0.0, self._waits_s))

    async def end_slowly(self, message: SentMessage) -> None:
        """Wait in some handlers, and fail, as the options say."""
        await self.handle_slowly()
        self.fail_sometimes(message)


class SimSender:
    """Sends messages from one process."""

    def __init__(
        self,
        name: str,
        home: SimProcess,
        application: SimApplication,
        dice: Random,
        load: NodeOptions,
    ) -> None:
        self.name, self.stopped = name, False
        self._home, self._application, self._dice, self._load = home, application, dice, load
        self._checker = application.checker
        self._kinds = KINDS[load.density] + ((SPREAD, SPREAD) if load.instances else ())
        self._kinds += (ON_ROLE,) if load.on_role else ()
        self._kinds += reminders.REMINDING * 2 if application.reminders is not None else ()
        self._fresh = 0
        home.spawn(self._run())

    async def _run(self) -> None:
        dice, load = self._dice, self._load
        while not self.stopped:
            await asyncio.sleep(dice.expovariate(1.0 / load.every_s))
            if not self._ready():
                continue
            kind = dice.choice(self._kinds)
            if load.density == "thin":
                entity_id = f"e{dice.randrange(load.entities)}"
                await self._burst(kind, entity_id, dice.randint(1, load.burst))
            else:
                await self._dense_burst(kind)

    async def _dense_burst(self, kind: str) -> None:
        """Send a burst to one entity, or a storm."""
        dice, load = self._dice, self._load
        messages, asks = dice.randint(1, load.burst), dice.choice(ASKS_DENSE)
        handler = "note" if dice.random() < 0.5 else "take"
        storm = dice.random() < load.storms
        await self._burst(
            kind, "" if storm else f"e{dice.randrange(load.entities)}", messages, asks, handler
        )

    async def _burst(
        self, kind: str, entity_id: str, messages: int, asks: float = ASKS, handler: str = "take"
    ) -> None:
        """Send that many messages to this entity; without an id, each to a new one."""
        dice, rests = self._dice, self._load.rests
        ref = self._ref(kind, entity_id) if entity_id else None
        while messages and not self.stopped:
            messages -= 1
            if ref is None:
                self._fresh += 1
                to = f"{self.name}-{self._fresh}"
                await self._send(kind, to, self._ref(kind, to), asks, handler)
            else:
                await self._send(kind, entity_id, ref, asks, handler)
            if dice.random() < rests:
                await asyncio.sleep(dice.uniform(0.0, 0.1))

    def _ready(self) -> bool:
        home = self._home
        if isinstance(home, SimClient):
            return home.client is not None
        assert isinstance(home, SimNode)
        return home.node.members.is_up and not home.process.leaving

    async def _send(self, kind: str, entity_id: str, ref: Any, asks: float, handler: str) -> None:
        is_ask = self._dice.random() < asks
        message = self._checker.send(self.name, self._home, kind, entity_id, is_ask)
        call = getattr(ref, handler)
        if is_ask:
            self._application.on_ask(message, self._home)
        try:
            if is_ask:
                answer = call(self.name, message.seq)
                answer.add_done_callback(lambda done: self._on_reply(message, kind, done))
                if self._application.awaits:
                    answer.__await__()  # begins to await it, and goes on without the answer
            else:
                await call.tell(self.name, message.seq)
        except RequestError as error:
            self._checker.on_failed(message, error)

    def _ref(self, kind: str, entity_id: str) -> Any:
        home = self._home
        if isinstance(home, SimClient):
            assert home.client is not None
            return home.client.ref(self._application.classes[kind], entity_id)
        assert isinstance(home, SimNode)
        return home.node.ref(kind, entity_id)

    def _on_reply(self, message: SentMessage, kind: str, done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if error is None:
            self._checker.on_answered(message, kind == REMEMBERED)
        elif isinstance(error, RequestError):
            self._checker.on_failed(message, error)
        else:
            raise error
