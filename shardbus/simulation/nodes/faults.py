"""The faults of sharding: `NodeOptions` turned into events in a world of nodes.

The store fails in the run's way, connections break and hang, operators give commands: nodes are
restarted in place one after the other, or leave and are downed before they have left. All other
faults of nodes are in `membership.faults`, which works on this world as on any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from shardbus.membership import events as ev
from shardbus.membership.member import Service
from shardbus.sharding import events
from shardbus.simulation.membership.faults import move_together
from shardbus.simulation.nodes.options import NodeOptions
from shardbus.simulation.nodes.splits import Splits
from shardbus.simulation.nodes.world import NodeWorld, SimNode

SLOW_S = 0.6
FAILING = 0.4
AWAY_S = 8.0
SERVICE_S = 8.0
SLEEP_S = (6.0, 25.0)
THREAD_LATE_S = 0.2
"""Seconds, at most, by which the threads of a process continue one after the other."""
PATIENCE_S = 2.0
"""Seconds, at most, that an operator waits for a node to leave before he downs it."""
SPELLS = 2
"""The number of times that the store's failure occurs."""


class NodeFaults:
    """Brings the faults of these options into the world."""

    def __init__(self, world: NodeWorld, load: NodeOptions) -> None:
        self.world, self.load = world, load
        self.dice = Random(f"troubles {load.seed}")
        self.over = False
        self.restart: Callable[[str], object] = lambda _: None
        """Called with the name of a node that has left and must come back."""
        self._rolling: dict[SimNode, None] = {}
        self._splits = Splits(world, load, self._happen)
        world.hooks.on_exited = self._on_exited

    def begin(self, membership: Sequence[float] = ()) -> None:
        """Schedule the faults. `membership`: when faults of membership happen, for pairs."""
        load, store = self.load, self.world.store
        self.world.exchange.room = load.room
        store.slow_s = SLOW_S if load.store == "slow" else 0.0
        store.failing = FAILING if load.store == "failing" else 0.0
        moods: dict[str, Callable[[], None]] = {
            "away": self._away,
            "forgetful": self._forget,
            "rolled back": self._roll_back,
        }
        kinds: tuple[tuple[int, Callable[[], None]], ...] = (
            (load.cuts, self.world.exchange.cut),
            (load.stops, self._stop_shards),
            (load.services, self._change_service),
            (load.rebalances, self._rebalance),
            (load.sleeps, self._sleep),
            (load.rolls, self._roll),
            (load.downs, self._down),
            (load.hangs, self.world.exchange.hang),
            (load.splits, self._splits.begin),
            (load.freezes, self._freeze),
            (load.blocks, self._block),
            (load.suspends, self._suspend_machine),
            (SPELLS if load.store in moods else 0, moods.get(load.store, self._forget)),
        )
        actions = [what for times, what in kinds for _ in range(times)]
        drawn = [self.dice.uniform(0.1, 0.9) * load.faults.seconds for _ in actions]
        pairs = Random(f"paired node faults {load.seed}")
        for at, what in zip(
            move_together(drawn, membership, load.pairs, pairs), actions, strict=True
        ):
            self.world.later(at, lambda w=what: self._happen(w))  # type: ignore[misc]

    def heal(self) -> None:
        """Let no fault happen from now on."""
        self.over = True
        self.world.store.calm()
        for sim_node in self._working():
            self._set_service(sim_node, Service.OPEN)

    def _happen(self, what: Callable[[], None]) -> None:
        if not self.over:
            what()

    def _mark(self, name: str, what: str) -> None:
        self.world.trace.mark(self.world.now, name, what)

    def _working(self) -> list[SimNode]:
        sim_nodes = self.world.sim_nodes.values()
        return [r for r in sim_nodes if r.ended_at is None and r.node.members.is_up]

    # ---- the store

    def _away(self) -> None:
        store = self.world.store
        self._mark("", "the store is away")
        store.up = False

        def back() -> None:
            self._mark("", "the store is back")
            store.up = True

        self.world.later(self.dice.uniform(0.2, AWAY_S), back)

    def _forget(self) -> None:
        self._mark("", "the store forgets")
        self.world.store.forget()

    def _roll_back(self) -> None:
        store = self.world.store
        store.snapshot()

        def back() -> None:
            self._mark("", "the store is rolled back")
            store.roll_back()

        self.world.later(self.dice.uniform(0.5, AWAY_S), lambda: self._happen(back))

    # ---- processes that stop

    def _freeze(self) -> None:
        """Stop a process. Its cluster thread or its application continues first."""
        if working := self._working():
            victim, seconds = self.dice.choice(working), self._stop_s()
            self._mark(victim.name, f"is stopped for {seconds:.3f} s")
            late = self.dice.uniform(0.0, THREAD_LATE_S) if self.dice.random() < 0.5 else 0.0
            self.world.pause(victim.name, seconds, late)

    def _block(self) -> None:
        if working := self._working():
            victim, seconds = self.dice.choice(working), self._stop_s()
            self._mark(victim.name, f"has its loop blocked for {seconds:.3f} s")
            self.world.block(victim.name, seconds)

    def _suspend_machine(self) -> None:
        if working := self._working():
            victim, seconds = self.dice.choice(working), self._stop_s()
            self._mark(victim.name, f"is suspended with its machine for {seconds:.3f} s")
            self.world.suspend_machine(victim.name, seconds)

    def _stop_s(self) -> float:
        """Draw how long a process stops: short and long ones alike."""
        return float(self.load.stop_s ** self.dice.uniform(-0.3, 1.0))

    # ---- commands

    def _stop_shards(self) -> None:
        shards = tuple(str(shard) for shard in range(self.load.shards) if self.dice.random() < 0.5)
        self._mark("", f"shards {','.join(shards)} are stopped")
        for sim_node in self._working():
            for singleton in sim_node.node.singletons.values():
                sim_node.loop.call_soon(singleton.coordinator.handle, events.StopShards(shards))

    def _rebalance(self) -> None:
        for sim_node in self._working():
            for singleton in sim_node.node.singletons.values():
                sim_node.loop.call_soon(singleton.coordinator.handle, events.Rebalance())

    def _sleep(self) -> None:
        if working := self._working():
            victim = self.dice.choice(working)
            seconds = self.dice.uniform(*SLEEP_S)
            self._mark(victim.name, f"sleeps for {seconds:.3f} s")
            self.world.pause(victim.name, seconds)

    def _draw_leaver(self) -> SimNode | None:
        """Draw a node that may leave: another one stays."""
        staying = [sim_node for sim_node in self._working() if not sim_node.process.leaving]
        return self.dice.choice(staying) if len(staying) > 1 else None

    def _roll(self) -> None:
        victim = self._draw_leaver()
        if victim is not None:
            self._mark(victim.name, "is asked to leave and to come back")
            self._rolling[victim] = None
            self.world.leave(victim.process)

    def _on_exited(self, sim_node: SimNode) -> None:
        if sim_node in self._rolling:
            self.restart(sim_node.name)

    def _down(self) -> None:
        victim = self._draw_leaver()
        if victim is None:
            return
        waits = 0.0
        if self.dice.random() < 0.5:
            self._mark(victim.name, "is asked to leave")
            self.world.leave(victim.process)
            waits = self.dice.uniform(0.0, PATIENCE_S)
        self.world.later(waits, lambda: self._happen(lambda: self._command_down(victim)))

    def _command_down(self, victim: SimNode) -> None:
        operators = [sim_node for sim_node in self._working() if sim_node is not victim]
        if operators and victim.ended_at is None:
            self._mark(victim.name, "is downed by an operator")
            self.world.downed_by_operators[str(victim.process.id)] = None
            self.world.deliver(self.dice.choice(operators).process, ev.Down(victim.process.id))

    def _change_service(self) -> None:
        working = self._working()
        if len(working) < 2:
            return
        sim_node = self.dice.choice(working)
        service = self.dice.choice((Service.CORDONED, Service.DRAINING))
        self._set_service(sim_node, service)
        self.world.later(
            self.dice.uniform(0.5, SERVICE_S), lambda: self._set_service(sim_node, Service.OPEN)
        )

    def _set_service(self, sim_node: SimNode, service: Service) -> None:
        process = sim_node.process
        if self.world.now < process.paused_until:
            return  # it would obey later, perhaps after `heal` has opened it
        if sim_node.ended_at is None:
            self._mark(sim_node.name, f"is {service.value}")
            self.world.deliver(process, ev.SetService(process.id, service))
