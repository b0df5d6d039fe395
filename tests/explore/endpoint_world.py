"""The world of two endpoints: a client with a session to a node, over the network in memory.

    tell, ask, answer
    cut, restore         the connection breaks; it comes back under another id
    full, room           the connection takes no frame of the client, or takes them again
    denied               the handshake fails, as while keys are changed
    rights less, more    the node's next decision about the client gives it fewer types, or all
    die                  the node's process ends; another one listens at its address
    leave                the node says that it leaves
    gateway              for 0.8 s whatever this client opens is refused, as by a proxy between
    second, silence      one second passes; 20

Laws: the node gets each message once and in order; an ask has one outcome; a session that was open
ends only if its process has ended, is silent, or has forgotten it; the node lets a client send as
many messages as its last decision allows, and knows it by one connection. At rest nothing is under
way.

`name`: the client dials the node by this name. When the name refuses, it goes on at the address
that the node advertises, and has all the patience there again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from shardbus.ids import Address, NodeId
from shardbus.transport.asks import Unsent
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.network import OnDenied, OnFrame
from shardbus.transport.permissions import CLIENT, Permissions, Role
from shardbus.transport.session import Session
from shardbus.wire.batch import AskRun, Control, Flush, Hello, Relayed, TellRun
from shardbus.wire.schema import decode_value
from tests.explore.link import messages_of, name_of
from tests.explore.on_a_loop import AskOutcomes, LoopOfWorld
from tests.unit.transport.memory_network import MemoryLink, MemoryNetwork, MemoryWorld

ADD = ("counter", "add")
LESS = Permissions(Role.CLIENT, frozenset({"counter"}))
ASK_MS = 3000
STEP_S, GATEWAY_S = 0.05, 0.8
HOME = Address("n1", 7001)


class DenyingNetwork(MemoryNetwork):
    """Keeps the way to say that a handshake has failed."""

    denials: dict[int, OnDenied]

    def connect(
        self,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_denied: OnDenied = lambda reason: None,
    ) -> MemoryLink:
        link = super().connect(address, on_frame, on_up, on_down)
        self.denials = {id(link): on_denied}
        return link


class Sink:
    """A receiver that keeps its messages, and answers later."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.open_asks: list[tuple[Session, int, str]] = []

    def on_tells(self, session: Session, run: TellRun) -> None:
        self.got += [name for _, _, name in messages_of(run)]

    def on_asks(self, session: Session, run: AskRun) -> None:
        names = [name for _, _, name in messages_of(run)]
        self.got += names
        self.open_asks += [(session, corr, n) for corr, n in zip(run.corrs, names, strict=True)]

    def on_relayed(self, session: Session, message: Relayed) -> None: ...
    def on_control(self, session: Session, control: Control) -> None: ...
    def on_flush(self, session: Session, flush: Flush) -> None: ...


