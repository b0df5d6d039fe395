"""The world of one shard: regions on four nodes and in a client, and the coordinator, on the
network of machines. Links keep order and lose nothing.

    move n3          the coordinator moves the shard to that node
    kill n3          the node dies, and the others receive it
    leave n2         the node drains and leaves
    stall n1 n2      messages from n1 to n2 take seconds from now on
    store            the next writes to the store take long; a second time: they do not
    run              time passes

n1 has the coordinator, n2 the shard at first. With each event every process sends two messages to
an entity of the shard, and an entity of each node calls it twice. Shards take a moment to stop.

Laws: the laws of `sharding_net`: one home at a time, fences grow, messages of one sender keep their
order where the mode does; after quiet each one was handled or rejected, or was with a dead process,
and the table, the store and the regions agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding.allocation.strategies import Move
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.handoff_modes import MODES
from shardbus.sharding.table import ShardTable
from tests.records import replace
from tests.scenarios.sharding_transcript import Stage
from tests.unit.sharding.sharding_net import SETTINGS
from tests.unit.sharding.sharding_process import Letter, Process

SHARD = "0"
NODES = "n1", "n2", "n3", "n4"
STALLS = ("n1", "n2"), ("n1", "n3"), ("n2", "n3"), ("n3", "n2"), ("n2", "n1"), ("n4", "n2")
STALL_S = 4.0
STOP_S = 0.7
QUIET_S = 100.0


class Placed:
    """Puts the shard at the world's choice at first, and moves it there later. A home that is
    not the target of a move is the last node that there is."""

    def __init__(self, town: Town) -> None:
        self.town = town

    def allocate(
        self,
        table: ShardTable,
        loads: Mapping[str, float],
        shards: Sequence[str],
        candidates: Collection[NodeId],
    ) -> dict[str, NodeId]:
        first = not self.town.written and self.town.place in candidates
        chosen = self.town.place if first else max(candidates)
        return dict.fromkeys(shards, chosen)

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        home, place = table.homes.get(SHARD), self.town.place
        if home is None or home.node == place or place not in candidates or SHARD in in_flight:
            return []
        return [Move(SHARD, home.node, place)]


class Town(Stage):
    """The network, with a strategy of its own."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.settings = replace(SETTINGS, rebalance_interval=5.0, handoff=mode)
        self.mode, self.layout, self.shards = MODES[mode], "crc32/1", 1
        self.place = NodeId("n", 2, 2)
        self.places = {self.place}
        self.disturbed = False
        self._item: object = None
        """A node has died or left, so the shard may be anywhere."""

    def _crown(self, process: Process) -> None:
        process.coordinator = Coordinator("t", process.me, self.layout, self.settings, Placed(self))
        process.into_coordinator(ev.Start(max(process.region.epoch, process.epoch)))
        process.into_coordinator(self._picture())

    def send(self, source: NodeId, target: NodeId, item: object) -> None:
        self._item = item
        super().send(source, target, item)

    def transmit(self, source: Hashable, target: Hashable, deliver: Callable[[], object]) -> bool:
        """Messages of a removed process that have not arrived come no more: its sessions
        have ended."""
        item = self._item

        def arrive() -> None:
            if source not in self.killed or source in self.members:
                deliver()
            elif isinstance(item, Letter):
                item.at = next(node for node in self.killed if node == source)

        return super().transmit(source, target, arrive)

    def on_start(self, process: Process, shard: str, fence: int) -> None:
        super().on_start(process, shard, fence)
        late = self.notes.keys() & {"handoff_overdue", "start_overdue"}
        there = process.me in self.places or self.disturbed or late
        assert there, f"the shard starts at {process.name}, which was no target"


class ShardingWorld:
    """The town of one mode of hand-off, after the events of a `prelude`."""

    def __init__(self, mode: str, *prelude: str) -> None:
        self.town = Town(mode)
        self.said = self.town.lane
        for command in ("node n1", "run 2", "node n2 n3 n4", "client c1", "run 2"):
            self.town.perform(command)
        self._traffic()
        self.town.perform("run 2")
        self.town.stop_s = STOP_S
        self.stalled: dict[tuple[str, str], float] = {}
        for event in prelude:
            self.do(event)
        self.said = []

    def events(self) -> Iterable[str]:
        town, verbs = self.town, ["run", "store"]
        staying = {p.name for p in town.staying()}
        for name in NODES[1:]:
            if name in staying and len(staying) > 2:
                verbs += [f"kill {name}", f"leave {name}"]
            if name in staying and town.place != town.named(name).me:
                verbs.append(f"move {name}")
        for source, target in STALLS:
            if {source, target} <= staying and (source, target) not in self._stalls():
                verbs.append(f"stall {source} {target}")
        return verbs

    def _stalls(self) -> list[tuple[str, str]]:
        return [pair for pair, until in self.stalled.items() if until > self.town.now]

    def do(self, event: str) -> None:
        town = self.town
        town.lane = self.said
        seconds = 0.05
        match event.split():
            case ["move", name]:
                town.place = town.named(name).me
                town.places.add(town.place)
                for process in town.live():
                    process.into_coordinator(ev.Rebalance())
            case ["kill" | "leave" as verb, name]:
                town.disturbed = True
                town.kill(town.named(name)) if verb == "kill" else town.leave(town.named(name))
                seconds = 0.3
            case ["stall", source, target]:
                town.stall(town.named(source).me, town.named(target).me, STALL_S)
                self.stalled[source, target] = town.now + STALL_S
            case ["store"]:
                town.store.slow = 1.0 if town.store.slow > 1.0 else 500.0
            case ["run"]:
                seconds = 1.0
        self._traffic()
        town.run_to(town.now + seconds)
        self._traffic()
        town.run_to(town.now + 0.01)
        town.check()

    def _traffic(self) -> None:
        for process in list(self.town.processes.values()):
            if process.alive and not process.leaving:
                self.town.tell(process, "s", self.town.entity(SHARD))
                if process.hosts:
                    self.town.tell(process, "e", self.town.entity(SHARD), calls=True)

    def key(self) -> Hashable:
        town = self.town
        rows = [self._of(process) for process in town.processes.values() if process.alive]
        way = len(town.sent) - len(town.handled) - len(town.rejected)
        return tuple(rows), tuple(self._stalls()), town.place, town.store.slow, min(way, 12)

    @staticmethod
    def _of(process: Process) -> Hashable:
        region: Any = process.region
        route = region.routing._route(SHARD)
        phases = tuple((p.phase, p.new) for p in region.move_phases())
        ruler = process.coordinator
        return (
            process.name, process.leaving, route.state, route.home and route.home.node,
            route.next_home and route.next_home.node, len(route.waiting) > 0,
            len(route.returned) > 0, len(route.leftovers.messages) > 0,
            region.state_of(SHARD), phases,
            ruler and (ruler.state, ruler.state_of(SHARD)),
        )  # fmt: skip

    def rest(self) -> None:
        town = self.town
        town.lane = self.said
        town.store.slow = 1.0
        town.run_to(town.now + QUIET_S)
        self._traffic()
        town.run_to(town.now + 5.0)
        town.check_quiet()

    def close(self) -> None: ...
