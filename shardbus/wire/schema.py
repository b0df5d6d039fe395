"""Users' messages as bytes, by the types that handlers declare.

An entity type has *methods*: its handlers by name, and the messages of `receive`: "" for plain
values, ":Name" for objects of a registered class. The sender encodes any value; the receiver
decodes it with the handler's declared types, and only there. A handler's arguments are a
MessagePack array, so its first byte gives their number, and trailing defaults may be left out.

Values that can be sent: None, bool, int of 64 bits, float, str, bytes, list, tuple, dict, and
dataclasses, `msgspec.Struct` and pydantic models. A type that cannot be sent is refused when the
class is declared, with the path of the field.

Source: S0.3, S2.12-S2.14, S4.3, S4.4; B.140.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import msgspec

from shardbus.errors import ConfigError, SchemaError
from shardbus.sharding.instances import Instances
from shardbus.wire.instances import ReadAll, reader_of_many

ARGUMENTS_MAX = 15
ONE_ARGUMENT = 0x91
"""First byte of an array of one argument."""
_PLAIN: tuple[type, ...] = (bytes, str, int, float, bool, type(None), list, tuple, dict)
Decode = Callable[[bytes], Any]
Extractor = Callable[[Any], "str | tuple[str, object] | None"]
"""Returns the entity id of a message, or (entity id, message for the entity); None: not known."""


def _to_wire(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"a {type(value).__name__} cannot travel")
    return dump()


def _from_wire(wanted: type, value: object) -> object:
    if wanted is object:
        return value
    return wanted.model_validate(value)  # type: ignore[attr-defined]


_encode = pack_value = msgspec.msgpack.Encoder(enc_hook=_to_wire).encode
"""`encode_value` for callers that handle msgspec's own errors."""
_decode_any = msgspec.msgpack.Decoder().decode


def encode_value(value: object) -> bytes:
    """Encode a message or a reply.

    Raises:
        SchemaError: a value cannot be sent. Nothing was sent.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise SchemaError(f"cannot send this: {e}") from None


def decode_value(payload: bytes) -> Any:
    """Decode a plain value.

    Raises:
        SchemaError: the payload is not MessagePack.
    """
    try:
        return _decode_any(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        raise SchemaError(f"not a message: {e}") from None


def decoder(wanted: Any) -> Decode:
    """Return a function from bytes to `wanted`. It raises `msgspec.ValidationError` with the path
    of the value that does not fit."""
    if wanted in (Any, object, inspect.Parameter.empty, inspect.Signature.empty):
        return _decode_any
    if wanted is None:
        wanted = type(None)
    return msgspec.msgpack.Decoder(wanted, dec_hook=_from_wire).decode


def is_message_class(cls: object) -> bool:
    """True if objects of the class are sent under its name."""
    if not isinstance(cls, type):
        return False
    return is_dataclass(cls) or issubclass(cls, msgspec.Struct) or hasattr(cls, "model_validate")


_methods_of_class: dict[type, str] = dict.fromkeys(_PLAIN, "")


def method_of(message: object) -> str:
    """Return the method for `message`: "" for a plain value, ":Name" for an object.

    Raises:
        SchemaError: the message cannot be sent.
    """
    cls = type(message)
    method = _methods_of_class.get(cls)
    if method is None:
        if not is_message_class(cls):
            plain = isinstance(message, _PLAIN)
            if not plain:
                raise SchemaError(f"a {cls.__name__} cannot travel")
        method = f":{cls.__name__}" if is_message_class(cls) else ""
        _methods_of_class[cls] = method
    return method


def unreadable(method: str, decoders: Mapping[int, Decode], error: BaseException) -> SchemaError:
    """Return the error for a payload that does not fit a method."""
    if decoders and isinstance(error, LookupError):
        counts = sorted(first & 0x0F for first in decoders)
        return SchemaError(f"{method} takes {counts[0]} to {counts[-1]} arguments")
    return SchemaError(f"{method or 'message'}: {error}")


def check_type(where: str, wanted: Any) -> None:
    """Check that a declared type can be decoded.

    Raises:
        ConfigError: it cannot; the message has `where` and the path below it.
    """
    if wanted in (Any, object, inspect.Parameter.empty):
        return
    try:
        _check_info(where, msgspec.inspect.type_info(wanted), set())
        decoder(wanted)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{where} cannot be a message type: {e}") from None


def _check_info(where: str, info: Any, seen: set[int]) -> None:
    if id(info) in seen:
        return
    seen.add(id(info))
    match info:
        case msgspec.inspect.CustomType(cls=cls):
            if cls is not object and not hasattr(cls, "model_validate"):
                raise ConfigError(
                    f"{where} cannot be a message type: {cls.__name__} does not travel",
                    hint="use plain values, dataclasses, msgspec.Struct or pydantic models",
                )
        case msgspec.inspect.DataclassType(cls=cls) if issubclass(cls, BaseException):
            # Decoding would make an exception without calling its class, which Python cannot print.
            raise ConfigError(
                f"{where} cannot be a message type: {cls.__name__} is an exception",
                hint="raise it in a handler, if it is a shardbus.Rejection",
            )
        case (
            msgspec.inspect.StructType(fields=fields) | msgspec.inspect.DataclassType(fields=fields)
        ):
            for f in fields:
                _check_info(f"{where}.{f.name}", f.type, seen)
        case (
            msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item)
        ):
            _check_info(f"{where}[...]", item, seen)
        case msgspec.inspect.TupleType(item_types=items):
            for i, item in enumerate(items):
                _check_info(f"{where}[{i}]", item, seen)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            _check_info(f"{where} key", key, seen)
            _check_info(f"{where}[...]", value, seen)
        case msgspec.inspect.UnionType(types=types):
            for t in types:
                _check_info(where, t, seen)
        case _:
            pass


@dataclass(frozen=True, slots=True)
class Method:
    """The wire form of one handler: how its arguments and its result are encoded."""

    name: str
    parameters: tuple[inspect.Parameter, ...]
    decoders: Mapping[int, Decode]
    """First byte of the argument array to the function that decodes an array of that length."""
    decode_result: Decode
    counts: frozenset[int]
    """Possible numbers of positional arguments."""
    read_all: ReadAll | None = None
    """Decodes the only argument of many calls, where that is faster than one by one."""

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Encode the arguments of a call.

        Raises:
            TypeError: they do not fit the signature, as for any Python call.
            SchemaError: a value cannot be sent.
        """
        if kwargs or len(args) not in self.counts:
            args = self._bind(args, kwargs)
        return encode_value(args)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        bound = inspect.Signature(self.parameters).bind(*args, **kwargs)
        if kwargs:
            bound.apply_defaults()
        return bound.args


