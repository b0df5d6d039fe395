"""The messages of sharding, in the order in which a shard meets them.

The names are Akka's. Each message names its sender and the subject of its answer. Every message of
a coordinator carries its epoch; a region refuses an epoch lower than the highest it has seen. Lists
are batches: everything decided in one turn travels in one message. A message about a shard names
the home it means, with its fence, so that a late or repeated message about an earlier home cannot
touch a later one.

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
    region       PassOn ────────────────> the old home   if that has messages left
    region       ShardLoads ────────────> coordinator    every few seconds, with strategy least-load
    region       GracefulShutdownRequest> coordinator    move everything away from this region
    coordinator  RegionStopped ─────────> region         it hosts nothing, and gets nothing
    coordinator  InstanceCount ─────────> every region   of a type with instances; and clients

Messages of a direct move (`coordinator/direct_moves`):

    coordinator  BeginMove ─────────────> the old home
    old home     PrepareMove ───────────> the new home
    new home     MovePrepared ──────────> the old home
    old home     Carry ─────────────────> the new home   its entities' in-memory data, if any
    old home     Switch ────────────────> the new home   its entities have stopped
    old home     ShardMoved ────────────> coordinator    or MoveRefused, with MoveCancelled to the
    coordinator  HomesMoved ────────────> every sender   new home
    sender       MoveAck ───────────────> the old home, which forwards it to the new one
    new home     AckWanted ─────────────> a sender whose MoveAck is late
    new home     MoveComplete ──────────> coordinator

Messages of the table by gossip (`region/table_gossip`), with `sharding.homes = "gossip"`:

    coordinator  TableState ────────────> the region of its own node
    region       TableStatus ───────────> another region, every second and after each change
    region       TableState ────────────> a region whose TableStatus is older

Source: S0.6-S0.8, S0.20-S0.25, S2.23-S2.28, S2.50-S2.52, S3.33, S3.37, S3.45, S3.54, N.1, N.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from shardbus.bounds import NODES_MAX, SHARDS_MAX, Epoch, Fence, Id, Text, Version
from shardbus.ids import NodeId
from shardbus.sharding.instances import INSTANCES_MAX
from shardbus.sharding.shard_load import SPARE_MIN

Load = Annotated[float, Meta(ge=0.0, le=1e15)]
"""A load, which neither a defect nor a hostile member can make so large that a sum overflows."""


class Home(NamedTuple):
    """Where a shard lives. Fences grow with every allocation, so of two homes the one with the
    higher fence is the newer."""

    shard: Id
    node: NodeId
    fence: Fence


Homes = Annotated[tuple[Home, ...], Meta(max_length=SHARDS_MAX)]
Shards = Annotated[tuple[Id, ...], Meta(max_length=SHARDS_MAX)]


class Register(msgspec.Struct, frozen=True):
    """A region registers and reports its shards, so that a table that the store has lost can be
    rebuilt. A `proxy` hosts nothing. `layout` names the shard function, as in `crc32/100`. Answer:
    RegisterAck or RegisterRefused."""

    node: NodeId
    proxy: bool
    layout: Text
    hosted: Homes


class RegisterAck(msgspec.Struct, frozen=True):
    """The coordinator has the region in its table. `homes` has every shard with a settled home."""

    epoch: Epoch
    coordinator: NodeId
    homes: Homes


class RegisterRefused(msgspec.Struct, frozen=True):
    """The region has another layout than the table; `reason` names both. The region must not host
    or send."""

    epoch: Epoch
    reason: Text


NO_REGION = "no region may take shards"
"""The reason of a Wait while every region moves its shards away, or is a proxy."""


class GetShardHome(msgspec.Struct, frozen=True):
    """A region has messages for these shards, and no home for them. Answer: ShardHomes, at once or
    when they have one. Until then: Wait, with the reason."""

    shards: Shards


class Wait(msgspec.Struct, frozen=True):
    """The shards have no home yet, for this reason. ShardHomes follows, without another request."""

    epoch: Epoch
    shards: Shards
    reason: Text


class ShardHomes(msgspec.Struct, frozen=True):
    """These shards live here now. Durable in the store before it is sent."""

    epoch: Epoch
    homes: Homes


class InstanceCount(msgspec.Struct, frozen=True):
    """The number of instances of the type, which has rows. Sent after RegisterAck, and when it
    changes. Regions pass it on to their clients."""

    epoch: Epoch
    count: Annotated[int, Meta(ge=1, le=INSTANCES_MAX)]


class HostShard(msgspec.Struct, frozen=True):
    """The receiver is the home of these shards. Answer: ShardStarted. `behind` has the old homes
    that have messages left for it: they wait for PassOn, and nothing else is let in before."""

    epoch: Epoch
    homes: Homes
    behind: Homes = ()


class ShardStarted(msgspec.Struct, frozen=True):
    """The region accepts messages for these shards."""

    homes: Homes


class BeginHandOff(msgspec.Struct, frozen=True):
    """These shards are about to leave these homes. The receiver stops sending there, buffers, and
    answers BeginHandOffAck once everything sent before has arrived there."""

    epoch: Epoch
    homes: Homes


class BeginHandOffAck(msgspec.Struct, frozen=True):
    """Everything that this region sent for these shards has arrived at their old home."""

    node: NodeId
    homes: Homes


class HandOff(msgspec.Struct, frozen=True):
    """Stop these shards: every entity after the messages already in its mailbox. Answer:
    ShardStopped."""

    epoch: Epoch
    homes: Homes


class ShardStopped(msgspec.Struct, frozen=True):
    """No entity of these shards runs on this node. It may come unasked, and then frees them. The
    node has unhandled messages of the shards in `left`, for the next home."""

    node: NodeId
    homes: Homes
    left: Shards = ()


class PassOn(msgspec.Struct, frozen=True):
    """The receiver may pass on the messages that it has left of these shards. The homes are the
    sender's, which lets in nothing else before."""

    homes: Homes


