"""What goes into the machines of this floor, and what comes out.

Both machines have one shape. `handle(event, now)` takes in one event and returns what must be done
at once. What may be batched waits for the end of the loop's turn: `deadline()` is then not after
`now`, and `tick(now)` returns one message per receiver instead of one per shard. So a shell does

    for event in this_turn: perform(machine.handle(event, now))
    while (due := machine.deadline()) is not None and due <= now: perform(machine.tick(now))

Effects are performed in the order in which they are returned, before the next event is handled.

The machines call themselves `Coordinator` and `Region`; the event that tells a region where its
coordinator is, is `CoordinatorAt`.

Not here: the messages between regions and coordinators (`messages`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardbus.ids import NodeId
from shardbus.sharding import messages as msg
from shardbus.sharding.overrides import Overrides
from shardbus.sharding.region.buffered import BufferedMessage, Returned
from shardbus.store.protocol import StoredTable

Message = msg.Message


# Into both.


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message arrived. `sender` is the peer that the transport knows, not what the message
    says."""

    sender: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """Gossip knows of a coordinator with this epoch."""

    epoch: int


# Out of both.


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to that node."""

    to: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Note:
    """Something that logs, metrics and the flight recorder want to know. `kind` is one word of a
    fixed vocabulary, `detail` is for people."""

    kind: str
    detail: str = ""
    count: int = 1


# Into the coordinator.


@dataclass(frozen=True, slots=True)
class Prepare:
    """Another one still rules, but this one is next: get ready, keep what is asked. Start follows.
    `epoch_floor` as there."""

    epoch_floor: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Rule. `epoch_floor` is the highest epoch that gossip knows of."""

    epoch_floor: int = 0


@dataclass(frozen=True, slots=True)
class Retire:
    """Another one is next: finish the write under way, take nothing new. Answer: Stop."""


@dataclass(frozen=True, slots=True)
class TableLoaded:
    """Answer to LoadTable: what the store has, None for nothing."""

    table: StoredTable | None


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """Answer to ClaimEpoch: the epoch is ours, and this is the table."""

    table: StoredTable


