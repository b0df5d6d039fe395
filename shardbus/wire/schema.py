"""Users' messages as bytes, by the types that handlers declare.

An entity type has *methods*: its handlers by name, and the messages of `receive`: "" for plain
values, ":Name" for objects of a registered class. The sender encodes any value; the receiver
decodes it with the handler's declared types, and only there. A handler's arguments are a
MessagePack array, so its first byte gives their number, and trailing defaults may be left out.

Values that can be sent: None, bool, int of 64 bits, float, str, bytes, list, tuple, dict, and
dataclasses, `msgspec.Struct` and pydantic models. A type that cannot be sent is refused when the
class is declared, with the path of the field. A value that would arrive as something else is
refused when it is sent (`shapes`). A sender that has only a handler's name sends plain forms, and
the receiver's types decide.

Source: S0.3, S2.12-S2.14, S4.3, S4.4; B.140.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import msgspec

from shardbus.error_text import class_name, plain, shown
from shardbus.errors import ConfigError, SchemaError
from shardbus.sharding.instances import Instances
from shardbus.tasks.interrupts import raise_interrupt, raise_signalled
from shardbus.wire.batch import METHOD_MAX
from shardbus.wire.generic_bases import Bindings, bound, variables_of
from shardbus.wire.instances import ReadAll, reader_of_many
from shardbus.wire.misfit import Misfit, described, text_of
from shardbus.wire.nesting import NESTING_MAX, check_nesting
from shardbus.wire.places import located
from shardbus.wire.plain_values import SCALARS, check_plain, is_flat
from shardbus.wire.shapes import NO_CHECK, UNTYPED, Check, Shape, class_of, shape_of, taken_classes
from shardbus.wire.unchecked_bounds import check_bounds
from shardbus.wire.values import Pack, from_wire, is_model, pack_whole
from shardbus.wire.values import pack_sent as pack_value

ARGUMENTS_MAX = 15
ARGUMENTS_NESTING_MAX = NESTING_MAX + 1
"""Levels of arguments: they are in an array of their own."""
ONE_ARGUMENT = 0x91
"""First byte of an array of one argument."""
IMPORTED = "import what it names, not only for type checkers"
"""The remedy for an annotation that names something unknown."""
_PLAIN: tuple[type, ...] = (bytes, str, int, float, bool, type(None), list, tuple, dict)
Decode = Callable[[bytes], Any]
Extractor = Callable[[Any], "str | tuple[str, object] | None"]
"""Returns the entity id of a message, or (entity id, message for the entity); None: not known."""


_decode_any = msgspec.msgpack.Decoder().decode
_ANY = (Any, object, inspect.Parameter.empty, inspect.Signature.empty)


def encode_value(value: object) -> bytes:
    """Encode an answer or a state, each value by its own class. The receiver decides the arriving
    types: without a declared type there, a set is a list and a dataclass a dict.

    Raises:
        SchemaError: a value cannot be sent. Nothing was sent.
    """
    try:
        payload = pack_whole(value)
        if len(payload) > NESTING_MAX:
            check_nesting(payload)
    except BaseException as e:  # a class of the application's may raise anything
        raise_signalled(e)
        raise SchemaError(f"cannot send this: {described(e)}") from None
    return payload


def encode_arguments(args: tuple[Any, ...]) -> bytes:
    """Encode the arguments of a handler that is known by its name alone: its annotations decide the
    arriving types.

    Raises:
        SchemaError: a value cannot be sent. Nothing was sent.
    """
    try:
        if len(args) == 1 and type(args[0]) in SCALARS:  # most have one
            return pack_value(args)
        _check_objects(args)
        payload = pack_value(args)
        if len(payload) > NESTING_MAX:
            check_nesting(payload, ARGUMENTS_NESTING_MAX)
    except BaseException as e:  # a class of the application's may raise anything
        raise_signalled(e)
        raise SchemaError(f"cannot send this: {described(e)}") from None
    return payload


def _check_objects(value: Any) -> None:
    """Check the objects in a value without a declared type, each by its own class. Raises Misfit,
    or a class's own error."""
    kind = type(value)
    if kind in SCALARS:
        return
    if kind is dict:
        value = value.values()
    elif kind not in (list, tuple, set, frozenset):
        check = form_of(value).check if is_message_class(kind) else None
        if check is not None:
            check(value)
        return
    for inner in value:
        _check_objects(inner)


def decode_value(payload: bytes) -> Any:
    """Decode a plain value.

    Raises:
        SchemaError: the payload is not MessagePack, or nested too deep.
    """
    try:
        if len(payload) > NESTING_MAX:
            check_nesting(payload, ARGUMENTS_NESTING_MAX)
        return _decode_any(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, TypeError) as e:
        raise SchemaError(f"not a message: {text_of(e)}") from None


