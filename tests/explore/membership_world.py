"""The worlds of two machines of membership: a singleton on one node, and the admission of nodes.

Singleton, `me` older than c and d, younger than a:

    a | me | c leaves, exits, is gone, is dead    membership shows it
    a done, c asks, c takes over                  messages of the hand-over
    stopped                                       the instance here ends
    due                                           the machine's deadline comes

Laws: its own `check`; an instance is prepared, started, retired and halted in this order, and
started once; it is handed over at once only to a member that has asked. At rest no wait is left.

Admission, a member with three former processes at the newcomer's address:

    join                      the newcomer requests to join
    flag old1                 an observer does not reach it
    probe old1 refused | unknown | alive     the result of the requested probe

Law: once no former process answers, and each is flagged or proved dead, the newcomer is admitted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.membership.admission import Admission, cookie_of
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.gossip import Gossip
from shardbus.membership.joining import JoinStep
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import PROTOCOL, Greeting, Join
from shardbus.membership.reachability import Flag
from shardbus.membership.singleton import messages as ho
from shardbus.membership.singleton.singleton import Singleton, SingletonState
from shardbus.membership.vector_clock import VectorClock
from shardbus.membership.view import MembershipView

NODES = {name: NodeId(name, 1, age) for age, name in enumerate(("a", "me", "c", "d"), 1)}
NAMES = {node: name for name, node in NODES.items()}
UP, LEAVING, EXITING, DOWN = Status.UP, Status.LEAVING, Status.EXITING, Status.DOWN
REST_S = 100.0


class SingletonWorld:
    """One machine, and the membership that it sees."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.machine = Singleton("t", NODES["me"])
        self.now = 0.0
        self.statuses: dict[str, Status] = dict.fromkeys(NODES, UP)
        self.dead: set[str] = set()
        self.epoch = 0
        self.instance = ""
        self.over = False
        self._show()
        self.said.clear()

    def _show(self) -> None:
        members = tuple(
            Member(NODES[name], 1, status=status, up_number=NODES[name].uid)
            for name, status in self.statuses.items()
        )
        dead = tuple(NODES[name] for name in self.dead if name in self.statuses)
        view = MembershipView(NODES["me"], members, dead, dead)
        self._handle(ho.MembershipSeen(view))

    def _handle(self, event: ho.Event) -> None:
        self._perform(self.machine.handle(event, self.now))

    def _perform(self, effects: list[ho.Effect]) -> None:
        for effect in effects:
            match effect:
                case ho.SendHandOver(to, message):
                    self.said.append(f"to {NAMES[to]}: {type(message).__name__}")
                    continue
                case ho.PrepareInstance():
                    assert not self.instance, f"prepared while {self.instance}"
                    self.instance = "ready"
                case ho.StartInstance(epoch):
                    assert self.instance in ("", "ready"), f"started while {self.instance}"
                    self.instance, self.epoch = "running", epoch + 1
                case ho.RetireInstance():
                    assert self.instance != "retiring", "retired twice"
                    self.instance = "retiring"
                case ho.HaltInstance():
                    self.instance = ""
                case ho.SingletonStateChanged(_, after, why):
                    self._check_asked(after, why)
                    self.said.append(f"= {after}: {why}")
                    continue
            self.said.append(type(effect).__name__)
        self.machine.check()

    def _check_asked(self, after: str, why: str) -> None:
        """Check that a hand-over on demand goes to a member."""
        if after == SingletonState.HANDING_OVER.value and why.startswith("asked"):
            machine: Any = self.machine
            there = [n for n in machine._requesters if NAMES[n] in self.statuses]
            assert there, "handed over, and none of those that asked is a member"

    def events(self) -> Iterable[str]:
        verbs = []
        for name in ("a", "me", "c"):
            match self.statuses.get(name):
                case Status.UP:
                    verbs += [f"{name} leaves"]
                case Status.LEAVING:
                    verbs += [f"{name} exits"]
                case Status.EXITING:
                    verbs += [f"{name} goes"]
            if name in self.statuses and name != "me" and self.statuses[name] is not DOWN:
                verbs.append(f"{name} dies")
            if self.statuses.get(name) is DOWN:
                verbs.append(f"{name} goes")
        verbs += [f"c {verb}" for verb in ("asks", "takes-over") if "c" in self.statuses]
        verbs += [f"a {verb}" for verb in ("done", "asks", "continues") if "a" in self.statuses]
        if self.instance in ("running", "retiring"):
            verbs.append("stopped")
        if self.machine.deadline() is not None:
            verbs.append("due")
        return verbs if "me" in self.statuses else ()

    def do(self, event: str) -> None:
        match event.split():
            case [name, "leaves"]:
                self.statuses[name] = LEAVING
                self._show()
            case [name, "exits"]:
                self.statuses[name] = EXITING
                self._show()
            case [name, "dies"]:
                self.statuses[name] = DOWN
                self.dead.add(name)
                self._show()
            case [name, "goes"]:
                del self.statuses[name]
                self._show()
                if name == "me":
                    self._handle(ho.MembershipEnded(True))
            case [name, "asks"]:
                self._receive(name, ho.HandOverToMe(self.epoch))
            case [name, "takes-over"]:
                self._receive(name, ho.TakeOverFromMe(self.epoch))
            case [name, "continues"]:
                self._receive(name, ho.HandOverInProgress(self.epoch))
            case [name, "done"]:
                self._receive(name, ho.HandOverDone(self.epoch))
            case ["stopped"]:
                self.instance = ""
                self._handle(ho.InstanceStopped())
            case ["due"]:
                self._due()

    def _receive(self, name: str, message: ho.Message) -> None:
        self._handle(ho.HandOverReceived(NODES[name], message))

    def _due(self) -> None:
        deadline = self.machine.deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        self._perform(self.machine.tick(self.now))

    def key(self) -> Hashable:
        machine: Any = self.machine
        deadline = machine.deadline()
        return (
            machine.state, tuple(self.statuses.items()), tuple(sorted(self.dead)), self.instance,
            tuple(machine._requesters), tuple(machine._predecessors._announced.items()),
            None if deadline is None else round(deadline - self.now, 2),
        )  # fmt: skip

    def rest(self) -> None:
        end = self.now + REST_S
        while (deadline := self.machine.deadline()) is not None and deadline < end:
            if self.instance == "retiring":
                self.do("stopped")
            else:
                self._due()
        state = self.machine.state
        resting = (SingletonState.YOUNGER, SingletonState.OLDEST, SingletonState.ENDED)
        assert state in resting, f"{state.value} for ever"
        if state is SingletonState.OLDEST:
            assert self.instance == "running", "it rules without an instance"
        else:
            assert not self.instance, f"an instance is {self.instance} in state {state.value}"

    def close(self) -> None: ...