class EndpointWorld:
    """A client, a node, and the node's successor."""

    def __init__(self, name: str = "n1") -> None:
        self.said: list[str] = []
        self.at = Address(name, HOME.port)
        self.world, self.net, self.ask_outcomes = LoopOfWorld(), MemoryWorld(), AskOutcomes()
        self.permissions, self.granted = CLIENT, CLIENT
        self.sinks: list[Sink] = []
        self.nodes: list[Endpoint] = []
        self.names: list[str] = []
        self.unsent: list[str] = []
        self.lost: list[Session] = []
        self.up, self.excused, self.leaving = True, False, False
        self.network = DenyingNetwork(self.net)
        self.client = self.world.run(self._client)
        self.world.run(self._listen)
        self.session: Session = self.world.run(self._open)
        self.carry()

    def _client(self) -> Endpoint:
        client = Endpoint(
            "shop", "client#9", 9, Sink(), network=self.network,
            events=EndpointEvents(lost=self._on_lost),
        )  # fmt: skip
        client.start()
        return client

    def _listen(self) -> None:
        me = NodeId("n1", 7001, len(self.nodes) + 1)
        sink = Sink()
        node = Endpoint(
            "shop", str(me), me.uid, sink, network=self.net.network(), node=me,
            authorize=self._authorize,
        )  # fmt: skip
        node.start(HOME.host, HOME.port)
        self.net.listeners[self.at] = self.net.listeners[HOME]
        self.sinks.append(sink)
        self.nodes.append(node)

    def _open(self) -> Session:
        return self.client.session_to(self.at, probe=True)

    def _authorize(self, hello: Hello, user: str | None) -> Permissions:
        self.granted = self.permissions
        return self.permissions

    def _on_lost(self, session: Session, unsent: list[Unsent]) -> None:
        self.lost.append(session)
        self.said.append(f"lost: {session.lost}")
        assert self.excused or session.closed_idle, f"lost without a reason: {session.lost}"
        for message in unsent:
            self.unsent.append(name_of(message.payload))
            if message.waiting is not None:
                message.waiting.waiter.cancel()

    @property
    def link(self) -> MemoryLink:
        return self.net.links[-1]

    def carry(self) -> None:
        for _ in range(20):
            if not self.world.run(self.net.carry):
                return
        raise AssertionError("frames never end")

    # ---- events

    def events(self) -> Iterable[str]:
        verbs = ["second", "silence"]
        if self.session.lost is None:
            verbs += ["tell", "ask", "denied", "cut" if self.link.up else "restore"]
            verbs.append("full" if self.link.has_room else "room")
            if len(self.nodes) == 1:
                verbs.append("die")
            verbs.append("gateway")
            if not self.leaving:
                verbs.append("leave")
        verbs.append("rights less" if self.permissions is CLIENT else "rights more")
        if any(sink.open_asks for sink in self.sinks):
            verbs.append("answer")
        return verbs

    def do(self, event: str) -> None:
        run = self.world.run
        match event.split():
            case ["tell" | "ask" as verb]:
                self._send(verb)
            case ["cut"]:
                run(self.link.cut)
            case ["restore"]:
                run(self.link.restore)
            case ["full" | "room"]:
                self.link.has_room = event == "room"
            case ["denied"]:
                run(self.network.denials[id(self.link)], "the keys differ")
            case ["gateway"]:
                self._gateway()
            case ["rights", how]:
                self.permissions = LESS if how == "less" else CLIENT
            case ["die"]:
                self._die()
            case ["leave"]:
                self.leaving = True
                run(self.nodes[-1].announce_leaving)
            case ["answer"]:
                self._answer()
            case ["second"]:
                self._wait(1.0)
            case ["silence"]:
                self.excused = self.excused or not self.link.up or not self.link.has_room
                self._wait(20.0)
        self.carry()
        self._check()

    def _send(self, verb: str) -> None:
        name = str(len(self.names) + 1)
        self.names.append(name)
        payload = f"{name} ".encode()
        if verb == "tell":
            self.world.run(self.session.outbox.tell, ADD, "x", payload)
        else:
            future = self.ask_outcomes.futures[name] = self.world.loop.create_future()
            self.world.run(self.session.outbox.ask, ADD, "x", payload, ASK_MS, future, decode_value)

    def _die(self) -> None:
        """End the node's process without a word; another one takes its place."""
        self.excused = True
        node: Any = self.nodes[-1]
        node._timer.cancel()
        self.net.listeners.clear()
        if self.link.up:
            self.world.run(self.link.cut)
        self.world.run(self._listen)

    def _gateway(self) -> None:
        """Break, and refuse everything for a time: that ends a session only if it is refused all
        the time at the node's own address."""
        [connection] = self.client._outgoing.values()
        self.excused = self.excused or connection.address == HOME
        listeners, self.net.listeners = self.net.listeners, {}
        if self.link.up:
            self.world.run(self.link.cut)
        self._wait(GATEWAY_S)
        self.net.listeners = listeners
        if self.session.lost is None and not self.link.up:
            self.world.run(self.link.restore)

    def _answer(self) -> None:
        for sink in self.sinks:
            if sink.open_asks:
                session, corr, _ = sink.open_asks.pop(0)
                if session.lost is None:
                    self.world.run(session.outbox.reply, corr, b"\xa2ok")
                return

    def _wait(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.world.wait(STEP_S)
            if self.link.out or self.link.back:
                self.carry()

    # ---- laws

    def _check(self) -> None:
        came = [name for sink in self.sinks for name in sink.got]
        self.ask_outcomes.handled.update(came)
        assert came == sorted(set(came), key=int), f"the nodes get {came}"
        assert not set(came) & set(self.unsent), "a message came, and was returned as unsent"
        self.ask_outcomes.check()
        for inbound in self.nodes[-1].incoming.by_name.values():
            assert inbound.session.permissions == self.granted, "the node keeps former permissions"
        incoming: Any = self.nodes[-1].incoming
        ids = {session.identity: session for session in incoming.by_name.values()}
        assert incoming._by_identity == ids, "the node keeps a former connection"

    def key(self) -> Hashable:
        session, node = self.session, self.nodes[-1]
        at = tuple(outgoing.address for outgoing in self.client._outgoing.values())
        return (
            at, self.link.up, self.link.has_room, self.permissions.types, self.granted.types,
            session.lost is not None, session.link.open,
            min(session.link.window.last - session.link.window.acked, 2),
            session.waiting_asks, len(self.nodes), len(node.incoming.by_name), self.leaving,
            tuple(len(sink.open_asks) for sink in self.sinks), self.excused,
        )  # fmt: skip

    def rest(self) -> None:
        for event in ("room", "restore"):
            if event in self.events():
                self.do(event)
        self._wait(5.0)
        while any(sink.open_asks for sink in self.sinks):
            self.do("answer")
        self._wait(5.0)
        self._check()
        assert not self.ask_outcomes.open(), f"asks {self.ask_outcomes.open()} have no outcome"
        if self.session.lost is None:
            assert self.session.link.open, "the session stays closed"
            assert not self.session.link.outstanding, "messages are not acknowledged"
            came = {name for sink in self.sinks for name in sink.got}
            over = {n for n, future in self.ask_outcomes.futures.items() if future.done()}
            lost = set(self.names) - came - over
            assert not lost, f"{lost} never came"
        elif not self.lost[0].closed_idle:
            assert self.excused

    def close(self) -> None:
        for future in self.ask_outcomes.futures.values():
            if future.done() and not future.cancelled():
                future.exception()
        self.world.close()
