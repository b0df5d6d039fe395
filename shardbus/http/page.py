"""The declaration of a page: one function, its path, its parameters, its permission, its answer.

    @page("GET", "/v1/entities/{type}")
    async def entities(
        admin: Administration, type: EntityType, shard: str | None = None, limit: PageSize = 100
    ) -> Json:

The first argument is the node (`Page.bound`). Every other one comes from the request, and its
annotation says how:

    {name} in the path    text; an id or the name of a node takes slashes, too
    the query             str, bool, EntityType, ShardId, PageSize, Number(low, high); a tuple takes
                          each value of the name, other annotations the last one
    no default            the page refuses a request without the parameter
    Body                  the body, which is JSON
    Operator              the client, as the log names it

A path that ends in `?name` is only for requests with this parameter. Every method but GET changes
something, and needs the permission to write. The annotation of the result says how it is sent:

    Json                  JSON, within a deadline
    Checks                a probe: JSON, with status 503 if a check has failed
    AsyncIterator[Json]   a stream of events
    Response              as it is

The routes, the page `docs/reference/http.md` and the doubles of tests are made of these
declarations (`app`).

Source: docs/reference/http.md.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from types import ModuleType
from typing import (
    Annotated,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from shardbus.errors import ConfigError
from shardbus.ids import check_id

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Declaration")
Json = dict[str, object]
"""An answer in the shape of the public JSON: the command line prints it as HTTP sent it."""


class Check(msgspec.Struct, frozen=True):
    """The result of one check. `detail` is for people: the state, and the missing parts."""

    ok: bool
    detail: str = ""


Checks = Mapping[str, Check]
"""Results by name, in the order in which a reader should see them."""
Events = AsyncIterator[Json]
SENT = (Json, Checks, Events, Response)

PAGE_DEFAULT, PAGE_MAX = 100, 1000


class Number(msgspec.Struct, frozen=True):
    """Converts a number from `low` to `high`. With `cut`, a greater one is taken as `high`."""

    low: int
    high: int
    cut: bool = False

    def __call__(self, text: str, name: str) -> int:
        if text.isascii() and text.isdigit() and len(text) < 10:
            value = int(text)
            if self.low <= value and (self.cut or value <= self.high):
                return min(value, self.high)
        hint = f"use {self.low} to {self.high}"
        raise ConfigError(f"{name} {text[:40]!r} is not a number in range", hint=hint)


class Text(msgspec.Struct, frozen=True):
    """Converts a text; with a `kind`, an id of this kind. In a path it may have slashes."""

    kind: str = ""
    slashes: bool = False

    def __call__(self, text: str, name: str) -> str:
        return check_id(self.kind, text) if self.kind else text


def _flag(text: str, name: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"{name} {text[:40]!r} is not true or false")
    return text == "true"


class Source(IntEnum):
    """The part of a request that has a parameter, in the order in which they are read."""

    QUERY = 0
    CLIENT = 1
    PATH = 2
    BODY = 3


EntityType = Annotated[str, Text("entity type")]
EntityId = Annotated[str, Text("entity id", slashes=True)]
ShardId = Annotated[str, Text("shard")]
NodeName = Annotated[str, Text(slashes=True)]
PageSize = Annotated[int, Number(1, PAGE_MAX, cut=True)]
Body = Annotated[object, Source.BODY]
Operator = Annotated[str, Source.CLIENT]
CONVERSIONS: Mapping[type, Callable[[str, str], object]] = {str: Text(), bool: _flag}


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a page: how a text becomes its value."""

    name: str
    source: Source
    convert: Any
    base: type
    many: bool
    default: object

    @classmethod
    def of(cls, declared: inspect.Parameter, hint: Any, path: str) -> Parameter:
        """Return the parameter that an annotation describes, of a page with this path."""
        if type(None) in get_args(hint):
            hint = get_args(hint)[0]
        many = get_origin(hint) is tuple
        hint = get_args(hint)[0] if many else hint
        base, mark = get_args(hint) if get_origin(hint) is Annotated else (hint, CONVERSIONS[hint])
        in_path = Source.PATH if f"{{{declared.name}}}" in path else Source.QUERY
        source = mark if isinstance(mark, Source) else in_path
        return cls(declared.name, source, mark, base, many, declared.default)

    def value(self, texts: Sequence[str]) -> object:
        """Return the value of these texts, the last of which counts.

        Raises:
            ConfigError: the text is no such value.
        """
        if self.many:
            return tuple(self.convert(text, self.name) for text in texts)
        text = texts[-1] if texts else ""
        optional = self.default is not inspect.Parameter.empty
        if optional and (not texts or text == self.default == ""):
            return self.default
        value = self.convert(text, self.name)
        return float(value) if self.base is float else value


class Declaration(Protocol):
    """A declaration in a module."""

    @property
    def answer(self) -> Callable[..., Any]: ...


class Page(msgspec.Struct, Generic[P, R], frozen=True):
    """A declared page, which is called like its function.

    Args:
        operators_only: why readers get none of it, for a page without effect; else empty.
        sent: the annotation of the result.
    """

    method: str
    path: str
    operators_only: str
    answer: Callable[P, R]
    name: str
    text: str
    sent: object
    parameters: tuple[Parameter, ...]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.answer(*args, **kwargs)

    def bound(self, node: object) -> AnyPage:
        """Return the page of one node, its first argument."""
        answer: Any = self.answer
        return replace(self, answer=partial(answer, node))

    @property
    def prefix(self) -> str:
        """The path before its first parameter."""
        return self.path.partition("{")[0]

    def matches(self, parts: Sequence[str], query: Mapping[str, str]) -> bool:
        """True if a request for the prefix, with these parts after it, is for this page."""
        needed = self.path.partition("?")[2]
        return self.texts(parts) is not None and (not needed or needed in query)

    def texts(self, parts: Sequence[str]) -> dict[str, str] | None:
        """Return the parameters of a path by its parts after the prefix; None if it is no path of
        this page. The last parameter has the slashes."""
        names = self.path.partition("?")[0].removeprefix(self.prefix).split("/")
        if names == [""]:
            return {}
        if not names[-1].startswith("{"):
            if not any(parts[:-1]) or parts[-1] != names.pop():
                return None
            parts = parts[:-1]
        names = [name.strip("{}") for name in names]
        last = {parameter.name: parameter.convert for parameter in self.parameters}[names[-1]]
        if len(parts) < len(names) or (len(parts) > len(names) and not last.slashes):
            return None
        head = len(names) - 1
        return dict(zip(names, [*parts[:head], "/".join(parts[head:])], strict=True))


AnyPage = Page[..., Any]
NodePages = Mapping[str, AnyPage]
"""The pages of one node, by the names of their functions."""


def page(
    method: str, path: str, *, operators_only: str = ""
) -> Callable[[Callable[P, R]], Page[P, R]]:
    """Declare that a function answers requests for a path."""

    def declare(function: Callable[P, R]) -> Page[P, R]:
        hints = get_type_hints(function, include_extras=True)
        sent, (_, *declared) = hints["return"], inspect.signature(function).parameters.values()
        assert sent in SENT, f"{function.__name__} returns {sent}"
        parameters = tuple(Parameter.of(each, hints[each.name], path) for each in declared)
        name, text = function.__name__, inspect.getdoc(function) or ""
        return Page(method, path, operators_only, function, name, text, sent, parameters)

    return declare


def declared_in(kind: type[T], *modules: ModuleType) -> tuple[T, ...]:
    """Return the pages, or other declarations of this kind, of modules, in their order."""
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, kind) and value.answer.__module__ == module.__name__
    )
