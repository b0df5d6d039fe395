"""The bounds of values that enter a process, declared beside the fields that hold them.

A field of a message, of gossip or of a stored row has one of these types. The decoder of wire
messages checks the bound before anything else sees the value, so a number out of bounds is a
protocol error: it is counted and not obeyed.

    Epoch    0 to EPOCH_MAX      number of a coordinator's term
    Fence    0 to FENCE_MAX      number of a shard's allocation: epoch << 32 | n
    Version  0 to VERSION_MAX    counters of membership
    Mark     -VERSION_MAX to VERSION_MAX, a number that only its sender reads
    Millis   0 to 10**12         a duration
    Hops     0 to HOPS_MAX       how often a message was forwarded
    Host     1 to 255 characters
    Port     1 to 65535
    Uid      0 to 2**64 - 1      also correlation ids and numbers of runs
    Id       up to 256 characters: type, shard and entity
    Text     up to 4096 characters: a reason or an error

An epoch has 31 bits so that the fences drawn from it fit the 63 bits of a stored number. A cluster
uses one epoch per start and per change of its oldest node, which is one every second for 68 years.

Source: docs/architecture.md; N.1.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

EPOCH_MAX = 2**31 - 1
EPOCH_SHIFT = 32
"""A fence is at least `epoch << 32`: four thousand million allocations per epoch."""
FENCE_MAX = 2**63 - 1
VERSION_MAX = 2**62
MILLIS_MAX = 10**12
HOPS_MAX = 2**16
HOST_MAX, PORT_MAX, UID_MAX = 255, 65535, 2**64 - 1
ID_CHARACTERS_MAX, TEXT_MAX = 256, 4096
SHARDS_MAX = 2**14
"""Shards, at most, of a type, and that one message names. A node needs some 0.1 s to take over the
homes of all."""
NODES_MAX = 2**16
"""Nodes, at most, that one message names."""

Epoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
Fence = Annotated[int, Meta(ge=0, le=FENCE_MAX)]
Version = Annotated[int, Meta(ge=0, le=VERSION_MAX)]
Mark = Annotated[int, Meta(ge=-VERSION_MAX, le=VERSION_MAX)]
Millis = Annotated[int, Meta(ge=0, le=MILLIS_MAX)]
Hops = Annotated[int, Meta(ge=0, le=HOPS_MAX)]
Host = Annotated[str, Meta(min_length=1, max_length=HOST_MAX)]
Port = Annotated[int, Meta(ge=1, le=PORT_MAX)]
Uid = Annotated[int, Meta(ge=0)]
"""The decoder refuses more than 64 bits by itself."""
Id = Annotated[str, Meta(max_length=ID_CHARACTERS_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]

TYPES_WITHIN_MAX = 8
"""Types that may live within each other."""
