"""The methods of an entity class that messages reach: found and checked when it is declared.

Python accepts classes whose handlers cannot work, and says nothing: a decorator over `@handler`
hides it, a subclass replaces a handler by a plain method, a second `def` replaces the first. Each
is refused here. The error names the class and the method, and its hint names the right form.

    in the class                                         here
    function, sync or async; a callable object           a handler
    the same under decorators                            a handler; `__wrapped__` shows if it waits
    `yield` in it, @contextmanager                       refused: a call would not run the body
    staticmethod, classmethod, property, partial         refused: it gets no entity
    @handler under another decorator, or twice           refused: the handler is hidden
    another attribute in place of an inherited handler   refused: the reference and the entity
                                                         would call different methods

Names are found as Python does, by the order of the bases. `@handler` notes each handler in the body
of its class (`entity.handler`), so one that did not stay an attribute of the class is noticed,
whatever has taken its place.

Source: docs/how-to/define-entities.md.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cached_property, partial, partialmethod
from types import CodeType, FunctionType
from typing import Any

from shardbus.entities.entity_type import layers, may_wait
from shardbus.entity import BEHAVIOUR_MARK, Entity, Handler, handlers_in
from shardbus.errors import ConfigError
from shardbus.routing.refs import RESERVED
from shardbus.wire.schema import IMPORTED

UNBOUND = (staticmethod, classmethod, property, cached_property, partial, partialmethod)
"""Attributes that are called without the entity, or not at all."""
OF_ENTITIES = frozenset(name for name in vars(Entity) if not name.startswith("_")) | {
    "context",
    "receive",
}
"""Names that have another meaning in an entity."""
NAMES = "name each parameter; a decorator keeps them by functools.wraps"
NOT_POSITIONAL: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: NAMES,
    inspect.Parameter.VAR_KEYWORD: NAMES,
    inspect.Parameter.KEYWORD_ONLY: "write it without the * before it; a call may still name it",
}
"""Kinds of parameters that a message cannot fill, and the right form instead."""
INIT = "def __init__(self): self.context.entity_id is there, and on_start may load the rest"
HOOKS: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("on_start", (), "async def on_start(self) -> None"),
    ("on_stop", (None,), "async def on_stop(self, reason: StopReason) -> None"),
)
"""Methods that the node awaits: name, arguments, first line."""


def handlers_of(cls: type) -> dict[str, Handler[Any, Any]]:
    """Return the handlers of a class by name, each as Python finds it.

    Raises:
        ConfigError: one is hidden, replaced, or has a name with another meaning.
    """
    _check_kept(cls)
    names = (
        name
        for base in reversed(cls.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, Handler)
    )
    handlers: dict[str, Handler[Any, Any]] = {}
    for name in dict.fromkeys(names):
        owner, value = _attribute(cls, name)
        if not isinstance(value, Handler):
            raise _overridden(cls, name, owner, value)
        _check_name(cls, name)
        handlers[name] = value
    return handlers


def _attribute(cls: type, name: str) -> tuple[type, Any]:
    """Return the first base with an attribute, and the attribute as it stands there."""
    return next(
        ((base, vars(base)[name]) for base in cls.__mro__ if name in vars(base)), (cls, None)
    )


def owner_of(cls: type, name: str) -> type:
    """Return the base in which a handler of a class stands."""
    return _attribute(cls, name)[0]


def _check_name(cls: type, name: str) -> None:
    where = f"{cls.__name__}: a handler cannot be called {name!r}"
    if name in RESERVED or name.startswith("_"):
        raise ConfigError(where, hint="references have that name themselves: rename it")
    is_state = name == "state" and any("state" in own_annotations(base) for base in cls.__mro__)
    if name in OF_ENTITIES or is_state:
        hint = "write it without @handler, or rename it"
        raise ConfigError(f"{where}: it is a name of Entity", hint=hint)


def no_handlers_of(cls: type) -> dict[str, str]:
    """Return the public names of a class that are no handlers, each with a hint for the caller of a
    reference that uses it."""
    hints: dict[str, str] = {}
    for name in (*dir(cls), "context", "state"):
        if name.startswith("_"):
            continue
        owner, value = _attribute(cls, name)
        place = f"{owner.__name__}.{name}"
        if isinstance(value, Handler):
            continue
        if name == "receive" or hasattr(value, BEHAVIOUR_MARK):
            hints[name] = f"messages reach {place} by ref.ask(message) and ref.tell(message)"
        elif name in OF_ENTITIES or name == "state":
            hints[name] = f"a reference has handlers only: use self.{name} within one"
        elif callable(value):
            hints[name] = f"{place} has no @handler: write it over def {name}"
        else:
            hints[name] = f"{place} is no method: write a handler that returns it"
    return hints


OWN_MODULES = (Entity.__module__, "shardbus.event_sourced", "shardbus.delivery")
"""The modules of the bases that applications subclass."""


def without_handler(cls: type) -> ConfigError:
    """Return the error for a class that no message reaches."""
    methods = [
        name
        for base in cls.__mro__
        if base.__module__ not in OWN_MODULES and base is not object
        for name, value in vars(base).items()
        if inspect.isfunction(value) and not name.startswith("_") and name not in OF_ENTITIES
    ]
    method = f"def {methods[0]}(self, ...)" if methods else "a method"
    return ConfigError(
        f"{cls.__name__} has no handler and no receive, so no message reaches it",
        hint=f"write @handler over {method}, or def receive(self, message)",
    )


def own_annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of the class itself, as they are written: from 3.14 on, those with a
    name that is not known at run time must not be evaluated."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(cls)


def _check_kept(cls: type) -> None:
    """Check that each handler is still an attribute of the class in whose body it was made."""
    for base in cls.__mro__:
        for handler in handlers_in(base):
            if any(value is handler for value in vars(base).values()):
                continue
            owner, value = _attribute(cls, handler.__name__)
            if owner is base or not isinstance(value, Handler):
                raise _hidden(base, handler, vars(base).get(handler.__name__))


def _hidden(base: type, handler: Handler[Any, Any], value: object) -> ConfigError:
    """Return the error for a handler that is no attribute of its class; `value` is, in its
    place."""
    name = handler.__name__
    where = f"{base.__name__}.{name}"
    if isinstance(value, Handler):
        if value.function is handler:
            return ConfigError(f"{where} has @handler twice", hint="remove one of them")
        lines = " and ".join(str(c.co_firstlineno) for c in map(_code, (handler, value)) if c)
        text = f"{where}: two handlers of one name (lines {lines}): the second replaces the first"
        return ConfigError(text, hint="rename one of them")
    code = _code(value)
    if code is not None and code.co_qualname == f"{base.__qualname__}.{name}":
        text = f"{where}: a second def {name} (line {code.co_firstlineno}) replaces the handler"
        return ConfigError(text, hint="rename one of them, or remove the first")
    if value is None:
        text = f"{where}: @handler was given a function that is no attribute of the class"
        return ConfigError(text, hint=f"write @handler over def {name}(self, ...)")
    by = _decorator(value)
    text = f"{where}: {by} stands over @handler and hides it, so no message reaches it"
    if isinstance(value, UNBOUND):
        return ConfigError(text, hint=f"remove {by}: write @handler over def {name}(self, ...)")
    return ConfigError(text, hint=f"write @handler as the first decorator, over {by}")


def _code(value: object) -> CodeType | None:
    function = value.function if isinstance(value, Handler) else value
    return getattr(function, "__code__", None)


def _decorator(value: object) -> str:
    """Return the name of the decorator that has made an attribute."""
    code = _code(value)
    if code is None:
        return f"@{type(value).__name__}"
    return f"@{code.co_qualname.partition('.<locals>')[0]}"


def _overridden(cls: type, name: str, owner: type, value: object) -> ConfigError:
    """Return the error for a handler in whose place Python finds another attribute."""
    base = next(base for base in cls.__mro__ if isinstance(vars(base).get(name), Handler))
    handler = f"the handler {base.__name__}.{name}"
    if callable(value) or isinstance(value, UNBOUND):
        text = f"{owner.__name__}.{name} overrides {handler} without @handler"
        hint = f"write @handler over def {name}(self, ...) in {owner.__name__}, or rename it"
    else:
        text = f"{owner.__name__}.{name} = {value!r:.60} hides {handler}"
        hint = f"rename one of them: {name} is called by references"
    if not issubclass(owner, base):
        hint += f"; or put {base.__name__} before {owner.__name__} among the bases"
    prefix = "" if owner is cls else f"{cls.__name__}: "
    return ConfigError(prefix + text, hint=hint)


# ---- one method


def check_method(
    where: str, write: str, function: Any, arguments: tuple[object, ...] | None = None
) -> None:
    """Check that an attribute of a class can be called with an entity and these arguments, or any
    if they are None. `where` names the attribute, `write` shows its first line.

    Raises:
        ConfigError: it cannot, or a call would not run its body.
    """
    hint = f"write {write}"
    if isinstance(function, Handler):
        raise ConfigError(f"{where} has @handler twice", hint="remove one of them")
    if isinstance(function, (*UNBOUND, type)) or not callable(function):
        kind = "class" if isinstance(function, type) else type(function).__name__
        raise ConfigError(f"{where} is a {kind}, which is not called with the entity", hint=hint)
    if inspect.isasyncgenfunction(function) or _is_generator(function):
        text = f"{where} has a yield: a call would only make a generator, and run nothing of it"
        raise ConfigError(text, hint=f"{hint} that returns one value, such as a list")
    if _is_manager(function):
        text = f"{where} is a context manager: a call would run nothing of it"
        raise ConfigError(text, hint=f"{hint} that returns a value, and use `with` inside it")
    try:
        signature = inspect.signature(function)
    except NameError as e:  # from Python 3.14 on, annotations are evaluated when they are read
        raise ConfigError(f"{where}: an annotation cannot be read: {e}", hint=IMPORTED) from None
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{where}: its parameters are not known: {e}", hint=hint) from None
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.kind > inspect.Parameter.VAR_POSITIONAL:
        raise ConfigError(f"{where} has no parameter for the entity", hint=hint)
    if arguments is not None:
        try:
            signature.bind(None, *arguments)
        except TypeError as e:
            raise ConfigError(f"{where} cannot be called as it must be: {e}", hint=hint) from None


def _is_manager(function: Callable[..., Any]) -> bool:
    """True if a call makes a context manager of a generator: a function with @contextmanager or
    @asynccontextmanager. One that runs in a context manager is another function of contextlib."""
    if getattr(function, "__globals__", {}).get("__name__") != "contextlib":
        return False
    inner = layers(function)[-1]
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def _is_generator(function: Callable[..., Any]) -> bool:
    """True if a call makes a generator that cannot be awaited."""
    code = _code(function)
    coroutine = code is not None and code.co_flags & inspect.CO_ITERABLE_COROUTINE
    return inspect.isgeneratorfunction(function) and not coroutine


def check_hooks(cls: type) -> None:
    """Check that an entity of the class can be made, started and stopped.

    Raises:
        ConfigError: it cannot.
    """
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise ConfigError(
            f"{cls.__name__} is abstract: it has no {missing[0]}",
            hint=f"write def {missing[0]}, or declare the subclass that has it",
        )
    check_sync(cls, "__init__", INIT)
    made_by = inspect.getattr_static(cls, "__new__")
    if isinstance(made_by, staticmethod):  # which Python makes of a function
        where = f"{cls.__name__}.__new__"
        check_method(where, "def __new__(cls), or no such method", made_by.__func__, ())
    for name, arguments, write in HOOKS:
        where = f"{cls.__name__}.{name}"
        hook = inspect.getattr_static(cls, name)
        check_method(where, write, hook, arguments)
        if not may_wait(hook):
            raise ConfigError(f"{where} is not async: it would be awaited", hint=f"write {write}")


def check_sync(cls: type, name: str, write: str, *arguments: object) -> None:
    """Check a method that is called and not awaited.

    Raises:
        ConfigError: it is async, or cannot be called so.
    """
    where, function = f"{cls.__name__}.{name}", inspect.getattr_static(cls, name)
    if function is object.__init__:
        return  # to read its signature takes a tenth of a whole declaration
    check_method(where, write, function, arguments)
    if may_wait(function):
        raise ConfigError(f"{where} is async: it would not be awaited", hint=f"write {write}")


def check_handler(cls: type, name: str, value: Handler[Any, Any]) -> None:
    """Check that a handler can be called with the arguments of a message.

    Raises:
        ConfigError: it cannot.
    """
    where, write = f"{cls.__name__}.{name}", f"def {name}(self, ...)"
    check_method(where, write, value.function)
    if hasattr(value, BEHAVIOUR_MARK):
        raise ConfigError(
            f"{where} has @behaviour and @handler",
            hint=f"write @handler if it is called as ref.{name}(...), @behaviour if by become",
        )
    for parameter in inspect.signature(value.function).parameters.values():
        if hint := NOT_POSITIONAL.get(parameter.kind):
            text = f"{where} has {parameter}: each argument of a message has a place and a name"
            raise ConfigError(text, hint=hint)


def described(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the signature and the annotations of a callable, for code that reads
    them: the callable itself if it is a function."""
    if isinstance(function, FunctionType):
        return function
    inner = layers(function)[-1]
    is_function = hasattr(inner, "__globals__")  # Cython's functions are of another class
    source = inner if is_function else type(inner).__call__

    def shape() -> None: ...

    shown: Any = shape
    shown.__signature__ = inspect.signature(function)
    shown.__wrapped__ = source
    shown.__annotations__ = dict(getattr(source, "__annotations__", {}))
    return shape