class ShardLoads(msgspec.Struct, frozen=True):
    """The load of each shard of this region, except for shards without load, and its node's spare
    capacity for the type, as a part of the node. `kind`: the unit, one of `shard_load`. `rate`:
    messages per second of all these shards; None: the sum of `loads`. `busy`: seconds of their
    handlers per second; `waiting`: messages that wait in their mailboxes; None: not measured.
    `expected`: messages per second of the whole type that the user expects. They only decide where
    shards move for balance, and how many instances there are. No answer."""

    node: NodeId
    loads: Annotated[Mapping[Id, Load], Meta(max_length=SHARDS_MAX)]
    kind: Id = "messages"
    spare: Annotated[float, Meta(ge=SPARE_MIN, le=1.0)] = 1.0
    rate: Load | None = None
    busy: Load | None = None
    waiting: Load | None = None
    expected: Load = 0.0


class GracefulShutdownRequest(msgspec.Struct, frozen=True):
    """A region shuts down: every shard must move away from it, and none may come. Answer:
    RegionStopped, once it hosts nothing."""

    node: NodeId


class RegionStopped(msgspec.Struct, frozen=True):
    """The region hosts nothing, gets no shard, and is a proxy in the table from now on."""

    node: NodeId


class ShardMove(NamedTuple):
    """A direct move of one shard: its two homes, each with its fence."""

    old: Home
    new: Home


ShardMoves = Annotated[tuple[ShardMove, ...], Meta(max_length=SHARDS_MAX)]
Nodes = Annotated[tuple[NodeId, ...], Meta(max_length=NODES_MAX)]


class BeginMove(msgspec.Struct, frozen=True):
    """The receiver, the old home, hands these shards to their new homes in this mode. `senders` are
    the regions and proxies that acknowledge. Durable in the store before it is sent. Answer:
    ShardMoved or MoveRefused, for each shard."""

    epoch: Epoch
    mode: Text
    senders: Nodes
    moves: ShardMoves


class PrepareMove(msgspec.Struct, frozen=True):
    """The old home is about to hand these shards to the receiver. Answer: MovePrepared."""

    mode: Text
    senders: Nodes
    moves: ShardMoves


class MovePrepared(msgspec.Struct, frozen=True):
    """The receiver of PrepareMove is ready to take these shards. Answer: Switch, or
    MoveCancelled. `carries`: the sender takes Carry; an older one does not."""

    moves: ShardMoves
    carries: bool = False


class MoveCancelled(msgspec.Struct, frozen=True):
    """The old home keeps these shards; or, from the new home, it does not take them."""

    moves: ShardMoves


CARRIED_MAX = 4096
"""Entities, at most, of one Carry."""
CARRIED_BYTES_MAX = 2**20
"""Bytes, at most, that one entity carries, and that one Carry has in all."""

CarriedBytes = Annotated[bytes, Meta(max_length=CARRIED_BYTES_MAX)]


