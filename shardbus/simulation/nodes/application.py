"""Who sends, and what receives: the application of simulated nodes.

Three entity types, for the three ways of keeping something: `plain` keeps nothing, `kept` saves its
state with each letter, `remembered` comes back by itself. Each tells the witness what it sees. In
some runs their starts wait or fail, and their ends wait.

Senders live in nodes and in clients. Each sends letters in bursts, tells and asks in one line, to
entities of its choice, until it is told to stop or its process ends. How many and to whom is in the
`NodeOptions`; of a dense one some bursts are storms, each letter to an entity that nobody has used.

Source: docs/simulation.md.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

from shardbus.app import ShardBus
from shardbus.entities.entity_type import StopReason
from shardbus.entity import Entity, handler
from shardbus.errors import BufferFull, RequestError
from shardbus.simulation.nodes.checker import DeliveryChecker, SentMessage
from shardbus.simulation.nodes.options import NodeOptions
from shardbus.simulation.nodes.world import SimClient, SimNode, SimProcess

PLAIN, KEPT, REMEMBERED = "plain", "kept", "remembered"
KINDS = {
    "thin": (PLAIN, PLAIN, KEPT, REMEMBERED),
    "dense": (PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, KEPT, REMEMBERED),
}
ASKS = 0.4
"""The part of letters that are asks; in a dense load each burst has its own."""
ASKS_DENSE = (0.0, 0.05, ASKS, 1.0)
SLOW_S = 0.05
"""The longest that a handler waits, now and then."""
START_S = 0.5
"""The same of a start and of an end."""


class NotReady(Exception):
    """What an entity needs for its start is not there."""


@dataclass
class MessageCount:
    """The state of a `kept` entity: how many letters it has taken."""

    count: int = 0


class SimApplication:
    """The application of one run; its witness is there before the first letter."""

    def __init__(self, load: NodeOptions) -> None:
        self.checker: DeliveryChecker
        self.dice = Random(f"stage {load.seed}")
        self.bus = ShardBus("test")
        self._thinks = load.thinks
        self._slow_starts, self._failing_starts = load.slow_starts, load.failing_starts
        self._declare(load.shards, load.limit)

    def _declare(self, shards: int, limit: int) -> None:
        stage = self

        class Plain(Entity):
            def __init__(self) -> None:
                stage.checker.started(self.context)

            @handler
            async def take(self, sender: str, seq: int) -> int:
                stage.checker.took(self.context, sender, seq)
                await stage.think()
                return seq

            @handler
            def note(self, sender: str, seq: int) -> int:
                stage.checker.took(self.context, sender, seq)
                return seq

        class Slow(Plain):
            async def on_start(self) -> None:
                await stage.begin()

            async def on_stop(self, reason: StopReason) -> None:
                await stage.dawdle()

        class Kept(Entity):
            state: MessageCount

            def __init__(self) -> None:
                stage.checker.started(self.context)

            async def on_start(self) -> None:
                stage.checker.loaded(self.context, self.state.count)
                await stage.begin()

            @handler
            async def take(self, sender: str, seq: int) -> int:
                stage.checker.took(self.context, sender, seq)
                self.state.count += 1
                await self.save()
                stage.checker.has_saved(self.context, self.state.count)
                return seq

            @handler
            def note(self, sender: str, seq: int) -> int:
                stage.checker.took(self.context, sender, seq)
                return seq

        starts = self._slow_starts or self._failing_starts
        plain: type[Plain] = Slow if starts else Plain

        class Remembered(plain):  # type: ignore[valid-type, misc]
            """The same, and comes back."""

        self.classes = {
            PLAIN: self.bus.entity(name=PLAIN, shards=shards, active_entity_limit=limit)(plain),
            KEPT: self.bus.entity(name=KEPT, shards=shards)(Kept),
            REMEMBERED: self.bus.entity(name=REMEMBERED, shards=shards, remember=True)(Remembered),
        }

    def calm(self) -> None:
        """From now on every start succeeds at once."""
        self._slow_starts = self._failing_starts = 0.0

    async def begin(self) -> None:
        """What an entity does as it starts."""
        await self.dawdle()
        if self._failing_starts and self.dice.random() < self._failing_starts:
            raise NotReady

    async def dawdle(self) -> None:
        """As it starts, or ends."""
        if self._slow_starts and self.dice.random() < self._slow_starts:
            await asyncio.sleep(self.dice.uniform(0.0, START_S))

    async def think(self) -> None:
        """Most handlers are done at once."""
        if self.dice.random() < self._thinks:
            await asyncio.sleep(self.dice.uniform(0.0, SLOW_S))


class SimSender:
    """Sends from one process."""

    def __init__(
        self, name: str, home: SimProcess, stage: SimApplication, dice: Random, load: NodeOptions
    ) -> None:
        self.name, self.stopped = name, False
        self._home, self._stage, self._dice, self._load = home, stage, dice, load
        self._checker = stage.checker
        self._kinds = KINDS[load.density]
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
        """To one entity, or a storm."""
        dice, load = self._dice, self._load
        letters, asks = dice.randint(1, load.burst), dice.choice(ASKS_DENSE)
        handler = "note" if dice.random() < 0.5 else "take"
        storm = dice.random() < load.storms
        await self._burst(
            kind, "" if storm else f"e{dice.randrange(load.entities)}", letters, asks, handler
        )

    async def _burst(
        self, kind: str, entity_id: str, letters: int, asks: float = ASKS, handler: str = "take"
    ) -> None:
        """So many letters to this entity; without one, to as many new ones."""
        dice, rests = self._dice, self._load.rests
        ref = self._ref(kind, entity_id) if entity_id else None
        while letters and not self.stopped:
            letters -= 1
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
        return home.node.is_up and not home.process.leaving

    async def _send(self, kind: str, entity_id: str, ref: Any, asks: float, handler: str) -> None:
        asked = self._dice.random() < asks
        letter = self._checker.send(self.name, self._home, kind, entity_id, asked)
        call = getattr(ref, handler)
        try:
            if asked:
                answer = call(self.name, letter.seq)
                answer.add_done_callback(lambda done: self._hear(letter, kind, done))
            else:
                await call.tell(self.name, letter.seq)
        except BufferFull as full:
            self._checker.failed(letter, full)

    def _ref(self, kind: str, entity_id: str) -> Any:
        home = self._home
        if isinstance(home, SimClient):
            assert home.client is not None
            return home.client.ref(self._stage.classes[kind], entity_id)
        assert isinstance(home, SimNode)
        return home.node.ref(kind, entity_id)

    def _hear(self, letter: SentMessage, kind: str, done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if error is None:
            self._checker.answered(letter, kind == REMEMBERED)
        elif isinstance(error, RequestError):
            self._checker.failed(letter, error)
        else:
            raise error
