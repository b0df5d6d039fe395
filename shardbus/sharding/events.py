"""The events that go into the machines of this package, and the effects that come out.

Both machines, `Coordinator` and `ShardRegion`, have one shape. `handle(event, now)` handles one
event and returns its immediate effects. Effects that can be batched wait for the end of the loop's
turn: `deadline()` is then not after `now`, and `tick(now)` returns one message per receiver instead
of one per shard. So a shell does

    for event in this_turn: perform(machine.handle(event, now))
    while (due := machine.deadline()) is not None and due <= now: perform(machine.tick(now))

Effects are performed in the order in which they are returned, before the next event is handled.
Times are seconds of one monotonic clock.

Not here: the messages between regions and coordinators (`messages`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import msgspec

from shardbus.ids import NodeId
from shardbus.sharding import messages as msg
from shardbus.sharding.allocation.checked import StrategyFault
from shardbus.sharding.messages import CarriedEntity
from shardbus.sharding.overrides import Overrides
from shardbus.sharding.region.route import BufferedMessage, Returned
from shardbus.store.protocol import StoredTable

Message = msg.Message


# Events of both machines.


class MessageReceived(msgspec.Struct, frozen=True):
    """A message arrived. `sender` is the transport's peer, whatever the message names."""

    sender: NodeId
    message: Message


class EpochSeen(msgspec.Struct, frozen=True):
    """Gossip shows a coordinator with this epoch."""

    epoch: int


class ClaimLost(msgspec.Struct, frozen=True):
    """The store has lost the claim of the epoch under which this coordinator rules."""


# Effects of both machines.


class Send(msgspec.Struct, frozen=True):
    """Send this message to that node."""

    to: NodeId
    message: Message


class Note(msgspec.Struct, frozen=True):
    """Log and count something. `kind` is one word of a fixed vocabulary, the label of the metric;
    `detail` is text for operators. Its subject, if that is one thing, is a field of the log: a
    shard, an entity, or an epoch other than the epoch of the region here."""

    kind: str
    detail: str = ""
    count: int = 1
    shard: str = ""
    entity_id: str = ""
    epoch: int = 0


# Events of the coordinator.


class Prepare(msgspec.Struct, frozen=True):
    """Load the table and keep requests: this coordinator is next, another one still rules. Start
    follows. `epoch_floor` is the highest epoch that gossip shows."""

    epoch_floor: int = 0


class Start(msgspec.Struct, frozen=True):
    """Claim an epoch and rule. `epoch_floor` is the highest epoch that gossip shows."""

    epoch_floor: int = 0


class Retire(msgspec.Struct, frozen=True):
    """Finish the write under way and start nothing new: another coordinator is next. Answer:
    Stop."""


class TableLoaded(msgspec.Struct, frozen=True):
    """Answer to LoadTable: the stored table, None if there is none."""

    table: StoredTable | None


class EpochClaimed(msgspec.Struct, frozen=True):
    """Answer to ClaimEpoch: the epoch is this coordinator's, and this is the table."""

    table: StoredTable


class EpochRefused(msgspec.Struct, frozen=True):
    """Answer to ClaimEpoch: the store is at epoch `stored` already."""

    stored: int


class StoreFailed(msgspec.Struct, frozen=True):
    """LoadTable or ClaimEpoch had no answer in time. The store may or may not have done it."""

    reason: str = ""


class MembersChanged(msgspec.Struct, frozen=True):
    """The nodes that may run a region or proxy of the type: all of them, each time.

    A node that was among them and is no longer has terminated. `unfit` take no new shards: leaving,
    cordoned, draining. `draining` are the unfit that must give their shards away.
    `unsettled`: a member is unreachable or joining, so nothing is rebalanced. `versions` are the
    application's, on the nodes that may host. `zones` are the zones of the nodes that have one.
    """

    live: tuple[NodeId, ...]
    unfit: tuple[NodeId, ...] = ()
    unsettled: bool = False
    draining: tuple[NodeId, ...] = ()
    versions: Mapping[NodeId, str] = msgspec.field(default_factory=dict)
    zones: Mapping[NodeId, str] = msgspec.field(default_factory=dict)