class CarriedEntity(NamedTuple):
    """One entity's in-memory data when it stopped: the encoded value of its state, if its type has
    one, and the result of its `dehydrate`."""

    kind: Id
    id: Id
    state: CarriedBytes | None
    data: CarriedBytes

    @property
    def size(self) -> int:
        """Bytes that it carries."""
        return len(self.data) + len(self.state or b"")


class Carry(msgspec.Struct, frozen=True):
    """In-memory data of a shard's entities, which have stopped at the old home for this move.
    Precedes Switch on the same session. No answer: lost data is loaded from the store."""

    move: ShardMove
    entities: Annotated[tuple[CarriedEntity, ...], Meta(max_length=CARRIED_MAX)]


class Switch(msgspec.Struct, frozen=True):
    """The entities of these shards have stopped at the old home. Messages that it forwards follow
    on the same session."""

    moves: ShardMoves


class ShardMoved(msgspec.Struct, frozen=True):
    """The old home has handed these shards over."""

    node: NodeId
    moves: ShardMoves


class MoveRefused(msgspec.Struct, frozen=True):
    """The old home keeps these shards, or does not host them. Nothing has moved."""

    node: NodeId
    moves: ShardMoves


class HomesMoved(msgspec.Struct, frozen=True):
    """These shards live at their new homes now. Durable in the store before it is sent. The
    receiver sends MoveAck to the old home, and its messages to the new one. A client, which gets it
    from its contact in a mode without an order, acknowledges nothing."""

    epoch: Epoch
    mode: Text
    moves: ShardMoves


class MoveAck(msgspec.Struct, frozen=True):
    """Nothing from `sender` for these shards follows on the session to their old home, which
    forwards this behind everything that came before it."""

    sender: NodeId
    moves: ShardMoves


class AckWanted(msgspec.Struct, frozen=True):
    """The new home has no MoveAck of the receiver for these shards. Answer: MoveAck, to the old
    home. The old home itself answers with a MoveAck of each sender that is gone."""

    moves: ShardMoves


class MoveComplete(msgspec.Struct, frozen=True):
    """The new home keeps nothing for these shards any more, and has every MoveAck."""

    node: NodeId
    moves: ShardMoves


class PartitionChange(NamedTuple):
    """A shard on its way to another home, or to its first one. `status`: "awaiting" until the table
    has the new home, then "complete" until the shard runs there. None: no home, or none chosen."""

    shard: Id
    source: NodeId | None
    target: NodeId | None
    status: Id


TABLE_BYTES_MAX = 8 * 2**20
"""Bytes, at most, of the packed homes of a table."""


class TableStatus(msgspec.Struct, frozen=True):
    """The version of the table that the sender has, 0 for none. A receiver with a newer one answers
    TableState. One with an older one answers TableStatus, and so does one with the same if the
    sender `wants_answer`."""

    epoch: Epoch
    version: Version
    wants_answer: bool = False


class TableState(msgspec.Struct, frozen=True):
    """The table as the coordinator of that epoch had it, all of it durable in the store: every
    settled home (`table_state.pack_homes`), by the place of its node in `nodes`, which are the
    registered regions and proxies in order, and the shards on the move."""

    epoch: Epoch
    version: Version
    nodes: Nodes
    homes: Annotated[bytes, Meta(max_length=TABLE_BYTES_MAX)]
    changes: Annotated[tuple[PartitionChange, ...], Meta(max_length=SHARDS_MAX)] = ()


Message = (
    Register | RegisterAck | RegisterRefused | GetShardHome | Wait | ShardHomes | HostShard
    | ShardStarted | BeginHandOff | BeginHandOffAck | HandOff | ShardStopped | PassOn
    | ShardLoads | GracefulShutdownRequest | RegionStopped | InstanceCount
    | BeginMove | PrepareMove | MovePrepared | MoveCancelled | Carry | Switch | ShardMoved
    | MoveRefused
    | HomesMoved | MoveAck | AckWanted | MoveComplete | TableStatus | TableState
)  # fmt: skip

MESSAGES: tuple[type, ...] = (
    Register, RegisterAck, RegisterRefused, GetShardHome, Wait, ShardHomes, HostShard, ShardStarted,
    BeginHandOff, BeginHandOffAck, HandOff, ShardStopped, PassOn, ShardLoads,
    GracefulShutdownRequest, RegionStopped, InstanceCount, BeginMove, PrepareMove, MovePrepared,
    MoveCancelled, Carry, Switch, ShardMoved, MoveRefused, HomesMoved, MoveAck, AckWanted,
    MoveComplete, TableStatus, TableState,
)  # fmt: skip
