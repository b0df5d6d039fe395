"""A node as administration sees it, without a network: its regions, its coordinator, and the other
nodes' answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from shardbus.config.settings import (
    ClusterSettings,
    NodeSettings,
    Settings,
    ShardingSettings,
    StoreSettings,
)
from shardbus.entities.failures import FailedStart, HandlerFailures
from shardbus.errors import NodeLost, Refused
from shardbus.ids import Address, NodeId
from shardbus.membership.member import Member, Status
from shardbus.membership.view import MembershipView
from shardbus.membership.vitals import Vitals
from shardbus.node.lost_nodes import LostNodes
from shardbus.node.members import ClusterMembers
from shardbus.node.recent_drops import RecentDrops
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.coordinator.history import ShardHistory
from shardbus.sharding.messages import Home
from shardbus.sharding.overrides import Overrides
from shardbus.sharding.region.table_gossip import TableGossip
from shardbus.wire.schema import Interface

ME, PEER, LOST = NodeId("a", 7355, 1), NodeId("b", 7355, 2), NodeId("c", 7355, 3)
PAGE = "page"


def member(node: NodeId, status: Status = Status.UP, *roles: str, **more: Any) -> Member:
    return Member(node, node.port + 1, status=status, up_number=node.uid, roles=roles, **more)


class Rpc:
    """The calls to other nodes. `answers` has each node's answer to a question; a node without
    an answer is silent; an error is raised."""

    def __init__(self) -> None:
        self.answers: dict[tuple[NodeId, str], Any] = {}
        self.questions: list[tuple[object, ...]] = []
        self.registered: dict[str, Any] = {}
        self.nodes = [ME, PEER, LOST]

    def members(self) -> list[NodeId]:
        return self.nodes

    def register(self, name: str, answer: Any, *, to_clients: bool = False) -> None:
        self.registered[name] = answer

    async def ask(self, node: NodeId, question: str, *arguments: object, of: str = "") -> Any:
        self.questions.append((node, question, *arguments))
        if (node, question) not in self.answers:
            raise NodeLost(f"{node} is gone")
        answer = self.answers[node, question]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask_all(self, question: str, *arguments: object, of: str = "") -> dict[NodeId, Any]:
        self.questions.append(("all", question, *arguments))
        return {n: a for (n, q), a in self.answers.items() if q == question}


class FakeMailboxes:
    """Mailboxes of two entities, and a sender that waits."""

    waiting, paused = 40, 1

    def fullest(self, most: int) -> list[tuple[str, str, int]]:
        return [("x", "1", 30), ("y", "1", 10)][:most]


class Host:
    """The entities in memory, by shard."""

    def __init__(self) -> None:
        self.shards: dict[str, Any] = {}
        self.passivator = SimpleNamespace(limit=500, evicted=3)
        self.kind = SimpleNamespace(cls=object)
        self.parts: list[list[tuple[str, str]]] = []
        self.takes_limits = True
        self.saver = SimpleNamespace(sizes=SimpleNamespace(total=250))
        self.activations = SimpleNamespace(walk=self.walk)
        self.deaf = SimpleNamespace(count=0, named=list)
        self.wall_clock = lambda: 1000.0
        self.deliveries = SimpleNamespace(poison=[], mailboxes=None)
        self.runner = SimpleNamespace(
            mailbox_limits=FakeMailboxes(), reminding=None, projecting=None
        )
        self.counts = SimpleNamespace(failed=HandlerFailures())
        for entity_id, why in {"7": "no migration", "8": "of another node"}.items():
            self.counts.failed.starts[entity_id] = FailedStart(0.0, 1, why, unreadable=True)

    @property
    def entities(self) -> int:
        return sum(shard.live for shard in self.shards.values())

    def add(self, shard: str, fence: int, *ids: str) -> None:
        self.shards[shard] = SimpleNamespace(live=len(ids), fence=fence)
        self.parts.append([(i, shard) for i in ids])

    def find(self, entity_id: str, shard: str) -> object | None:
        return (
            (entity_id, shard) if any((entity_id, shard) in part for part in self.parts) else None
        )

    def walk(self, size: int) -> Any:
        return iter(self.parts)


class FakeNode:
    """A member that is up, hosts shard 1 of one type, and runs its coordinator."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.environment = SimpleNamespace(wall_clock=lambda: 1000.0)
        self.me = ME
        self.rpc = Rpc()
        self.rpc.answers = {(ME, "stats"): {PAGE: {"1": 2}}, (PEER, "stats"): {PAGE: {"2": 5}}}
        self.settings = Settings(
            node=NodeSettings(version="1.2"),
            store=StoreSettings(url="redis://u:hunter2@h/0"),
            cluster=ClusterSettings(suspend_after=7.0),
        )
        self.members = ClusterMembers(ME, self.loop)
        self.view = MembershipView(
            ME,
            (
                member(ME, Status.UP, "web", http="a:8558", version="1.2"),
                member(PEER),
                member(LOST, Status.LEAVING),
            ),
            unreachable=(LOST,),
            leader=PEER,
            converged=True,
        )
        self.subscriptions = SimpleNamespace(view=self.view)
        self.gate = SimpleNamespace(describe=lambda: self.suspended)
        self.suspended = ""
        self.rejoining = ""
        self.store_identity = "d3b0"
        self.phases: Any = SimpleNamespace(current="", begin=lambda: self.posted.append("leave"))
        self.joined: list[tuple[str, ...]] = []
        self.membership: Any = SimpleNamespace(
            cluster_name="shop",
            requests=SimpleNamespace(other_clusters=(), rival=""),
            stopped=self.loop.create_future(),
            lag=0.001,
            runner=None,
            joins=SimpleNamespace(began=True, by=self._join_by),
            describe_joining=lambda: self.rejoining,
        )
        self.failed_tasks = 0
        vitals = SimpleNamespace(vitals=Vitals(busy=0.25, rate=9.0))
        self.reports = SimpleNamespace(vitals=vitals)
        self.records = SimpleNamespace(lost_nodes=LostNodes(), recent_drops=RecentDrops(dict))
        self.posted: list[object] = []
        self.cluster = SimpleNamespace(post=self.posted.append)
        self.states = SimpleNamespace(silent_ago=None, silent_because="", backlog=(7, 0.5))
        self.store: Any = SimpleNamespace(problems=("maxmemory-policy evicts",), clock_offset=-0.5)
        self.keyring: Any = None
        self.rekey: Any = lambda: False
        self.region = self._region()
        self.regions = {PAGE: self.region}
        self.coordinator = self._coordinator()
        self.shell: Any = SimpleNamespace(
            machine=self.coordinator,
            overrides=SimpleNamespace(places={}),
            handle=lambda event: self.posted.append(event),
            override=self._override,
            ask_strategy=self._ask_strategy,
            stop_shards=self._stop_shards,
        )
        self.without_type: tuple[str, ...] = ()
        """Roles whose members do not have the type."""
        self.singletons = {
            PAGE: SimpleNamespace(coordinator=self.shell, why_no_member=self._why_no_member)
        }
        self.failure: Exception | None = None
        self.faults: list[tuple[str, str]] = []
        self.still_stopping: list[str] = []
        self.patience = 0.0
        self.cordoned = False
        self.periodic: dict[str, Any] = {}
        self.every = lambda name, period, run: self.periodic.update({name: run})

    def _why_no_member(self, role: str) -> str:
        if role in self.without_type:
            return "they do not have this type"
        lacking = role and self.view is not None and self.view.oldest(role) is None
        return f"none is up with role {role!r}" if lacking else ""

    @property
    def view(self) -> MembershipView | None:
        return self.members.view

    @view.setter
    def view(self, view: MembershipView | None) -> None:
        self.members.view = view

    def _join_by(self, seeds: Any) -> None:
        self.joined.append(tuple(seeds))

    def _region(self) -> Any:
        host = Host()
        host.add("1", 9, "x", "y")
        homes = {"1": Home("1", ME, 9), "2": Home("2", PEER, 4)}
        machine = SimpleNamespace(
            epoch=3,
            registered=True,
            buffered=(0, 0),
            home_of=homes.get,
            homes=homes,
            table_gossip=TableGossip(ME, []),
        )
        shard_of = {"x": "1", "y": "1", "z": "2", "7": "1"}
        router = SimpleNamespace(
            region=machine,
            wanted_since=None,
            has_shard=lambda shard: shard in ("1", "2", "3"),
            route_of=lambda i: SimpleNamespace(shard=shard_of.get(i, "3")),
            shard_of=lambda i: shard_of.get(i, "3"),
            routes={"1": SimpleNamespace(out=1), "2": SimpleNamespace(out=1)},
            rows=None,
        )
        interface = Interface(PAGE, 3, "crc32/3")
        region = SimpleNamespace(
            name=PAGE,
            hosts=True,
            settings=ShardingSettings(retry_interval=9.0),
            host=host,
            router=router,
            coordinator=ME,
            coordinator_since=self.loop.time(),
            coordinator_role="",
            entity_type=SimpleNamespace(
                interface=interface, states=None, has_state=False, is_queue=False
            ),
            sampling=SimpleNamespace(hot_spots=SimpleNamespace(row=lambda: {"messages": 3.0})),
            shutdown=lambda: self.posted.append("shutdown"),
        )
        region.table = region
        return region

    def _coordinator(self) -> Any:
        return SimpleNamespace(
            state=CoordinatorState.RULING,
            epoch=3,
            table=SimpleNamespace(homes=self.region.router.region.homes),
            state_of=lambda shard: {"1": "running", "2": "begin"}.get(shard, "unallocated"),
            unsettled_since={"2": self.loop.time() - 4.0}.get,
            history=ShardHistory(),
            forecasting=self._forecasting,
            rebalancing=SimpleNamespace(
                load_of={"1": 1.5}.get,
                load_unit="handler s/s",
                faults=SimpleNamespace(shown=lambda now: self.faults),
                moves_in_flight=(1, 3),
                why_not=lambda: "",
                paused=False,
                check_places=self._check_places,
            ),
        )

    def _check_places(self, places: set[Address]) -> None:
        if LOST.address in places and self.cordoned:
            raise Refused("it takes no shard", hint="uncordon it")

    def _forecasting(self, add: int, remove: tuple[NodeId, ...]) -> Any:
        self.posted.append(("plan", add, remove))
        return lambda: SimpleNamespace(
            before={ME: 1, PEER: 1}, after={ME: 2}, moved={"2": (PEER, ME)}, rounds=1, settled=True
        )

    async def _ask_strategy(self, coordinator: Any, call: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return call()

    async def _override(self, change: Any) -> None:
        if self.failure is not None:
            raise self.failure
        changed = change(Overrides())
        self.posted.append(changed)
        self.shell.overrides = changed

    async def _stop_shards(self, shards: list[str], patience: float) -> list[str]:
        self.patience = patience
        if self.failure is not None:
            raise self.failure
        return self.still_stopping
