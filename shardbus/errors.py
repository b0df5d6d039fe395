"""Every error that shardbus raises, on one page.

ShardBusError
├── ConfigError            a setting, an address, an id or a declaration is wrong
├── ProtocolError
│   ├── LocalProtocolError   this process broke a rule
│   └── RemoteProtocolError  the peer did
├── StoreError
│   ├── StoreUnavailable     no answer in time: the write may or may not have been applied
│   ├── StaleEpoch           a newer coordinator wrote
│   └── StaleFence           a newer activation loaded or wrote
├── Refused                the cluster does not take this node or client
├── ReentrancyError        an entity waits for itself; `.cycle`
└── RequestError           a tell or an ask failed; `.definite`: the handler surely did not run
        ├── definite: BufferFull  MailboxFull  UnknownEntityType  Unhandled  SchemaError
        │             MessageTooLarge
        └── not: AskTimeout  NodeLost  EntityFailed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class ShardBusError(Exception):
    """The root. `hint` says what to do about it, where that is known."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ConfigError(ShardBusError):
    """A setting, an address, an id or a declaration is wrong. Nothing was started or sent."""


class ProtocolError(ShardBusError):
    """A rule of the protocol was broken."""


class LocalProtocolError(ProtocolError):
    """This process broke a rule: a defect, not bad input. The state of the machine that raised it
    is unchanged."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol does not allow. The frame was dropped and counted; nothing
    else changed."""


class StoreError(ShardBusError):
    """The state store refused or failed."""


class StoreUnavailable(StoreError):
    """No answer in time. The write may or may not have been applied; the same operation id may
    safely be sent again."""


class StaleEpoch(StoreError):
    """The table carries a newer epoch: another coordinator took over. Nothing was written; do not
    try again."""

    def __init__(self, entity_type: str, epoch: int, stored: int) -> None:
        super().__init__(
            f"coordinator epoch {epoch} of {entity_type!r} is over: the store is at epoch {stored}"
        )
        self.entity_type, self.epoch, self.stored = entity_type, epoch, stored


class StaleFence(StoreError):
    """The stored fence is newer: the entity lives elsewhere. Nothing was written; this activation
    is over."""

    def __init__(self, entity_type: str, entity_id: str, fence: int, stored: int) -> None:
        super().__init__(
            f"fence {fence} of {entity_type!r} {entity_id!r} is over: the store is at {stored}"
        )
        self.entity_type, self.entity_id, self.fence, self.stored = (
            entity_type,
            entity_id,
            fence,
            stored,
        )


class Refused(ShardBusError):
    """The cluster does not take this node or client: another cluster name, protocol or setting."""


class ReentrancyError(ShardBusError):
    """An entity asked an entity that waits, directly or through others, for its answer. The ask
    that would have closed the circle was not handled.

    `cycle` names the entities as (type, id), each asking the next; the last is the first again."""

    def __init__(self, cycle: Sequence[tuple[str, str]]) -> None:
        self.cycle = tuple(cycle)
        path = " -> ".join(f"{type} {id!r}" for type, id in self.cycle)
        super().__init__(f"a cycle of asks: {path}", hint="tell instead of ask in one place")


class RequestError(ShardBusError):
    """A tell or an ask failed. `definite`: the handler surely did not run, so sending again cannot
    do a thing twice."""

    definite: ClassVar[bool] = False


class BufferFull(RequestError):
    """The buffer for shards without a home, or the send buffer, is full. Definite."""

    definite = True


class MailboxFull(RequestError):
    """The entity has too many messages waiting. Definite."""

    definite = True


class UnknownEntityType(RequestError):
    """No node of the cluster hosts this type. Definite."""

    definite = True


class Unhandled(RequestError):
    """The entity has no handler for the message. Definite."""

    definite = True


class SchemaError(RequestError):
    """The message does not fit what the handler declares; the text names the field path.
    Definite."""

    definite = True


class MessageTooLarge(RequestError):
    """The message is over the limit. Definite."""

    definite = True


class AskTimeout(RequestError):
    """No answer within the deadline. The handler may run, have run, or never run."""


class NodeLost(RequestError):
    """The node that had the message died before it answered. The handler may have run."""


class EntityFailed(RequestError):
    """The handler raised, or a start that is not tried again. `type` and `message` are those of its
    exception; what it had done before, it did."""

    def __init__(self, type: str, message: str) -> None:
        super().__init__(f"{type}: {message}")
        self.type = type
        self.message = message

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type
