"""What was sent and what became of it: the promises of sharding, judged from outside.

Every letter (a tell or an ask with a number, from one sender to one entity) is written down when it
is sent, when an entity handles it, and when its sender hears something. What must hold at once:

    I1   an entity starts nowhere while another activation of it lives, unless that one's node has
         been removed by others; only such a one goes on after a newer has started, and the store
         lets it neither load nor save any more
    I2   per sender and entity numbers only grow, and none comes twice
    I6   of one epoch there is one coordinator, and epochs grow
    said whoever was refused for certain was not handled, and whoever was answered was

And when all is quiet: every letter was handled, or refused, or was with a process that ended in
disorder (I3, I4); entities that were remembered run (I5); nothing waits any more (I11).

A letter can be lost with a process only if it was under way in that time: it was sent before
everybody knew of the end, and no later letter of its line had been handled before the end began.

Whoever has been removed and does not know it may even be a coordinator, and may take the table for
a moment: what starts there is nobody's predecessor.

A store that lost or brought back something excuses what rests on its word: two activations may then
live at a time, and what was remembered may be forgotten.

Source: DESIGN section 9; N.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from shardbus.entities.activation import LifeState
from shardbus.entities.context import Context
from shardbus.errors import RequestError
from shardbus.ids import NodeId
from shardbus.membership.member import Status
from shardbus.node.node import Node
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.nodes.exits import UncleanExits
from shardbus.transport.session import Session

if TYPE_CHECKING:
    from shardbus.simulation.nodes.world import NodeWorld, SimNode, SimProcess

CLIENT_LATE_S = 16.0
"""A client gives a silent peer up after 15 s."""

COUNTED = (
    "stopped", "buffer_full", "hop_limit", "refused", "mailbox_full", "unconfirmed", "undelivered",
)  # fmt: skip
"""Drops that are nobody's fault: deadlines that passed, bounds that were reached, peers that were
given up."""

MOVED = "handoff_stopped"
"""What a coordinator notes of a shard that has left its home."""

Line = tuple[str, str, str]
"""Sender, entity type, entity id: letters of one line keep their order."""


@dataclass(eq=False, slots=True)
class SentMessage:
    """`asked`: its sender waits for an answer."""

    line: Line
    seq: int
    by: SimProcess
    sent_at: float
    asked: bool = False
    handled: bool = False
    outcome: str = ""
    passed_at: float = inf
    """When a later letter of its line was handled and this one was not: it never will be."""

    def __str__(self) -> str:
        return f"{self.line} {self.seq}, sent at {self.sent_at:.3f}"


class DeliveryChecker:
    """See the module."""

    def __init__(self, fleet: NodeWorld) -> None:
        self.fleet = fleet
        self.violation: Violation | None = None
        """The first thing that did not hold."""
        self.sent = self.handled = self.refused = self.activations = 0
        self.acknowledged: dict[tuple[str, str], None] = {}
        """Entities of remembering types that have answered."""
        self.saved: dict[tuple[str, str], int] = {}
        """Of entities that save: how much the store has acknowledged."""
        self._open: dict[tuple[Line, int], SentMessage] = {}
        self._seqs: dict[Line, int] = {}
        self._last: dict[Line, int] = {}
        self._within: dict[tuple[Line, int], int] = {}
        self._fences: dict[tuple[str, str], int] = {}
        self._denied: dict[tuple[Line, int], str] = {}
        self._epochs: dict[str, tuple[int, NodeId]] = {}
        self._ends = UncleanExits(fleet)
        fleet.store.on_stale = lambda what: self._broken("I1", what)

    def _broken(self, rule: str, detail: str) -> Violation:
        """Kept, because whoever it is raised in may go on in spite of it."""
        self.violation = self.violation or Violation(rule, detail)
        return self.violation

    # ---- senders

    def send(
        self, sender: str, by: SimProcess, entity_type: str, entity_id: str, asked: bool
    ) -> SentMessage:
        """The next letter of that line."""
        line = (sender, entity_type, entity_id)
        seq = self._seqs[line] = self._seqs.get(line, 0) + 1
        letter = SentMessage(line, seq, by, self.fleet.now, asked)
        self._open[line, seq] = letter
        self.sent += 1
        return letter

    def answered(self, letter: SentMessage, remembers: bool) -> None:
        """Its sender got an answer."""
        if not letter.handled:
            raise self._broken("said", f"{letter} was answered and not handled")
        letter.outcome = "answered"
        self._close(letter)
        if remembers:
            self.acknowledged[letter.line[1:]] = None

    def failed(self, letter: SentMessage, error: RequestError) -> None:
        """Its sender got an error."""
        letter.outcome = type(error).__name__
        if error.definite:
            self.refused += 1
            if letter.handled:
                raise self._broken("said", f"{letter} was refused and handled")
            self._denied[letter.line, letter.seq] = letter.outcome
            self._open.pop((letter.line, letter.seq), None)
        self._close(letter)

    def _close(self, letter: SentMessage) -> None:
        """It is settled if it was handled and its sender, if it waits, was told."""
        if letter.handled and (letter.outcome or not letter.asked):
            self._open.pop((letter.line, letter.seq), None)

    # ---- entities

    def started(self, cell: Context) -> None:
        """An entity's object was made."""
        self.activations += 1
        self._note(cell, "started")
        key = (cell.entity_type, cell.entity_id)
        node = NodeId.parse(cell.node)
        if self._removed(node):
            return
        if not self.fleet.store.lied:
            for other in self._living(cell, node):
                if not self._removed(other):
                    raise self._broken("I1", f"{key} starts at {node} and lives at {other}")
            if cell.fence < self._fences.get(key, 0):
                raise self._broken("I1", f"{key} starts at {node} under fence {cell.fence:x} again")
        self._fences[key] = max(cell.fence, self._fences.get(key, 0))

    def took(self, cell: Context, sender: str, seq: int) -> None:
        """An entity handles a letter."""
        self._note(cell, f"took {sender} {seq}")
        line = (sender, cell.entity_type, cell.entity_id)
        letter = self._open.get((line, seq))
        if letter is None or letter.handled:
            why = self._denied.get((line, seq), "had been handled")
            raise self._broken("I2", f"{line} {seq} is handled at {cell.node} and {why}")
        within = self._within.get((line, cell.fence), 0)
        if seq <= within:
            raise self._broken("I2", f"{line} {seq} after {within} at {cell.node}")
        self._within[line, cell.fence] = seq
        fence = self._fences.get(line[1:], cell.fence)
        if cell.fence == fence:
            last = self._last.get(line, 0)
            if seq <= last:
                raise self._broken("I2", f"{line} {seq} after {last} at {cell.node}")
            for missing in range(last + 1, seq):
                self._pass(line, missing)
            self._last[line] = seq
        elif not self.fleet.store.lied and not self._removed(NodeId.parse(cell.node)):
            raise self._broken("I1", f"{line} {seq} is handled at {cell.node}, no home")
        self.handled += 1
        letter.handled = True
        self._close(letter)

    def _pass(self, line: Line, seq: int) -> None:
        letter = self._open.get((line, seq))
        if letter is not None:
            letter.passed_at = min(letter.passed_at, self.fleet.now)

    def loaded(self, cell: Context, count: int) -> None:
        """An entity that saves has its state."""
        key = (cell.entity_type, cell.entity_id)
        if count < self.saved.get(key, 0) and not self.fleet.store.lied:
            raise self._broken("I1", f"{key} finds {count}, and {self.saved[key]} was acknowledged")

    def has_saved(self, cell: Context, count: int) -> None:
        """The store has acknowledged a save."""
        key = (cell.entity_type, cell.entity_id)
        self.saved[key] = max(count, self.saved.get(key, 0))

    def _note(self, cell: Context, what: str) -> None:
        """Part of the run's history."""
        place = f"{cell.entity_type} {cell.entity_id} {what}"
        self.fleet.trace.hashed(self.fleet.now, cell.node, place)

    def _living(self, cell: Context, node: NodeId) -> Iterator[NodeId]:
        """Where else the entity is in memory."""
        for resident in self.fleet.residents.values():
            if resident.ended_at is not None or resident.process.id == node:
                continue
            kind = resident.node.kinds[cell.entity_type]
            other = kind.host.find(cell.entity_id, cell.shard_id)
            if other is not None and other.state < LifeState.REFUSING:
                yield resident.process.id

    def _removed(self, node: NodeId) -> bool:
        """Somebody has removed it, or is about to: it is not one of theirs any more."""
        for process in self.fleet.by_id.values():
            gossip = process.machine.gossip
            member = gossip.members.get(node)
            if node in gossip.tombstones or (member and member.status is Status.DOWN):
                return True
        return bool(self.fleet.by_id[node].stopped)

    # ---- coordinators

    def claimed(self, entity_type: str, epoch: int, node: NodeId) -> None:
        """A coordinator rules."""
        before, ruler = self._epochs.get(entity_type, (0, node))
        if self.fleet.store.lied or (epoch, node) == (before, ruler):
            self._epochs[entity_type] = (max(epoch, before), node)
            return
        if epoch <= before:
            raise self._broken("I6", f"{node} claims epoch {epoch} of {entity_type} after {ruler}")
        self._epochs[entity_type] = (epoch, node)

    # ---- in the end

    def look(self) -> None:
        """Every now and then."""
        self._ends.look()

    def lost(self) -> str:
        """More letters than were counted as dropped of which nobody knows, though no disorderly end
        explains them; empty if there are none."""
        lost: dict[str, list[SentMessage]] = {}
        for letter in self._unaccounted():
            if not self._excused(letter):
                lost.setdefault(letter.line[1], []).append(letter)
        for name, letters in lost.items():
            dropped = sum(dropped_by(r, name) for r in self.fleet.everybody())
            dropped += sum(c.lost_messages for c in self.fleet.clients.values())
            if len(letters) > dropped:
                return f"{letters[0]}: {len(letters)} are lost, {dropped} counted"
        return ""

    def _unaccounted(self) -> list[SentMessage]:
        """Letters that were not handled, and whose senders are there and were not told so."""
        return [
            letter
            for letter in self._open.values()
            if not letter.handled and not letter.outcome and letter.by.in_touch
        ]

    def _excused(self, letter: SentMessage) -> bool:
        """Whether it may have been with somebody who ended in disorder. Clients may learn of an end
        by silence alone, and of nothing from a node that is no member."""
        late = 0.0 if letter.by.hosts else CLIENT_LATE_S
        return self._ends.explain(letter.sent_at - late, letter.passed_at)

    def counts(self) -> dict[str, int]:
        """What there was. The letters are the sum of those that follow, up to the activations."""
        told = [one for one in self._open.values() if not one.handled and one.outcome]
        silent = [one for one in self._open.values() if not one.handled and not one.outcome]
        there = self._unaccounted()
        excused = sum(self._excused(letter) for letter in there)
        notes = (resident.node.notes for resident in self.fleet.everybody())
        return {
            "letters": self.sent,
            "handled": self.handled,
            "refused": self.refused,
            "unsure": len(told),
            "lost_with_their_sender": len(silent) - len(there),
            "lost_with_another": excused,
            "counted_as_dropped": len(there) - excused,
            "activations": self.activations,
            "moves": sum(n for noted in notes for (_, what), n in noted.items() if what == MOVED),
        }

    def pending(self) -> int:
        """Letters whose sender waits."""
        waits = (one for one in self._open.values() if one.asked and not one.outcome)
        return sum(one.by.ended_at is None for one in waits)

    def forgotten(self) -> str:
        """A remembered entity that does not run; empty if there is none."""
        if self.fleet.store.lied:
            return ""
        nodes = [r.node for r in self.fleet.residents.values() if r.ended_at is None]
        for entity_type, entity_id in self.acknowledged:
            if not any(_runs(node, entity_type, entity_id) for node in nodes):
                return f"{entity_type} {entity_id} is remembered and does not run"
        return ""