def method(name: str, function: Callable[..., Any]) -> Method:
    """Return the wire form of a handler `function(self, ...)`.

    Raises:
        ConfigError: a parameter cannot be sent, or there are more than 15.
    """
    hints = _hints(function)
    parameters = tuple(inspect.signature(function).parameters.values())[1:]
    if len(parameters) > ARGUMENTS_MAX:
        raise ConfigError(
            f"handler {name} has {len(parameters)} parameters, at most {ARGUMENTS_MAX}"
        )
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    types: list[Any] = []
    for p in parameters:
        if p.kind not in kinds:
            raise ConfigError(f"handler {name}: parameter {p.name} must be positional")
        wanted = hints.get(p.name, Any)
        check_type(f"handler {name}: {p.name}", wanted)
        types.append(Any if wanted is object else wanted)
    required = sum(p.default is inspect.Parameter.empty for p in parameters)
    decoders: dict[int, Decode] = {}
    for n in range(required, len(parameters) + 1):
        decoders[0x90 | n] = decoder(tuple[tuple(types[:n])]) if n else decoder(tuple[()])  # type: ignore[misc]
    result = hints.get("return", Any)
    check_type(f"handler {name}: return", result)
    counts = frozenset(range(required, len(parameters) + 1))
    alone = counts == {1}
    read_all = reader_of_many(types[0], decoder, argument=True) if alone else None
    return Method(name, parameters, decoders, decoder(result), counts, read_all)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as e:
        raise ConfigError(
            f"{function.__qualname__}: an annotation is not known where it is declared: {e}"
        ) from None


@dataclass(slots=True)
class Interface:
    """The wire form of one entity type: its name, its methods, the messages of `receive`, and how
    ids map to shards."""

    name: str
    shards: int
    layout: str
    """Name of the shard function: `crc32/<shards>`, or `<function>:<number>/<shards>` for a type's
    own, where the number stands for what the function computes."""
    methods: dict[str, Method] = field(default_factory=dict)
    messages: dict[str, Decode] = field(default_factory=dict)
    """Method of `receive` to the function that decodes its message."""
    shard_of: Callable[[str], str] | None = None
    """The type's own shard function; None: the default."""
    extract_entity_id: Extractor | None = None
    """Returns the entity of a message; None: the type declares none."""
    instances: Instances | None = None
    """How many instances each entity has; None: an entity runs once."""
    router: str = ""
    """How senders choose among the instances; empty without instances."""
    within: Interface | None = None
    """The type whose entities the entities of this type live within (`routing.paths`)."""


def message_decoders(
    receive: Callable[..., Any] | None,
    classes: Iterable[type],
    behaviours: Iterable[Callable[..., Any]] = (),
) -> dict[str, Decode]:
    """Return the decoders of the messages of `receive(self, message)` and of the behaviours that
    may replace it: the plain values and the classes in their annotations, and the given classes."""
    if receive is None:
        return {}
    named: dict[str, Decode] = {}
    members = _members(receive, behaviours)
    if Any in members or object in members:
        members = [Any, *(member for member in members if is_message_class(member))]
    for cls in (*members, *classes):
        if is_message_class(cls):
            check_type(f"message {cls.__name__}", cls)
            named[f":{cls.__name__}"] = decoder(cls)
    plain = [member for member in members if not is_message_class(member)]
    if not plain and len(members) > 1:
        return named  # a plain value could be any of the classes
    rest: Any = typing.Union[tuple(plain or members)]  # noqa: UP007  (made at run time)
    check_type("receive: message", rest)
    return {"": decoder(rest), **named}


def message_readers(
    receive: Callable[..., Any],
    classes: Iterable[type],
    behaviours: Iterable[Callable[..., Any]] = (),
) -> dict[str, ReadAll]:
    """Return the functions that decode many messages of one class, by method, where that is faster
    than one by one."""
    members = (*_members(receive, behaviours), *classes)
    taken = {f":{cls.__name__}": cls for cls in members if is_message_class(cls)}
    readers = {name: reader_of_many(c, decoder, argument=False) for name, c in taken.items()}
    return {name: read for name, read in readers.items() if read is not None}


def _members(receive: Callable[..., Any], behaviours: Iterable[Callable[..., Any]]) -> list[Any]:
    """Return the annotations of `receive` and of each behaviour."""
    return list(dict.fromkeys(w for taker in (receive, *behaviours) for w in _wanted(taker)))


def _wanted(taker: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the types that the message parameter of a method may have."""
    parameters = tuple(inspect.signature(taker).parameters)
    wanted = _hints(taker).get(parameters[1], Any) if len(parameters) > 1 else Any
    is_union = typing.get_origin(wanted) in (typing.Union, types.UnionType)
    return typing.get_args(wanted) if is_union else (wanted,)
