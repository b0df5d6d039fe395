"""The events and counts that one node keeps for its operators.

    notes           notes of the machines, counted by entity type and name
    events          the last events of membership, and the last notes
    decisions       of downing
    drops           messages that this node dropped, by the process that sent them
    refused         tells of this node that another one dropped
    recent_drops    of all kinds, in the last minute
    letters         messages that no entity got
    lost_nodes      members that did not leave by themselves
    slow            handlers that block the loop, or run long

Source: docs/how-to/operate.md; N.21, B.62.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from shardbus.config.settings import Settings
from shardbus.entities.dead_letters import DeadLetters
from shardbus.entities.entity_type import EntityTypes
from shardbus.entities.slow_handlers import SlowHandlers
from shardbus.guarded_log import GuardedLog
from shardbus.ids import NodeId
from shardbus.node.downing_log import DowningLog
from shardbus.node.event_log import level_of, note_fields, remark
from shardbus.node.lost_nodes import LostNodes
from shardbus.node.recent_drops import Drops, RecentDrops
from shardbus.node.recent_events import RecentEvents
from shardbus.sharding.events import Note
from shardbus.transport.drop_reports import DropTallies, Origin, RefusedTells

log = GuardedLog("shardbus.node")


class NodeRecords:
    """The records of node `me`. `dropped` counts the messages that it has dropped; `wall_clock`
    returns seconds since 1970."""

    def __init__(
        self,
        me: NodeId,
        types: EntityTypes,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        wall_clock: Callable[[], float],
        dropped: Callable[[], Drops],
    ) -> None:
        self._me, self._loop = me, loop
        self.notes: dict[tuple[str, str], int] = {}
        self.events = RecentEvents(loop.time)
        self.decisions = DowningLog()
        self.refused = RefusedTells(types)
        self.drops = DropTallies(partial(self.refused.record, "another node"))
        self.recent_drops = RecentDrops(dropped)
        self.letters = DeadLetters(self._sender_of, wall_clock)
        self.letters.keep_strangers(settings.sharding)
        self.lost_nodes = LostNodes()
        self.slow = SlowHandlers(loop, settings.cluster.app_block_warning)

    def _sender_of(self, mark: int) -> str:
        """Return the name of the process that sent a tell with this mark; empty if unknown."""
        is_own = mark in (Origin.OWN, self.drops.own_mark)
        return str(self._me) if is_own else self.drops.sender_of(mark)

    def note(self, entity_type: str, note: Note, epoch: int) -> None:
        """Count and log a machine's note. `epoch`: of the type's table here."""
        key = (entity_type, note.kind)
        self.notes[key] = self.notes.get(key, 0) + note.count
        self.events.add_note(entity_type, note)
        about = note_fields(note, entity_type, epoch)
        log.log(level_of(note), "%s: %s", entity_type, remark(note), extra=about)

    def log_refused(self) -> None:
        """Log the tells that another node refused lately, if there are any. Called every tick."""
        if line := self.refused.log_line(self._loop.time()):
            log.warning("%s", line)
