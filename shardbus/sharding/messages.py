"""The messages of sharding, in the order in which a shard meets them.

Akka's names. Each message names its sender and what must be answered. Everything a coordinator
sends carries its epoch; a region refuses an epoch lower than the highest it has seen. Lists are
batches: everything decided in one turn travels in one message. What is said about a shard names the
home it means, fence and all, so that a late or repeated message about an earlier home cannot touch
a later one.

    region       Register ──────────────> coordinator    repeated until RegisterAck
    coordinator  RegisterAck ───────────> region         with every home known
    region       GetShardHome ──────────> coordinator    repeated until ShardHomes has an answer
    coordinator  HostShard ─────────────> chosen region
    region       ShardStarted ──────────> coordinator
    coordinator  ShardHomes ────────────> every region and proxy
    coordinator  BeginHandOff ──────────> every region and proxy
    region       BeginHandOffAck ───────> coordinator    once its Flush to the old home was echoed
    coordinator  HandOff ───────────────> the old home
    region       ShardStopped ──────────> coordinator    after the last entity stopped
    region       ShardLoads ────────────> coordinator    now and then, where it goes by load
    region       GracefulShutdownRequest> coordinator    move everything away from me
    coordinator  RegionStopped ─────────> region         it hosts nothing, and gets nothing

Source: S0.6-S0.8, S0.20-S0.25, S2.23-S2.28, S2.50-S2.52; N.1 for epoch and fence; N.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shardbus.ids import NodeId


class Home(NamedTuple):
    """Where a shard lives. The fence grows with every allocation, so of two homes the higher fence
    is the newer."""

    shard: str
    node: NodeId
    fence: int


@dataclass(frozen=True, slots=True)
class Register:
    """A region (`proxy`: one that hosts nothing) makes itself known and reports what it hosts, so
    that a table whose store lost its memory can be rebuilt. Answer: RegisterAck. `layout` names the
    shard function, as in `crc32/100`."""

    node: NodeId
    proxy: bool
    layout: str
    hosted: tuple[Home, ...]


@dataclass(frozen=True, slots=True)
class RegisterAck:
    """The coordinator has the region in its table. `homes` is every shard that has a home."""

    epoch: int
    coordinator: NodeId
    homes: tuple[Home, ...]


@dataclass(frozen=True, slots=True)
class RegisterRefused:
    """The region disagrees with the table; `reason` names both values. The region must not host or
    send."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class GetShardHome:
    """A region has messages for these shards and knows no home. Answer: ShardHomes, at once or when
    they have one; Wait in between, with the reason."""

    shards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """The shards have no home yet, and why. Nothing needs to be asked again: ShardHomes will
    follow."""

    epoch: int
    shards: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ShardHomes:
    """These shards live here now. Durable in the store before it is sent."""

    epoch: int
    homes: tuple[Home, ...]


@dataclass(frozen=True, slots=True)
class HostShard:
    """The receiver is the home of these shards. Answer: ShardStarted."""

    epoch: int
    homes: tuple[Home, ...]


@dataclass(frozen=True, slots=True)
class ShardStarted:
    """The region accepts messages for these shards."""

    homes: tuple[Home, ...]


@dataclass(frozen=True, slots=True)
class BeginHandOff:
    """These shards are about to leave these homes: stop sending there, buffer, and answer
    BeginHandOffAck once everything sent so far has arrived there."""

    epoch: int
    homes: tuple[Home, ...]


@dataclass(frozen=True, slots=True)
class BeginHandOffAck:
    """Everything this region had sent for these shards has arrived at their old home."""

    node: NodeId
    homes: tuple[Home, ...]


@dataclass(frozen=True, slots=True)
class HandOff:
    """Stop these shards: every entity after the messages already in its mailbox. Answer:
    ShardStopped."""

    epoch: int
    homes: tuple[Home, ...]


@dataclass(frozen=True, slots=True)
class ShardStopped:
    """No entity of these shards runs on this node. May come unasked, and then frees them."""

    node: NodeId
    homes: tuple[Home, ...]


@dataclass(frozen=True, slots=True)
class ShardLoads:
    """Messages a second of each shard of this region, those without any left out. Nothing depends
    on it but where shards are moved for balance, and nothing is answered."""

    node: NodeId
    loads: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GracefulShutdownRequest:
    """Move every shard of this region away; it takes no new ones. Answer: RegionStopped, once it
    hosts nothing."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class RegionStopped:
    """The region hosts nothing, will be given nothing, and is a proxy in the table from now on."""

    node: NodeId


Message = (
    Register | RegisterAck | RegisterRefused | GetShardHome | Wait | ShardHomes | HostShard
    | ShardStarted | BeginHandOff | BeginHandOffAck | HandOff | ShardStopped | ShardLoads
    | GracefulShutdownRequest | RegionStopped
)  # fmt: skip

MESSAGES: tuple[type, ...] = (
    Register, RegisterAck, RegisterRefused, GetShardHome, Wait, ShardHomes, HostShard, ShardStarted,
    BeginHandOff, BeginHandOffAck, HandOff, ShardStopped, ShardLoads, GracefulShutdownRequest,
    RegionStopped,
)  # fmt: skip