@dataclass(frozen=True, slots=True)
class EpochRefused:
    """Answer to ClaimEpoch: the store is at `stored` already."""

    stored: int


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """LoadTable or ClaimEpoch got no answer in time; it may or may not have been done."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The nodes that may run a region or proxy of the type, all of them, each time.

    A node that was there and is not any more is terminated. `unfit` are those among them that take
    no new shards: leaving, cordoned. `emptying` are those among the unfit that shall host nothing.
    `unsettled`: somebody is unreachable or joining, so this is no time to rebalance. `versions` are
    those of the application on the nodes that may host.
    """

    live: tuple[NodeId, ...]
    unfit: tuple[NodeId, ...] = ()
    unsettled: bool = False
    emptying: tuple[NodeId, ...] = ()
    versions: Mapping[NodeId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Persisted:
    """Answer to Persist: the store has it."""

    op_id: int


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """Answer to Persist. `definite_stale`: refused, for another coordinator rules. Otherwise it may
    or may not have been applied, and the same operation is tried again."""

    op_id: int
    definite_stale: bool


@dataclass(frozen=True, slots=True)
class Rebalance:
    """An operator asks to look at the balance now."""


@dataclass(frozen=True, slots=True)
class StopShards:
    """An operator asks to stop these shards; they start again when somebody sends to them. Answer:
    ShardsStopped, for some at a time."""

    shards: tuple[str, ...]


CoordinatorEvent = (
    Prepare | Start | Retire | TableLoaded | EpochClaimed | EpochRefused | StoreFailed
    | MembersChanged
    | MessageReceived | EpochSeen | Persisted | PersistFailed | Rebalance | StopShards | Overrides
)  # fmt: skip

# Out of the coordinator.


@dataclass(frozen=True, slots=True)
class LoadTable:
    """Read the stored table. Answer: TableLoaded or StoreFailed."""


@dataclass(frozen=True, slots=True)
class ClaimEpoch:
    """Claim the stored table. Answer: EpochClaimed, EpochRefused or StoreFailed."""

    epoch: int
    layout: str


@dataclass(frozen=True, slots=True)
class Persist:
    """Write these homes in one atomic step. Answer: Persisted or PersistFailed. Never two at
    once."""

    op_id: int
    epoch: int
    homes: Mapping[str, tuple[NodeId, int] | None]


@dataclass(frozen=True, slots=True)
class Stop:
    """This coordinator is over: it does and says nothing any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class ShardsStopped:
    """Of the shards that StopShards named, these run nowhere now."""

    shards: tuple[str, ...]


CoordinatorEffect = LoadTable | ClaimEpoch | Persist | Send | Stop | ShardsStopped | Note

# Into a region.


@dataclass(frozen=True, slots=True)
class Deliver:
    """A message for a shard, or a Flush, that the shell could not send by its own route.

    Local senders come here while the shard's route is unset. What arrives from a link comes here
    whenever `SetArrivals` does not let it in, even if the route is set: `via` is the node at the
    other end of that link, `hops` how many nodes forwarded the message before. `older`: it was on
    its way already and comes back, so it goes before all that waits.
    """

    shard: str
    envelope: BufferedMessage
    via: NodeId | None = None
    hops: int = 0
    older: bool = False


@dataclass(frozen=True, slots=True)
class Expired:
    """Asks have expired among what waits for these shards, and whoever asked has been told. They
    keep their places as long as nobody needs the room."""

    shards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CoordinatorAt:
    """The coordinator is there, or nowhere known. Say it again when a new one starts on the same
    node. For a client: any node it is connected to."""

    node: NodeId | None


@dataclass(frozen=True, slots=True)
class FlushDone:
    """The Flush was echoed, or its deadline passed."""

    shard: str
    flush_id: int


@dataclass(frozen=True, slots=True)
class ShardReady:
    """Answer to StartShard: the shard takes messages."""

    shard: str


@dataclass(frozen=True, slots=True)
class ShardDown:
    """No entity of the shard runs here. Answer to StopShard, or unasked after a failure. What its
    entities have not handled is `left`, in order; it is older than anything that waits."""

    shard: str
    left: tuple[BufferedMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeGone:
    """That process has ended, or will never be heard again. What was to go there and never left is
    `returned`, in order; it is older than anything that waits."""

    node: NodeId
    returned: Returned = ()


@dataclass(frozen=True, slots=True)
class NodeBack:
    """That process was taken for dead, and answers."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """That node has left in good order; it passes on what it was sent. NodeGone follows."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Move everything away, then say Drained. Sending goes on."""


RegionEvent = (
    Deliver | Expired | MessageReceived | CoordinatorAt | EpochSeen | FlushDone | ShardReady
    | ShardDown
    | NodeGone | NodeBack | NodeLeft | Shutdown
)  # fmt: skip

# Out of a region.


@dataclass(frozen=True, slots=True)
class SendCoordinator:
    """Send this to the node that the last CoordinatorAt named."""

    message: Message


@dataclass(frozen=True, slots=True)
class SetRoute:
    """Local senders send there directly (`node` may be this node), or, None, call Deliver."""

    shard: str
    node: NodeId | None


@dataclass(frozen=True, slots=True)
class SetArrivals:
    """What comes in from links for the shard is delivered here (`local`), or else calls Deliver.
    With `via`, only what that node sends is let in."""

    shard: str
    local: bool
    via: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Send these there (or deliver them here), in this order, now. Comes before the SetRoute that
    lets others follow."""

    shard: str
    node: NodeId
    envelopes: tuple[BufferedMessage, ...]


@dataclass(frozen=True, slots=True)
class SendFlush:
    """Send a Flush for the shard to the node, behind everything sent there. It travels as messages
    do; who hosts the shard echoes it. Answer: FlushDone, within a deadline of the shell's."""

    shard: str
    node: NodeId
    flush_id: int


@dataclass(frozen=True, slots=True)
class StartShard:
    """Start the shard; its entities see `fence`. Answer: ShardReady."""

    shard: str
    fence: int


@dataclass(frozen=True, slots=True)
class StopShard:
    """Stop the shard, every entity after the messages in its mailbox. Answer: ShardDown, also when
    the shard was not ready yet."""

    shard: str
    fence: int


@dataclass(frozen=True, slots=True)
class Reject:
    """The message goes nowhere; its sender must be told, unless it has expired. `reason` is one of
    the `REJECT_` words of `envelopes`."""

    shard: str
    envelope: BufferedMessage
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing runs here and nothing will: the answer to Shutdown."""


RegionEffect = (
    SendCoordinator | Send | SetRoute | SetArrivals | Release | SendFlush | StartShard | StopShard
    | Reject | Drained | Note
)  # fmt: skip
