"""The network of machines, with the sharding machines on it.

Processes are connected by links that keep order and lose nothing while both ends live, as the
transport promises. All else may happen: processes are killed, join and leave, links stall for
seconds, membership arrives late and at different times, the store is slow, or fails before or after
it did its work. Local senders on nodes and in clients number their messages per entity.

Always: no two live processes host a shard (I1, I6), fences grow, and per sender and entity numbers
only grow (I2). After quiet: every message was handled, rejected, or was with a process that was
killed (I3, I4, N.3), and the table, the store and the hosted shards of regions are the same (I7).
"""

from __future__ import annotations

from random import Random

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId, shard_of
from shardbus.sharding import events as ev
from shardbus.sharding.allocation.strategies import LeastShard
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.handoff_modes import MODES
from shardbus.sharding.messages import CarriedEntity, TableState
from shardbus.sharding.table_state import unpack_homes
from shardbus.store.protocol import StoredTable
from tests.machines import FaultyStore, MachineNetwork
from tests.records import replace
from tests.unit.sharding.sharding_process import Letter, Process

SETTINGS = replace(
    ShardingSettings(),
    retry_interval=0.5,
    begin_handoff_timeout=1.0,
    handoff_timeout=5.0,
    shard_start_timeout=2.0,
    rebalance_interval=3.0,
    coordinator_failure_backoff=1.0,
    waiting_for_state_timeout=1.0,
)


StoreEffect = ev.LoadTable | ev.ClaimEpoch | ev.Persist


class Store(FaultyStore):
    """The table of one type, guarded by its epoch."""

    def __init__(self, net: Net) -> None:
        super().__init__(net)
        self.net = net
        self.epoch = 0
        self.homes: dict[str, tuple[NodeId, int]] = {}
        self.claimant: NodeId | None = None
        self.last_op = 0

    def forget(self) -> None:
        """Lose everything, the epoch too."""
        self.epoch, self.homes, self.claimant, self.last_op = 0, {}, None, 0

    def do(self, process: Process, effect: StoreEffect) -> None:
        """Execute the coordinator's request, and send it the answer."""

        def answer(result: ev.CoordinatorEvent | None) -> None:
            process.into_coordinator(self._failed(effect) if result is None else result)

        self.call(lambda: self._apply(process, effect), answer)

    @staticmethod
    def _failed(effect: StoreEffect) -> ev.CoordinatorEvent:
        if isinstance(effect, ev.Persist):
            return ev.PersistFailed(effect.op_id, False)
        return ev.StoreFailed("no answer")

    def _table(self) -> StoredTable:
        return StoredTable(self.epoch, self.net.layout, dict(self.homes))

    def _apply(self, process: Process, effect: StoreEffect) -> ev.CoordinatorEvent:
        match effect:
            case ev.LoadTable():
                return ev.TableLoaded(self._table() if self.epoch else None)
            case ev.ClaimEpoch(epoch, _):
                again = epoch == self.epoch and self.claimant == process.me
                if epoch <= self.epoch and not again:
                    return ev.EpochRefused(self.epoch)
                self.epoch, self.claimant = epoch, process.me
                return ev.EpochClaimed(self._table())
            case ev.Persist(op_id, epoch, homes):
                if epoch != self.epoch:
                    return ev.PersistFailed(op_id, True)
                if op_id != self.last_op:
                    self.last_op = op_id
                    for shard, home in homes.items():
                        if home is not None:
                            written = self.net.written
                            written[shard] = max(home[1], written.get(shard, 0))
                        if home is None:
                            self.homes.pop(shard, None)
                        else:
                            self.homes[shard] = home
                return ev.Persisted(op_id)