def decoder(target: Any) -> Decode:
    """Return a function from bytes to `target`. It raises `msgspec.ValidationError` with the path
    of the value that does not fit, and SchemaError for an error in the code of a class."""
    if target in _ANY:
        return decode_any
    if target is None:
        target = type(None)
    decode = msgspec.msgpack.Decoder(target, dec_hook=from_wire).decode
    shape = shape_of("a value", target)
    return _guarded(decode) if shape.nests or shape.runs_code else decode


def _guarded(decode: Decode) -> Decode:
    """Return the function that decodes values which nest, or whose classes run code."""

    def read(payload: bytes) -> Any:
        try:
            if len(payload) > NESTING_MAX:
                check_nesting(payload, ARGUMENTS_NESTING_MAX)
            return decode(payload)
        except msgspec.MsgspecError:
            raise
        except BaseException as e:  # a class of the application's may raise anything
            raise_interrupt(e)
            raise SchemaError(described(e)) from None

    return read


decode_any = _guarded(_decode_any)
"""Decode a value without a declared type. Raises as the functions of `decoder`."""


def packer(shape: Shape, pack: Pack) -> Pack:
    """Return the function that encodes values of a declared type, or raises anything."""
    check, nests = shape.check, shape.nests
    if check is None and not nests:
        return pack

    def plain(value: Any) -> bytes:
        return pack(value) if is_flat(value) else checked(value)

    def checked(value: Any) -> bytes:
        if check is not None:
            check(value)
        payload = pack(value)
        if nests and len(payload) > NESTING_MAX:
            check_nesting(payload)
        return payload

    return plain if check is check_plain else checked


def argument_packer(names: Sequence[str], shapes: Sequence[Shape], required: int) -> Pack:
    """Return the function that encodes the arguments of a handler, of which `required` are needed,
    or raises anything."""
    nests = any(shape.nests for shape in shapes)
    checks = [
        (n, f".{name}", shape.check)
        for n, (name, shape) in enumerate(zip(names, shapes, strict=True))
        if shape.check is not None
    ]
    if not checks and not nests:
        return pack_value

    def checked(args: tuple[Any, ...]) -> bytes:
        for n, place, check in checks:
            if n < len(args):
                try:
                    check(args[n])
                except Misfit as misfit:
                    raise misfit.within(place) from None
        payload = pack_value(args)
        if nests and len(payload) > ARGUMENTS_NESTING_MAX:
            check_nesting(payload, ARGUMENTS_NESTING_MAX)
        return payload

    if len(shapes) != 1 or required != 1 or not (taken := taken_classes(shapes[0].check)):
        return checked

    def one_argument(args: tuple[Any, ...]) -> bytes:
        return pack_value(args) if type(args[0]) in taken else checked(args)

    def one_plain(args: tuple[Any, ...]) -> bytes:
        flat = type(args[0]) in taken or is_flat(args[0])
        return pack_value(args) if flat else checked(args)

    return one_plain if shapes[0].check is check_plain else one_argument


def answer_encoder(shape: Shape) -> Pack:
    """Return the function that encodes a handler's result, or raises SchemaError."""
    pack, taken = packer(shape, pack_whole), taken_classes(shape.check)

    def encode(value: Any) -> bytes:
        try:
            return pack_whole(value) if type(value) in taken else pack(value)
        except BaseException as e:  # a class of the application's may raise anything
            raise_interrupt(e)
            raise _refusal("the answer", located(e, value)) from None

    return encode


encode_plain_answer = answer_encoder(UNTYPED)
"""Encode an answer without a declared type."""


def encoder(where: str, pack: Pack) -> Pack:
    """Return a function like `pack` that raises SchemaError, with the place, for whatever that
    raises."""

    def encode(value: Any) -> bytes:
        try:
            return pack(value)
        except BaseException as e:  # a class of the application's may raise anything
            raise_signalled(e)
            raise _refusal(where, located(e, value)) from None

    return encode


def _refusal(where: str, error: BaseException) -> SchemaError:
    """Return the error for a value that cannot be sent or stored."""
    place = f"{where}{error.path}" if isinstance(error, Misfit) else where
    why = error.reason if isinstance(error, Misfit) else described(error)
    return SchemaError(f"cannot send this: {place}: {why}")


def is_message_class(cls: object) -> bool:
    """True if objects of the class are sent under its name."""
    if not isinstance(cls, type):
        return False
    return is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_model(cls)


class MessageForm(msgspec.Struct, frozen=True):
    """How the messages of one class travel."""

    method: str
    """"" for plain values, ":Name" for objects."""
    check: Check | None
    """Raises Misfit for a message that would arrive as something else."""
    pack: Pack
    """Encodes one, or raises anything."""
    encode: Pack
    """The same, and raises SchemaError."""


