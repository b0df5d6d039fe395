"""Transcripts of the sharding machines: commands that cause events, and the lane of messages.

A file is a series of commands, each a line that begins with `$`, and below each its consequences.
Lines that begin with `#` are for the reader.

    $ handoff ordered         the mode in which shards move; before the first node
    $ version 1.1.0           nodes that start from now on run that version of the application
    $ node n1 n2              nodes start and form the cluster
    $ proxy p1                a node starts that hosts nothing
    $ client c1               a client connects to the oldest node
    $ tell n1 s3 4            a sender at n1 sends four messages to an entity of shard s3
    $ kill n2 | leave n2      a node dies; a node drains and leaves
    $ stall n1 n2 3           messages from n1 to n2 take three seconds
    $ stopping takes 6        shards take six seconds to stop from now on
    $ store down | up | forgets    the state store answers or not, or loses everything
    $ others take s3 s4       another cluster claims the next epoch and gives the shards homes
    $ others leave            it removes its homes from the store
    $ run 5                   time passes

The lane shows messages with sender and receiver, shards that start and stop, and writes to the
store, in order. Links take half a millisecond, shards start and stop at once unless the script says
otherwise, and so a lane has one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardbus.ids import NodeId, shard_of
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.handoff_modes import MODES
from shardbus.sharding.intents import INTENT_MARK
from shardbus.sharding.messages import Home
from shardbus.sharding.region.region import ShardRegion
from tests.records import replace
from tests.scenarios.playing import Steady, replayed
from tests.unit.sharding.sharding_net import SETTINGS, Net
from tests.unit.sharding.sharding_process import Echo, Letter, Process

OTHERS = NodeId("others", 1, 1)
"""A node of another cluster on the same store."""


class Stage(Net):
    """A network whose every message is written down."""

    def __init__(self) -> None:
        super().__init__(0, settings=replace(SETTINGS, rebalance_interval=5.0))
        self.dice = Steady(0)
        self.lane: list[str] = []
        self.names: dict[NodeId, str] = {}
        self.fences: dict[int, int] = {}

    def send(self, source: NodeId, target: NodeId, item: object) -> None:
        text = self.words(item)
        if text and source != target:
            self.lane.append(f"{self.names[source]} > {self.names[target]:3} {text}")
        elif text and not isinstance(item, Letter | Echo):
            self.lane.append(f"{self.names[source]} > self {text}")
        super().send(source, target, item)

    def trace(self, process: Process, what: object) -> None:
        name = self.names.get(process.me, process.name)
        match what:
            case ev.StartShard(shard, fence):
                self.lane.append(f"{name}       starts s{shard} under fence {self.fence(fence)}")
            case ev.StopShard(shard, _):
                self.lane.append(f"{name}       stops s{shard}")
            case ev.Persist(_, _, homes):
                rows = {s: home for s, home in homes.items() if not s.startswith(INTENT_MARK)}
                homes_now = (Home(s, *home) for s, home in rows.items() if home is not None)
                gone = [f"s{s} nowhere" for s, home in rows.items() if home is None]
                written = ", ".join([*map(self.home, homes_now), *gone, *self.intents(homes)])
                self.lane.append(f"{name}       writes {written}")
            case ev.Stop(reason):
                self.lane.append(f"{name}       coordinator ends: {reason}")
            case ev.Reject(shard, letter, reason) if isinstance(letter, Letter):
                self.lane.append(f"{name}       rejects {letter.sender} #{letter.seq}: {reason}")
            case ev.Drained():
                self.lane.append(f"{name}       is drained")
            case ev.Note("epoch_claimed", epoch):
                self.lane.append(f"{name}       rules, epoch {epoch}")
            case ev.Note("handoff_overdue" | "start_overdue" | "rebalance" as kind, detail):
                self.lane.append(f"{name}       {kind}: {self.shorten(detail)}")
            case _:
                pass

    def on_handled(self, process: Process, letter: Letter, fence: int) -> None:
        super().on_handled(process, letter, fence)
        name = self.names[process.me]
        self.lane.append(f"{name}       s{letter.shard} handles {letter.sender} #{letter.seq}")

    # Words.

    def words(self, item: object) -> str:
        match item:
            case Letter(flush_id=0):
                return f"{item.sender} #{item.seq} for s{item.shard}"
            case Letter():
                return f"Flush s{item.shard}"
            case Echo(shard, _):
                return f"echo of Flush s{shard}"
            case msg.Register(_, proxy, _, hosted):
                what = "Register as proxy" if proxy else "Register"
                return f"{what}, hosts {self.homes(hosted)}" if hosted else what
            case msg.GetShardHome(shards):
                return f"GetShardHome {' '.join('s' + shard for shard in shards)}"
            case msg.Wait(_, shards, reason):
                return f"Wait {' '.join('s' + shard for shard in shards)}: {reason}"
            case msg.MoveAck(sender, moves):
                return f"MoveAck of {self.names[sender]} {self.moves(moves)}"
            case msg.Carry(move, entities):
                return f"Carry of {len(entities)} entities {self.moves((move,))}"
            case (
                msg.BeginMove() | msg.PrepareMove() | msg.MovePrepared() | msg.MoveCancelled()
                | msg.Switch() | msg.ShardMoved() | msg.MoveRefused() | msg.HomesMoved()
                | msg.AckWanted() | msg.MoveComplete()
            ):  # fmt: skip
                return f"{type(item).__name__} {self.moves(item.moves)}"
            case msg.GracefulShutdownRequest() | msg.RegionStopped() | msg.RegisterRefused():
                return type(item).__name__
            case _:
                homes = getattr(item, "homes", ())
                return f"{type(item).__name__} {self.homes(homes)}".rstrip()

    def intents(self, rows: Mapping[str, tuple[NodeId, int] | None]) -> list[str]:
        marked = {
            row.removeprefix(INTENT_MARK): home
            for row, home in rows.items()
            if row.startswith(INTENT_MARK)
        }
        return [
            f"no intent for s{s}" if home is None else f"intent {self.home(Home(s, *home))}"
            for s, home in marked.items()
        ]

    def moves(self, moves: Iterable[msg.ShardMove]) -> str:
        return ", ".join(
            f"{self.home(old)} to {self.names[new.node]}/{self.fence(new.fence)}"
            for old, new in moves
        )

    def homes(self, homes: Iterable[Home]) -> str:
        return ", ".join(self.home(home) for home in homes)

    def home(self, home: Home) -> str:
        return f"s{home.shard}@{self.names[home.node]}/{self.fence(home.fence)}"

    def fence(self, fence: int) -> str:
        return f"{fence >> 32}.{fence & 0xFFFFFFFF}"

    def shorten(self, text: str) -> str:
        for node, name in self.names.items():
            text = text.replace(str(node), name)
        return text

    # Commands.

    def perform(self, command: str) -> list[str]:
        self.lane = []
        self._do(command)
        return [f"  {entry}" for entry in self.lane]

    def _do(self, command: str) -> None:
        match command.split():
            case ["node", *names]:
                for name in names:
                    node = NodeId("n", len(self.processes) + 1, len(self.processes) + 1)
                    self.names[node] = name
                    self.add_node().name = name
            case ["handoff", mode]:
                self.settings, self.mode = replace(self.settings, handoff=mode), MODES[mode]
            case ["proxy", name]:
                self._do(f"node {name}")
                process = self.named(name)
                process.region = ShardRegion(
                    "t", process.me, self.layout, self.settings, proxy=True
                )
            case ["version", version]:
                self.version = version
            case ["client", name]:
                node = NodeId("c", len(self.processes) + 1, len(self.processes) + 1)
                self.names[node] = name
                self.add_client().name = name
            case ["tell", name, shard, count]:
                for _ in range(int(count)):
                    self.tell(self.named(name), "a", self.entity(shard.removeprefix("s")))
            case ["kill", name]:
                self.kill(self.named(name))
            case ["leave", name]:
                self.leave(self.named(name))
            case ["stall", source, target, seconds]:
                self.stall(self.named(source).me, self.named(target).me, float(seconds))
            case ["stopping", "takes", seconds]:
                self.stop_s = float(seconds)
            case ["store", "forgets"]:
                self.store.forget()
            case ["store", "down" | "up" as state]:
                self.store.down = state == "down"
            case ["others", "take", *shards]:
                self.take(shard.removeprefix("s") for shard in shards)
            case ["others", "leave"]:
                homes = self.store.homes
                self.store.homes = {s: home for s, home in homes.items() if home[0] != OTHERS}
            case ["run", seconds]:
                self.run_to(self.now + float(seconds))
            case _:
                raise ValueError(f"no such command: {command}")

    def take(self, shards: Iterable[str]) -> None:
        """Grant the shards in the store as the coordinator of a cluster that has removed these
        nodes."""
        store = self.store
        store.epoch, store.claimant = store.epoch + 1, OTHERS
        for number, shard in enumerate(shards):
            fence = (store.epoch << 32) + number
            store.homes[shard] = OTHERS, fence
            self._fences[shard] = self.written[shard] = fence

    def named(self, name: str) -> Process:
        return next(process for process in self.processes.values() if process.name == name)

    def entity(self, shard: str) -> str:
        """An entity whose shard it is."""
        return next(f"e{i}" for i in range(10_000) if shard_of(f"e{i}", self.shards) == shard)


def play(script: str) -> str:
    """The script with the lanes as they are now."""
    stage = Stage()
    played = replayed(script, stage.perform)
    stage.check()
    return played
