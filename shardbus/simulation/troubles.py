"""The faults of sharding: a `Load` turned into things that happen to a fleet.

The store has its moods, connections break, operators give orders. Everything else that happens to
nodes is in `faults`, which works on a fleet as on any world.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from shardbus.membership import events as ev
from shardbus.membership.member import Service
from shardbus.sharding import events
from shardbus.simulation.fleet import Fleet, SimNode
from shardbus.simulation.load import Load

SLOW_S = 0.6
FAILING = 0.4
AWAY_S = 8.0
SERVICE_S = 8.0
SLEEP_S = (6.0, 25.0)
SPELLS = 2
"""How often a mood of the store comes."""


class Troubles:
    """Brings them over the fleet."""

    def __init__(self, fleet: Fleet, load: Load) -> None:
        self.fleet, self.load = fleet, load
        self.dice = Random(f"troubles {load.seed}")
        self.over = False

    def begin(self) -> None:
        """Let them come."""
        load, store = self.load, self.fleet.store
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
            for succession in resident.node.successions.values():
                resident.loop.call_soon(succession.coordination.handle, events.StopShards(shards))

    def _rebalance(self) -> None:
        for resident in self._working():
            for succession in resident.node.successions.values():
                resident.loop.call_soon(succession.coordination.handle, events.Rebalance())

    def _sleep(self) -> None:
        if working := self._working():
            struck = self.dice.choice(working)
            seconds = self.dice.uniform(*SLEEP_S)
            self._mark(struck.name, f"sleeps for {seconds:.3f} s")
            self.fleet.pause(struck.name, seconds)

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
