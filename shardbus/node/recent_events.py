"""The last events that a node has seen, for operators who come after them.

Two rings of `KEPT` each: events of membership, and those notes of machines that are logged. They
are apart, so that a coordinator that notes a lot does not push out the members' events.

Times are the loop's, and leave the node as ages: the node that asks all others sorts them by its
own clock, however the clocks of the machines differ. Numbers grow by one with each event of a
node's incarnation, so that a repeated question shows which are new.

Source: docs/reference/http.md; N.21.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from heapq import merge
from typing import Any, NamedTuple

from shardbus.membership.view import DomainEvent
from shardbus.node.event_log import fact, level_of, remark
from shardbus.sharding.events import Note

KEPT = 500
TEXT_MAX = 500
"""Characters of an event's text."""


class RecentEvent(NamedTuple):
    """An event, at a time of the loop. `entity_type` is empty for events of membership."""

    number: int
    at: float
    name: str
    entity_type: str
    node: str | None
    text: str


class RecentEvents:
    """Keeps the last events of one node. `clock` is the loop's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._number = 0
        self._membership: deque[RecentEvent] = deque(maxlen=KEPT)
        self._notes: deque[RecentEvent] = deque(maxlen=KEPT)

    def add(self, event: DomainEvent) -> None:
        """Keep an event of membership."""
        row: dict[str, Any] = fact(event)
        self._keep(self._membership, row["event"], "", row["node"], row["text"])

    def add_note(self, entity_type: str, note: Note) -> None:
        """Keep a note of a type's machine, if it is one that is logged."""
        if level_of(note) > logging.DEBUG:
            self._keep(self._notes, note.kind, entity_type, None, remark(note))

    def within(self, seconds: float, most: int) -> list[list[Any]]:
        """Return up to `most` of the last events that are no older than that, oldest first: age,
        number, name, entity type, node, text."""
        now = self._clock()
        events = merge(self._membership, self._notes)
        rows = [[now - e.at, e.number, *e[2:]] for e in events if now - e.at <= seconds]
        return rows[-most:] if most > 0 else []

    def _keep(
        self, ring: deque[RecentEvent], name: str, entity_type: str, node: str | None, text: str
    ) -> None:
        self._number += 1
        ring.append(
            RecentEvent(self._number, self._clock(), name, entity_type, node, text[:TEXT_MAX])
        )