class Persisted(msgspec.Struct, frozen=True):
    """Answer to Persist: the write is durable."""

    op_id: int


class PersistFailed(msgspec.Struct, frozen=True):
    """Answer to Persist. `definite_stale`: the store refused it, for another coordinator rules.
    Otherwise it may or may not have been applied, and the same operation is tried again. `why`: the
    store's error."""

    op_id: int
    definite_stale: bool
    why: str = ""


class Rebalance(msgspec.Struct, frozen=True):
    """Check the balance now, at an operator's request."""


class StopShards(msgspec.Struct, frozen=True):
    """Stop these shards, at an operator's request. The next message for a shard starts it again.
    Answer: ShardsStopped, for some shards at a time."""

    shards: tuple[str, ...]


class StrategyAnswered(msgspec.Struct, frozen=True):
    """Answer to AskStrategy: the answer to each question, and the strategy's faults. Without
    answers it was not called."""

    number: int
    answers: Mapping[Hashable, object]
    faults: tuple[StrategyFault, ...] = ()


CoordinatorEvent = (
    Prepare | Start | Retire | TableLoaded | EpochClaimed | EpochRefused | StoreFailed
    | MembersChanged
    | MessageReceived | EpochSeen | ClaimLost | Persisted | PersistFailed | Rebalance | StopShards
    | StrategyAnswered | Overrides
)  # fmt: skip

# Effects of the coordinator.


class LoadTable(msgspec.Struct, frozen=True):
    """Read the stored table. Answer: TableLoaded or StoreFailed."""


class ClaimEpoch(msgspec.Struct, frozen=True):
    """Claim the stored table. Answer: EpochClaimed, EpochRefused or StoreFailed."""

    epoch: int
    layout: str


class Persist(msgspec.Struct, frozen=True):
    """Write these homes in one atomic step. Answer: Persisted or PersistFailed. Only one is under
    way at a time."""

    op_id: int
    epoch: int
    homes: Mapping[str, tuple[NodeId, int] | None]


class Stop(msgspec.Struct, frozen=True):
    """Discard this coordinator: it does and sends nothing any more."""

    reason: str


class ShardsStopped(msgspec.Struct, frozen=True):
    """Report these shards, which StopShards named, as stopped: they run nowhere now."""

    shards: tuple[str, ...]


class AskStrategy(msgspec.Struct, frozen=True):
    """Call this in a thread: it asks a user's strategy, and may never return. Only one is under way
    at a time. Answer: its result."""

    number: int
    ask: Callable[[], StrategyAnswered]


CoordinatorEffect = (
    LoadTable | ClaimEpoch | Persist | Send | Stop | ShardsStopped | AskStrategy | Note
)

# Events of a region.


class Deliver(msgspec.Struct, frozen=True):
    """A message for a shard, or a Flush, that the shell could not send by a route of its own.

    Local senders come here while the shard's route is unset. A message from a session comes here
    unless `SetArrivals` lets it in, even if the route is set: `via` is the node at the other end of
    the session, `hops` is how often the message was forwarded before. `older`: the message was on
    its way already and came back, so it goes before everything that waits.
    """

    shard: str
    message: BufferedMessage
    via: NodeId | None = None
    hops: int = 0
    older: bool = False


class Expired(msgspec.Struct, frozen=True):
    """Asks have expired among the waiting messages for these shards, and their senders have the
    error. They keep their places until the room is needed."""

    shards: tuple[str, ...]


class Withdrawn(msgspec.Struct, frozen=True):
    """These messages, each with its shard, wait no more: their senders have an error, or have given
    them up."""

    messages: Returned


class Watch(msgspec.Struct, frozen=True):
    """Request the homes of these shards, although no message waits for them."""

    shards: tuple[str, ...]


class InstancesDescribed(msgspec.Struct, frozen=True):
    """A node describes the type to this client as one with that many instances. Ignored once the
    coordinator's number is known."""

    count: int


class CoordinatorAt(msgspec.Struct, frozen=True):
    """The coordinator is on this node; None if no node is known to have it. The shell repeats the
    event when a new coordinator starts on the same node. For a client: any node it has a session
    with. `why_no_home`: why no member can give or be a home, as a text for senders."""

    node: NodeId | None
    why_no_home: str = ""


