"""The phases that a move of a shard goes through, by the mode of its hand-off, seen from outside.

Each machine names its own phases: the coordinator in `handoff` and `direct_moves`, the old and the
new home in their modules. This page lists the phases in which a process can die: a phase that a
turn enters and leaves is none.

    mode      coordinator        old home     new home
    buffer    begin
              stopping
              storing
              starting
    ordered   intent
              moving             preparing    prepared
                                 stopping
                                 forwarding   starting
              storing                         opening
              settling
    others    as ordered, but there is no preparing without `during="keep"`, no stopping where both
              homes handle messages, and no opening without `arrivals="buffer"`

Storing is the write of the new home; in mode `buffer`, starting is the time until the new home
confirms that the shard runs.

Source: docs/simulation.md.
"""

from __future__ import annotations

from typing import NamedTuple

from shardbus.ids import NodeId
from shardbus.sharding.handoff_modes import HandoffMode


class MovePhase(NamedTuple):
    """A move of a shard in a phase. `direct`: not in mode `buffer`. `old`: None if the machine does
    not keep it any more; `new`: None if it is not decided."""

    shard: str
    phase: str
    direct: bool
    old: NodeId | None
    new: NodeId | None


BUFFER_PHASES = ("begin", "stopping", "storing", "starting")


def phases_of(mode: HandoffMode | None) -> tuple[str, ...]:
    """Return the phases of a move in this mode; None is `buffer`."""
    if mode is None:
        return BUFFER_PHASES
    phases = ["intent", "moving"]
    phases += ["preparing"] if mode.during == "keep" else []
    phases += [] if mode.overlaps else ["stopping"]
    phases += ["prepared", "forwarding", "starting", "storing", "settling"]
    return (*phases, "opening") if mode.keeps_order else tuple(phases)
