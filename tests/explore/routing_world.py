"""The worlds of senders: the routers of a client, its region machine, and links to two homes.

    tell x | ask x                 a message for an entity; also `x/1`, of a type that lives within
    home A | home B                the coordinator names the shard's next home
    break A, mend A                the connection to A breaks: messages to it wait
    lose A                         the link to A is lost, A lives
    gone A                         A is dead
    leave A, back A                A leaves: nothing new goes there, its link stands; it is back
    refuse, refuse inner, admit    the type cannot be reached; it can be again
    answer A, cancel, second
    give up                        the process ends: waiting messages count as dropped

With instances (`InstanceWorld`): `row 1 A`, `count 2`, and a verb with each choice, `tell hash`,
`ask all`, `ask first`, ...

Laws: per entity, homes get the messages in order, each at most once; one that has failed for
certain never comes. Each message comes to a home, is refused to its sender, counts as dropped, or
was with a lost link. Each message that the region was given has left it, was dropped, or waits.
Each ask that waits has a deadline, and one that its asker has given up never comes. A dropped tell
counts as answered only if its sender has got an error. A message for one instance comes to no other
one. At rest nothing waits and each ask has one outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from shardbus.config.settings import ShardingSettings
from shardbus.errors import RequestError, UnknownEntityType
from shardbus.ids import NodeId, shard_of
from shardbus.routing.instance_policies import Choice, spread
from shardbus.routing.instance_sender import InstanceSender
from shardbus.routing.paths import placed_within
from shardbus.routing.pending_message import Binding, PendingMessage
from shardbus.routing.router import Router
from shardbus.sharding import events as ev
from shardbus.sharding.instances import Instances, row_of, split_row
from shardbus.sharding.messages import Home, InstanceCount, ShardHomes
from shardbus.sharding.region.region import ShardRegion
from shardbus.transport.asks import CoarseClock
from shardbus.wire.schema import Interface, decode_value
from tests.explore.link import STEP_S, Link, messages_of, name_of
from tests.explore.on_a_loop import AskOutcomes, LoopOfWorld

A, B = NodeId("a", 1, 1), NodeId("b", 2, 2)
NODES = {"A": A, "B": B}
NAMES = {node: name for name, node in NODES.items()}
ASK_MS = 900
BUFFER = 4


class Homes:
    """The owner of a router: a link to each node, and the fate of each message."""

    def __init__(self, interface: Interface) -> None:
        self.said: list[str] = []
        self.world = LoopOfWorld()
        self.clock = CoarseClock()
        self.clock.start(self.world.loop.time)
        self.links = {node: self._link(node) for node in (A, B)}
        self.ask_outcomes, self.entity_of = AskOutcomes(), dict[str, str]()
        self.got: list[tuple[str, str, str]] = []
        """Node, entity and name of each message that came to a home, in order."""
        self.errors: list[RequestError] = []
        self.refused, self.dropped, self.with_link = set[str](), list[str](), Counter[str]()
        self.sent = self.fence = self.withdrawn = 0
        self.over = False
        self.sending = ""
        """The message that its sender's call is about."""
        self.dead, self.away = set[NodeId](), set[NodeId]()
        self.given_up: set[str] = set()
        """Asks that were given up before they had a home."""
        self._seen = dict.fromkeys(NAMES, 0)
        settings = ShardingSettings(buffer_size=BUFFER, retry_interval=0.5)
        self.region = ShardRegion(interface.name, None, interface.layout, settings)
        self.router = self.world.run(self._router, interface)
        self.event(ev.CoordinatorAt(A))

    def _router(self, interface: Interface) -> Router:
        return Router(interface, self.region, self, self.world.loop, self.clock)

    def _link(self, node: NodeId) -> Link:
        link = Link(self.world, "c", NAMES[node], self.clock)
        link.a.session.tag = node
        return link

    # ---- actions of a router's owner

    def out_for(self, node: NodeId) -> Any:
        return self.links[node].a.session.outbox

    def is_here(self, node: NodeId) -> bool:
        return False

    def send_to_leaving(self, pending: PendingMessage) -> None: ...

    def why_away(self) -> str:
        return ""

    def ask_failed(self, entity_type: str, waited_s: float) -> None: ...
    def perform(self, effect: ev.RegionEffect) -> None: ...

    def lost(self, pending: PendingMessage, reason: str, *, answered: bool) -> None:
        if pending.waiter is None:
            mine = self.sending == name_of(pending.payload)
            assert answered is mine, f"a dropped tell counts as answered: {answered}"
        part = f"{pending.entity_id} " if pending.binding is Binding.PART else ""
        self.dropped.append(f"{part}{name_of(pending.payload)}")
        self.said.append(f"dropped {self.dropped[-1]}: {reason}")

    # ---- events

    def event(self, event: ev.RegionEvent) -> None:
        self.world.run(self.router.handle, event)
        self.carry()

    def home(self, shard: str, node: NodeId) -> None:
        self.fence += 1
        homes = ShardHomes(1, (Home(shard, node, self.fence),))
        self.event(ev.MessageReceived(A, homes))

    def send(self, sender: Any, verb: str, entity: str) -> str:
        """Tell or ask; return the name of the message."""
        self.sent += 1
        name, run = str(self.sent), self.world.run
        self.entity_of[name] = entity
        payload = f"{name} ".encode()
        self.sending = name
        try:
            if verb == "tell":
                run(sender.tell, sender.key("add"), entity, payload)
            else:
                self.ask_outcomes.futures[name] = run(
                    sender.ask, sender.key("add"), entity, payload, ASK_MS, decode_value
                )
        except RequestError as error:
            self.refused.add(name)
            self.errors.append(error)
            self.said.append(f"refused {name}: {type(error).__name__}")
        self.sending = ""
        self.carry()
        return name

    def break_(self, node: NodeId) -> None:
        self.links[node].break_()
        self.carry()

    def mend(self, node: NodeId) -> None:
        self.links[node].open()
        self.carry()

    def lose(self, node: NodeId, *, dead: bool) -> None:
        """End the link to a node, and settle it as a client does."""
        link = self.links[node]
        unsent = link.close()
        self.collect()
        session = link.a.session
        for run in session.unconfirmed_runs:
            self.with_link.update(name for _, _, name in messages_of(run))
        if dead:
            self.dead.add(node)
            self.world.run(self.router.gone, node, unsent)
        else:
            self.links[node], self._seen[node] = self._link(node), 0
            self.world.run(self.router.reconnect, session)
            self.world.run(self.router.resend, unsent)
        self.carry()

    def answer(self, node: NodeId) -> None:
        self.said.append(f"{NAMES[node]} answers {self.links[node].answer()}")
        self.carry()

    def cancel(self) -> None:
        name = self.ask_outcomes.open()[0]
        if name in self.waiting():
            self.given_up.add(name)
        self.world.run(self.ask_outcomes.futures[name].cancel)
        self.carry()

    def leave(self, node: NodeId) -> None:
        self.away.add(node)
        self.event(ev.NodeLeft(node))

    def back(self, node: NodeId) -> None:
        self.away.discard(node)
        self.event(ev.NodeBack(node))

    def give_up(self) -> None:
        """End as a process does that has waited long enough: each tell that waits is dropped."""
        self.over = True
        tells = [name for name in self.waiting() if name not in self.ask_outcomes.futures]
        before = Counter(name.split(" ")[-1] for name in self.dropped)
        self.world.run(self.router.give_up, "undelivered")
        assert self.region.buffered == (0, 0), "messages wait that were given up"
        assert self.world.run(self.router.give_up, "undelivered") == 0, "given up twice"
        for name in set(tells):
            more = sum(line.split(" ")[-1] == name for line in self.dropped) - before[name]
            assert more == tells.count(name), f"{name} counts {more} times as dropped"

    def waiting(self) -> list[str]:
        """Return the names of the messages that have no home."""
        return [name_of(pending.payload) for pending in self.router._buffered()]

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.world.wait(STEP_S)
            self.clock.move()
            self.carry()
        self.world.run(self.router.expire)
        for link in self.links.values():
            if not link.over:
                self.world.run(link.keep_alive)
        self.carry()

    def carry(self) -> None:
        for _ in range(3):
            for link in self.links.values():
                link.carry()
        self.collect()

    def collect(self) -> None:
        """Take up the messages that came to the homes."""
        for node, link in self.links.items():
            got = link.b.got
            for kind, entity, name in got[self._seen[node] :]:
                if kind != "flush":
                    self._came(node, entity, name)
            self._seen[node] = len(got)

    def _came(self, node: NodeId, entity: str, name: str) -> None:
        self.said.append(f"{NAMES[node]} gets {entity} {name}")
        assert name not in self.refused, f"{name} was refused, and comes"
        assert name not in self.given_up, f"{name} was given up before it left, and comes"
        both = {name, f"{entity} {name}"}.intersection(self.dropped)
        assert not both, f"{both} counts as dropped, and comes"
        self.got.append((NAMES[node], entity, name))
        self.ask_outcomes.handled.add(name)

    # ---- laws

    def check(self) -> None:
        self.region.check()
        self.ask_outcomes.check()
        assert all(error.definite for error in self.errors), "a refusal in doubt"
        asks = {p for p in self._kept() if p.waiter is not None and p.error is None}
        timed = set(self.router.buffered_asks._asks)
        assert asks == timed, f"of {len(asks)} asks that wait, {len(timed)} have a deadline"

    def _kept(self) -> list[PendingMessage]:
        return [message for message in self.region.kept() if isinstance(message, PendingMessage)]

    def check_order(self) -> None:
        for entity in set(self.entity_of.values()):
            numbers = [int(name) for _, at, name in self.got if at == entity]
            assert numbers == sorted(set(numbers)), f"{entity} gets {numbers}"

    def check_account(self, *routers: Router) -> None:
        waits = len(list(self.region.kept()))
        left = sum(router.left for router in routers) + len(self.dropped) + waits + self.withdrawn
        entered = sum(router.entered for router in routers)
        assert left == entered, f"{entered} messages were given to the region, {left} are known"

    def check_rest(self) -> None:
        assert not self.ask_outcomes.open(), f"{self.ask_outcomes.open()} wait for ever"
        assert self.region.buffered == (0, 0), "messages wait for a home"
        assert not self.router.buffered_asks, "asks are kept"
        for node, link in self.links.items():
            if node not in self.dead:
                link.check_rest()
        came = {name for _, _, name in self.got} | {name.split(" ")[-1] for name in self.dropped}
        over = {name for name, future in self.ask_outcomes.futures.items() if future.done()}
        for name in self.entity_of:
            fate = name in came or name in self.refused or name in over
            assert fate or name in self.with_link, f"{name} was lost"

    def key(self) -> Hashable:
        routing: Any = self.region.routing
        routes = tuple(
            (shard, route.state, route.home and route.home.node, route.next_home is not None,
             len(route.waiting), len(route.returned))
            for shard, route in sorted(routing._routes.items())
        )  # fmt: skip
        links = tuple((link.state, link.under_way) for link in self.links.values())
        return (
            routes, links, frozenset(self.dead), frozenset(self.away), self.over,
            type(self.router.refused),
            len(self.ask_outcomes.open()), len(self.refused), len(self.dropped),
        )  # fmt: skip

    def close(self) -> None:
        for future in self.ask_outcomes.futures.values():
            if future.done() and not future.cancelled():
                future.exception()
        self.world.close()


