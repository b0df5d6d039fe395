"""The simulator's world with everything in it written down: each message with its sender and
receiver, and the events at each node.

Nothing is left to chance. Every message takes a hundredth of a second, the store two, a wall that
rejects breaks connections after one second, and dice fall in turn; so a scene has one lane.

    1.03  n1 > n2    GossipState v4, seen n1     arrived; n1 knows that n1 has this version
    1.03  n2         has v4: MemberUp n2         the part of it that is new to n2
    1.04  n2 > n1    GossipSeen v4
    1.04  n1         makes v5: MemberExiting n2  a version that nobody had before
    2.00  n1 > n3    GossipState x wall          did not arrive

Versions are numbered in the order in which they come into the world. Heartbeats are not drawn, nor
are messages that neither change their receiver nor are answered, nor lines that have stood under
the same command before; the last line counts the two.
"""

from __future__ import annotations

from random import Random
from textwrap import wrap
from typing import Any

from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership import messages as msg
from shardbus.membership import view as seen
from shardbus.membership.gossip import Gossip
from shardbus.simulation.membership.checks import version
from shardbus.simulation.trace import UNDRAWN, Trace
from tests.scenarios.membership_words import Words
from tests.unit.membership.membership_net import Net, Node

DELAY = 0.01
UNBROKEN = "\u00a0"
HEARTBEATS = (msg.Heartbeat, msg.HeartbeatReply)


class Steady(Random):
    """Dice that fall in turn, and at the upper end of a range."""

    ROLLS = (0.5, 0.1, 0.3, 0.7, 0.9)

    def __init__(self) -> None:
        super().__init__(0)
        self._turn = 0

    def _next(self) -> int:
        self._turn += 1
        return self._turn - 1

    def random(self) -> float:
        return self.ROLLS[self._next() % len(self.ROLLS)]

    def uniform(self, a: float, b: float) -> float:
        return b

    def getrandbits(self, k: int) -> int:
        return self._next() + 1

    def choice(self, seq: Any) -> Any:
        return seq[self._next() % len(seq)]

    def sample(self, population: Any, k: int, **_: Any) -> list[Any]:
        first = self._next()
        return [population[(first + i) % len(population)] for i in range(k)]