class FlushDone(msgspec.Struct, frozen=True):
    """The Flush of that number was echoed."""

    shard: str
    flush_id: int


class CallSent(msgspec.Struct, frozen=True):
    """A call of an entity went to the home that the shard leaves. Nothing may go to the next one
    before it has arrived."""

    shard: str


class ShardReady(msgspec.Struct, frozen=True):
    """Answer to StartShard: the shard takes messages."""

    shard: str


class ShardDown(msgspec.Struct, frozen=True):
    """No entity of the shard runs here. Answer to StopShard, or unasked after a failure. `left` are
    the messages that its entities have not handled, in order; they are older than anything that
    waits. `carried` is the entities' in-memory data."""

    shard: str
    left: tuple[BufferedMessage, ...] = ()
    carried: tuple[CarriedEntity, ...] = ()


class NodeGone(msgspec.Struct, frozen=True):
    """That process has ended, or will never answer again. `returned` are the messages for it that
    were never sent, in order; they are older than anything that waits."""

    node: NodeId
    returned: Returned = ()


class NodeBack(msgspec.Struct, frozen=True):
    """That process was taken for dead, and answers."""

    node: NodeId


class NodeLeft(msgspec.Struct, frozen=True):
    """That node has left the cluster in order; it forwards the messages sent to it. NodeGone
    follows."""

    node: NodeId


class Shutdown(msgspec.Struct, frozen=True):
    """Move every shard away. Answer: Drained. The region goes on sending."""


class AskTableVersions(msgspec.Struct, frozen=True):
    """The application waits until the other nodes have this node's version of the table."""


RegionEvent = (
    Deliver | Expired | Withdrawn | Watch | InstancesDescribed | MessageReceived | CoordinatorAt
    | EpochSeen | AskTableVersions
    | FlushDone | CallSent | ShardReady
    | ShardDown
    | NodeGone | NodeBack | NodeLeft | Shutdown
)  # fmt: skip

# Effects of a region.


class SendCoordinator(msgspec.Struct, frozen=True):
    """Send this message to the node that the last CoordinatorAt named."""

    message: Message


class SetRoute(msgspec.Struct, frozen=True):
    """Let local senders send to `node` directly (it may be this node); if None, by Deliver."""

    shard: str
    node: NodeId | None


class SetArrivals(msgspec.Struct, frozen=True):
    """Let in the messages that arrive on sessions for the shard (`local`), or pass them to Deliver.
    With `via`, let in only that node's messages."""

    shard: str
    local: bool
    via: NodeId | None = None


class Release(msgspec.Struct, frozen=True):
    """Send these messages to `node`, or deliver them here, in this order, now. It comes before the
    SetRoute that lets later messages follow."""

    shard: str
    node: NodeId
    messages: tuple[BufferedMessage, ...]


class SendFlush(msgspec.Struct, frozen=True):
    """Send a Flush for the shard to the node, behind everything sent there. It travels as messages
    do, and the node that hosts the shard echoes it. Answer: FlushDone. A Flush that is lost has no
    answer, and the region sends it again."""

    shard: str
    node: NodeId
    flush_id: int


class StartShard(msgspec.Struct, frozen=True):
    """Start the shard; its entities have this fence. `carried` is their in-memory data from the old
    home. Answer: ShardReady."""

    shard: str
    fence: int
    carried: tuple[CarriedEntity, ...] = ()


class StopShard(msgspec.Struct, frozen=True):
    """Stop the shard: every entity, after the messages in its mailbox. Answer: ShardDown, also if
    the shard was not ready yet."""

    shard: str
    fence: int


class Reject(msgspec.Struct, frozen=True):
    """Fail the message, which is not delivered; its sender gets the error, unless it has expired.
    `reason` is one of the `REJECT_` words of `region/route`."""

    shard: str
    message: BufferedMessage
    reason: str


class Drained(msgspec.Struct, frozen=True):
    """Report the shutdown as done: no shard runs here, and none will. The answer to Shutdown."""


RegionEffect = (
    SendCoordinator | Send | SetRoute | SetArrivals | Release | SendFlush | StartShard | StopShard
    | Reject | Drained | Note
)  # fmt: skip