class RouterWorld(Homes):
    """A type, and one that lives within it. `only`: the alphabet, all of it if that is empty."""

    def __init__(self, *only: str) -> None:
        self.only = only
        super().__init__(Interface("page", 1, "crc32/1"))
        self.inner = self.world.run(self._inner)

    def _inner(self) -> Router:
        within = placed_within(Interface("item", 1, ""), self.router.interface)
        region, owner = self.router.region, self
        return Router(within, region, owner, self.world.loop, self.clock, self.router)

    def events(self) -> Iterable[str]:
        if self.over:
            return ()
        verbs = ["tell x", "ask x", "tell x/1", "ask x/1", "second", "refuse", "refuse inner"]
        verbs.append("give up")
        for name, node in NODES.items():
            if node in self.dead:
                continue
            verbs += [f"lose {name}", f"gone {name}"]
            verbs += [f"back {name}"] if node in self.away else [f"home {name}", f"leave {name}"]
            verbs.append(f"{'break' if self.links[node].stands else 'mend'} {name}")
            if self.links[node].b.open_asks:
                verbs.append(f"answer {name}")
        if self.router.refused or self.inner.refused:
            verbs.append("admit")
        if self.ask_outcomes.open():
            verbs.append("cancel")
        return [event for event in verbs if not self.only or event in self.only]

    def do(self, event: str) -> None:
        error = UnknownEntityType("no such type")
        match event.split():
            case ["tell" | "ask" as verb, "x" as entity]:
                self.send(self.router, verb, entity)
            case ["tell" | "ask" as verb, entity]:
                self.send(self.inner, verb, entity)
            case ["home", name]:
                self.home("0", NODES[name])
            case ["leave", name]:
                self.leave(NODES[name])
            case ["back", name]:
                self.back(NODES[name])
            case ["give", "up"]:
                self.give_up()
            case ["lose" | "gone" as verb, name]:
                self.lose(NODES[name], dead=verb == "gone")
            case ["break", name]:
                self.break_(NODES[name])
            case ["mend", name]:
                self.mend(NODES[name])
            case ["answer", name]:
                self.answer(NODES[name])
            case ["refuse"]:
                self._refuse(self.router, error)
            case ["refuse", "inner"]:
                self._refuse_inner(error)
            case ["admit"]:
                self.world.run(self.inner.admit)
                self.world.run(self.router.admit)
            case ["cancel"]:
                self.cancel()
            case ["second"]:
                self.wait(1.0)
        if self.over:
            return
        self.carry()
        self.check()
        self.check_order()
        self.check_account(self.router, self.inner)

    def _refuse(self, router: Router, error: UnknownEntityType) -> None:
        """Refuse a type. Its tells that wait count as dropped; its asks have their error."""
        dropped, waits = len(self.dropped), len(list(self.region.kept()))
        self.world.run(router.refuse, error, "unknown_type")
        gone = waits - len(list(self.region.kept()))
        self.withdrawn += gone - (len(self.dropped) - dropped)

    def _refuse_inner(self, error: UnknownEntityType) -> None:
        before = [n for n in self.ask_outcomes.open() if self.entity_of[n] == "x"]
        self._refuse(self.inner, error)
        failed = [n for n in before if n not in self.ask_outcomes.open()]
        assert not failed, f"{failed} are of a type that is not refused"

    def key(self) -> Hashable:
        return super().key(), type(self.inner.refused)

    def rest(self) -> None:
        if self.over:
            return
        self.only = ()
        for name, node in NODES.items():
            if node not in self.dead and not self.links[node].stands:
                self.do(f"mend {name}")
        for event in ("admit", "back A", "back B"):
            if event in self.events():
                self.do(event)
        alive = [name for name, node in NODES.items() if node not in self.dead]
        if alive:
            self.do(f"home {alive[0]}")
        for name in alive:
            while self.links[NODES[name]].b.open_asks:
                self.do(f"answer {name}")
        self.do("second")
        self.do("second")
        if alive:
            self.check_rest()
        else:
            assert not self.ask_outcomes.open()


