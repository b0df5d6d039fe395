"""The delivery checker: each message and its fate, judged from outside.

Each message (a tell or an ask with a number, from one sender to one entity) is recorded when it is
sent, when an entity handles it, and when its sender receives an answer or an error. At any time:

    I1   no activation starts while another one of the entity lives, unless the other's node was
         removed by others; only such a node may go on after a newer activation has started, and
         the store lets it neither load nor save any more
    I2   per sender and entity the numbers handled only grow, and none comes twice
    I6   an epoch has one coordinator, and epochs grow
         (I1 not in modes that overlap, I2 not in modes without an order: `handoff_modes`; of a type
         with instances, I1 is for each instance, and of I2 that none comes twice)
    said a message that was definitely refused was not handled, and one that was answered was

    told   where no process ended without order, each has the number of its dropped tells

    account  at rest, each node has the fate of each message that it accepted

    carry  an entity carries to another node the value that it saved, or carried away, last

In the quiet after a run: each message was handled, or refused, or was with a process that ended
without order (I3, I4); remembered entities run (I5); nothing waits any more (I11).

A message can be lost with a process only if it was under way at that time: it was sent before all
nodes had noticed the end, and no later message of its line had been handled before the end began.

A removed node that has not noticed its removal may be a coordinator, and may claim the table for a
moment. An activation that starts there is no activation's predecessor.

A store that lost or restored data excuses the consequences: two activations may then live at a
time, and remembered entities may be forgotten.

Source: docs/simulation.md; N.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from shardbus.entities.activation import LifeState
from shardbus.entities.context import Context, key_of
from shardbus.errors import RequestError
from shardbus.ids import NodeId
from shardbus.membership.member import Status
from shardbus.node.node import Node
from shardbus.sharding.handoff_modes import HandoffMode
from shardbus.shells.message_account import account_of
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.nodes.exits import UncleanExits
from shardbus.simulation.nodes.places import OnePlace
from shardbus.transport.session import Session

if TYPE_CHECKING:
    from shardbus.simulation.nodes.world import NodeWorld, SimNode, SimProcess

CLIENT_LATE_S = 16.0
"""Seconds. A client gives a silent peer up after 15 s."""

COUNTED = (
    "stopped", "buffer_full", "hop_limit", "refused", "mailbox_full", "unconfirmed", "undelivered",
    "dropped_in_move",
)  # fmt: skip
"""The reasons of drops that are no defect: deadlines that passed, bounds that were reached, peers
that were given up."""

MOVED = ("handoff_stopped", "handoff_moved")
"""The notes of a coordinator when a shard has left its home."""

Line = tuple[str, str, str]
"""Sender, entity type, entity id: messages of one line keep their order."""


@dataclass(eq=False, slots=True)
class SentMessage:
    """One message. `is_ask`: its sender waits for an answer."""

    line: Line
    seq: int
    by: SimProcess
    sent_at: float
    is_ask: bool = False
    handled: bool = False
    outcome: str = ""
    passed_at: float = inf
    """When a later message of its line was handled before this one, which then never is."""

    def __str__(self) -> str:
        return f"{self.line} {self.seq}, sent at {self.sent_at:.3f}"


class DeliveryChecker:
    """Records each message, and checks the rules of the module's text."""

    def __init__(
        self,
        world: NodeWorld,
        modes: Mapping[str, HandoffMode | None] = MappingProxyType({}),
        with_instances: Container[str] = (),
    ) -> None:
        self.world = world
        self._overlap = {kind for kind, mode in modes.items() if mode and mode.overlaps}
        """Types with two activations of an entity for a moment."""
        self._unordered = {
            kind
            for kind, mode in modes.items()
            if kind in with_instances or (mode and not mode.keeps_order)
        }
        """Types whose messages may be handled in another order."""
        self.violation: Violation | None = None
        """The first violation."""
        self.sent = self.handled = self.refused = self.activations = 0
        self.acknowledged: dict[tuple[str, str], None] = {}
        """Entities of remembering types that have answered."""
        self.saved: dict[tuple[str, str], int] = {}
        """By entity that saves: the count that the store has acknowledged."""
        self._versions: dict[tuple[str, str], int] = {}
        """By entity that carries: the count that it saved, or carried away, last."""
        self.carried = 0
        self.unsaved: set[tuple[str, str]] = set()
        """Entities that took their carried data and have not saved since: the store gets their
        fence with their first save."""
        self._open: dict[tuple[Line, int], SentMessage] = {}
        self._seqs: dict[Line, int] = {}
        self._last: dict[Line, int] = {}
        self._within: dict[tuple[Line, int], int] = {}
        self._fences: dict[tuple[str, str], int] = {}
        self._denied: dict[tuple[Line, int], str] = {}
        self._epochs: dict[str, tuple[int, NodeId]] = {}
        self._failed_tells: Counter[SimProcess] = Counter()
        """By sender: tells that were handled, and failed."""
        self._ends = UncleanExits(world)
        self.places = OnePlace(world, self._broken, self._overlap)
        world.store.on_stale = lambda what: self._broken("I1", what)
        world.store.on_claimed = self.on_claimed

    def broken(self, rule: str, detail: str) -> Violation:
        """Keep a violation of a rule that another part checks."""
        return self._broken(rule, detail)

    def _broken(self, rule: str, detail: str) -> Violation:
        """Keep the violation: the code it is raised in may catch it."""
        self.violation = self.violation or Violation(rule, detail)
        return self.violation

    # ---- senders

    def send(
        self, sender: str, by: SimProcess, entity_type: str, entity_id: str, is_ask: bool
    ) -> SentMessage:
        """Record the next message of that line."""
        line = (sender, entity_type, entity_id)
        seq = self._seqs[line] = self._seqs.get(line, 0) + 1
        message = SentMessage(line, seq, by, self.world.now, is_ask)
        self._open[line, seq] = message
        self.sent += 1
        return message

    def on_answered(self, message: SentMessage, remembers: bool) -> None:
        """Record that the sender received an answer."""
        if not message.handled:
            raise self._broken("said", f"{message} was answered and not handled")
        message.outcome = "answered"
        self._close(message)
        if remembers:
            self.acknowledged[message.line[1:]] = None

    def on_failed(self, message: SentMessage, error: RequestError) -> None:
        """Record that the sender received an error."""
        message.outcome = type(error).__name__
        if error.definite:
            self.refused += 1
            if message.handled:
                raise self._broken("said", f"{message} was refused and handled")
            self._denied[message.line, message.seq] = message.outcome
            self._open.pop((message.line, message.seq), None)
        self._close(message)

    def _close(self, message: SentMessage) -> None:
        """Forget the message if it was handled and its sender, if it waits, has an outcome."""
        if message.handled and (message.outcome or not message.is_ask):
            self._open.pop((message.line, message.seq), None)

    # ---- entities

    def on_started(self, activation: Context) -> None:
        """Record that an entity's object was made."""
        self.unsaved.discard((activation.entity_type, key_of(activation)))
        self.activations += 1
        self._note(activation, "started")
        key = (activation.entity_type, key_of(activation))
        node = NodeId.parse(activation.node)
        if self._removed(node):
            return
        if activation.entity_type in self._overlap:
            return
        if not self.world.store.lied:
            for other in self._living(activation, node):
                if not self._removed(other):
                    raise self._broken("I1", f"{key} starts at {node} and lives at {other}")
            if activation.fence < self._fences.get(key, 0):
                raise self._broken(
                    "I1", f"{key} starts at {node} under fence {activation.fence:x} again"
                )
        self._fences[key] = max(activation.fence, self._fences.get(key, 0))

    def on_handled(self, activation: Context, sender: str, seq: int) -> SentMessage:
        """Record that an entity handles a message. Returns it."""
        self._note(activation, f"took {sender} {seq}")
        line = (sender, activation.entity_type, activation.entity_id)
        message = self._open.get((line, seq))
        if message is None or message.handled:
            why = self._denied.get((line, seq), "had been handled")
            raise self._broken("I2", f"{line} {seq} is handled at {activation.node} and {why}")
        if activation.entity_type in self._unordered:
            self._on_unordered(message)
            return message
        within = self._within.get((line, activation.fence), 0)
        if seq <= within:
            raise self._broken("I2", f"{line} {seq} after {within} at {activation.node}")
        self._within[line, activation.fence] = seq
        fence = self._fences.get(line[1:], activation.fence)
        if activation.fence == fence:
            last = self._last.get(line, 0)
            if seq <= last:
                raise self._broken("I2", f"{line} {seq} after {last} at {activation.node}")
            for missing in range(last + 1, seq):
                self._pass(line, missing)
            self._last[line] = seq
        elif not self.world.store.lied and not self._removed(NodeId.parse(activation.node)):
            raise self._broken("I1", f"{line} {seq} is handled at {activation.node}, no home")
        self.handled += 1
        message.handled = True
        self._close(message)
        return message

    def on_raised(self, message: SentMessage) -> None:
        """Record that the handler of a message raises. If it was a tell, its sender must get a
        report."""
        if not message.is_ask:
            self._failed_tells[message.by] += 1

    def _on_unordered(self, message: SentMessage) -> None:
        """Record a message of a type without an order: only that it comes once."""
        self.handled += 1
        message.handled = True
        self._close(message)

    def _pass(self, line: Line, seq: int) -> None:
        message = self._open.get((line, seq))
        if message is not None:
            message.passed_at = min(message.passed_at, self.world.now)

    def on_loaded(self, activation: Context, count: int) -> None:
        """Check the loaded state of an entity that saves."""
        key = (activation.entity_type, activation.entity_id)
        if count < self.saved.get(key, 0) and not self.world.store.lied:
            raise self._broken("I1", f"{key} finds {count}, and {self.saved[key]} was acknowledged")

    def on_saved(self, activation: Context, count: int) -> None:
        """Record that the store has acknowledged a save."""
        key = (activation.entity_type, activation.entity_id)
        self.saved[key] = max(count, self.saved.get(key, 0))
        self._versions[key] = count
        self.unsaved.discard(key)

    def on_frozen(self, activation: Context, count: int) -> None:
        """Record the state that an entity carries away."""
        self._versions[activation.entity_type, activation.entity_id] = count

    def on_carried(self, activation: Context, *counts: int) -> None:
        """Check the state that an entity has carried from another node."""
        key = (activation.entity_type, activation.entity_id)
        self.carried += 1
        self.unsaved.add(key)
        had = self._versions.get(key)
        if any(count != had for count in counts):
            raise self._broken("carry", f"{key} carries {counts}, and had {had}")

    def _note(self, activation: Context, what: str) -> None:
        """Add an event to the run's history."""
        place = f"{activation.entity_type} {activation.entity_id} {what}"
        self.world.trace.hashed(self.world.now, activation.node, place)

    def _living(self, activation: Context, node: NodeId) -> Iterator[NodeId]:
        """Return the other nodes that have the entity in memory."""
        for sim_node in self.world.sim_nodes.values():
            if sim_node.ended_at is not None or sim_node.process.id == node:
                continue
            kind = sim_node.node.regions[activation.entity_type]
            other = kind.host.find(key_of(activation), activation.shard_id)
            if other is not None and other.state < LifeState.REFUSING:
                yield sim_node.process.id

    def _removed(self, node: NodeId) -> bool:
        """True if another node has removed it or declared it Down, or if its own membership has
        ended."""
        for process in self.world.by_id.values():
            gossip = process.machine.gossip
            member = gossip.members.get(node)
            if node in gossip.tombstones or (member and member.status is Status.DOWN):
                return True
        return bool(self.world.by_id[node].stopped)

    # ---- coordinators

    def on_claimed(self, entity_type: str, epoch: int, node: NodeId) -> None:
        """Record that the store has granted an epoch to a coordinator."""
        before, ruler = self._epochs.get(entity_type, (0, node))
        if self.world.store.lied or (epoch, node) == (before, ruler):
            self._epochs[entity_type] = (max(epoch, before), node)
            return
        if epoch <= before:
            raise self._broken("I6", f"{node} claims epoch {epoch} of {entity_type} after {ruler}")
        self._epochs[entity_type] = (epoch, node)

    # ---- after the run

    def check_exits(self) -> None:
        """Check the nodes that have ended or were removed. Call it regularly."""
        self._ends.check_exits()

    def lost(self) -> str:
        """Return why more messages are lost than were counted as dropped, without an unclean end
        that explains them. Empty if none are."""
        lost: dict[str, list[SentMessage]] = {}
        for message in self._unaccounted():
            if not self._excused(message):
                lost.setdefault(message.line[1], []).append(message)
        for name, messages in lost.items():
            dropped = sum(dropped_by(r, name) for r in self.world.all_nodes())
            dropped += sum(
                c.lost_messages for c in self.world.clients.values() if not c.ended_badly
            )
            if len(messages) > dropped:
                return f"{messages[0]}: {len(messages)} are lost, {dropped} counted"
        return ""

    def untold(self) -> str:
        """Return the process without reports of all of its dropped tells. Empty if there is none,
        or if a process ended without order: reports end with their session. So the node that had
        forwarded a tell counts it if the sender has left by then, or has parted with that node,
        which leaves."""
        if any(p.ended_badly for p in self._processes()):
            return ""
        dropped = Counter(message.by for message in self._unaccounted() if not message.is_ask)
        dropped += self._failed_tells
        spare = {p: max(0, p.refused_tells - dropped[p]) for p in self._processes()}
        by_all = sum(spare.values())
        by_left = sum(number for p, number in spare.items() if p.ended_at is not None)
        for process, tells in dropped.items():
            missing = tells - process.refused_tells
            if missing <= 0:
                continue
            by_all -= missing
            by_left -= missing if process.ended_at is None else 0
            if (by_left if process.ended_at is None else by_all) < 0:
                reported = process.refused_tells
                return f"{process.name}: {tells} tells are lost, {reported} reported"
        return ""

    def _processes(self) -> Iterator[SimProcess]:
        yield from self.world.all_nodes()
        yield from self.world.clients.values()

    def _unaccounted(self) -> list[SentMessage]:
        """Return the messages that were not handled, and whose senders are alive and have no
        outcome."""
        return [
            message
            for message in self._open.values()
            if not message.handled and not message.outcome and message.by.in_touch
        ]

    def _excused(self, message: SentMessage) -> bool:
        """True if the message may have been with a process that ended uncleanly. Clients may notice
        an end by silence alone, and get no report from a node that is no member."""
        late = 0.0 if message.by.hosts else CLIENT_LATE_S
        return self._ends.explains(message.sent_at - late, message.passed_at)

    def counts(self) -> dict[str, int]:
        """Return the counts of the run. `letters` is the sum of those that follow, up to the
        activations."""
        ended = [m for m in self._open.values() if not m.handled and m.outcome]
        silent = [m for m in self._open.values() if not m.handled and not m.outcome]
        there = self._unaccounted()
        excused = sum(self._excused(message) for message in there)
        notes = (sim_node.node.records.notes for sim_node in self.world.all_nodes())
        return {
            "letters": self.sent,
            "handled": self.handled,
            "refused": self.refused,
            "unsure": len(ended),
            "lost_with_their_sender": len(silent) - len(there),
            "lost_with_another": excused,
            "counted_as_dropped": len(there) - excused,
            "activations": self.activations,
            "carried": self.carried,
            "moves": sum(n for noted in notes for (_, what), n in noted.items() if what in MOVED),
        }

    def pending(self) -> int:
        """Return the number of messages whose sender waits."""
        waits = (m for m in self._open.values() if m.is_ask and not m.outcome)
        return sum(m.by.ended_at is None for m in waits)

    def missing_remembered(self) -> str:
        """Return a remembered entity that does not run. Empty if there is none."""
        if self.world.store.lied:
            return ""
        nodes = [r.node for r in self.world.sim_nodes.values() if r.ended_at is None]
        for entity_type, entity_id in self.acknowledged:
            if not any(_runs(node, entity_type, entity_id) for node in nodes):
                return f"{entity_type} {entity_id} is remembered and does not run"
        return ""