def _runs(node: Node, entity_type: str, entity_id: str) -> bool:
    kind = node.kinds[entity_type]
    return kind.host.find(entity_id, kind.router.shard_of(entity_id)) is not None


def waiting(resident: SimNode) -> str:
    """What a node still has in its hands; empty if it is at rest."""
    for name, kind in resident.node.kinds.items():
        if kind.router.region.buffered != (0, 0):
            return f"{resident.name} buffers {kind.router.region.buffered} of {name}"
        if kind.router.buffered_asks:
            return f"{resident.name} keeps asks of {name}"
        shards = kind.host.shards.values()
        cells = [
            *kind.host.active.values(),
            *(c for one in shards for c in one.activations.values()),
        ]
        if busy := [cell.entity_id for cell in cells if cell.busy or cell.mailbox]:
            return f"{resident.name} has {name} {busy[0]} at work"
    return under_way(resident.name, resident.node.endpoint.sessions())


def under_way(name: str, sessions: list[Session]) -> str:
    """A session on which something is under way; empty if there is none."""
    for session in sessions:
        if session.open and (session.outstanding or session.waiting_asks or session.unflushed):
            return f"{name} waits for {session.name}"
    return ""


def dropped_by(resident: SimNode, name: str) -> int:
    """How many messages of a type a node says that it could not handle."""
    counts = resident.node.kinds[name].host.counts.dropped
    return sum(counts.get(reason, 0) for reason in COUNTED)
