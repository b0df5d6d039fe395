"""Direct moves: the old home of a shard hands it to the new one, in one of the `handoff_modes`.

    ──> INTENT ──intent durable──> MOVING ──moved, or owner gone──> STORING ──home durable──┐
          │                        │  ^ │                            │ ^                    v
          │ owner gone, target     │  └─┘ deadline: ask again        └─┘ owner gone      SETTLING
          │ gone                   │ refused, given up               │ target gone           │
          └────────────────────────┴────────────> DONE <─────────────┴───────────────────────┘
                                            complete, deadline, owner gone, target gone

The messages of a move, from a home N1 to a home N2 (the numbers are the six steps of S3.56):

    1  coordinator  writes the intent: both homes, each with its fence
       coordinator  BeginMove ────────────> N1
    2  N1           PrepareMove ──────────> N2
    3  N2           MovePrepared ─────────> N1
    4  N1           stops the shard, then
                    Switch, leftovers ────> N2      which starts the shard; N1 forwards from now on
                    ShardMoved ───────────> coordinator
    5  coordinator  writes the new home, and only then
                    HomesMoved ───────────> every region and proxy
    6  each sender  MoveAck ──────────────> N1      behind everything it sent there; from now on it
                                                    sends to N2
       N1           MoveAck ──────────────> N2      behind everything it forwarded of that sender
       N2           MoveComplete ─────────> coordinator      once it keeps nothing for any sender

No write of the store, and no answer of another node than N1 and N2, lies between the stop at N1 and
the start at N2. In mode `buffer` (`handoff`) both do.

- INTENT: the intent is being written. Nothing has moved, and nothing is lost if a node dies.
- MOVING: N1 alone decides. It answers ShardMoved or MoveRefused. If it is silent, the coordinator
  asks again, and notes the delay. If N1 dies, N2 gets the shard under the fence of the intent: it
  may run there already.
- STORING: the new home is being written.
- SETTLING: the shard lives at N2, and its senders have the new home. It does not move again before
  N2 has every acknowledgement, or for `SETTLE_S`. If N1 has died, N2 waits for none, and may never
  have got
  Switch: the move is over, and N2 gets HostShard. It gets one, too, if it has been silent for
  `SETTLE_S`.

**The intent** is a row of the table beside the shard's row, so every store keeps it:
`sharding/intents` defines its name, and its value is the new home. The write of the new home
removes it. A coordinator that takes over finds it, and asks N1 again (`recover`): N1 goes on with
the move that it has, or begins. A region that registers reports its shards; if N2 runs the shard
already, that counts, because its fence is the higher one. If the move was complete under the former
coordinator, N2 reports it again when HomesMoved arrives.

A move that is refused, because N2 is gone or N1 waits for an earlier move, is tried once more in
mode `buffer`, which needs no other node than N1.

`TRANSITIONS` is the diagram as data. Not here: the parts of N1 and N2 (`region/outgoing_moves`,
`region/incoming_moves`).

Source: S3.56-S3.58, S3.64, S3.72-S3.74, N.4; docs/partitions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum

import msgspec

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import messages as msg
from shardbus.sharding.allocation.strategies import Move
from shardbus.sharding.coordinator.ledger import Ledger
from shardbus.sharding.events import Note, Send
from shardbus.sharding.handoff_modes import MODES
from shardbus.sharding.handoff_phases import MovePhase
from shardbus.sharding.messages import Home, ShardMove
from shardbus.sharding.timers import Timers
from shardbus.transitions import following

SETTLE_S = 60.0
"""Seconds that a shard does not move again while its new home waits for acknowledgements. The new
home itself waits no longer."""


class DirectPhase(Enum):
    """The phase of a direct move."""

    INTENT = "intent"
    MOVING = "moving"
    STORING = "storing"
    SETTLING = "settling"
    DONE = "done"


class DirectTrigger(Enum):
    """The triggers of a direct move."""

    DURABLE = "intent durable"
    MOVED = "moved"
    REFUSED = "refused"
    GIVEN_UP = "given up"
    OWNER_GONE = "owner gone"
    TARGET_GONE = "target gone"
    STORED = "home durable"
    COMPLETE = "complete"
    DEADLINE = "deadline"


_P, _T = DirectPhase, DirectTrigger

TRANSITIONS: dict[tuple[DirectPhase, DirectTrigger], DirectPhase] = {
    (_P.INTENT, _T.DURABLE): _P.MOVING,
    (_P.INTENT, _T.OWNER_GONE): _P.DONE,
    (_P.INTENT, _T.TARGET_GONE): _P.DONE,
    (_P.MOVING, _T.MOVED): _P.STORING,
    (_P.MOVING, _T.REFUSED): _P.DONE,
    (_P.MOVING, _T.GIVEN_UP): _P.DONE,
    (_P.MOVING, _T.OWNER_GONE): _P.STORING,
    (_P.MOVING, _T.DEADLINE): _P.MOVING,
    (_P.STORING, _T.STORED): _P.SETTLING,
    (_P.STORING, _T.OWNER_GONE): _P.STORING,
    (_P.STORING, _T.TARGET_GONE): _P.DONE,
    (_P.SETTLING, _T.COMPLETE): _P.DONE,
    (_P.SETTLING, _T.DEADLINE): _P.DONE,
    (_P.SETTLING, _T.OWNER_GONE): _P.DONE,
    (_P.SETTLING, _T.TARGET_GONE): _P.DONE,
}


class DirectMove(msgspec.Struct):
    """One direct move. `why` is the purpose; `senders` are those that acknowledge."""

    move: ShardMove
    mode: str
    why: str
    senders: tuple[NodeId, ...]
    begun: float
    phase: DirectPhase = DirectPhase.INTENT
    begin_sent: bool = False
    """N1 has BeginMove of this coordinator."""
    complete: bool = False
    """N2 keeps nothing for any sender."""

    def advance(self, trigger: DirectTrigger) -> DirectPhase:
        """Go to the next phase and return it.

        Raises:
            LocalProtocolError: the diagram has no such arrow. Nothing changed.
        """
        machine = f"direct move of shard {self.move.old.shard!r}"
        self.phase = following(TRANSITIONS, self.phase, trigger, machine)
        return self.phase


class DirectMoves:
    """The direct moves of one coordinator.

    Args:
        mode: the mode of the type, by its text.
        ledger: the table, its fences, and pending changes.
        settings: the time after which N1 is asked again.
        is_live: True if membership shows the node.
        is_proxy: True if the node has registered, and hosts nothing.
    """

    __slots__ = (
        "_begin_now", "_is_live", "_is_proxy", "_ledger", "_mode", "_moved_now", "_refused",
        "_timeout", "_timers", "moves", "notes",
    )  # fmt: skip

    def __init__(
        self,
        ledger: Ledger,
        settings: ShardingSettings,
        is_live: Callable[[NodeId], bool],
        is_proxy: Callable[[NodeId], bool],
    ) -> None:
        self.moves: dict[str, DirectMove] = {}
        self.notes: list[Note] = []
        self._mode = settings.handoff
        self._ledger, self._is_live, self._is_proxy = ledger, is_live, is_proxy
        self._timeout = settings.handoff_timeout
        self._timers: Timers[str] = Timers()
        self._refused: dict[str, None] = {}
        """Shards whose next move is in mode `buffer`."""
        self._begin_now: list[DirectMove] = []
        self._moved_now: list[DirectMove] = []

    def __contains__(self, shard: str) -> bool:
        return shard in self.moves

    @property
    def used(self) -> bool:
        """True if the type's mode is one of direct moves."""
        return MODES[self._mode] is not None

    def takes(self, shard: str) -> bool:
        """True if the next move of the shard is a direct one. After a refusal, one is not."""
        return self.used and shard not in self._refused

    def forget_refusal(self, shard: str) -> None:
        """Let the move after the current one be direct."""
        self._refused.pop(shard, None)

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        return self._timers.deadline()

    def in_flight(self) -> list[Move]:
        """Return the moves whose shard is not at its new home, as the strategies take them."""
        return [
            Move(shard, direct.move.old.node, direct.move.new.node)
            for shard, direct in self.moves.items()
            if direct.phase is not DirectPhase.SETTLING
        ]

    def under_way(self) -> list[tuple[str, ShardMove]]:
        """Return every move that is not complete, by its shard."""
        return [(shard, direct.move) for shard, direct in self.moves.items()]

    def phases(self) -> Iterator[MovePhase]:
        """Yield the moves with their phases."""
        for shard, direct in self.moves.items():
            move = direct.move
            yield MovePhase(shard, direct.phase.value, True, move.old.node, move.new.node)

    def goes_to(self, node: NodeId) -> bool:
        """True if a shard is on its way to the node."""
        return any(move.target == node for move in self.in_flight())

    def home_of(self, shard: str) -> Home | None:
        """Return the new home of a shard that lives there, though its move is not complete."""
        direct = self.moves.get(shard)
        settles = direct is not None and direct.phase is DirectPhase.SETTLING
        return direct.move.new if direct is not None and settles else None

    def begin(
        self, old: Home, target: NodeId, why: str, senders: Iterable[NodeId], now: float
    ) -> None:
        """Begin a move: write its intent first."""
        new = Home(old.shard, target, self._ledger.take_fence())
        self._ledger.intents[old.shard] = new
        direct = DirectMove(ShardMove(old, new), self._mode, why, tuple(senders), now)
        self.moves[old.shard] = direct

    def recover(self, intents: Mapping[str, Home], now: float) -> None:
        """Go on with the moves whose intents a former coordinator has stored."""
        for shard, new in intents.items():
            old = self._ledger.table.homes.get(shard)
            if old is None or old.fence >= new.fence:
                self._ledger.intents[shard] = None
                continue
            mode = self._mode if MODES[self._mode] is not None else "ordered"
            direct = DirectMove(ShardMove(old, new), mode, "takeover", (), now, DirectPhase.MOVING)
            self.moves[shard] = direct
            self._timers.set(shard, now + self._timeout)

    def on_registered(self, node: NodeId, registered: Iterable[NodeId]) -> None:
        """Ask a region for the moves away from it that a former coordinator began."""
        for direct in self.moves.values():
            leaves = direct.phase is DirectPhase.MOVING and direct.move.old.node == node
            if leaves and not direct.begin_sent:
                direct.senders = direct.senders or tuple(registered)
                self._ask(direct)

    # Answers.

    def on_written(
        self, intents: Mapping[str, Home | None], homes: list[Home], now: float
    ) -> list[Home]:
        """Go on after a durable write; return the homes that are no news of direct moves."""
        for shard, new in intents.items():
            direct = self.moves.get(shard)
            if new is not None and direct is not None and direct.phase is DirectPhase.INTENT:
                direct.advance(DirectTrigger.DURABLE)
                self._timers.set(shard, now + self._timeout)
                self._ask(direct)
        others = []
        for home in homes:
            direct = self.moves.get(home.shard)
            if direct is None or direct.phase is not DirectPhase.STORING or direct.move.new != home:
                others.append(home)
                continue
            direct.advance(DirectTrigger.STORED)
            self._timers.set(home.shard, now + SETTLE_S)
            self._moved_now.append(direct)
            alone = not self._is_live(direct.move.old.node)
            if alone:
                others.append(home)  # the new home may wait for the old one, or not have the move
            if direct.complete or alone:
                self._end(direct, DirectTrigger.COMPLETE)
        return others

    def on_moved(self, sender: NodeId, move: ShardMove) -> bool:
        """Write the new home: N1 has handed the shard over. Returns False if this coordinator does
        not have the move."""
        direct = self._of(move)
        if direct is None or sender != move.old.node:
            return False
        if direct.phase is DirectPhase.MOVING:
            direct.advance(DirectTrigger.MOVED)
            self._ledger.history.leaves(move.old, direct.why, direct.begun)
            self._timers.cancel(move.old.shard)
            self.notes.append(Note("handoff_moved", move.old.shard))
            self.reassert()
        return True

    def on_refused(self, sender: NodeId, move: ShardMove) -> None:
        """End a move that has not taken place. The next one of the shard is in mode `buffer`."""
        direct = self._of(move)
        if direct is not None and sender == move.old.node and direct.phase is DirectPhase.MOVING:
            self._refused[move.old.shard] = None
            self._end(direct, DirectTrigger.REFUSED)
            self.notes.append(Note("handoff_refused", move.old.shard))

    def on_stopped(self, home: Home) -> DirectMove | None:
        """End the move of a shard that stopped at its old home and was not handed over; return it
        if there was one."""
        direct = self.moves.get(home.shard)
        if direct is None or direct.move.old != home or direct.phase is not DirectPhase.MOVING:
            return None
        self._end(direct, DirectTrigger.GIVEN_UP)
        return direct

    def on_complete(self, sender: NodeId, move: ShardMove) -> None:
        """End a move: the new home keeps nothing for any sender."""
        direct = self._of(move)
        if direct is None or sender != move.new.node:
            return
        direct.complete = True
        if direct.phase is DirectPhase.SETTLING:
            self._end(direct, DirectTrigger.COMPLETE)

    def on_nodes_gone(self, dead: Mapping[NodeId, None]) -> tuple[list[DirectMove], list[Home]]:
        """Go on without these nodes. A target that has become a proxy counts as gone: it does not
        have the shard, and takes none. Returns the moves whose target is gone after the shard had
        left its old home, since the shard runs nowhere, except from old homes among `dead`, and the
        new homes that must be asked to host, since their Switch may have been lost with its
        sender."""
        homeless: list[DirectMove] = []
        alone: list[Home] = []
        for direct in list(self.moves.values()):
            if direct.move.old.node in dead:
                if direct.phase is DirectPhase.SETTLING and direct.move.new.node not in dead:
                    alone.append(direct.move.new)
                direct.advance(DirectTrigger.OWNER_GONE)
                self._timers.cancel(direct.move.old.shard)
                if direct.phase is DirectPhase.DONE:
                    self._forget(direct)
            closed = direct.move.new.node in dead or self._is_proxy(direct.move.new.node)
            if closed and direct.phase not in (DirectPhase.MOVING, _P.DONE):
                if direct.phase is DirectPhase.STORING and direct.move.old.node not in dead:
                    homeless.append(direct)
                self._end(direct, DirectTrigger.TARGET_GONE)
        return homeless, alone

    def on_reported(self, home: Home) -> bool:
        """Take the report of a region that it runs a shard. True if a move has brought it there;
        otherwise the move of the shard, if there is one, is over."""
        direct = self.moves.get(home.shard)
        if direct is None or direct.move.new != home:
            self.forget(home.shard)
            return False
        return self.on_moved(direct.move.old.node, direct.move)

    def forget(self, shard: str) -> None:
        """Forget the move of a shard that lives somewhere else."""
        direct = self.moves.get(shard)
        if direct is not None:
            adopted = self._ledger.adopted.get(shard)
            self._forget(direct)
            if adopted is not None and adopted != direct.move.new:
                self._ledger.adopted[shard] = adopted

    def reassert(self) -> None:
        """Have the new homes written that are not yet."""
        table, writing = self._ledger.table, self._ledger.writing
        for shard, direct in self.moves.items():
            if direct.phase is DirectPhase.STORING and self._is_live(direct.move.new.node):
                pending = writing is not None and shard in writing.homes
                if not pending and table.homes.get(shard) != direct.move.new:
                    self._ledger.adopted[shard] = direct.move.new
                    self._ledger.freed.pop(shard, None)
                    if direct.move.new.node in table.regions:  # otherwise its home is written later
                        self._ledger.intents[shard] = None

    def tick(self, now: float) -> list[Home]:
        """End or repeat overdue steps. Returns the new homes that must be asked to host."""
        silent: list[Home] = []
        for shard in self._timers.due(now):
            direct = self.moves[shard]
            direct.advance(DirectTrigger.DEADLINE)
            if direct.phase is DirectPhase.DONE:
                self._forget(direct)
                self.notes.append(Note("handoff_unsettled", shard))
                silent.append(direct.move.new)
                continue
            self._timers.set(shard, now + self._timeout)
            again = f"shard {shard}: asked {direct.move.old.node} again"
            self.notes.append(Note("handoff_overdue", again, shard=shard))
            self._ask(direct)
        return silent

    def drain(self, epoch: int, registered: Callable[[NodeId], bool]) -> list[Send]:
        """Return the messages of this turn."""
        begin: dict[tuple[NodeId, str, tuple[NodeId, ...]], list[ShardMove]] = {}
        for direct in self._begin_now:
            key = direct.move.old.node, direct.mode, direct.senders
            begin.setdefault(key, []).append(direct.move)
        moved: dict[tuple[NodeId, str], list[ShardMove]] = {}
        for direct in self._moved_now:
            for node in filter(registered, dict.fromkeys((*direct.senders, direct.move.new.node))):
                moved.setdefault((node, direct.mode), []).append(direct.move)
        self._begin_now, self._moved_now = [], []
        sends = [
            Send(to, msg.BeginMove(epoch, mode, senders, tuple(moves)))
            for (to, mode, senders), moves in begin.items()
        ]
        for (to, mode), moves in moved.items():
            sends.append(Send(to, msg.HomesMoved(epoch, mode, tuple(moves))))
        return sends

    def news_for(self, node: NodeId, homes: Iterable[Home]) -> list[Home]:
        """Return the new homes that the node does not get by HomesMoved."""
        moved = {
            direct.move.new
            for direct in self._moved_now
            if node in direct.senders or node == direct.move.new.node
        }
        return [home for home in homes if home not in moved]

    def nodes(self) -> dict[NodeId, None]:
        """Return every node that is the old or the new home of a move."""
        return dict.fromkeys(home.node for direct in self.moves.values() for home in direct.move)

    def check(self) -> None:
        """Check that every move that waits for a node has a deadline; for tests."""
        for shard, direct in self.moves.items():
            assert direct.phase is not DirectPhase.DONE
            waits = direct.phase in (DirectPhase.MOVING, DirectPhase.SETTLING)
            assert not waits or shard in self._timers, f"the move of {shard} has no deadline"

    def _of(self, move: ShardMove) -> DirectMove | None:
        direct = self.moves.get(move.old.shard)
        return direct if direct is not None and direct.move == move else None

    def _ask(self, direct: DirectMove) -> None:
        direct.begin_sent = True
        self._begin_now.append(direct)

    def _end(self, direct: DirectMove, trigger: DirectTrigger) -> None:
        direct.advance(trigger)
        self._forget(direct)

    def _forget(self, direct: DirectMove) -> None:
        """Remove the move, and its intent if the new home has not replaced it."""
        shard = direct.move.old.shard
        del self.moves[shard]
        self._timers.cancel(shard)
        if direct in self._begin_now:
            self._begin_now.remove(direct)
        if self._ledger.table.homes.get(shard) != direct.move.new:
            self._ledger.intents[shard] = None
            if self._ledger.adopted.get(shard) == direct.move.new:
                del self._ledger.adopted[shard]