class InstanceWorld(Homes):
    """A type with instances, and a sender for each choice of them. `only`: the alphabet, all of it
    if that is empty."""

    CHOICES = ("nearest", "hash", "first", "all", "least-busy", "round-robin")

    def __init__(self, *only: str) -> None:
        self.only = only
        interface = Interface("quote", 1, "crc32/1~N", instances=Instances(exact=2))
        super().__init__(interface)
        rows: Any = self.router.rows
        rows.sender_name = "c"
        self.senders = {p: InstanceSender(self.router, Choice(p)) for p in self.CHOICES}
        self.count = 0
        self.rows: dict[int, NodeId] = {}
        self._by: dict[str, str] = {}
        self.counts = [2]
        """All numbers of instances so far; the first one is declared."""
        self._sent_at: dict[str, int] = {}
        self._in_time: set[str] = set()
        """The messages that were sent since the last second: no deadline of theirs has passed."""

    def events(self) -> Iterable[str]:
        if self.over:
            return ()
        verbs = [f"{verb} {p}" for p in self.CHOICES for verb in ("tell", "ask")]
        verbs += ["count 1", "count 2", "second", "give up"]
        for name, node in NODES.items():
            if node in self.dead:
                continue
            verbs += [f"row {k} {name}" for k in (1, 2) if self.rows.get(k) != node]
            verbs += [f"lose {name}", f"gone {name}"]
            verbs.append(f"{'break' if self.links[node].stands else 'mend'} {name}")
            if self.links[node].b.open_asks:
                verbs.append(f"answer {name}")
        if self.ask_outcomes.open():
            verbs.append("cancel")
        return [event for event in verbs if not self.only or event in self.only]

    def do(self, event: str) -> None:
        match event.split():
            case ["tell" | "ask" as verb, policy]:
                name = str(self.sent + 1)
                self._by[name], self._sent_at[name] = policy, len(self.counts) - 1
                self._in_time.add(name)
                self.send(self.senders[policy], verb, "x")
                self._check_goes(name, policy)
            case ["give", "up"]:
                self.give_up()
            case ["count", number]:
                self.count = int(number)
                self.counts.append(self.count)
                self.event(ev.MessageReceived(A, InstanceCount(1, self.count)))
            case ["row", k, name]:
                self.rows[int(k)] = NODES[name]
                self.home(row_of(shard_of("x", 1), int(k)), NODES[name])
            case ["lose" | "gone" as verb, name]:
                if verb == "gone":
                    self.rows = {k: n for k, n in self.rows.items() if n != NODES[name]}
                self.lose(NODES[name], dead=verb == "gone")
                if verb == "gone":
                    self._check_hedged(name)
            case ["break", name]:
                self.break_(NODES[name])
            case ["mend", name]:
                self.mend(NODES[name])
            case ["answer", name]:
                self.answer(NODES[name])
            case ["cancel"]:
                self.cancel()
            case ["second"]:
                self.wait(1.0)
                self._in_time.clear()
        if self.over:
            return
        self.carry()
        self.check()
        self._check_answers()

    def _came(self, node: NodeId, entity: str, name: str) -> None:
        super()._came(node, entity, name)
        policy, (_, k) = self._by[name], split_row(entity)
        there = [(e, n) for _, e, n in self.got if n == name]
        if policy in ("all", "first"):
            assert len(set(there)) == len(there), f"{name} of {policy} comes to {there}"
        else:
            assert len(there) == 1, f"{name} comes to {there}"
        since = set(self.counts[self._sent_at[name] :])
        if policy == "hash" and since == {2}:
            assert k == spread("c", 2), f"{name} by hash comes to instance {k}"

    def _check_goes(self, name: str, policy: str) -> None:
        """Check that a message for any instance does not wait for one while another has a home."""
        homes = [k for k in self.rows if k <= self.counts[-1]]
        if policy in ("nearest", "round-robin", "least-busy", "first") and homes:
            waits = [name_of(pending.payload) for pending in self.router._buffered()]
            assert name not in waits, f"{name} waits, though instances {homes} have homes"

    def _check_hedged(self, gone: str) -> None:
        """Check that an ask by `first` goes to a second instance if the first one is gone before
        its deadline."""
        left = [k for k in self.rows if k <= self.counts[-1]]
        for name, future in self.ask_outcomes.futures.items():
            failed = future.done() and not future.cancelled() and future.exception() is not None
            if self._by[name] == "first" and failed and left and name in self._in_time:
                there = {node for node, _, n in self.got if n == name}
                assert there != {gone}, f"{name} fails with {gone}, though another instance runs"

    def _check_answers(self) -> None:
        for name, future in self.ask_outcomes.futures.items():
            if self._by[name] != "all" or self.ask_outcomes.outcome(name) != "answered":
                continue
            answers = future.result()
            assert isinstance(answers, dict), f"all answers with {answers!r}"

    def check_rest_of_rows(self) -> None:
        rows: Any = self.router.rows
        assert not len(rows.uncounted), "messages of all wait for the number"
        assert not rows.homeless
        busy: Any = rows.open_asks
        assert not busy.by_wire_id, f"{busy.by_wire_id} count as open asks"
        assert not busy.by_node, f"{busy.by_node} count as open asks"

    def key(self) -> Hashable:
        rows: Any = self.router.rows
        open_asks = tuple(sorted(self._by[name] for name in self.ask_outcomes.open()))
        picks = self.count, tuple(sorted(self.rows.items()))
        return super().key(), picks, len(rows.uncounted), open_asks

    def rest(self) -> None:
        if self.over:
            return
        self.only = ()
        for name, node in NODES.items():
            if node not in self.dead and not self.links[node].stands:
                self.do(f"mend {name}")
        if not self.count:
            self.do("count 2")
        alive = [name for name, node in NODES.items() if node not in self.dead]
        for k in range(1, self.count + 1):
            if alive and k not in self.rows:
                self.do(f"row {k} {alive[0]}")
        for _ in range(2):
            for name in alive:
                while self.links[NODES[name]].b.open_asks:
                    self.do(f"answer {name}")
            self.do("second")
        self.do("second")
        if alive:
            self.check_rest()
        assert not self.ask_outcomes.open()
        self.check_rest_of_rows()