MEMBER = NodeId("seed", 1, 9)
OLD = {f"old{k}": NodeId("n", 7355, k) for k in (1, 2, 3)}
NEW = NodeId("n", 7355, 7)
GREETING = Greeting("shop", PROTOCOL, {})


class AdmissionWorld:
    """A member that answers the Join of a newcomer."""

    def __init__(self) -> None:
        self.said: list[str] = []
        nodes = {MEMBER: UP} | dict.fromkeys(OLD.values(), UP)
        members = {n: Member(n, 1, status=s, up_number=n.uid) for n, s in sorted(nodes.items())}
        self.gossip = Gossip(members, frozenset({MEMBER}), clock=VectorClock({MEMBER: 1}))
        me = members[MEMBER]
        self.machine = Admission(me, GREETING, ClusterSettings(), b"key")
        self.suspects: list[NodeId] = []
        self.alive: set[NodeId] = set()
        self.now = 0.0

    def events(self) -> Iterable[str]:
        if NEW in self.gossip.members:
            return ()
        verbs = ["join"]
        flagged = self.gossip.unreachable()
        verbs += [f"flag {name}" for name, node in OLD.items() if node not in flagged]
        for name, node in OLD.items():
            if node in self.suspects:
                verbs += [f"probe {name} {how}" for how in ("refused", "unknown", "alive")]
        return verbs

    def do(self, event: str) -> None:
        self.now += 1.0
        match event.split():
            case ["join"]:
                join = Join(GREETING, Member(NEW, 1), cookie_of(b"key", NEW))
                self._take(self.machine.on_message(self.gossip, NEW, join, self.now))
            case ["flag", name]:
                self.gossip = self.gossip.with_flag(MEMBER, OLD[name], Flag.UNREACHABLE)
            case ["probe", name, how]:
                self._probe(OLD[name], how)

    def _probe(self, node: NodeId, how: str) -> None:
        self.suspects.remove(node)
        outcome = {
            "refused": ProbeOutcome.REFUSED, "unknown": ProbeOutcome.UNKNOWN,
            "alive": ProbeOutcome.ALIVE,
        }[how]  # fmt: skip
        if how == "alive":
            self.alive.add(node)
        if outcome.proves_death:
            self.gossip = self.gossip.with_flag(MEMBER, node, Flag.TERMINATED)
        self._take(self.machine.on_probe(self.gossip, node, outcome, self.now))

    def _take(self, progress: Any) -> None:
        if progress.gossip is not None:
            self.gossip = progress.gossip
        if progress.suspect is not None and progress.suspect not in self.suspects:
            self.suspects.append(progress.suspect)
            self.said.append(f"probes {progress.suspect}")
        if progress.step is JoinStep.ADMIT and NEW in self.gossip.members:
            self.said.append("admitted")
            flags = self.gossip.unreachable()
            for node in OLD.values():
                assert node in flags, f"admitted although {node} may be alive"

    def key(self) -> Hashable:
        machine: Any = self.machine
        claims = tuple((node, claim.gone) for node, claim in machine._claims.items())
        members = tuple((m.node, m.status) for m in self.gossip.members.values())
        flags = tuple(self.gossip.unreachable().items())
        return members, flags, claims, tuple(self.suspects)

    def rest(self) -> None:
        """All former processes are out of reach, and the newcomer asks until it is admitted."""
        for name, node in OLD.items():
            if node not in self.gossip.unreachable() and NEW not in self.gossip.members:
                self.do(f"flag {name}")
        for _ in range(2 * len(OLD) + 2):
            if NEW in self.gossip.members:
                return
            if self.suspects:
                self._probe(self.suspects[0], "unknown")
            else:
                self.do("join")
        raise AssertionError("the newcomer is never admitted")

    def close(self) -> None: ...
