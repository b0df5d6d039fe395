"""The faults of sharding: a `NodeOptions` turned into things that happen to a fleet.

The store has its moods, connections break and hang, operators give orders: nodes are restarted in
place one after the other, or told to leave and downed before they have. Everything else that
happens to nodes is in `faults`, which works on a fleet as on any world.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from shardbus.membership import events as ev
from shardbus.membership.member import Service
from shardbus.sharding import events
from shardbus.simulation.nodes.options import NodeOptions
from shardbus.simulation.nodes.world import NodeWorld, SimNode

SLOW_S = 0.6
FAILING = 0.4
AWAY_S = 8.0
SERVICE_S = 8.0
SLEEP_S = (6.0, 25.0)
PATIENCE_S = 2.0
"""The longest that an operator waits for a node to leave before he downs it."""
SPELLS = 2
"""How often a mood of the store comes."""


class NodeFaults:
    """Brings them over the fleet."""

    def __init__(self, fleet: NodeWorld, load: NodeOptions) -> None:
        self.fleet, self.load = fleet, load
        self.dice = Random(f"troubles {load.seed}")
        self.over = False
        self.restart: Callable[[str], object] = lambda _: None
        """Called with the name of a node that has left and shall be there again."""
        self._rolling: dict[SimNode, None] = {}
        fleet.on_depart = self._departed

    def begin(self) -> None:
        """Let them come."""
        load, store = self.load, self.fleet.store
        self.fleet.exchange.room = load.room
        store.slow_s = SLOW_S if load.store == "slow" else 0.0
        store.failing = FAILING if load.store == "failing" else 0.0
        moods: dict[str, Callable[[], None]] = {
            "away": self._away,
            "forgetful": self._forget,
            "rolled back": self._roll_back,
        }
        kinds: tuple[tuple[int, Callable[[], None]], ...] = (
            (load.cuts, self.fleet.exchange.cut),
            (load.stops, self._stop_shards),
            (load.services, self._serve),
            (load.rebalances, self._rebalance),
            (load.sleeps, self._sleep),
            (load.rolls, self._roll),
            (load.downs, self._down),
            (load.hangs, self.fleet.exchange.hang),
            (SPELLS if load.store in moods else 0, moods.get(load.store, self._forget)),
        )
        for times, what in kinds:
            for _ in range(times):
                at = self.dice.uniform(0.1, 0.9) * load.faults.seconds
                self.fleet.later(at, lambda w=what: self._happen(w))  # type: ignore[misc]

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self.over = True
        self.fleet.store.calm()
        for resident in self._working():
            self._set_service(resident, Service.OPEN)

    def _happen(self, what: Callable[[], None]) -> None:
        if not self.over:
            what()

    def _mark(self, name: str, what: str) -> None:
        self.fleet.trace.mark(self.fleet.now, name, what)

    def _working(self) -> list[SimNode]:
        residents = self.fleet.residents.values()
        return [r for r in residents if r.ended_at is None and r.node.is_up]

    # ---- the store

    def _away(self) -> None:
        store = self.fleet.store
        self._mark("", "the store is away")
        store.up = False

        def back() -> None:
            self._mark("", "the store is back")
            store.up = True

        self.fleet.later(self.dice.uniform(0.2, AWAY_S), back)

    def _forget(self) -> None:
        self._mark("", "the store forgets")
        self.fleet.store.forget()

    def _roll_back(self) -> None:
        store = self.fleet.store
        store.keep()

        def back() -> None:
            self._mark("", "the store is rolled back")
            store.roll_back()

        self.fleet.later(self.dice.uniform(0.5, AWAY_S), lambda: self._happen(back))

    # ---- orders

    def _stop_shards(self) -> None:
        shards = tuple(str(shard) for shard in range(self.load.shards) if self.dice.random() < 0.5)
        self._mark("", f"shards {','.join(shards)} shall stop")
        for resident in self._working():
            for singleton in resident.node.singletons.values():
                resident.loop.call_soon(singleton.coordination.handle, events.StopShards(shards))

    def _rebalance(self) -> None:
        for resident in self._working():
            for singleton in resident.node.singletons.values():
                resident.loop.call_soon(singleton.coordination.handle, events.Rebalance())

    def _sleep(self) -> None:
        if working := self._working():
            struck = self.dice.choice(working)
            seconds = self.dice.uniform(*SLEEP_S)
            self._mark(struck.name, f"sleeps for {seconds:.3f} s")
            self.fleet.pause(struck.name, seconds)

    def _some_leaver(self) -> SimNode | None:
        """One that may go: another stays."""
        staying = [resident for resident in self._working() if not resident.process.leaving]
        return self.dice.choice(staying) if len(staying) > 1 else None

    def _roll(self) -> None:
        struck = self._some_leaver()
        if struck is not None:
            self._mark(struck.name, "is asked to leave and to come back")
            self._rolling[struck] = None
            self.fleet.leave(struck.process)

    def _departed(self, resident: SimNode) -> None:
        if resident in self._rolling:
            self.restart(resident.name)

    def _down(self) -> None:
        struck = self._some_leaver()
        if struck is None:
            return
        waits = 0.0
        if self.dice.random() < 0.5:
            self._mark(struck.name, "is asked to leave")
            self.fleet.leave(struck.process)
            waits = self.dice.uniform(0.0, PATIENCE_S)
        self.fleet.later(waits, lambda: self._happen(lambda: self._order_down(struck)))

    def _order_down(self, struck: SimNode) -> None:
        tellers = [resident for resident in self._working() if resident is not struck]
        if tellers and struck.ended_at is None:
            self._mark(struck.name, "is downed by an operator")
            self.fleet.give(self.dice.choice(tellers).process, ev.Down(struck.process.id))

    def _serve(self) -> None:
        working = self._working()
        if len(working) < 2:
            return
        resident = self.dice.choice(working)
        service = self.dice.choice((Service.CORDONED, Service.DRAINING))
        self._set_service(resident, service)
        self.fleet.later(
            self.dice.uniform(0.5, SERVICE_S), lambda: self._set_service(resident, Service.OPEN)
        )

    def _set_service(self, resident: SimNode, service: Service) -> None:
        if resident.ended_at is None:
            self._mark(resident.name, f"is {service.value}")
            process = resident.process
            self.fleet.give(process, ev.SetService(process.id, service))
