"""Which process may send which messages: the one place that decides it.

Any process that can connect may send frames to a node. A HELLO opens a session, and `authorize`
decides once which permissions the session has. From then on every frame, run, control message and
question is looked up in the tables below, by the session's role. The receiver drops and counts
messages that the role may not send, as `not_allowed`.

    role        process                                  may send
    CLIENT      has no node id                           messages for entities; where shards live;
                                                         the settings of a type; that a node has
                                                         ended
    NEWCOMER    a node that membership does not know     requests to join, and nothing numbered:
                                                         that waits until the node is a member
    NODE        a member, or one that has just left      everything, in its own name
    STORE       a replica of `cluster://`                nothing: it speaks to replicas only

**A uid proves itself.** A process draws a secret when it starts, and its uid is a hash of that
secret (`uid_of`). HELLO carries the secret, so only the process itself can open, resume or replace
a session in its name: another process does not find a secret for a given uid, since that takes some
2^64 attempts. The secret goes to the addresses that the process itself connects to. Without keys a
process that listens at the address of a dead member can receive it.

**Only members command.** A message of a machine counts if its sender is a member; one of a
coordinator, if the sender could coordinate that type. A member that is not the coordinator now is
refused by its epoch. Whether a node is a member changes, so a session's role changes from NEWCOMER
to NODE when membership knows the node.

**Requests come in, answers come back.** A node takes requests to join only on sessions that others
opened, and their answers only on connections that it opened itself, to an address of its own
choice.

Source: docs/security.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from hashlib import blake2b

import msgspec

from shardbus.ids import NodeId, is_host
from shardbus.membership import messages as joining
from shardbus.membership.singleton import messages as handover
from shardbus.sharding import messages
from shardbus.wire import batch
from shardbus.wire.control import Describe, Goodbye, Refusals, TypeInfo

UID_BYTES = 8
SECRET_BYTES = 16


class Role(Enum):
    """The role of a process at the other end of a session."""

    CLIENT = "client"
    NEWCOMER = "newcomer"
    NODE = "node"
    STORE = "store"

    __hash__ = object.__hash__
    """The tables below are read for every batch; the hash of `Enum` is a call of Python."""


class Permissions(msgspec.Struct, frozen=True):
    """The permissions of a session. `types`: the only entity types that it may use, None for
    all."""

    role: Role
    types: frozenset[str] | None = None

    def may_use(self, entity_type: str) -> bool:
        """True if the session may use entities of this type."""
        return self.types is None or entity_type in self.types


CLIENT, NEWCOMER, NODE = map(Permissions, (Role.CLIENT, Role.NEWCOMER, Role.NODE))

Authorize = Callable[[batch.Hello, str | None], Permissions | str]
"""Returns the permissions of a session, or why it is refused. Takes its HELLO and the user id that
authentication gave the connection, None without keys. A node gets NEWCOMER: membership decides
whether it is NODE."""


def uid_of(secret: bytes) -> int:
    """Return the uid of the process that has drawn this secret."""
    return int.from_bytes(blake2b(secret, digest_size=UID_BYTES).digest(), "big")


def client_name(uid: int) -> str:
    """Return the name of the client with this uid."""
    return f"client#{uid:016x}"


def authorize(hello: batch.Hello, user_id: str | None) -> Permissions | str:
    """Authorize by the rules without keys: the uid has this name, and the secret proves the uid."""
    uid = uid_of(hello.secret)
    if hello.node is None:
        if hello.name != client_name(uid):
            return "the name of this client is not proved by its secret"
        return CLIENT
    if hello.name != str(hello.node) or not is_host(hello.node.host):
        return "the name is not that of the node"
    if hello.node.uid != uid:
        return f"{hello.name} is not proved by its secret"
    return NEWCOMER


# ---- the tables

_SIGNS = frozenset(
    {batch.FrameType.ACK, batch.FrameType.NAK, batch.FrameType.HELD, batch.FrameType.BYE}
)
_NUMBERED = frozenset({batch.FrameType.DATA, batch.FrameType.PART, batch.FrameType.LAST_PART})
FRAMES: Mapping[Role, frozenset[batch.FrameType]] = {
    Role.CLIENT: _SIGNS | _NUMBERED,
    Role.NEWCOMER: _SIGNS | {batch.FrameType.MEMBERSHIP},
    Role.NODE: _SIGNS | _NUMBERED | {batch.FrameType.MEMBERSHIP},
    Role.STORE: frozenset(),
}
"""Frames within a session that the other process opened. HELLO opens one."""

_FOR_ENTITIES = frozenset(
    {batch.TellRun, batch.AskRun, batch.ReplyRun, batch.Fail, batch.Flush, batch.Control}
)
RUNS: Mapping[Role, frozenset[type]] = {
    Role.CLIENT: _FOR_ENTITIES,
    Role.NEWCOMER: frozenset(),
    Role.NODE: _FOR_ENTITIES | {batch.Relayed, batch.Hold},
    Role.STORE: frozenset(),
}
"""Runs of a batch. Only nodes forward messages of others, and have entities without room."""

FROM_COORDINATOR: frozenset[type] = frozenset(
    {
        messages.RegisterAck,
        messages.RegisterRefused,
        messages.Wait,
        messages.ShardHomes,
        messages.HostShard,
        messages.BeginHandOff,
        messages.HandOff,
        messages.RegionStopped,
        messages.InstanceCount,
        messages.BeginMove,
        messages.HomesMoved,
    }
)
"""Messages of a coordinator to regions."""
FOR_COORDINATOR: frozenset[type] = frozenset(
    {
        messages.Register,
        messages.GetShardHome,
        messages.ShardStarted,
        messages.BeginHandOffAck,
        messages.ShardStopped,
        messages.ShardLoads,
        messages.GracefulShutdownRequest,
        messages.ShardMoved,
        messages.MoveRefused,
        messages.MoveComplete,
    }
)
"""Messages of members' regions to a coordinator."""
BETWEEN_REGIONS: frozenset[type] = frozenset(
    {
        messages.PassOn,
        messages.PrepareMove,
        messages.MovePrepared,
        messages.MoveCancelled,
        messages.Carry,
        messages.Switch,
        messages.MoveAck,
        messages.AckWanted,
        messages.TableStatus,
        messages.TableState,
    }
)
"""Messages between the regions of members."""
HANDOVER: frozenset[type] = frozenset(handover.MESSAGES)
"""Messages between nodes that may coordinate."""
CONTROL: Mapping[Role, frozenset[type]] = {
    Role.CLIENT: frozenset({Describe, messages.GetShardHome, Goodbye}),
    Role.NEWCOMER: frozenset(),
    Role.NODE: FROM_COORDINATOR
    | FOR_COORDINATOR
    | HANDOVER
    | BETWEEN_REGIONS
    | {Describe, TypeInfo, Refusals, Goodbye},
    Role.STORE: frozenset(),
}
"""Control messages to a node. A client's Goodbye is checked before it counts (`departures`)."""