class Net(MachineNetwork):
    """The world of one seed."""

    def __init__(
        self, seed: int, *, shards: int = 8, settings: ShardingSettings = SETTINGS
    ) -> None:
        super().__init__(Random(seed), delay_s=(0.0005, 0.01))
        self.seed = seed
        self.settings, self.layout, self.shards = settings, f"crc32/{shards}", shards
        self.mode = MODES[settings.handoff]
        self.store = Store(self)
        self.processes: dict[NodeId, Process] = {}
        self.leaving_mail = 0.0
        """How often a shard stops with messages that its entities have not handled."""
        self.calls = 0.0
        """How many of the messages of nodes are calls of entities."""
        self.work_s = 0.02
        self.stop_s = 0.0
        """Seconds, at least, that a shard takes to stop."""
        self.left = 0
        self.version = "1.0.0"
        """Of nodes that start from now on."""
        self.versions: dict[NodeId, str] = {}
        self.members: dict[NodeId, None] = {}
        self.notes: dict[str, int] = {}
        self.sent: list[Letter] = []
        self.handled: dict[int, int] = {}
        self.rejected: dict[int, str] = {}
        self.versions: dict[str, int] = {}
        self.written: dict[str, int] = {}
        """The highest fence of each shard that a coordinator has written."""
        self.carried = 0
        self.killed: dict[NodeId, None] = {}
        self.log: list[str] = []
        self.tracing = False
        self._last: dict[tuple[str, str], int] = {}
        self._seqs: dict[tuple[str, str], int] = {}
        self._fences: dict[str, int] = {}

    def send(self, source: NodeId, target: NodeId, item: object) -> None:
        """A process that membership removed is not reached, and the sender gets an error."""

        def deliver() -> None:
            process = self.processes.get(target)
            if process is not None and process.alive:
                process.arrive(source, item)
            elif target not in self.members and source in self.processes:
                self._gone(self.processes[source], self.processes[target])

        self.transmit(source, target, deliver)

    # Who is there.

    def live(self) -> list[Process]:
        return [p for p in self.processes.values() if p.alive and p.hosts]

    def staying(self) -> list[Process]:
        """Live nodes that nobody asked to leave."""
        return [process for process in self.live() if not process.leaving]

    def add_node(self) -> Process:
        number = len(self.processes) + 1
        process = Process(self, NodeId("n", number, number), f"n{number}", True)
        self.processes[process.me] = process
        self.members[process.me] = None
        self.versions[process.me] = self.version
        self._tell_members()
        return process

    def add_client(self) -> Process:
        number = len(self.processes) + 1
        process = Process(self, NodeId("c", number, number), f"c{number}", False)
        self.processes[process.me] = process
        self._connect(process)
        return process

    def kill(self, process: Process) -> None:
        """The process ends; the others notice it later, each at its own time."""
        process.alive = False
        self.killed[process.me] = None
        self.at(self.now + self.dice.uniform(0.2, 1.5), lambda: self._remove(process))

    def leave(self, process: Process) -> None:
        """The process sends its clients elsewhere, drains, lingers while others get the news, and
        ends with nothing in its hands."""
        process.leaving = True
        process.into_region(ev.Shutdown())
        for client in self.processes.values():
            if not client.hosts and client.coordinator_at == process.me:
                self._connect(client)
        self._await_drained(process)

    def _await_drained(self, process: Process) -> None:
        if not process.alive:
            return
        if not process.drained or process.region.buffered[0]:
            self.at(self.now + 0.2, lambda: self._await_drained(process))
            return
        self.at(self.now + 1.0, lambda: self._remove(process, notify=False))
        self.at(self.now + 3.0, lambda: self._end(process))

    def _end(self, process: Process) -> None:
        if process.region.buffered[0] or self.stalled:
            self.at(self.now + 1.0, lambda: self._end(process))
            return
        process.alive = False
        self._spread_gone(process)

    def _remove(self, process: Process, *, notify: bool = True) -> None:
        self.members.pop(process.me, None)
        self._tell_members()
        if notify:
            self._spread_gone(process)

    def _spread_gone(self, gone: Process) -> None:
        for other in self.processes.values():
            delay = self.dice.uniform(0, 0.5)
            self.at(self.now + delay, lambda o=other: self._gone(o, gone))  # type: ignore[misc]

    def _gone(self, process: Process, gone: Process) -> None:
        process.into_region(ev.NodeGone(gone.me))
        if not process.hosts and process.coordinator_at == gone.me:
            self._connect(process)

    def _connect(self, client: Process) -> None:
        nodes = [node.me for node in self.staying()]
        client.coordinator_at = self.dice.choice(nodes) if nodes else None
        client.into_region(ev.CoordinatorAt(client.coordinator_at))
        if not nodes:
            self.at(self.now + 1.0, lambda: self._connect(client))

    def _tell_members(self) -> None:
        """Membership changed: the oldest rules, everybody hears of it in their own time."""
        if not self.members:
            return
        oldest = next(iter(self.members))
        for process in self.live():
            delay = self.dice.uniform(0, 0.3)
            self.at(self.now + delay, lambda p=process: self._hear(p, oldest))  # type: ignore[misc]

    def _hear(self, process: Process, oldest: NodeId) -> None:
        if not self.members or oldest != next(iter(self.members)):
            return
        if process.me == oldest and process.coordinator is None:
            self._crown(process)
        elif process.me != oldest and process.coordinator is not None:
            process.coordinator = None
        process.into_coordinator(self._picture())
        if process.coordinator_at != oldest:
            process.coordinator_at = oldest
            process.into_region(ev.CoordinatorAt(oldest))

    def _picture(self) -> ev.MembersChanged:
        return ev.MembersChanged(tuple(self.members), versions=self.versions)

    def _crown(self, process: Process) -> None:
        process.coordinator = Coordinator("t", process.me, self.layout, self.settings, LeastShard())
        process.into_coordinator(ev.Start(max(process.region.epoch, process.epoch)))
        process.into_coordinator(self._picture())

    def on_reign(self, epoch: int) -> None:
        """Gossip spreads the highest epoch."""
        for process in self.live():
            delay = self.dice.uniform(0, 0.5)
            self.at(
                self.now + delay,
                lambda p=process: p.into_region(ev.EpochSeen(epoch)),  # type: ignore[misc]
            )

    def on_coordinator_stop(self, process: Process) -> None:
        """Deposed, but still the oldest: it starts again after a while."""
        if self.members and next(iter(self.members)) == process.me:
            self.at(self.now + 1.0, lambda: self._hear(process, process.me))

    # Messages.

    def tell(
        self, process: Process, sender: str, entity: str, *, calls: bool | None = None
    ) -> None:
        """Send a message; `calls`: as an entity's call, None for a part of those of nodes."""
        if not process.alive or (process.hosts and process.me not in self.members):
            return
        key = (f"{process.name}.{sender}", entity)
        seq = self._seqs[key] = self._seqs.get(key, 0) + 1
        letter = Letter(key[0], shard_of(entity, self.shards), entity, seq, process.me)
        if calls is None:
            calls = process.hosts and self.calls > 0 and self.dice.random() < self.calls
        letter.calls = calls
        self.sent.append(letter)
        process.tell(letter)

    def on_handled(self, process: Process, letter: Letter, fence: int) -> None:
        assert id(letter) not in self.handled, f"handled twice: {letter}"
        self.handled[id(letter)] = fence
        self.versions[letter.shard] = self.versions.get(letter.shard, 0) + 1
        key = (letter.sender, letter.entity)
        if self.mode is None or self.mode.keeps_order:
            assert letter.seq > self._last.get(key, 0), f"out of order at {process.name}: {letter}"
        self._last[key] = letter.seq

    def on_reject(self, letter: Letter, reason: str) -> None:
        assert id(letter) not in self.rejected
        self.rejected[id(letter)] = reason

    def freeze(self, shard: str) -> tuple[CarriedEntity, ...]:
        """Return the carried state of a stopped shard: the number of messages handled in it."""
        return (CarriedEntity("t", shard, None, b"%d" % self.versions.get(shard, 0)),)

    def on_carried(self, shard: str, carried: tuple[CarriedEntity, ...]) -> None:
        for entity in carried:
            assert entity.id == shard
            assert int(entity.data) == self.versions.get(shard, 0), f"{shard}: old data"
            self.carried += 1

    def on_start(self, process: Process, shard: str, fence: int) -> None:
        overlaps = self.mode is not None and self.mode.overlaps
        hosts = [
            p.name
            for p in self.live()
            if shard in p.shards and not (overlaps and p.shards[shard].stopping)
        ]
        assert not hosts, f"shard {shard} starts at {process.name} while it is at {hosts}"
        assert fence > self._fences.get(shard, 0), f"fence {fence} of shard {shard} does not grow"
        self._fences[shard] = fence

    def on_shards_stopped(self, shards: tuple[str, ...]) -> None:
        for shard in shards:
            hosts = [p.name for p in self.live() if shard in p.shards]
            assert not hosts, f"shard {shard} is said to have stopped and is at {hosts}"

    # The laws.

    def audit(self) -> None:
        self.check()

    def check(self) -> None:
        for process in self.live():
            process.region.check()
            if process.coordinator is not None:
                process.coordinator.check()

    def check_quiet(self) -> None:
        """Nothing is lost, nothing is on the way, and everybody agrees."""
        self.check()
        live = self.live()
        for letter in self.sent:
            if id(letter) in self.handled or id(letter) in self.rejected:
                continue
            waits = not live and letter.at in self.processes and self.processes[letter.at].alive
            assert letter.at in self.killed or waits, f"lost: {letter}"
        if not live:
            return
        for process in self.processes.values():
            if process.alive:
                assert process.region.buffered == (0, 0), f"{process.name} still buffers"
        assert "strategy_failed" not in self.notes
        rulers = [p for p in live if p.rules()]
        assert len(rulers) == 1, f"{len(rulers)} coordinators"
        ruler = rulers[0].coordinator
        assert ruler is not None
        for process in live:
            assert not process.region.moving, f"{process.name} still moves {process.region.moving}"
        moving = [s for s in map(str, range(self.shards)) if ruler.state_of(s) == "handing_off"]
        assert not moving, f"{moving} still move"
        assert not ruler.stopping, f"{ruler.stopping} were asked to stop and have not"
        table = {shard: (home.node, home.fence) for shard, home in ruler.table.homes.items()}
        hosted = {s: (p.me, shard.fence) for p in live for s, shard in p.shards.items()}
        assert table == hosted, "the table is not what regions host"
        if self.store.epoch == ruler.epoch:
            assert table == self.store.homes, "the table is not what the store holds"

        if self.settings.homes == "gossip":
            self._check_gossip(ruler)

    def _check_gossip(self, ruler: Coordinator) -> None:
        """Every region has the coordinator's last version: its homes, and no change under way."""
        newest = max(process.region.table_gossip.version for process in self.live())
        assert newest[0] == ruler.epoch, f"the last table is of epoch {newest[0]}"
        for process in self.live():
            gossip = process.region.table_gossip
            assert gossip.version == newest, f"{process.name} has {gossip.version}, not {newest}"
            assert gossip.state is not None
            assert gossip.state.changes == (), f"{gossip.state.changes} are pending"
            homes = unpack_homes(gossip.state.homes, gossip.state.nodes)
            assert {h.shard: h for h in homes} == dict(ruler.table.homes), process.name

    def check_table_is_not_ahead(self, state: TableState) -> None:
        """No table travels that the store has not: each home is, or was, durable there."""
        for home in unpack_homes(state.homes, state.nodes):
            assert home.fence <= self.written.get(home.shard, 0), f"{home} is not stored"

    def trace(self, process: Process, what: object) -> None:
        if self.tracing:
            self.log.append(f"{self.now:9.4f} {process.name:4} {what}")
