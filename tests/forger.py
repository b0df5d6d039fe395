"""A stranger with raw ZeroMQ sockets who forges frames of a node or a client. Bodies are written as
plain values, not by the classes of the code under test, so that they fit other builds too."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import zmq
from msgspec.structs import fields

from shardbus.ids import NodeId
from shardbus.membership.member import Member
from shardbus.membership.messages import (
    PROTOCOL,
    Greeting,
    InitAck,
    InitJoin,
    InitNack,
    Join,
    JoinRefused,
    Welcome,
)
from shardbus.membership.singleton import messages as handover
from shardbus.sharding import messages
from shardbus.sharding.messages import Home
from shardbus.sharding.table_state import pack_homes
from shardbus.wire import gossip
from shardbus.wire.batch import (
    PROTOCOL_VERSION,
    AskRun,
    Control,
    FrameType,
    Relayed,
    TellRun,
    cluster_tag,
    encode_batch,
    pack_header,
    read_header,
)
from shardbus.wire.control import Members, Refusals, TypeInfo, encode_control
from shardbus.wire.schema import encode_value

CLUSTER = "lab"
ALL_CONTROL = (*messages.MESSAGES, *handover.MESSAGES, Members, Refusals, TypeInfo)
CLIENTS_MAY = (messages.GetShardHome,)
HUGE = 2**60


def sample(cls: type, node: NodeId, shard: str = "1") -> object:
    """A message of this class, whose numbers are high enough to win against true ones."""
    home = Home(shard, node, HUGE)
    values: dict[str, Any] = {
        "node": node,
        "coordinator": node,
        "proxy": False,
        "layout": "crc32/24",
        "hosted": (home,),
        "homes": (home,),
        "behind": (),
        "left": (),
        "shards": (shard,),
        "loads": {shard: 1e9},
        "spare": 0.1,
        "rate": 1e9,
        "epoch": 2**27,
        "reason": "forged",
        "nodes": (node,),
        "died": (node,),
        "counts": (("page", "forged", 1),),
        "known": False,
        "count": 3,
        "mode": "ordered",
        "sender": node,
        "senders": (node,),
        "moves": (messages.ShardMove(home, home._replace(fence=HUGE + 1)),),
        "move": messages.ShardMove(home, home._replace(fence=HUGE + 1)),
        "entities": (messages.CarriedEntity("page", "x", None, b"forged"),),
        "version": 2**53,
    }
    values |= {"shards": 1} if cls is TypeInfo else {}
    values |= {"homes": pack_homes((home,), (node,))} if cls is messages.TableState else {}
    values |= {f.name: f.default for f in fields(cls) if f.name not in values}
    assert msgspec.NODEFAULT not in values.values(), (
        f"a forged {cls.__name__} needs a value of each field"
    )
    return cls(**{field.name: values[field.name] for field in fields(cls)})


class Forger:
    """One connection to a node's ROUTER. `target`: the node's id."""

    def __init__(
        self,
        target: NodeId,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        cluster: str = CLUSTER,
    ) -> None:
        self.target, self.cluster = target, cluster
        self.context: zmq.Context[zmq.Socket[bytes]] = context or zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(f"tcp://{target.host}:{target.port}")
        self.secret, self.uid, self.seq = os.urandom(16), 0, 0

    def close(self) -> None:
        self.context.destroy(0)

    def send(self, kind: FrameType, body: bytes, *, meant: int | None = None, seq: int = 0) -> None:
        """Send one frame."""
        to = self.target.uid if meant is None else meant
        tag = cluster_tag(self.cluster)
        head = pack_header(PROTOCOL_VERSION, kind, tag, self.uid, to, seq, 0)
        self.socket.send_multipart([head, body])

    def receive(self, kind: FrameType, within_ms: int = 20_000) -> bytes:
        """Return the body of the next frame of this type."""
        while self.socket.poll(within_ms):
            head, body = self.socket.recv_multipart()
            if read_header(head).kind == kind:
                return body
        raise AssertionError(f"no {kind.name} came")

    def hello(
        self, name: str, uid: int, node: NodeId | None, *, session: int = 1, secret: bytes = b""
    ) -> None:
        """Say HELLO under any name."""
        self.uid = uid
        fields = [self.cluster, name, list(node) if node else None, session, True, secret]
        self.send(FrameType.HELLO, msgspec.msgpack.encode(fields), meant=0)

    def become_client(self) -> None:
        """Open a session as a client does."""
        uid = self._own_uid()
        self.hello(f"client#{uid:016x}", uid, None, secret=self.secret)
        self.receive(FrameType.WELCOME)

    def become_node(self, host: str = "127.0.0.1", port: int = 1) -> NodeId:
        """Open a session as a node that is no member."""
        node = NodeId(host, port, self._own_uid())
        self.hello(str(node), node.uid, node, secret=self.secret)
        self.receive(FrameType.WELCOME)
        return node

    def _own_uid(self) -> int:
        from hashlib import blake2b  # as docs/security.md describes it

        return int.from_bytes(blake2b(self.secret, digest_size=8).digest(), "big")

    def data(self, *runs: object) -> None:
        """Send a batch."""
        self.seq += 1
        self.send(FrameType.DATA, encode_batch(list(runs)), seq=self.seq)

    def control(self, message: object, entity_type: str = "page") -> None:
        """Send a control message."""
        self.data(encode_control(entity_type, message))

    def membership(self, sender: NodeId, message: object, *, meant: int | None = None) -> None:
        """Send a membership message in the name of `sender`."""
        body = msgspec.msgpack.encode([list(sender), gossip.encode(message)])  # type: ignore[arg-type]
        self.send(FrameType.MEMBERSHIP, body, meant=meant)


def greeting() -> Greeting:
    """A greeting that agrees with everyone: no setting is compared."""
    return Greeting(CLUSTER, PROTOCOL, {})


def join(node: NodeId) -> Join:
    """A Join without a cookie."""
    return Join(greeting(), Member(node, gossip_port=1))


def answers(node: NodeId) -> list[object]:
    """Messages that only a seed sends."""
    from shardbus.membership.gossip import Gossip

    state = Gossip().with_members(node, Member(node, 1))
    return [JoinRefused("forged"), InitNack(), InitAck(greeting()), Welcome(state)]


def init_join() -> InitJoin:
    """The first question of a joining node."""
    return InitJoin(greeting())


def question(name: str, *arguments: object) -> AskRun:
    """A question of the kind that nodes ask each other."""
    return AskRun("$node", name, 5000, [""], [encode_value(arguments)], [1])


def relayed() -> Relayed:
    """A message that another node would have forwarded."""
    return Relayed("page", "1", "page-1", "hit", encode_value((1, 1)), 0, 0, 1)


def unknown_control() -> Control:
    """A control message of no class."""
    return Control("Nothing", "page", b"")


def tell() -> TellRun:
    """A tell that any client may send."""
    return TellRun("page", "hit", ["page-1"], [encode_value((1, 1))])