_forms: dict[type, MessageForm] = {}


def form_of(message: object) -> MessageForm:
    """Return how a message travels.

    Raises:
        SchemaError: its class cannot be sent.
    """
    cls = type(message)
    form = _forms.get(cls)
    if form is None:
        form = _forms[cls] = _form_of(cls)
    return form


def _form_of(cls: type) -> MessageForm:
    if cls in _PLAIN:
        shape, method = NO_CHECK if cls in SCALARS else UNTYPED, ""
    elif is_message_class(cls):
        try:
            name = class_name(cls)
            shape, method = shape_of(f"a {name}", cls), f":{name}"
        except ConfigError as e:
            raise SchemaError(e.message) from None
    else:
        raise SchemaError(f"a {class_name(cls)} cannot travel")
    # The class of a message is known here, so a check of it alone is not needed.
    pack = pack_value if cls in taken_classes(shape.check) else packer(shape, pack_value)
    return MessageForm(method, shape.check, pack, encoder(f"a {class_name(cls)}", pack))


def encode_message(message: object) -> bytes:
    """Encode a message for `receive`.

    Raises:
        SchemaError: the message cannot be sent. Nothing was sent.
    """
    return form_of(message).encode(message)


def check_method(name: str) -> str:
    """Return the name of a method, if a frame can hold it.

    Raises:
        SchemaError: it is too long, or UTF-8 cannot encode it. Nothing was sent.
    """
    if plain(name, METHOD_MAX) != name:
        raise SchemaError(f"{shown(name)} is no name of a handler: at most {METHOD_MAX} characters")
    return name


def unreadable(
    method: str, decoders: Mapping[int, Decode], payload: bytes, error: BaseException
) -> SchemaError:
    """Return the error for a payload that does not fit a method."""
    if decoders and (not payload or payload[0] not in decoders):
        counts = sorted(first & 0x0F for first in decoders)
        return SchemaError(f"{method} takes {counts[0]} to {counts[-1]} arguments")
    return SchemaError(f"{method or 'message'}: {text_of(error)}")


def check_type(where: str, target: Any) -> None:
    """Check that a declared type can be decoded, and that its bounds are checked then.

    Raises:
        ConfigError: it cannot, or one is not; the message has `where` and the path below it.
    """
    shape_of(where, target)
    check_bounds(where, target)


class Method(msgspec.Struct, frozen=True):
    """The wire form of one handler: how its arguments and its result are encoded."""

    name: str
    parameters: tuple[inspect.Parameter, ...]
    decoders: Mapping[int, Decode]
    """First byte of the argument array to the function that decodes an array of that length."""
    decode_result: Decode
    count: int
    """The largest number of arguments, the usual one."""
    counts: frozenset[int]
    """Possible numbers of positional arguments."""
    pack: Pack
    """Encodes the arguments of a call, as many as there may be, or raises anything."""
    encode_result: Pack
    """Encodes the handler's result, or raises SchemaError."""
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
        return self._encode(args)

    def encode_positional(self, args: tuple[Any, ...]) -> bytes:
        """Encode the arguments of a call of the handler by its name. If they are too few or too
        many, its node reports that.

        Raises:
            SchemaError: a value cannot be sent.
        """
        if len(args) == self.count or len(args) in self.counts:
            try:
                packed = self.pack
                return packed(args)
            except BaseException as e:  # encoding again names the argument
                raise_signalled(e)
                return self._encode(args)
        return encode_arguments(args)

    def _encode(self, args: tuple[Any, ...]) -> bytes:
        try:
            return self.pack(args)
        except BaseException as e:  # a class of the application's may raise anything
            raise_signalled(e)
            names = tuple(parameter.name for parameter in self.parameters)
            raise _refusal(self.name, located(e, args, names)) from None

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        bound = inspect.Signature(self.parameters).bind(*args, **kwargs)
        if kwargs:
            bound.apply_defaults()
        return bound.args