JOIN_REQUESTS: tuple[type, ...] = (joining.InitJoin, joining.Trial, joining.Join)
"""Messages of membership on a session that the other node opened."""
JOIN_ANSWERS: tuple[type, ...] = (
    joining.InitAck,
    joining.InitNack,
    joining.TrialResult,
    joining.JoinRefused,
    joining.Welcome,
)
"""Messages of membership on a connection that this node opened."""

QUESTION_TYPE = "$node"
"""The reserved entity type of questions to a node."""
LIST_STORED = "stored"
"""The question for a page of stored ids. Its first argument is an entity type, which the asker must
be allowed to use."""
OUTBOX = "outbox"
"""The question by which a client uses an outbox in the store. Its first argument is `OUTBOX_TYPE`,
which the asker must be allowed to use."""
OUTBOX_TYPE = "$outbox"
"""The kind of the journals of outboxes; no entity type has this name."""
VALUES = "values"
"""The question by which a client uses replicated values. Its first argument is `VALUES_TYPE`, which
the asker must be allowed to use."""
VALUES_TYPE = "$values"
"""Stands for the replicated values among the entity types that a client may use; no entity type has
this name."""
QUESTIONS: Mapping[Role, frozenset[str] | None] = {
    Role.CLIENT: frozenset({LIST_STORED, OUTBOX, VALUES}),
    Role.NEWCOMER: frozenset(),
    Role.NODE: None,
    Role.STORE: frozenset(),
}
"""The questions of `node.rpc` that each role may ask, None for all; some of them are commands."""


def may_ask(permissions: Permissions, question: str) -> bool:
    """True if a session with these permissions may ask a node this question."""
    questions = QUESTIONS[permissions.role]
    return questions is None or question in questions


def may_send(
    permissions: Permissions, sender: NodeId, message: object, coordinates: Callable[[], bool]
) -> bool:
    """True if a session with these permissions may send the control message. `coordinates`: the
    sender may coordinate the type that the message is about."""
    kind = type(message)
    if kind not in CONTROL[permissions.role]:
        return False
    if permissions.role is not Role.NODE:
        return True
    if kind in FROM_COORDINATOR or kind in HANDOVER:
        return coordinates()
    return kind not in FOR_COORDINATOR or getattr(message, "node", sender) == sender
