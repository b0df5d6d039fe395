"""A shard's cost and a node's spare capacity: pure figures for the balance by load.

Each node measures its own shards for one window of some seconds, and reports one number per shard
and one for itself. `sharding.load` chooses the unit:

    messages    messages per second                     nodes count as equal
    time        seconds of handlers per second          the loop's time that other work leaves
    memory      entities in memory                      the memory that other work leaves
    mailbox     messages that wait in mailboxes         as time
    mixed       parts of a node: the handlers' time,    the smaller of the two
                the entities' part of the memory, and
                the seconds of work that wait

`least_load` divides the sum of a node's shards by the node's spare capacity. A node of which half
is taken by other types gets half as much of this one.

**Other work.** A node's spare capacity must not depend on the shards that move: a balancer that
moves by a figure which its moves change goes to and fro. So the part of the type itself is taken
out, within the same window:

    time      busy - own handlers - own part of the rest. The rest is the loop's time outside
              handlers: sockets, decoding, saves. The type's part of it is its part of the messages,
              at most `REST_S_MAX` for each message.
    memory    resident - own part of the memory taken since the start. The type's part of
              that is its part of the entities, for memory that entities have freed is not always
              returned.

Handlers are timed by the clock, not by processor time: on a slow or starved node the same message
takes longer, so that node gets fewer.

Not here: measuring (`shells.load_reports`, `shells.load_sampling`), averages and the coordinator's
view (`coordinator.load_estimates`).

Source: docs/how-to/tune.md; S3.20, S3.49, B.157, N.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MESSAGES, TIME, MEMORY, MAILBOX, MIXED = "messages", "time", "memory", "mailbox", "mixed"

UNITS: Mapping[str, str] = {
    MESSAGES: "messages/s",
    TIME: "handler s/s",
    MEMORY: "entities",
    MAILBOX: "waiting messages",
    MIXED: "parts of a node",
}
"""The unit of each kind of load, as pages and commands name it."""

TIMED = (TIME, MAILBOX, MIXED)
"""The kinds of load for which handlers are timed."""

SPARE_MIN = 0.1
"""The least that a node has to spare, so that a busy node keeps a part of each type."""

REST_S_MAX = 0.0001
"""The most that one message costs the loop outside its handler, in seconds."""


class ShardWork(NamedTuple):
    """One shard's work in a window."""

    messages: float = 0.0
    """Messages per second."""
    time: float = 0.0
    """Seconds of handlers per second."""
    entities: float = 0.0
    """Entities in memory."""
    waiting: float = 0.0
    """Messages that wait in mailboxes."""


class NodeWork(NamedTuple):
    """The whole node's work in the same window, all types together."""

    busy: float = 0.0
    """Processor time of the loop's thread, as a part of the time that passed."""
    time: float = 0.0
    """Seconds of handlers per second."""
    messages: float = 0.0
    """Messages per second."""
    entities: float = 0.0
    resident: float = 0.0
    """Bytes of memory of the process now; below, of its start."""
    at_start: float = 0.0
    limit: float = 0.0
    """Bytes of memory that the process may use; 0 if that is not known."""


def total(shards: Mapping[str, ShardWork]) -> ShardWork:
    """Return the sum of the shards."""
    return ShardWork(*map(sum, zip(*shards.values(), strict=True))) if shards else ShardWork()


def loads_of(kind: str, shards: Mapping[str, ShardWork], node: NodeWork) -> dict[str, float]:
    """Return the load of each shard that has one, in the unit of this kind."""
    part = _taken(node) / node.entities / node.limit if node.entities and node.limit else 0.0
    loads = {shard: _load(kind, work, part) for shard, work in shards.items()}
    return {shard: load for shard, load in loads.items() if load > 0}


def _load(kind: str, work: ShardWork, part: float) -> float:
    """Return the load of one shard. `part`: the part of the memory that one entity takes."""
    match kind:
        case "time":
            return work.time
        case "memory":
            return work.entities
        case "mailbox":
            return work.waiting
        case "mixed":
            each = work.time / work.messages if work.messages else 0.0
            return work.time + part * work.entities + each * work.waiting
        case _:
            return work.messages


def spare_of(kind: str, work: ShardWork, node: NodeWork) -> float:
    """Return the node's spare capacity for a type, from `SPARE_MIN` to 1. `work`: the type's shards
    together."""
    match kind:
        case "time" | "mailbox":
            taken = _time_of_others(work, node)
        case "memory":
            taken = _memory_of_others(work, node)
        case "mixed":
            taken = max(_time_of_others(work, node), _memory_of_others(work, node))
        case _:
            return 1.0
    return min(1.0, max(SPARE_MIN, 1.0 - taken))


def _time_of_others(work: ShardWork, node: NodeWork) -> float:
    rest = max(0.0, node.busy - node.time)
    part = min(1.0, work.messages / node.messages) if node.messages else 0.0
    own_rest = min(rest * part, REST_S_MAX * work.messages)
    return max(0.0, node.busy - work.time - own_rest)


def _memory_of_others(work: ShardWork, node: NodeWork) -> float:
    if not node.limit:
        return 0.0
    part = min(1.0, work.entities / node.entities) if node.entities else 0.0
    return (node.resident - part * _taken(node)) / node.limit


def _taken(node: NodeWork) -> float:
    """Return the bytes that the process took since its start."""
    return max(0.0, node.resident - node.at_start)