class Fates(Trace):
    """Draws the messages that do not arrive."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def arrow(self, at: float, source: str, target: str, what: str, fate: str = "") -> None:
        drawn = self.stage.draws_gossip or not what.startswith("Gossip")
        if fate and drawn and what not in UNDRAWN:
            self.stage.draw(source, f"{what} x {fate}", target)


class Stage(Net):
    """A world that draws itself into `lane`."""

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        super().__init__(0, settings)
        self.rng = self.network.rng = self.leases.rng = Steady()
        self.network.delay_s = DELAY
        self.trace = Fates(self)
        self.words = Words()
        self.began = self.now
        self.lost: tuple[str, ...] = ()
        self.draws_gossip = self.draws_rows = True
        self.lane: list[str] = []
        self.unchanged = 0
        self.repeated = 0
        self._drawn: dict[str, None] = {}
        self._shown: dict[NodeId, Gossip] = {}
        self._news: list[str] = []
        self._said = 0
        check = self.hooks.on_step

        def after(process: Node) -> None:
            check(process)
            self._after(process)

        self.hooks.on_step = after

    def add(self, name: str, **options: Any) -> Node:
        process = super().add(name, **options)
        process.machine._exchange.rng = Steady()  # which partner, and when the rounds begin
        self.words.add(process.id)
        return process

    # -- the lane ------------------------------------------------------------------------------

    def clear(self) -> None:
        """A new command begins."""
        self.lane, self._drawn = [], {}
        self.unchanged = self.repeated = 0

    def counted(self) -> list[str]:
        """The messages that were not drawn."""
        kinds = (self.unchanged, "that change nothing"), (self.repeated, "like one above")
        counts = [f"{count} {kind}" for count, kind in kinds if count]
        return [f"     ...  {', '.join(counts)}"] if counts else []

    def draw(self, name: str, what: str, target: str = "") -> None:
        """A line, unless it stands there already."""
        who = f"{name} > {target}" if target else name
        line = f"{who:10} {what}"
        if line in self._drawn:
            self.repeated += 1
            return
        self._drawn[line] = None
        text = f"{self.now - self.began:7.2f}  {line}"
        room = wrap(text, 98, subsequent_indent=" " * 22, break_on_hyphens=False)
        self.lane += [part.replace(UNBROKEN, " ") for part in room]

    def deliver(self, process: Node, event: ev.Event) -> None:
        if not process.running or self.now < process.paused_until:
            super().deliver(process, event)
            return
        gossip = (
            isinstance(event, ev.PubSubReceived)
            and self.draws_gossip
            and not isinstance(event.message, HEARTBEATS)
        )
        before = (list(self.lane), dict(self._drawn), self.repeated) if gossip else None
        had, said = process.machine.gossip, self._said
        self._arrives(self.words.label(process.id), event)
        state = (len(self.lane), self.repeated)
        super().deliver(process, event)
        quiet = process.machine.gossip is had and self._said == said
        if before and quiet and (len(self.lane), self.repeated) == state:
            self.lane, self._drawn, self.repeated = before
            self.unchanged += 1

    def _arrives(self, me: str, event: ev.Event) -> None:
        match event:
            case ev.PubSubReceived(sender, message) if self.draws_gossip and not isinstance(
                message, HEARTBEATS
            ):
                self.draw(self.words.label(sender), self.words.message(message), me)
            case ev.ControlReceived(sender, control):
                self.draw(self.words.label(sender), self.words.message(control), me)
            case ev.ProbeResult(node, outcome):
                self.draw(me, f"probes {self.words.label(node)}: {outcome.value}")
            case ev.LeaseResult(name, granted):
                answer = {True: "gets", False: "does not get", None: "hears nothing of"}[granted]
                self.draw(me, f"{answer} lease {self.words.lease(name)}")
            case _:
                pass

    def _publish(self, process: Node, to: NodeId, what: str, data: bytes) -> None:
        if what not in self.lost:
            super()._publish(process, to, what, data)
        elif self.draws_gossip:
            self.draw(self.words.label(process.id), f"{what} x lost", self.words.label(to))

    def _perform(self, process: Node, effect: ev.Effect) -> None:
        me = self.words.label(process.id)
        match effect:
            case ev.Publish(_, message) | ev.SendControl(_, message):
                self._said += 1
                if isinstance(message, msg.GossipState | msg.Welcome):
                    self.words.version(message.gossip, process.id)
            case ev.AcquireLease(name):
                self.draw(me, f"asks for lease {self.words.lease(name)}")
            case ev.Stopped(reason):
                self.draw(me, f"ends: {self.words.named(reason)}")
            case ev.CommandRefused(reason):
                self.draw(me, f"refuses: {self.words.named(reason)}")
            case ev.MessageDropped(sender, reason):
                self.draw(me, f"drops what {self.words.label(sender)} says: {reason}")
            case ev.Notice(event):
                self._notice(me, event)
            case _:
                pass
        super()._perform(process, effect)

    def _notice(self, me: str, event: seen.DomainEvent) -> None:
        match event:
            case seen.DowningDecided(decision):
                down = ", ".join(map(self.words.label, decision.down))
                self.draw(me, f"{decision.rule}: {decision.outcome.value}: {down}")
                self.draw(me, f"  {self.words.named(decision.reason)}")
            case seen.HandlingSuspended(reason):
                self.draw(me, "HandlingSuspended")
                self.draw(me, f"  {self.words.named(reason)}")
            case seen.HandlingResumed(seconds):
                self.draw(me, f"HandlingResumed after {seconds:.1f} s")
            case seen.SelfStarved(late):
                self.draw(me, f"SelfStarved {late:.1f} s")
            case seen.SlowHeartbeat(node, late):
                self.draw(me, f"SlowHeartbeat {self.words.label(node)} {late:.1f} s")
            case seen.LeaderChanged(leader):
                self._news.append(f"LeaderChanged {self.words.label(leader)}")
            case seen.UnreachableMember(member, gone):
                proof = " (proved gone)" if gone else ""
                self._news.append(f"UnreachableMember {self.words.label(member.node)}{proof}")
            case seen.ConvergenceChanged(converged):
                if converged:
                    self._news.append("converged")
            case seen.RoleLeaderChanged():
                pass
            case _ if hasattr(event, "member"):
                self._news.append(f"{type(event).__name__} {self.words.label(event.member.node)}")
            case _:
                self.draw(me, type(event).__name__)

    def _after(self, process: Node) -> None:
        """A machine has handled something: has it another version now?"""
        before, gossip = self._shown.get(process.id, Gossip()), process.machine.gossip
        news, self._news = self._news, []
        me = self.words.label(process.id)
        rows = self.words.rows(before.records(), gossip.records()) if self.draws_rows else []
        text = ", ".join(item.replace(" ", UNBROKEN) for item in news or rows)
        if gossip.members and version(gossip) != version(before):
            self._shown[process.id] = gossip
            name = self.words.version(gossip, process.id)
            verb = "makes" if self.words.makers[name] == process.id else "has"
            if news or self.draws_rows:
                self.draw(me, f"{verb} {name}: {text}" if text else f"{verb} {name}")
        elif news:
            self.draw(me, text)
