"""Every error that shardbus raises.

ShardBusError
├── ConfigError            a setting, an address, an id or a declaration is wrong
│   └── LayoutDiffers        the stored table of a type is for other shards
├── ProtocolError
│   ├── LocalProtocolError   this process broke a rule
│   └── RemoteProtocolError  the peer broke a rule
├── StoreError
│   ├── StoreUnavailable     no answer in time; `.definite`: the write was certainly not applied
│   ├── StaleEpoch           a newer coordinator wrote
│   ├── StaleFence           a newer activation loaded or wrote
│   │   └── StaleActivation    the activation is over on its own node; `.what` it tried
│   ├── JournalConflict      an append comes after another entry than the journal's last
│   ├── StateTooLarge        a state above the limit, not sent to the store
│   └── ValueRefused         a replicated value of another kind, or above the limit
├── Refused                the cluster refuses this node or client
│   └── StateChanged         the stored state differs from the operator's revision
├── ReentrancyError        an entity waits for itself; `.cycle`
└── RequestError           a tell or an ask failed; `.definite`: no handler of it has begun
        ├── definite: BufferFull  MailboxFull  UnknownEntityType  Unhandled  SchemaError
        │             MessageTooLarge  StateUnreadable (an EntityFailed)
        └── not: AskTimeout  NodeLost  EntityFailed  DeliveryFailed (unless it is poison)
                 Rejection  the answer of a handler that refuses; applications subclass it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from shardbus.quantities import counted


class ShardBusError(Exception):
    """The root of all errors. `hint` names the remedy, if one is known."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle every attribute, and do not call `__init__`: its arguments differ from
        Exception's, and an error that cannot be unpickled breaks a pool of processes."""
        return _restored, (type(self), self.args, object.__getstate__(self))


def _restored(cls: type[ShardBusError], args: tuple[Any, ...], state: Any) -> ShardBusError:
    """Return the error with these attributes: a dict, or a dict and the values of slots."""
    error = cls.__new__(cls, *args)
    for values in state if isinstance(state, tuple) else (state,):
        for name, value in (values or {}).items():
            object.__setattr__(error, name, value)
    return error


class ConfigError(ShardBusError):
    """A setting, an address, an id or a declaration is invalid. Nothing was started or sent."""


class LayoutDiffers(ConfigError):
    """The application declares other shards for a type than its stored table is for."""

    def __init__(self, entity_type: str, layout: str, stored: str) -> None:
        super().__init__(
            f"{entity_type!r} is declared with the shard layout {layout!r},"
            f" the store has {stored!r}",
            hint="declare the stored layout, or stop all nodes and run"
            f" `shardbus data remove {entity_type} --store URL`",
        )
        self.entity_type, self.layout, self.stored = entity_type, layout, stored


class StatesElsewhere(ConfigError):
    """The stored states of a type are placed by another shard layout, so its nodes would not find
    them. Nothing changed."""

    def __init__(self, entity_type: str, layout: str, placed: str) -> None:
        super().__init__(
            f"the stored states of {entity_type!r} are placed by the shard layout {placed!r},"
            f" and it is declared with {layout!r}",
            hint="stop all nodes and run `shardbus data migrate APP --store URL`",
        )
        self.entity_type, self.layout, self.placed = entity_type, layout, placed


class ProtocolError(ShardBusError):
    """A rule of the protocol was broken."""


class LocalProtocolError(ProtocolError):
    """This process broke a rule: a defect, not invalid input. The state of the machine that raised
    it is unchanged."""


class RemoteProtocolError(ProtocolError):
    """The peer sent a frame that the protocol does not allow. The frame was dropped and counted;
    nothing else changed."""


class StoreError(ShardBusError):
    """The state store refused or failed."""


