"""Which instance of an entity receives a message: the routers of types with instances, as pure
decisions.

A type declared with `instances=3` runs each entity three times. Each message names an entity; a
router picks one of its instances, or all of them. An instance is a number from 1 to N. `ready` has
the instances whose homes are known and take messages now; an instance that moves or whose node
died is not among them. If none is ready, the message waits for one that `spread` picks.

    nearest       this node's own instance, else one in the same zone, else any; always the same one
    round-robin   each in turn, for each entity
    random        any
    least-busy    two at random, and of those the one with fewer open asks and quicker answers
    hash          the same one for the same key
    all           every one: the answer is a dict of node to reply or error
    first         the nearest, and after a delay a second one: the first answer counts

`spread` is jump consistent hashing: if N grows or shrinks by one, only one in N keys changes its
instance, and none changes from one instance that stays to another.

A message is never sent twice by a router, except by `all` and `first`. Across instances there is no
order: two messages of one sender that went to two instances are handled in any order.

Not here: the number N, which the coordinator decides; homes, which `region.routing` knows; sending
(`instance_sender`).

Source: docs/partitions.md; Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm"
(2014); Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from zlib import crc32

import msgspec

from shardbus.config.options import closest
from shardbus.errors import ConfigError
from shardbus.ids import NodeId

NEAREST, ROUND_ROBIN, RANDOM = "nearest", "round-robin", "random"
LEAST_BUSY, HASH, ALL, FIRST = "least-busy", "hash", "all", "first"
POLICIES = (NEAREST, ROUND_ROBIN, RANDOM, LEAST_BUSY, HASH, ALL, FIRST)

HEDGE_AFTER_S = 0.05
"""Seconds without an answer after which `first` asks a second instance."""
HEDGE_AFTER_MAX_S = 3600.0

HERE, SAME_ZONE, ELSEWHERE = 0.0, 1.0, 2.0
"""Distances."""


class Choice(msgspec.Struct, frozen=True):
    """A router with its options, as `ref.to` takes them."""

    policy: str = NEAREST
    key: str = ""
    """For `hash`: messages of one key go to one instance. Empty: the name of the sender is used."""
    after: float = HEDGE_AFTER_S
    """For `first`: the delay in seconds."""


def choice_of(policy: object, key: object = None, after: object = None) -> Choice:
    """Return a router by its name, with its options.

    Raises:
        ConfigError: no such router, or an option that it does not take.
    """
    if not isinstance(policy, str) or policy not in POLICIES:
        near = closest(policy, POLICIES) if isinstance(policy, str) else ""
        hint = f"did you mean {near!r}?" if near else f"one of {', '.join(POLICIES)}"
        raise ConfigError(f"there is no router {policy!r:.60}", hint=hint)
    if key is not None and policy != HASH:
        raise ConfigError(f"router {policy!r} takes no key", hint=f"only {HASH!r} does")
    if after is not None and policy != FIRST:
        raise ConfigError(f"router {policy!r} takes no delay", hint=f"only {FIRST!r} does")
    if key is not None and not (isinstance(key, str | int) and str(key)):
        raise ConfigError(f"the key of a router is a text or a number, not {key!r:.60}")
    delay = HEDGE_AFTER_S if after is None else after
    if not isinstance(delay, int | float) or not 0 <= delay <= HEDGE_AFTER_MAX_S:
        raise ConfigError(
            f"after is a number of seconds up to {HEDGE_AFTER_MAX_S:g}, not {delay!r:.60}"
        )
    return Choice(policy, "" if key is None else str(key), float(delay))


def without_instances(entity_type: str) -> ConfigError:
    """Return the error for a router of a type without instances."""
    return ConfigError(
        f"entity type {entity_type!r} has no instances, so no router",
        hint="declare instances=3 in @bus.entity",
    )


def spread(text: str, count: int) -> int:
    """Return the instance, 1 to `count`, that a text is for: jump consistent hashing."""
    state, bucket, jump = crc32(text.encode()), 0, 0
    while jump < count:
        bucket = jump
        state = (state * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        jump = int((bucket + 1) * (2147483648.0 / ((state >> 33) + 1)))
    return bucket + 1


def distance(
    node: NodeId,
    me: NodeId | None,
    zone: str,
    zones: Mapping[NodeId, str],
) -> float:
    """Return how far a node is from this process: itself, a node of the same zone, or another."""
    if node == me:
        return HERE
    return SAME_ZONE if zone and zones.get(node) == zone else ELSEWHERE


def nearest(ready: Sequence[int], distances: Sequence[float], text: str, count: int) -> int:
    """Return the nearest instance.

    Args:
        ready: the instances with a home.
        distances: how far each of them is.
        text: sender and entity; they decide among equals, so that senders do not all use one.
        count: the number of instances, of which `text` picks one if none is ready.
    """
    if not ready:
        return spread(text, count)
    least = min(distances)
    equal = [k for far, k in zip(distances, ready, strict=True) if far == least]
    return equal[spread(text, len(equal)) - 1]


def nearest_other(ready: Sequence[int], distances: Sequence[float], instance: int) -> int | None:
    """Return the nearest instance with a home besides this one; None if there is none."""
    others = [(far, k) for far, k in zip(distances, ready, strict=True) if k != instance]
    return min(others)[1] if others else None


def next_in_turn(ready: Sequence[int], turn: int, count: int) -> int:
    """Return the instance for this turn of an entity: `round-robin`."""
    return ready[turn % len(ready)] if ready else turn % count + 1


def any_of(ready: Sequence[int], dice: Random, count: int) -> int:
    """Return an instance at random."""
    return ready[int(dice.random() * len(ready))] if ready else int(dice.random() * count) + 1


def least_busy(ready: Sequence[int], dice: Random, count: int, cost: Callable[[int], float]) -> int:
    """Return the less busy one of two instances at random.

    `cost(k)`: the cost of one more ask to instance k (`open_asks.OpenAsks`). Two choices instead of
    the minimum over all, because senders that all see one idle instance would all send there.
    """
    if len(ready) < 2:
        return any_of(ready, dice, count)
    at = int(dice.random() * len(ready))
    other = int(dice.random() * (len(ready) - 1))
    first, second = ready[at], ready[other if other < at else other + 1]
    return second if cost(second) < cost(first) else first
