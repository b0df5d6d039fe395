"""The world of a client: a real one, over the network in memory, and two nodes that answer it.

    tell x, ask x            a message for an entity of a type, named by a string
    ask y                    for a type that no node has
    many x                   a batch of tells, of which the last one cannot be sent
    A lacks, A has           whether a node has the type, as during a rollout
    home A, home none        where the shards live; the nodes that have the type say so
    cut A, restore A         the connection to A breaks; it comes back
    leave A, die A           A says that it leaves; its process ends
    cancel, second, timeout  a caller gives up; one second passes; more than a caller's time

Laws: a node gets each message at most once; an ask that has failed for certain never comes. An ask
has its outcome by its deadline, a tell has room or an error by then. A type with a guide asks its
guide. At rest nothing waits; if a node lives that has the type, a new ask is answered, and a type
that no node has is refused. An error of a batch is definite only if none of its messages came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from random import Random
from typing import Any

from shardbus.client.asynchronous import AsyncClient
from shardbus.errors import RequestError, UnknownEntityType
from shardbus.ids import NodeId
from shardbus.sharding.messages import GetShardHome, Home, ShardHomes
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.environment import Environment
from shardbus.transport.session import Session
from shardbus.wire.batch import PAYLOAD_BYTES_MAX, AskRun, Control, Flush, Relayed, TellRun
from shardbus.wire.control import Describe, Members, TypeInfo, decode_control, encode_control
from shardbus.wire.schema import decode_value
from tests.explore.on_a_loop import AskOutcomes, LoopOfWorld
from tests.unit.transport.memory_network import MemoryLink, MemoryWorld

TYPE, SHARDS, LAYOUT = "page", 12, "crc32/12"
CALL_S, LATE_S, STEP_S = 1.5, 0.3, 0.1
UNKNOWN_MAX = 2
"""Messages that wait for unknown types, at most."""
REST_S = 2.5
"""Longer than a client waits before it repeats a refused ask."""
TOO_LARGE = bytes(PAYLOAD_BYTES_MAX + 1)
A, B = NodeId("a", 7355, 1), NodeId("b", 7355, 2)
NODES = {"A": A, "B": B}


def name_in(payload: bytes) -> str:
    """Return the name of a message, its only argument."""
    value = decode_value(payload)
    return str(value[-1] if isinstance(value, list | tuple) else value)


class Node:
    """A node as a client sees it: it describes types, locates shards, and takes messages."""

    def __init__(self, world: ClientWorld, me: NodeId) -> None:
        self.world, self.me, self.has, self.lives, self.leaves = world, me, True, True, False
        self.sessions: list[Session] = []
        self.endpoint = Endpoint(
            "shop", str(me), me.uid, self, network=world.net.network(), node=me,
            events=EndpointEvents(client=self._on_client, lost=self._on_lost),
        )  # fmt: skip
        self.endpoint.start(me.host, me.port)

    def _on_client(self, session: Session) -> None:
        self.sessions.append(session)
        self._say(session, "", Members(self.world.members()))

    def _on_lost(self, session: Session, unsent: object) -> None:
        if session in self.sessions:
            self.sessions.remove(session)

    def _say(self, session: Session, name: str, message: object) -> None:
        session.outbox.control(encode_control(name, message))

    def say_members(self) -> None:
        for session in list(self.sessions):
            self._say(session, "", Members(self.world.members()))

    def say_homes(self, session: Session, shards: Iterable[str]) -> None:
        home = self.world.home
        if home is not None and self.has:
            rows = tuple(Home(shard, home, self.world.fence) for shard in shards)
            self._say(session, TYPE, ShardHomes(1, rows))

    # ---- as the receiver of its sessions

    def on_control(self, session: Session, control: Control) -> None:
        match decode_control(control):
            case Describe() if control.type == TYPE and self.has:
                self._say(session, TYPE, TypeInfo(True, LAYOUT, SHARDS))
            case Describe():
                others = self.world.having() if control.type == TYPE else ()
                self._say(session, control.type, TypeInfo(False, "", 0, elsewhere=others))
            case GetShardHome(shards):
                self.say_homes(session, shards)
            case _:
                pass

    def on_tells(self, session: Session, run: TellRun) -> None:
        for payload in run.payloads:
            self.world.came(self, name_in(payload))

    def on_asks(self, session: Session, run: AskRun) -> None:
        for payload, corr in zip(run.payloads, run.corrs, strict=True):
            self.world.came(self, name_in(payload))
            session.outbox.reply(corr, b"\xa2ok")

    def on_relayed(self, session: Session, message: Relayed) -> None: ...

    def on_flush(self, session: Session, flush: Flush) -> None:
        session.outbox.reply(flush.corr, b"")


class ClientWorld:
    """A client that was given the addresses of both nodes. `only`: the alphabet, all of it if that
    is empty."""

    def __init__(self, *only: str) -> None:
        self.only = only
        self.said: list[str] = []
        self.world, self.net, self.ask_outcomes = LoopOfWorld(), MemoryWorld(), AskOutcomes()
        self.home: NodeId | None = A
        self.fence = 1
        self.got: list[tuple[NodeId, str]] = []
        self.tells: dict[str, Any] = {}
        self.due: dict[str, float] = {}
        self.failed: list[tuple[list[str], RequestError]] = []
        self.sent = 0
        self.nodes: dict[str, Node] = {}
        for name, me in NODES.items():
            self.nodes[name] = self.world.run(Node, self, me)
        self.client: Any = None
        entering = self.world.spawn(self._enter())
        self._wait(0.2)
        self.client = entering.result()
        self.client._regions.unknown._messages_max = UNKNOWN_MAX

    async def _enter(self) -> AsyncClient:
        network = self.net.network()
        client = AsyncClient(
            *(f"tcp://{node.address}" for node in NODES.values()),
            cluster="shop",
            timeout=CALL_S,
            environment=lambda: Environment(b"7", network, Random(1)),
        )
        return await client.__aenter__()

    # ---- the nodes

    def members(self) -> tuple[NodeId, ...]:
        return tuple(n.me for n in self.nodes.values() if n.lives and not n.leaves)

    def having(self) -> tuple[NodeId, ...]:
        return tuple(n.me for n in self.nodes.values() if n.lives and n.has and not n.leaves)

    def came(self, node: Node, name: str) -> None:
        self.said.append(f"{node.me.host} gets {name}")
        assert name not in {n for _, n in self.got}, f"{name} comes twice"
        self.got.append((node.me, name))
        self.ask_outcomes.handled.add(name)

    def links(self, name: str) -> list[MemoryLink]:
        address = NODES[name].address
        return [link for link in self.net.links if link.address == address and not link.closed]

    # ---- events

    def events(self) -> Iterable[str]:
        verbs = ["tell x", "ask x", "ask y", "many x", "second", "timeout", "home none"]
        for name, node in self.nodes.items():
            if not node.lives:
                continue
            verbs += [f"{name} {'lacks' if node.has else 'has'}", f"home {name}", f"die {name}"]
            if not node.leaves:
                verbs.append(f"leave {name}")
            if links := self.links(name):
                verbs.append(f"cut {name}" if links[-1].up else f"restore {name}")
        if self._open():
            verbs.append("cancel")
        return [event for event in verbs if not self.only or event in self.only]

    def do(self, event: str) -> None:
        match event.split():
            case ["tell" | "ask" as verb, entity]:
                self._send(verb, entity)
            case ["many", entity]:
                self._send_many(entity)
            case [name, "lacks" | "has" as verb]:
                self.nodes[name].has = verb == "has"
            case ["home", name]:
                self._home(NODES.get(name))
            case ["cut", name]:
                self.world.run(self.links(name)[-1].cut)
            case ["restore", name]:
                self.world.run(self.links(name)[-1].restore)
            case ["leave", name]:
                self.nodes[name].leaves = True
                self.world.run(self.nodes[name].endpoint.announce_leaving)
                self._say_members()
            case ["die", name]:
                self._die(name)
            case ["cancel"]:
                self.world.run(self.ask_outcomes.futures[self._open()[0]].cancel)
            case ["second"]:
                self._wait(1.0)
            case ["timeout"]:
                self._wait(CALL_S + LATE_S)
        self._wait(0.2)

    def _send(self, verb: str, entity: str) -> None:
        self.sent += 1
        name, kind = str(self.sent), TYPE if entity != "y" else "item"
        self.due[name] = self.world.loop.time() + CALL_S + LATE_S
        if verb == "tell":
            future = self.world.run(self._cast, kind, entity, name)
            self.tells[name] = future
        else:
            call = self.client.call
            self.ask_outcomes.futures[name] = self.world.run(
                lambda: asyncio.ensure_future(call(kind, entity, "mark", int(name)))
            )

    def _send_many(self, entity: str) -> None:
        """Begin a batch: the rest leaves as soon as there is room."""
        names = [str(self.sent + n) for n in (1, 2)]
        self.sent += len(names)
        rows = [*((entity, int(name)) for name in names), (entity, TOO_LARGE)]

        async def send() -> None:
            try:
                await self.client.tell_many(TYPE, rows)
            except RequestError as error:
                self.failed.append((names, error))

        self.tells[names[-1]] = self.world.spawn(send())
        self.due[names[-1]] = self.world.loop.time() + 2 * (CALL_S + LATE_S)

    def _cast(self, kind: str, entity: str, name: str) -> Any:
        async def cast() -> None:
            try:
                await self.client.cast(kind, entity, "mark", int(name))
            except RequestError as error:
                self.failed.append(([name], error))

        return self.world.loop.create_task(cast())

    def _open(self) -> list[str]:
        return self.ask_outcomes.open()

    def _home(self, node: NodeId | None) -> None:
        self.home = node
        self.fence += 1
        for candidate in self.nodes.values():
            if candidate.lives:
                for session in list(candidate.sessions):
                    self.world.run(candidate.say_homes, session, map(str, range(SHARDS)))

    def _say_members(self) -> None:
        for node in self.nodes.values():
            if node.lives:
                self.world.run(node.say_members)

    def _die(self, name: str) -> None:
        """End a node's process without a word."""
        node = self.nodes[name]
        node.lives = False
        endpoint: Any = node.endpoint
        endpoint._timer.cancel()
        self.net.listeners.pop(node.me.address, None)
        for link in self.links(name):
            self.world.run(link.cut if link.up else link.on_down)  # a reconnect fails, too
        if self.home == node.me:
            self.home = None
        self._say_members()

    def _wait(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.world.wait(STEP_S)
            while any(link.out or link.back for link in self.net.links):
                self.world.run(self.net.carry)
            self._check()

    # ---- laws

    def _check(self) -> None:
        now = self.world.loop.time()
        late = [name for name in self._open() if now > self.due[name]]
        assert not late, f"asks {late} have no outcome in time"
        late = [n for n, tell in self.tells.items() if not tell.done() and now > self.due[n]]
        assert not late, f"tells {late} have neither room nor an error in time"
        self.ask_outcomes.check()
        for names, error in self.failed:
            came = self.ask_outcomes.handled.intersection(names)
            assert not (came and error.definite), f"{came} came, and the error is definite: {error}"
        regions: Any = getattr(self.client, "_regions", None)
        for name, guide in regions._guides.items() if regions is not None else ():
            if (region := regions._by_name.get(name)) is not None:
                asks = region.router.region._registration.coordinator
                assert asks == guide, f"{name} has the guide {guide}, and asks {asks}"

    def key(self) -> Hashable:
        regions = self.client._regions
        homes = [
            (name, region.router.refused is None, region.router.waiting)
            for name, region in regions._by_name.items()
        ]
        routes = sorted(
            (shard, route.out is not None)
            for region in regions._by_name.values()
            for shard, route in region.router.routes.items()
        )
        nodes = [
            (n.has, n.lives, n.leaves, [link.up for link in self.links(name)], len(n.sessions))
            for name, n in self.nodes.items()
        ]
        contact = self.client.contact
        return (
            str(homes), str(routes), str(nodes), self.home, contact, str(regions._guides),
            len(self._open()), regions.unknown.messages, frozenset(regions._gone_at),
        )  # fmt: skip

    def rest(self) -> None:
        self.only = ()
        for name, node in self.nodes.items():
            for event in (f"restore {name}", f"{name} has"):
                if event in self.events():
                    self.do(event)
            if node.lives and node.leaves:
                self._wait(0.5)
                self.do(f"die {name}")
        able = [n for n in self.nodes.values() if n.lives]
        if able and self.home not in [n.me for n in able]:
            self._home(able[0].me)
        self._wait(REST_S)
        assert not self._open()
        if able:
            self._check_serves()
        assert not self.client._regions.unknown.messages, "messages wait for their type"

    def _check_serves(self) -> None:
        """Check that the client has found its way: a new ask is answered."""
        for entity in ("x", "z", "y"):
            self._send("ask", entity)
            future = self.ask_outcomes.futures[str(self.sent)]
            while not future.done():  # its deadline is a law
                self._wait(STEP_S)
            if entity == "y":
                kind = type(future.exception())
                assert kind is UnknownEntityType, f"a type that no node has: {kind.__name__}"
            else:
                outcome = self.ask_outcomes.outcome(str(self.sent))
                assert outcome == "answered", f"an ask at rest: {outcome}: {future.exception()}"

    def close(self) -> None:
        for future in (*self.ask_outcomes.futures.values(), *self.tells.values()):
            if future.done() and not future.cancelled():
                future.exception()
        self.world.close()
