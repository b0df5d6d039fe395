"""The dispatcher: hands each arrival on a node's sessions to the part that handles it.

Messages for entities go to the region of the type that they name. Messages of machines go to that
type's region, coordinator or singleton. Before anything else, each run and each control message is
looked up in the tables of `transport.permissions`: a message that its sender may not send is
dropped and counted as `not_allowed`.

Source: docs/architecture.md; docs/security.md; S0.10, S2.37.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardbus.config.options import closest
from shardbus.entities.dead_letters import DeadLetters
from shardbus.errors import UnknownEntityType
from shardbus.ids import NodeId
from shardbus.node.rpc import NodeRpc
from shardbus.routing.paths import ancestors
from shardbus.sharding import events, messages
from shardbus.shells.region import RegionShell
from shardbus.shells.singleton import SingletonShell
from shardbus.transport.drop_reports import DropTallies, RefusedTells
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.log_limiter import log
from shardbus.transport.permissions import (
    CONTROL,
    FOR_COORDINATOR,
    HANDOVER,
    RUNS,
    Role,
    may_ask,
    may_send,
)
from shardbus.transport.session import Session
from shardbus.wire.batch import AskRun, Control, Flush, Relayed, TellRun
from shardbus.wire.control import (
    ELSEWHERE_MAX,
    Describe,
    Goodbye,
    Members,
    Refusals,
    TypeInfo,
    class_of,
    decode_control,
    encode_control,
)


class Dispatcher:
    """The receiver of every session of a node.

    Args:
        regions, singletons: by entity type.
        rpc: answers the questions of other nodes.
        drops, refused: count messages that this node, or another, dropped.
        letters: keeps messages that no region gets.
        hosting_members: the members that host shards now.
        may_coordinate: True if the node may coordinate the entity type.
        members_with: the members that seem to have the entity type, the oldest first.
    """

    def __init__(
        self,
        regions: Mapping[str, RegionShell],
        singletons: Mapping[str, SingletonShell],
        rpc: NodeRpc,
        drops: DropTallies,
        refused: RefusedTells,
        letters: DeadLetters,
        hosting_members: Callable[[], tuple[NodeId, ...]],
        may_coordinate: Callable[[NodeId, str], bool],
        members_with: Callable[[str], tuple[NodeId, ...]],
    ) -> None:
        self.clients: dict[NodeId, Session] = {}
        """Sessions of clients, by the id that stands for the client."""
        self._regions, self._singletons, self._rpc = regions, singletons, rpc
        self._drops, self._refused, self._hosting_members = drops, refused, hosting_members
        self._letters = letters
        self._may_coordinate, self._members_with = may_coordinate, members_with
        self._endpoint: Endpoint

    def attach(self, endpoint: Endpoint) -> None:
        """Use this endpoint, whose sessions deliver here."""
        self._endpoint = endpoint

    def on_tells(self, session: Session, run: TellRun) -> None:
        """Hand tells to the region of their type."""
        permissions = session.permissions
        types = permissions.types  # as `may_use`, without a call
        if TellRun not in RUNS[permissions.role] or (types is not None and run.type not in types):
            self._not_allowed(session, run)
            mark = session.mark or self._drops.mark(session)
            self._drops.drop(mark, run.type, "not_allowed", len(run.ids))
            self._keep(session, run, "not_allowed")
            return
        region = self._regions.get(run.type)
        if region is None:
            self._endpoint.count_drop("unknown_type")
            drops = self._drops
            mark = session.mark or drops.mark(session)
            drops.drop(mark, run.type, "unknown_type", len(run.ids))
            self._keep(session, run, "unknown_type")
        else:
            region.on_tells(session, run)

    def on_asks(self, session: Session, run: AskRun) -> None:
        """Hand asks to the region of their type, and questions of nodes to the answers."""
        permissions = session.permissions
        role, types = permissions.role, permissions.types
        region = self._regions.get(run.type)
        if region is None and run.type == NodeRpc.TYPE:
            allowed = may_ask(permissions, run.method)
        else:
            allowed = AskRun in RUNS[role] and (types is None or run.type in types)
        if not allowed:
            self._not_allowed(session, run)
            self._keep(session, run, "not_allowed")
            for corr in run.corrs:
                session.outbox.fail(
                    corr, UnknownEntityType(f"{session.name} may not ask {run.type!r}")
                )
        elif region is not None:
            region.on_asks(session, run)
        elif run.type == NodeRpc.TYPE:
            self._rpc.answer_questions(session, run)
        else:
            self._endpoint.count_drop("unknown_type")
            self._keep(session, run, "unknown_type")
            for corr in run.corrs:
                session.outbox.fail(
                    corr, UnknownEntityType(f"there is no entity type {run.type!r}")
                )

    def on_relayed(self, session: Session, message: Relayed) -> None:
        """Hand a message that another node forwards to the region of its type."""
        if Relayed not in RUNS[session.permissions.role]:
            self._not_allowed(session, message)
            self._keep_relayed(session, message, "not_allowed")
            if message.corr:
                error = UnknownEntityType(f"{session.name} may not forward messages")
                session.outbox.fail(message.corr, error)
            return
        region = self._regions.get(message.type)
        if region is not None:
            region.on_relayed(session, message)
            return
        self._endpoint.count_drop("unknown_type")
        self._keep_relayed(session, message, "unknown_type")
        if message.corr:
            session.outbox.fail(message.corr, UnknownEntityType(f"no entity type {message.type!r}"))
        else:
            mark = self._drops.mark_forwarded(session, message.via)
            self._drops.drop(mark, message.type, "unknown_type", 1)

    def _keep(self, session: Session, run: TellRun | AskRun, reason: str) -> None:
        """Keep messages that no region gets as dead letters."""
        if run.type != NodeRpc.TYPE:
            rows = zip(run.ids, run.payloads, strict=True)
            is_ask = isinstance(run, AskRun)
            self._letters.strangers(
                run.type, reason, run.method, rows, session.name, answered=is_ask
            )

    def _keep_relayed(self, session: Session, message: Relayed, reason: str) -> None:
        """Keep a forwarded message that no region gets as a dead letter."""
        rows = ((message.id, message.payload),)
        is_ask = bool(message.corr)
        self._letters.strangers(
            message.type, reason, message.method, rows, session.name, answered=is_ask
        )

    def on_flush(self, session: Session, flush: Flush) -> None:
        """Hand a flush to its region; echo one for a type that does not run here."""
        if Flush not in RUNS[session.permissions.role]:
            self._not_allowed(session, flush)
            return
        region = self._regions.get(flush.type)
        if region is not None:
            region.on_flush(session, flush)
        else:
            session.outbox.reply(flush.corr, b"")

    def on_control(self, session: Session, control: Control) -> None:
        """Hand a machine's message to the machine; count it if its sender may not send it. A
        message that no process of its role may send is not decoded: that may take long."""
        kind = class_of(control)
        if kind not in CONTROL[session.permissions.role]:
            self._not_allowed(session, f"{kind.__name__}")
            return
        message, sender = decode_control(control), session.tag
        if not may_send(
            session.permissions,
            sender,
            message,
            lambda: self._may_coordinate(sender, control.type),
        ):
            self._not_allowed(session, message)
            return
        if not (session.permissions.may_use(control.type) or isinstance(message, Goodbye)):
            self._not_allowed(session, message)
            if kind in (Describe, messages.GetShardHome):  # its sender waits for an answer
                self._describe(session, control.type)
            return
        match message:
            case Describe():
                self._describe(session, control.type)
            case Refusals():
                self._refused.record(session.name, message, self._drops.relay)
            case Goodbye(node):
                self._on_goodbye(session, node)
            case _:
                self._on_machine_message(session, control.type, message)

    def _on_goodbye(self, session: Session, node: NodeId) -> None:
        """Believe a member about a node that is, or was, a member and hosts nothing. Check a
        client's reports."""
        endpoint = self._endpoint
        if node in self._hosting_members() or node == endpoint.node:
            endpoint.count_drop("early_notice")  # its sender has lost the link before this node
        elif not endpoint.is_member(node):
            endpoint.count_drop("late_notice")  # there is nothing left to end
        elif session.permissions.role is Role.NODE:
            endpoint.departures.on_notice(node)
        elif endpoint.has_session(node):
            endpoint.departures.verify(session, node)

    def _on_machine_message(self, session: Session, name: str, message: Any) -> None:
        region, sender, kind = self._regions.get(name), session.tag, type(message)
        if region is None:
            if kind is messages.Register:
                self._describe(session, name)  # so that its node looks for another coordinator
            self._endpoint.count_drop("unknown_type")
        elif region.table is not region:
            self._not_allowed(session, message)  # the outermost type has the machines
        elif kind is messages.GetShardHome:
            has_shard = region.router.has_shard
            request = messages.GetShardHome(tuple(filter(has_shard, dict.fromkeys(message.shards))))
            if sender in self.clients:
                region.router.handle(events.MessageReceived(sender, request))
            elif request.shards:
                self._singletons[name].coordinator.received(sender, request)
        elif kind is TypeInfo:
            if not message.known:
                self._singletons[name].type_missing(sender)
        elif kind in HANDOVER:
            self._singletons[name].received(sender, message)
        elif kind in FOR_COORDINATOR:
            self._singletons[name].coordinator.received(sender, message)
        else:
            region.router.handle(events.MessageReceived(sender, message))

    def _not_allowed(self, session: Session, what: object) -> None:
        """Count a message that a session may not send."""
        self._endpoint.count_drop("not_allowed")
        name = what if isinstance(what, str) else type(what).__name__
        log.warning("dropped a %s: %s may not send it", name, session.name)

    def _describe(self, session: Session, name: str) -> None:
        may_use = session.permissions.may_use
        region = self._regions.get(name) if may_use(name) else None
        if region is None:
            usable = filter(may_use, self._regions)
            elsewhere = self._members_with(name)[:ELSEWHERE_MAX] if may_use(name) else ()
            info = TypeInfo(False, "", 0, similar=closest(name, usable), elsewhere=elsewhere)
        else:
            interface = region.entity_type.interface
            has_shard_of = region.table.entity_type.interface.shard_of is not None
            shards = 0 if has_shard_of else interface.shards
            count = region.router.region.instances
            within = tuple(ancestor.name for ancestor in ancestors(interface))
            info = TypeInfo(True, interface.layout, shards, count, interface.router, within)
        session.outbox.control(encode_control(name, info))

    def on_client(self, session: Session) -> None:
        """Send the list of hosting members to a client that has connected."""
        self.clients[session.tag] = session
        session.outbox.control(encode_control("", Members(self._hosting_members())))

    def notify_clients(self, died: tuple[NodeId, ...] = ()) -> None:
        """Send the changed list of hosting members to every client. `died` names members that
        ended without leaving: to a client they may look alive, since a machine without power
        refuses no connection."""
        members = encode_control("", Members(self._hosting_members(), died))
        for session in self.clients.values():
            session.outbox.control(members)