def method(
    name: str,
    function: Callable[..., Any],
    owner: type = object,
    bindings: Bindings | None = None,
) -> Method:
    """Return the wire form of a handler `function(self, ...)`. `owner` is the class in whose body
    it stands, and `bindings` has the types of the type variables of that.

    Raises:
        ConfigError: a parameter cannot be sent, or there are more than 15.
    """
    hints = {key: bound(hint, bindings or {}) for key, hint in _hints(function, owner).items()}
    parameters = tuple(inspect.signature(function).parameters.values())[1:]
    if len(parameters) > ARGUMENTS_MAX:
        raise ConfigError(
            f"handler {name} has {len(parameters)} parameters, at most {ARGUMENTS_MAX}"
        )
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    checks_itself = hasattr(function, "raw_function")  # pydantic's validate_call
    types: list[Any] = []
    shapes: list[Shape] = []
    for p in parameters:
        if p.kind not in kinds:
            raise ConfigError(f"handler {name}: parameter {p.name} must be positional")
        if type(p.default).__module__.startswith("pydantic."):
            raise ConfigError(
                f"handler {name}: {p.name} has a default of pydantic's, which only models can have",
                hint="write the default itself, and bounds as msgspec.Meta in Annotated",
            )
        declared, where = hints.get(p.name, Any), f"handler {name}: {p.name}"
        shapes.append(shape_of(where, declared))
        if not checks_itself:
            check_bounds(where, declared)
        types.append(Any if declared is object else declared)
    required = sum(p.default is inspect.Parameter.empty for p in parameters)
    decoders: dict[int, Decode] = {}
    for n in range(required, len(parameters) + 1):
        decoders[0x90 | n] = decoder(tuple[tuple(types[:n])]) if n else decoder(tuple[()])  # type: ignore[misc]
    result, where = hints.get("return", Any), f"handler {name}: return"
    encode_result = answer_encoder(shape_of(where, result))
    if not checks_itself:
        check_bounds(where, result)
    pack = argument_packer([p.name for p in parameters], shapes, required)
    count = len(parameters)
    counts = frozenset(range(required, count + 1))
    alone = counts == {1}
    read_all = reader_of_many(types[0], decoder, argument=True) if alone else None
    return Method(
        name, parameters, decoders, decoder(result), count, counts, pack, encode_result, read_all
    )


def _hints(function: Callable[..., Any], owner: type = object) -> dict[str, Any]:
    variables = variables_of(owner) or None
    try:
        return typing.get_type_hints(function, localns=variables, include_extras=True)
    except NameError as e:
        raise ConfigError(
            f"{function.__qualname__}: an annotation is not known where it is declared: {e}",
            hint=IMPORTED,
        ) from None


class Interface(msgspec.Struct):
    """The wire form of one entity type: its name, its methods, the messages of `receive`, and how
    ids map to shards."""

    name: str
    shards: int
    layout: str
    """Name of the shard function: `crc32/<shards>`, or `<function>:<number>/<shards>` for a type's
    own, where the number stands for the function's results."""
    methods: dict[str, Method] = msgspec.field(default_factory=dict)
    messages: dict[str, Decode] = msgspec.field(default_factory=dict)
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
    no_handlers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Public names of the class that are no handlers, each with a hint for the caller's error."""


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
        members = [Any, *(member for member in members if is_message_class(class_of(member)))]
    for name, cls in _classes_by_name((*members, *classes)).items():
        check_type(f"message {name}", cls)
        named[f":{name}"] = decoder(cls)
    plain = [member for member in members if not is_message_class(class_of(member))]
    if not plain and len(members) > 1:
        return named  # a plain value could be any of the classes
    rest: Any = typing.Union[tuple(plain or members)]  # noqa: UP007  (made at run time)
    check_type("receive: message", rest)
    return {"": decoder(rest), **named}


def _classes_by_name(members: Iterable[Any]) -> dict[str, Any]:
    """Return the classes of messages among these types, a generic one with its arguments.

    Raises:
        ConfigError: a generic class has two lists of arguments, which one name cannot distinguish.
    """
    classes: dict[str, Any] = {}
    for member in members:
        cls = class_of(member)
        if not is_message_class(cls):
            continue
        name = class_name(cls)
        other = classes.get(name)
        if other is None or other is cls or class_of(other) is not cls:
            classes[name] = member
        elif member not in (cls, other):
            raise ConfigError(f"receive: a message is a {other} or a {member}, which look the same")
    return classes


def message_readers(
    receive: Callable[..., Any],
    classes: Iterable[type],
    behaviours: Iterable[Callable[..., Any]] = (),
) -> dict[str, ReadAll]:
    """Return the functions that decode many messages of one class, by method, where that is faster
    than one by one."""
    members = (*_members(receive, behaviours), *classes)
    taken = {f":{name}": cls for name, cls in _classes_by_name(members).items()}
    readers = {name: reader_of_many(c, decoder, argument=False) for name, c in taken.items()}
    return {name: read for name, read in readers.items() if read is not None}


def _members(receive: Callable[..., Any], behaviours: Iterable[Callable[..., Any]]) -> list[Any]:
    """Return the annotations of `receive` and of each behaviour."""
    return list(dict.fromkeys(w for taker in (receive, *behaviours) for w in _message_types(taker)))


def _message_types(taker: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the types that the message parameter of a method may have."""
    parameters = tuple(inspect.signature(taker).parameters)
    hint = _hints(taker).get(parameters[1], Any) if len(parameters) > 1 else Any
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)
