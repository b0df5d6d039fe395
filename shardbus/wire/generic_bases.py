"""The types that a class gives to the type variables of its generic bases.

    class Repository(Entity, Generic[T]):        class Orders(Repository[Order]): ...
        state: T
        @handler
        def put(self, item: T) -> T: ...

In `Orders`, `T` of `Repository` is `Order`. A variable belongs to the class whose parameter it is:
two bases may use the same one for different types, and a base may hand its own on to another.

Source: docs/how-to/define-entities.md; PEP 484, PEP 695.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, ForwardRef, TypeVar

Bindings = Mapping[Any, Any]
"""Type variables to types."""


def bindings_in(cls: type, owner: type) -> Bindings:
    """Return the types that the type variables of a base, `owner`, have in a class."""
    bindings: dict[type, dict[Any, Any]] = {}
    for each in cls.__mro__:  # a class stands before its bases
        variables = bindings.get(each, {})
        for base in vars(each).get("__orig_bases__", ()):
            origin = typing.get_origin(base)
            parameters = getattr(origin, "__parameters__", ())
            arguments = typing.get_args(base)
            if isinstance(origin, type) and len(parameters) == len(arguments):
                types = (bound(_evaluated(each, argument), variables) for argument in arguments)
                bindings.setdefault(origin, dict(zip(parameters, types, strict=True)))
    return bindings.get(owner, {})


def bound(annotation: Any, bindings: Bindings) -> Any:
    """Return an annotation with types in the place of type variables."""
    if isinstance(annotation, TypeVar):
        return bindings.get(annotation, annotation)
    parameters = getattr(annotation, "__parameters__", ())
    if typing.get_origin(annotation) is None or bindings.keys().isdisjoint(parameters):
        return annotation
    return annotation[tuple(bindings.get(each, each) for each in parameters)]


def variables_of(owner: type) -> dict[str, Any]:
    """Return the type variables of `class Repository[T]` by their names, which annotations that are
    texts know only within the body of the class."""
    return {each.__name__: each for each in getattr(owner, "__type_params__", ())}


def _evaluated(owner: type, argument: Any) -> Any:
    """Return an argument of a base, which may be a text: `Repository["Order"]`."""
    if not isinstance(argument, ForwardRef):
        return argument
    body = {
        "__annotations__": {"it": argument.__forward_arg__},
        "__module__": owner.__module__,
    }
    return typing.get_type_hints(type(owner.__name__, (), body), include_extras=True)["it"]
