"""The options of a run of whole nodes: the faults of membership and of sharding, and the messages.

`draw_node_options` draws all of them from the seed. The store of tables fails in ways of its own.
Settings are drawn too, so that deadlines pass that never do in a calm cluster.

Messages are thin or dense. In a thin run each message has time to meet a fault alone. In a dense
run they fill batches, windows and mailboxes, go to many entities, and in storms to ids that no
sender has used, and entities are passivated soon.

Source: docs/simulation.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from random import Random

from shardbus.config.settings import ShardingSettings
from shardbus.sharding.handoff_modes import MODES
from shardbus.simulation.membership.options import Options, draw, draw_times

STORES = {"sound": 4, "slow": 2, "failing": 3, "away": 2, "forgetful": 2, "rolled back": 2}
"""Each kind of store with its weight in the draw."""
ALLOCATIONS = {"least-shards": 6, "threshold": 2, "consistent-hashing": 2}
HURRIED = {
    "begin_handoff_timeout": 0.05,
    "handoff_timeout": 6.5,
    "shard_start_timeout": 0.2,
    "retry_interval": 0.3,
}
"""Deadlines so short that they pass."""
DENSITIES = ("thin", "dense")
SPLIT_RUNS = 0.4
"""The part of runs with splits and stopped nodes."""
WAIT_S, LONG_WAIT_S = 0.05, 3.0
"""Seconds, at most, that a handler waits: in most runs, and in some with splits."""
VICTIMS = ("old-home", "new-home", "coordinator", "sender")
"""The parts in a move whose process a kill at a phase of it may end."""
ANY_PHASE = "any"
"""Kills at drawn phases, of drawn victims."""
KILLS_NODES = 4
"""Nodes, at least, in drawn runs with kills at phases: a victim for every part."""
ALONE = 0.7
"""The part of runs with kills at phases in which nothing else ends, separates or stops nodes."""
WAITS_LONG = 0.02
"""The part of messages whose handler waits, where it may wait long."""
DRIFT = 0.01
MANY = 0.02
"""The part of runs with unfair links that have many types."""
MANY_TYPES = (100, 300)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """One run of whole nodes. Times in seconds."""

    faults: Options
    shards: int = 8
    clients: int = 1
    density: str = "thin"
    every_s: float = 0.3
    """The mean time between two bursts of one sender."""
    burst: int = 6
    """Messages in a burst, at most."""
    rests: float = 0.2
    """The probability that a sender pauses between two messages of a burst."""
    entities: int = 6
    """The number of ids of each type that are used again and again."""
    storms: float = 0.0
    """The part of bursts in which each message goes to an id that no sender has used."""
    thinks: float = 0.1
    """The part of messages whose handler waits."""
    passivate_s: float = 120.0
    limit: int = 0
    """Entities of the `plain` type in memory of one node, at most; 0 is no bound."""
    store: str = "sound"
    cuts: int = 0
    """Connections that break without a reason."""
    stops: int = 0
    """The number of times an operator stops some shards."""
    services: int = 0
    """The number of times a node is cordoned or drained, and opened again."""
    rebalances: int = 0
    sleeps: int = 0
    """The number of times a node is paused until the others may have removed it, and then
    continues."""
    rolls: int = 0
    """The number of times a node leaves, and the next process starts at its address within
    milliseconds."""
    downs: int = 0
    """The number of times an operator downs a node, sometimes one that is leaving."""
    hangs: int = 0
    """Connections that swallow frames until they break."""
    splits: int = 0
    """The number of times that the network splits into sides, in one of `SHAPES`. There are senders
    on each side."""
    split_s: float = 20.0
    """The longest split."""
    freezes: int = 0
    """The number of times that a whole process stops, as by SIGSTOP, and then continues."""
    blocks: int = 0
    """The number of times that a handler blocks the loop of an application."""
    suspends: int = 0
    """The number of times that a whole machine stops, with its monotonic clock."""
    stop_s: float = 20.0
    """The longest of these stops."""
    waits_s: float = WAIT_S
    """Seconds, at most, that a handler waits."""
    pairs: int = 0
    """Faults of sharding that are moved close to one of membership: a store that forgets and a
    death, a stop and a wall."""
    room: int = 0
    """Frames that may be under way in one direction of a connection; 0 is no bound."""
    slow_starts: float = 0.0
    """The part of starts and of ends that wait."""
    failing_starts: float = 0.0
    """The part of starts that fail."""
    failing_handlers: float = 0.0
    """The part of messages whose handler raises, anything that code may raise."""
    hurried: bool = False
    buffer_size: int = 100_000
    mailbox: int = 10_000
    allocation: str = "least-shards"
    interval_s: float = 2.0
    """Seconds between two rebalancing passes."""
    handoff: str = "buffer"
    """The mode of hand-offs, of types that can bear it."""
    homes: str = "ask"
    """How nodes get the homes of shards: the setting `sharding.homes`."""
    instances: int = 0
    """Instances of the entities of a fourth type; 0: there is no such type."""
    deliveries: bool = False
    """Each process delivers to entities that deliver themselves, too."""
    events: bool = False
    """Each process sends bookings to event-sourced entities, which have a projection."""
    kill_at: str = ""
    """The phase of a move and the victim of each kill at a phase, as in `stopping/old-home`, or
    `any`."""
    move_kills: int = 0
    """Kills at phases of moves."""
    on_role: bool = False
    """One more type lives on the nodes with the role `core` only."""
    types: int = 0
    """The number of further types, to which no sender sends."""

    @property
    def seed(self) -> int:
        """The seed of the whole run."""
        return self.faults.seed

    def handoff_of(self, *, stateful: bool) -> str:
        """Return the mode of a type: `ordered` in place of one that a type with a state, or with
        remembered entities, cannot bear."""
        mode = MODES[self.handoff]
        return "ordered" if stateful and mode is not None and mode.overlaps else self.handoff

    def sharding(self) -> ShardingSettings:
        """Return the settings of every entity type."""
        hurry = HURRIED if self.hurried else {}
        return replace(
            ShardingSettings(),
            buffer_size=self.buffer_size,
            mailbox=self.mailbox,
            allocation=self.allocation,
            homes=self.homes,
            rebalance_interval=self.interval_s,
            rebalance_threshold=1,
            passivate_after=self.passivate_s,
            **hurry,  # type: ignore[arg-type]
        )

    def lines(self) -> list[str]:
        """Return name and value of each option."""
        rows = [f"{f.name} = {getattr(self, f.name)!r}" for f in fields(self) if f.name != "faults"]
        return rows + self.faults.lines()

    def command(self) -> str:
        """Return the command that replays this run."""
        stops = self.freezes + self.blocks + self.suspends
        forced = " --splits" if self.splits + stops else ""
        mode = "" if self.handoff == "buffer" else f" --handoff {self.handoff}"
        homes = "" if self.homes == "ask" else f" --homes {self.homes}"
        rows = f" --instances {self.instances}" if self.instances else ""
        kills = f" --kill-at {self.kill_at}" if self.kill_at else ""
        text = f" --sharding --load {self.density}{forced}{mode}{homes}{rows}{kills}"
        text += " --deliveries" if self.deliveries else ""
        text += " --events" if self.events else ""
        text += f" --failing-handlers {self.failing_handlers:g}" if self.failing_handlers else ""
        return self.faults.command() + text


def draw_node_options(
    seed: int,
    nodes: int | None = None,
    seconds: float | None = None,
    strategy: str | None = None,
    density: str | None = None,
    splits: bool | None = None,
    handoff: str = "buffer",
    homes: str = "ask",
    instances: int = 0,
    kill_at: str = "",
    failing_handlers: float = 0.0,
    links: str = "fair",
    deliveries: bool = False,
    events: bool = False,
) -> NodeOptions:
    """Draw the options of this seed. The number of nodes, the strategy, the density, and whether
    there are splits and stopped nodes, are drawn too if not given. The mode of hand-offs, the
    way of homes, the number of instances, the part of handlers that fail, deliveries and events
    change no other option; with a direct mode, shards move more often. With kills at phases, most
    runs have no other fault that ends, separates or stops nodes."""
    dice = Random(f"load {seed}")
    times = partial(draw_times, dice)
    moods, allocations = list(STORES), list(ALLOCATIONS)
    thin = NodeOptions(
        faults=draw(seed, nodes, seconds, strategy, links),
        shards=dice.choice((1, 4, 8, 8, 24)),
        clients=dice.randint(0, 2),
        every_s=round(dice.uniform(0.1, 1.0), 3),
        store=dice.choices(moods, list(STORES.values()))[0],
        cuts=times(0.4, 12),
        stops=times(0.3, 3),
        services=times(0.3, 2),
        rebalances=times(0.3, 3),
        hurried=dice.random() < 0.3,
        buffer_size=dice.choice((20, 100_000, 100_000)),
        allocation=dice.choices(allocations, list(ALLOCATIONS.values()))[0],
        interval_s=dice.choice((0.5, 2.0, 10.0)),
    )
    dice = Random(f"sleeps {seed}")
    if dice.random() < 0.3:
        thin = replace(thin, sleeps=dice.randint(1, 3))
    dice = Random(f"node pairs {seed}")
    if dice.random() < 0.4:
        thin = replace(thin, pairs=dice.randint(1, 4))
    thin = _rough(thin, Random(f"rough {seed}"))
    dice = Random(f"splits {seed}")
    drawn_splits = dice.random() < SPLIT_RUNS
    if drawn_splits if splits is None else splits:
        thin = _split(thin, dice)
    if handoff != "buffer":
        thin = _moving(thin, handoff)
    thin = replace(thin, homes=homes, instances=instances, deliveries=deliveries)
    thin = replace(thin, failing_handlers=failing_handlers, events=events)
    if kill_at:
        thin = _killing(thin, kill_at, at_least=KILLS_NODES if nodes is None else 1)
    if links == "unfair":
        thin = _unfair(thin)
    dice = Random(f"density {seed}")
    drawn = dice.choice(DENSITIES)
    return thin if (density or drawn) == "thin" else _dense(thin, dice)


def _unfair(load: NodeOptions) -> NodeOptions:
    """Leave out all else that may delay a message between two healthy nodes. A type lives on some
    of the nodes only; in some runs there are many types."""
    dice = Random(f"types {load.seed}")
    return replace(
        load, store="sound", cuts=0, stops=0, services=0, rebalances=0, sleeps=0, rolls=0, downs=0,
        hangs=0, splits=0, freezes=0, blocks=0, suspends=0, pairs=0, room=0, hurried=False,
        buffer_size=100_000, failing_starts=0.0, waits_s=WAIT_S, on_role=True,
        types=dice.choice(MANY_TYPES) if dice.random() < MANY else 0,
    )  # fmt: skip


def _moving(load: NodeOptions, handoff: str) -> NodeOptions:
    """Use this mode, and let shards move more often."""
    services = load.services + Random(f"handoff {load.seed}").randint(1, 3)
    often = replace(load, rolls=load.rolls + 1, services=services, interval_s=0.5)
    return replace(often, handoff=handoff, rebalances=load.rebalances + 2)


def _killing(load: NodeOptions, kill_at: str, at_least: int) -> NodeOptions:
    """Add kills at phases of moves. Alone, they meet a cluster in good order."""
    dice = Random(f"kill at {load.seed}")
    faults = replace(load.faults, nodes=max(load.faults.nodes, at_least))
    load = replace(load, kill_at=kill_at, move_kills=dice.randint(1, 4), interval_s=0.5)
    if dice.random() < ALONE:
        faults = replace(
            faults, pauses=0, kills=0, vanishes=0, leaves=0, joins=0, partitions=0, one_ways=0,
            cut_links=0, bounces=0, swizzles=0, flaps=0,
        )  # fmt: skip
        load = replace(
            load, cuts=0, stops=0, sleeps=0, downs=0, hangs=0, rolls=0, splits=0, freezes=0,
            blocks=0, suspends=0,
        )  # fmt: skip
    return replace(load, faults=faults)


def _split(load: NodeOptions, dice: Random) -> NodeOptions:
    """Add splits and stopped nodes, which make other nodes start shards that a living node still
    has. Clients send on both sides."""
    waits = dice.choice((WAIT_S, WAIT_S, LONG_WAIT_S))
    kinds = [dice.randint(1, 3) if dice.random() < part else 0 for part in (0.7, 0.4, 0.3, 0.3)]
    return replace(
        load,
        splits=kinds[0] if any(kinds) else 1,
        freezes=kinds[1],
        blocks=kinds[2],
        suspends=kinds[3],
        split_s=dice.choice((8.0, 20.0, 40.0)),
        stop_s=dice.choice((4.0, 20.0, 60.0)),
        faults=replace(load.faults, drift=DRIFT if dice.random() < 0.5 else load.faults.drift),
        thinks=min(load.thinks, WAITS_LONG) if waits > WAIT_S else load.thinks,
        waits_s=waits,
        clients=max(load.clients, 2),
        every_s=min(load.every_s, 0.3),
    )


def _rough(calm: NodeOptions, dice: Random) -> NodeOptions:
    """Add the faults that operators, sockets and entities' own code may cause. Sockets are not
    small where deadlines are short: a late Flush counts as echoed, and order may be lost with
    it."""
    times = partial(draw_times, dice)
    return replace(
        calm,
        rolls=times(0.25, 3),
        downs=times(0.2, 2),
        hangs=times(0.3, 8),
        room=dice.choice((2, 5, 20)) if dice.random() < 0.3 and not calm.hurried else 0,
        slow_starts=dice.choice((0.1, 0.5)) if dice.random() < 0.25 else 0.0,
        failing_starts=dice.choice((0.1, 0.4)) if dice.random() < 0.2 else 0.0,
    )


def _dense(thin: NodeOptions, dice: Random) -> NodeOptions:
    """Return the same options with many messages: some 20,000 in 30 s."""
    burst = dice.choice((20, 60, 200))
    letters_per_s = dice.uniform(40.0, 200.0)
    return replace(
        thin,
        density="dense",
        burst=burst,
        every_s=round(burst / 2 / letters_per_s, 3),
        rests=dice.choice((0.0, 0.01, 0.05)),
        entities=dice.choice((6, 60, 400)),
        storms=dice.choice((0.05, 0.2, 0.4)),
        thinks=dice.choice((0.0, 0.01, 0.1)),
        waits_s=WAIT_S,
        passivate_s=dice.choice((0.5, 2.0, 120.0)),
        limit=dice.choice((0, 0, 30)),
    )