def _runs(node: Node, entity_type: str, entity_id: str) -> bool:
    kind = node.regions[entity_type]
    return kind.host.find(entity_id, kind.router.shard_of(entity_id)) is not None


def waiting(sim_node: SimNode, marks: dict[Session, int] | None = None) -> str:
    """Return a node's unfinished work. Empty if it is at rest. `marks`: as for
    `session_waiting`."""
    for name, kind in sim_node.node.regions.items():
        if moving := kind.router.region.moving:
            return f"{sim_node.name} still moves {moving} of {name}"
        if kind.router.region.buffered != (0, 0):
            return f"{sim_node.name} buffers {kind.router.region.buffered} of {name}"
        if kind.router.buffered_asks:
            return f"{sim_node.name} keeps asks of {name}"
        shards = kind.host.shards.values()
        cells = [
            *kind.host.active.values(),
            *(c for shard in shards for c in shard.activations.values()),
        ]
        if busy := [
            activation.key for activation in cells if activation.busy or activation.mailbox
        ]:
            return f"{sim_node.name} has {name} {busy[0]} at work"
    return session_waiting(sim_node.name, sim_node.node.endpoint.sessions(), marks)


def session_waiting(
    name: str, sessions: list[Session], marks: dict[Session, int] | None = None
) -> str:
    """Return a session on which something is under way. Empty if there is none.

    Where nodes compare tables every second, sessions are never empty. `marks` then has the batch
    that each had sent when it was first looked at: only earlier batches must have arrived.
    """
    for session in sessions:
        under_way = bool(session.link.outstanding)
        if marks is not None:
            under_way = session.link.window.acked < marks.setdefault(
                session, session.link.window.last
            )
        if session.link.open and (under_way or session.waiting_asks or session.outbox.unflushed):
            return f"{name} waits for {session.name}"
    return ""


def unbalanced(sim_node: SimNode) -> str:
    """Return the type whose messages a node cannot account for; empty if there is none."""
    for name, region in sim_node.node.regions.items():
        account = account_of(region)
        if account.missing:
            return f"{sim_node.name} misses {account.missing} messages of {name}: {account}"
    return ""


def dropped_by(sim_node: SimNode, name: str) -> int:
    """Return the number of messages of a type that a node reports as dropped."""
    counts = sim_node.node.regions[name].host.counts.dropped
    return sum(counts.get(reason, 0) for reason in COUNTED)
