"""The dispatcher: hands what arrives on a node's sessions to the part that handles it.

Messages for entities go to the region of the type that they name. Messages of machines go to that
type's region, coordinator or singleton. A client may ask where shards live and what a type is; it
may not send what only regions send, nor ask what only nodes ask each other.

Source: docs/architecture.md; S0.10, S2.37.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardbus.errors import UnknownEntityType
from shardbus.ids import NodeId
from shardbus.membership.singleton import messages as handover
from shardbus.node.rpc import NodeRpc
from shardbus.sharding import events, messages
from shardbus.shells.region import RegionShell
from shardbus.shells.singleton import SingletonShell
from shardbus.transport.drop_reports import DropTallies, RefusedTells
from shardbus.transport.endpoint import Endpoint
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
"""What the regions of members send to a coordinator."""


class Dispatcher:
    """The receiver of every session of a node.

    Args:
        regions, singletons: by entity type.
        rpc: answers the questions of other nodes.
        drops, refused: count messages that this node, or another, dropped.
        hosting_members: the members that host shards now.
    """

    def __init__(
        self,
        regions: Mapping[str, RegionShell],
        singletons: Mapping[str, SingletonShell],
        rpc: NodeRpc,
        drops: DropTallies,
        refused: RefusedTells,
        hosting_members: Callable[[], tuple[NodeId, ...]],
    ) -> None:
        self.clients: dict[NodeId, Session] = {}
        """Sessions of clients, by the id that stands for the client."""
        self._regions, self._singletons, self._rpc = regions, singletons, rpc
        self._drops, self._refused, self._hosting_members = drops, refused, hosting_members
        self._endpoint: Endpoint

    def attach(self, endpoint: Endpoint) -> None:
        """Use this endpoint, whose sessions deliver here."""
        self._endpoint = endpoint

    def on_tells(self, session: Session, run: TellRun) -> None:
        """Hand tells to the region of their type."""
        region = self._regions.get(run.type)
        if region is None:
            self._endpoint.count_drop("unknown_type")
            drops = self._drops
            mark = session.mark or drops.mark(session)
            drops.drop(mark, run.type, "unknown_type", len(run.ids))
        else:
            region.on_tells(session, run)

    def on_asks(self, session: Session, run: AskRun) -> None:
        """Hand asks to the region of their type, and questions of nodes to the answers."""
        region = self._regions.get(run.type)
        if region is not None:
            region.on_asks(session, run)
        elif run.type == NodeRpc.TYPE and session.tag not in self.clients:
            self._rpc.asked(session, run)
        else:
            self._endpoint.count_drop("unknown_type")
            for corr in run.corrs:
                session.fail(corr, UnknownEntityType(f"there is no entity type {run.type!r}"))

    def on_relayed(self, session: Session, message: Relayed) -> None:
        """Hand a message that another node forwards to the region of its type."""
        region = self._regions.get(message.type)
        if region is not None:
            region.on_relayed(session, message)
        elif message.corr:
            session.fail(message.corr, UnknownEntityType(f"no entity type {message.type!r}"))

    def on_flush(self, session: Session, flush: Flush) -> None:
        """Hand a flush to its region; echo one for a type that does not run here."""
        region = self._regions.get(flush.type)
        if region is not None:
            region.on_flush(session, flush)
        else:
            session.reply(flush.corr, b"")

    def on_control(self, session: Session, control: Control) -> None:
        """Hand a machine's message to the machine; count it if its sender may not send it."""
        message = decode_control(control)
        if isinstance(message, Describe):
            self._describe(session, control.type)
            return
        if isinstance(message, Refusals) and session.tag not in self.clients:
            self._refused.record(session.name, message)
            return
        if isinstance(message, Goodbye):
            if message.node in self._hosting_members():
                self._endpoint.count_drop("not_allowed")
            else:
                self._endpoint.departures.on_notice(message.node)
            return
        region = self._regions.get(control.type)
        if region is None or not isinstance(session.tag, NodeId):
            if isinstance(message, messages.Register):
                self._describe(session, control.type)  # so that its region can log the reason
            self._endpoint.count_drop("unknown_type")
            return
        sender: NodeId = session.tag
        if isinstance(message, messages.GetShardHome) and sender in self.clients:
            shards = tuple(s for s in message.shards if region.router.has_shard(s))
            region.router.handle(events.MessageReceived(sender, messages.GetShardHome(shards)))
        elif sender in self.clients:
            self._endpoint.count_drop("not_allowed")
        elif isinstance(message, TypeInfo):
            region.unknown_at(sender)
        elif isinstance(message, handover.MESSAGES):
            self._singletons[control.type].received(sender, message)
        elif type(message) in FOR_COORDINATOR:
            self._singletons[control.type].coordinator.received(sender, message)  # type: ignore[arg-type]
        else:
            region.router.handle(events.MessageReceived(sender, message))  # type: ignore[arg-type]

    def _describe(self, session: Session, name: str) -> None:
        region = self._regions.get(name)
        info = TypeInfo(False, "", 0)
        if region is not None:
            interface = region.entity_type.interface
            info = TypeInfo(True, interface.layout, 0 if interface.shard_of else interface.shards)
        session.control(encode_control(name, info))

    def on_client(self, session: Session) -> None:
        """Send the list of hosting members to a client that has connected."""
        self.clients[session.tag] = session
        session.control(encode_control("", Members(self._hosting_members())))

    def notify_clients(self, died: tuple[NodeId, ...] = ()) -> None:
        """Send the changed list of hosting members to every client. `died` names members that
        ended without leaving: to a client they may look alive, since a machine without power
        refuses no connection."""
        members = encode_control("", Members(self._hosting_members(), died))
        for session in self.clients.values():
            session.control(members)
