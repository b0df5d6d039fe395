"""The switchboard: who gets what arrives on a node's links.

Messages go to the entity type that they name, machines' messages to that type's region, coordinator
or singleton. A client may ask where shards live and what a type is; it may not speak as a region
does, nor ask what only nodes ask each other.

Source: S0.10, S2.37; C.36; B.57, B.130.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardbus.errors import UnknownEntityType
from shardbus.ids import NodeId
from shardbus.membership.singleton import messages as handover
from shardbus.node.rpc import NodeRpc
from shardbus.sharding import events, messages
from shardbus.transport.session import Session
from shardbus.wire.batch import AskRun, Control, Flush, Relayed, TellRun
from shardbus.wire.control import (
    Describe,
    Goodbye,
    Members,
    Refusals,
    TypeInfo,
    decode_control,
    encode_control,
)

if TYPE_CHECKING:
    from shardbus.node.node import Node

FOR_COORDINATOR: frozenset[type] = frozenset(
    {
        messages.Register,
        messages.GetShardHome,
        messages.ShardStarted,
        messages.BeginHandOffAck,
        messages.ShardStopped,
        messages.ShardLoads,
        messages.GracefulShutdownRequest,
    }
)
"""What members' regions say to a coordinator."""


class Dispatcher:
    """See the module; the receiver of every session of a node."""

    def __init__(self, node: Node) -> None:
        self.clients: dict[NodeId, Session] = {}
        """Sessions of clients, by the id that stands for the client."""
        self._node = node

    def on_tells(self, session: Session, run: TellRun) -> None:
        """Messages for entities."""
        kind = self._node.kinds.get(run.type)
        if kind is None:
            self._node.endpoint.count_drop("unknown_type")
            drops = self._node.drops
            mark = session.mark or drops.mark(session)
            drops.drop(mark, run.type, "unknown_type", len(run.ids))
        else:
            kind.on_tells(session, run)

    def on_asks(self, session: Session, run: AskRun) -> None:
        """Messages for entities whose senders wait, and questions of other nodes."""
        kind = self._node.kinds.get(run.type)
        if kind is not None:
            kind.on_asks(session, run)
        elif run.type == NodeRpc.TYPE and session.tag not in self.clients:
            self._node.rpc.asked(session, run)
        else:
            self._node.endpoint.count_drop("unknown_type")
            for corr in run.corrs:
                session.fail(corr, UnknownEntityType(f"there is no entity type {run.type!r}"))

    def on_relayed(self, session: Session, message: Relayed) -> None:
        """A message that another node sends on."""
        kind = self._node.kinds.get(message.type)
        if kind is not None:
            kind.on_relayed(session, message)
        elif message.corr:
            session.fail(message.corr, UnknownEntityType(f"no entity type {message.type!r}"))

    def on_flush(self, session: Session, flush: Flush) -> None:
        """A flush for a shard."""
        kind = self._node.kinds.get(flush.type)
        if kind is not None:
            kind.on_flush(session, flush)
        else:
            session.reply(flush.corr, b"")

    def on_control(self, session: Session, control: Control) -> None:
        """A message for a machine."""
        message = decode_control(control)
        if isinstance(message, Describe):
            self._describe(session, control.type)
            return
        if isinstance(message, Refusals) and session.tag not in self.clients:
            self._node.refused.record(session.name, message)
            return
        if isinstance(message, Goodbye):
            if message.node in self._node.hosting_members():
                self._node.endpoint.count_drop("not_allowed")
            else:
                self._node.endpoint.departures.on_notice(message.node)
            return
        kind = self._node.kinds.get(control.type)
        if kind is None or not isinstance(session.tag, NodeId):
            if isinstance(message, messages.Register):
                self._describe(session, control.type)  # its region shall know why nobody answers
            self._node.endpoint.count_drop("unknown_type")
            return
        sender: NodeId = session.tag
        if isinstance(message, messages.GetShardHome) and sender in self.clients:
            shards = tuple(s for s in message.shards if kind.router.has_shard(s))
            kind.router.handle(events.MessageReceived(sender, messages.GetShardHome(shards)))
        elif sender in self.clients:
            self._node.endpoint.count_drop("not_allowed")
        elif isinstance(message, TypeInfo):
            kind.unknown_at(sender)
        elif isinstance(message, handover.MESSAGES):
            self._node.singletons[control.type].received(sender, message)
        elif type(message) in FOR_COORDINATOR:
            self._node.singletons[control.type].coordination.received(sender, message)  # type: ignore[arg-type]
        else:
            kind.router.handle(events.MessageReceived(sender, message))  # type: ignore[arg-type]

    def _describe(self, session: Session, name: str) -> None:
        kind = self._node.kinds.get(name)
        info = TypeInfo(False, "", 0)
        if kind is not None:
            interface = kind.kind.interface
            info = TypeInfo(True, interface.layout, 0 if interface.shard_of else interface.shards)
        session.control(encode_control(name, info))

    def on_client(self, session: Session) -> None:
        """A client has connected."""
        self.clients[session.tag] = session
        session.control(encode_control("", Members(self._node.hosting_members())))

    def tell_clients(self, died: tuple[NodeId, ...] = ()) -> None:
        """The members changed. Who `died` may still look alive to a client: a machine without power
        refuses no connection."""
        news = encode_control("", Members(self._node.hosting_members(), died))
        for session in self.clients.values():
            session.control(news)