class StoreUnavailable(StoreError):
    """The store gave no answer in time, or takes no writes now. It is safe to send the same
    operation id again. `definite`: the store has certainly not applied the write; otherwise it may
    have."""

    def __init__(self, message: str, *, hint: str = "", definite: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.definite = definite


class StaleEpoch(StoreError):
    """The table has a newer epoch: another coordinator took over. Nothing was written; do not send
    it again."""

    def __init__(self, entity_type: str, epoch: int, stored: int) -> None:
        super().__init__(
            f"coordinator epoch {epoch} of {entity_type!r} is over: the store is at epoch {stored}"
        )
        self.entity_type, self.epoch, self.stored = entity_type, epoch, stored


class StaleFence(StoreError):
    """The stored fence is newer: the entity runs on another node. Nothing was written; this
    activation ends."""

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


class StaleActivation(StaleFence):
    """The activation that saves, asks or acts is over on its own node: it has passivated, stopped,
    moved, was cut off, or has started again after a failure or with the state of an operator. Its
    tasks may still run. Nothing was written, sent or changed; its successor is not affected.

    `what` names the method that was called.
    """

    def __init__(self, entity_type: str, entity_id: str, fence: int, what: str) -> None:
        super().__init__(entity_type, entity_id, fence, fence)
        self.what = what
        self.message = f"{what}: this activation of {entity_type!r} {entity_id!r:.100} has ended"
        self.hint = "await what a handler begins before it ends, or cancel it in on_stop"
        self.args = (self.message,)


class JournalConflict(StoreError):
    """An append comes after another entry than the last one of a journal. Nothing was written.

    `after` is the number that the append names, `last` the journal's last one.
    """

    def __init__(self, kind: str, name: str, after: int, last: int) -> None:
        super().__init__(
            f"the journal {kind!r} {name!r:.100} ends with entry {last}, not {after}",
            hint="read it again before the next append",
        )
        self.kind, self.name, self.after, self.last = kind, name, after, last


class StateTooLarge(StoreError):
    """The state is larger than `sharding.state_limit`. The store was not asked: it still has the
    state of before. Do not save this one again."""

    definite = True

    def __init__(self, entity_type: str, entity_id: str, size: int, limit: int) -> None:
        super().__init__(
            f"the state of {entity_type} {entity_id!r:.100} has {counted(size, 'byte')},"
            f" the limit is {limit}",
            hint="keep less in it, or raise state_limit, or set state_compression",
        )
        self.entity_type, self.entity_id = entity_type, entity_id
        self.size, self.limit = size, limit


class ValueRefused(StoreError):
    """A write of a replicated value was refused. Nothing was written; do not send it again.

    `reason` is `kind`: the key has a value of another kind; `size`: the value would be above
    `data.value_limit`; or `range`: a counter would be above 63 bits. `detail` has the kind that is
    stored, or the bytes that the value would have.
    """

    definite = True

    def __init__(self, key: str, reason: str, detail: str = "", limit: int = 0) -> None:
        match reason:
            case "kind":
                text, hint = f"it is a {detail}", "update it as that, or delete it first"
            case "size":
                text = f"it would have {counted(int(detail), 'byte')}, the limit is {limit}"
                hint = "keep less in it, or raise data.value_limit"
            case _:
                text, hint = "the counter would be above 63 bits", ""
        super().__init__(f"the value {key!r:.100} was not written: {text}", hint=hint)
        self.key, self.reason, self.detail, self.limit = key, reason, detail, limit


class Refused(ShardBusError):
    """The cluster refuses this node or client: its cluster name, protocol or settings differ."""


class StateChanged(Refused):
    """The stored state of an entity is not of the revision that the operator has read. Nothing was
    written: read it again."""


class ReentrancyError(ShardBusError):
    """An entity asked an entity that waits, directly or through others, for its answer. The ask
    that would have closed the cycle was not handled.

    `cycle` names the entities as (type, id); each asks the next, and the last is the first again.
    """

    def __init__(self, cycle: Sequence[tuple[str, str]]) -> None:
        self.cycle = tuple(cycle)
        path = " -> ".join(f"{type} {id!r}" for type, id in self.cycle)
        super().__init__(f"a cycle of asks: {path}", hint="tell instead of ask in one place")


class RequestError(ShardBusError):
    """A tell or an ask failed. `definite`: no handler of it has begun, so it is safe to send the
    message again. Read it of the error and not of its class: an error of a class that is definite
    is not, if a handler has begun."""

    definite: bool = False


def is_definite(error: BaseException) -> bool:
    """True if no handler has begun of the ask that failed with this error."""
    return isinstance(error, RequestError) and error.definite


class BufferFull(RequestError):
    """The buffer for shards without a home is full, or the send buffer is. Definite."""

    definite = True


class MailboxFull(RequestError):
    """The mailbox of the entity is full. Definite."""

    definite = True


class UnknownEntityType(RequestError):
    """No node of the cluster hosts this type. Definite."""

    definite = True


class Unhandled(RequestError):
    """No entity took the message: there is no handler for it, or the entity stopped, or it was
    dropped on the way. Definite, unless a handler began and declined it by `self.unhandled`."""

    definite = True
    declined = False
    """`self.unhandled` has raised it, in the process of the entity. An error that a handler gets
    from an entity that it asks never is."""


class SchemaError(RequestError):
    """The message does not fit the declaration of the handler; the text names the field path.
    Definite."""

    definite = True


class KeyReused(RequestError):
    """The key of an ask was used for another request at this entity: another handler, or other
    arguments. The handler was not called, and the result of the first request is not given away.
    Definite: use a key for one request, and the same one for its repeats."""

    definite = True


class MessageTooLarge(RequestError):
    """The message is larger than the limit. Definite."""

    definite = True


class AskTimeout(RequestError):
    """No answer came by the deadline. The handler may run, have run, or never run."""


class NodeLost(RequestError):
    """The node that received the message died before it answered. The handler may have run."""


class EntityFailed(RequestError):
    """The handler raised, or a start did that is not tried before the deadline of the ask: then the
    text says that the entity does not start. `type` and `message` are the exception's. Acts of the
    handler before it raised are not undone."""

    def __init__(self, type: str, message: str) -> None:
        super().__init__(f"{type}: {message}")
        self.type = type
        self.message = message

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class StateUnreadable(EntityFailed):
    """The entity has not started, because no version of its class can read its stored state. The
    handler did not run. To send again is useless until the state or the class is mended.

    `entity_type` and `entity_id` name the entity, `version` is the stored state's, and `field` the
    path of the value that does not fit, empty if it is none.
    """

    definite = True

    def __init__(
        self,
        message: str,
        *,
        entity_type: str = "",
        entity_id: str = "",
        version: int = 0,
        field: str = "",
    ) -> None:
        super().__init__("StateUnreadable", message)
        self.entity_type, self.entity_id = entity_type, entity_id
        self.version, self.field = version, field

    def __str__(self) -> str:
        return self.message


class DeliveryFailed(RequestError):
    """A delivery is given up. `reason` is one of

        poison    its handler has failed as often as `delivery.attempts` says; it is skipped, and
                  definite: none of these attempts has stored anything
        expired   it was not confirmed within its time; a copy of it may still be handled
        stale     another process has opened the outbox; that one delivers it
        closed    the outbox, or its client, is closed; the next opener delivers what it has taken
        unknown   the outbox had no answer from the cluster, and takes nothing any more

    `entity_type` and `entity_id` name the receiver, `why` has the text of the last error.
    """

    def __init__(
        self,
        message: str,
        *,
        entity_type: str = "",
        entity_id: str = "",
        reason: str = "",
        why: str = "",
        definite: bool = False,
    ) -> None:
        super().__init__(f"{message}: {why}" if why else message)
        self.entity_type, self.entity_id = entity_type, entity_id
        self.reason, self.why, self.definite = reason, why, definite


def advice_of(error: RequestError) -> str:
    """Return whether it is safe to send a message again, for an error that may pass, or whose class
    alone would say that it is; else an empty text."""
    if error.definite:
        passes = isinstance(error, BufferFull | MailboxFull)
        return "no handler has begun: it is safe to send it again" if passes else ""
    if isinstance(error, AskTimeout | NodeLost) or type(error).definite:
        return "a handler may have run: send it again only if twice does no harm"
    return ""


class Rejection(RequestError):
    """The handler ran and refuses: an answer, not a failure. The entity goes on as it is, and to
    send the message again is useless until something changes.

    An application declares its own as dataclasses, and handlers raise them:

        @dataclass
        class OutOfStock(Rejection):
            left: int

    The asker gets that very class with its fields, if it has imported the class. Otherwise it gets
    a `Rejection` with the name of the class as `type` and its text as `message`.
    """

    def __init__(self, message: str = "", *, type: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.type = type or self.__class__.__name__

    if TYPE_CHECKING:
        type: str
        wire_form: tuple[str, bytes] | None
    else:

        def __getattr__(self, name: str) -> Any:
            """Return the attributes that `__init__` would have set, in which a dataclass does not
            call this one. Class attributes would become defaults of fields with these names."""
            match name:
                case "type":
                    return self.__class__.__name__
                case "hint":
                    return ""
                case "message":
                    shown = fields(self) if is_dataclass(self) else ()
                    return ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in shown)
                case "wire_form":
                    return None
            raise AttributeError(f"{self.__class__.__name__!r} object has no attribute {name!r}")

    def __str__(self) -> str:
        text = str(self.message)
        is_own_class = self.type == self.__class__.__name__
        return text if is_own_class else f"{self.type}: {text}" if text else self.type
