"""Writes `docs/reference/python.md` from the docstrings of the public names.

    python docs/make_python.py          # or: make docs-generated

A test compares the page with what this script makes, and `SECTIONS` with `shardbus.__all__`. A
public method is on the page, or in `FOR_THE_NODE`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import shardbus
from shardbus.cluster import Cluster
from shardbus.embedding import EmbeddedNode
from shardbus.placement import ExternalAllocation
from shardbus.routing.refs import Ref
from shardbus.testing import ClusterStore, EntityProbe, TestCluster, TestNode

PAGE = Path(__file__).parent / "reference" / "python.md"

INTRO = """\
# Python

Made by `docs/make_python.py` from the docstrings; do not edit.

What `from shardbus import ...` gives, and `from shardbus.testing import ...` at the end. [Define
entities](../how-to/define-entities.md), [Keep state](../how-to/keep-state.md) and
[Send](../how-to/send.md) show it at work. Times are in seconds where no other unit is named.

A reference (`bus.ref`, `self.context.ref`, `client.ref`) has each handler of its class as a call:
`await ref.add(2)` asks, `await ref.add.tell(2)` tells, and `ref.add.tell_nowait(2)` raises
BufferFull instead of waiting. With the blocking client the same calls block. `Ref` below has what
each reference can do besides.
"""

SECTIONS: dict[str, tuple[str, ...]] = {
    "Applications": ("ShardBus", "Passivation", "Instances", "Handoff", "Directive"),
    "Entities": ("Entity", "Context", "handler", "behaviour", "StopReason"),
    "Sending": ("AsyncClient", "Client", "Region", "Envelope", "StartEntity"),
    "Allocation": ("LeastShard", "LeastShardThreshold", "ConsistentHashing"),
    "The cluster": (),
    "Errors": (),
    "Testing": (),
}
"""The public names by section. Errors are all that are exceptions."""

BESIDE: dict[str, tuple[type, ...]] = {
    "Applications": (EmbeddedNode,),
    "Sending": (Ref,),
    "The cluster": (Cluster, ExternalAllocation),
    "Testing": (TestCluster, TestNode, ClusterStore, EntityProbe),
}
"""Classes that an application gets and does not import, and those of `shardbus.testing`."""

FOR_THE_NODE: dict[str, frozenset[str]] = {
    "ShardBus": frozenset({"attach", "set_away"}),
    "AsyncClient": frozenset({
        "busy", "contact", "on_asks", "on_control", "on_flush", "on_relayed", "on_tells",
        "router_of", "to_contact",
    }),
}  # fmt: skip
"""Methods that the library calls itself."""

MADE_FOR_YOU = frozenset(
    {
        "Context",
        "Region",
        "Ref",
        "Cluster",
        "ExternalAllocation",
        "TestNode",
        "ClusterStore",
        "EmbeddedNode",
    }
)
"""Classes whose objects the library makes."""

SECTION = re.compile(r"^(Args|Raises|Returns|Yields|Attributes):$")


def render() -> str:
    """The whole page."""
    listed = [(title, list(_objects(title))) for title in SECTIONS]
    parts = [INTRO]
    for title, objects in listed:
        names = ", ".join(f"[`{name}`](#{_anchor(name)})" for name, _ in objects)
        parts.append(f"- [{title}](#{_anchor(title)}): {names}")
    for title, objects in listed:
        parts.append(f"\n## {title}")
        parts += (_described(name, one) for name, one in objects)
    return "\n".join(parts) + "\n"


def _objects(title: str) -> Iterator[tuple[str, Any]]:
    yield from ((name, getattr(shardbus, name)) for name in SECTIONS[title])
    yield from ((one.__name__, one) for one in BESIDE.get(title, ()))
    if title == "Errors":
        public = (getattr(shardbus, name) for name in shardbus.__all__)
        errors = [one for one in public if _is_error(one)]
        errors.sort(key=lambda error: [base.__name__ for base in error.__mro__[-4::-1]])
        yield from ((error.__name__, error) for error in errors)


def _is_error(one: Any) -> bool:
    return inspect.isclass(one) and issubclass(one, Exception)


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Return the public methods and properties of a class that an application may use."""
    hidden = FOR_THE_NODE.get(cls.__name__, frozenset())
    for name in dir(cls) if cls in (shardbus.AsyncClient, shardbus.Client) else vars(cls):
        value = inspect.getattr_static(cls, name)
        if name.startswith("_") or name in hidden:
            continue
        if inspect.isfunction(value) or isinstance(value, property):
            yield name, value


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")


def _described(name: str, one: Any) -> str:
    parts = [f"\n### {name}\n"]
    if _is_error(one):
        base = one.__mro__[1].__name__
        parts += [f"Is a `{base}`.\n"] if base != "Exception" else []
        return "\n".join([*parts, _text(one)])
    if name not in MADE_FOR_YOU and not (inspect.isclass(one) and issubclass(one, Enum)):
        parts.append(f"`{_call(name, list(inspect.signature(one).parameters.values()))}`\n")
    parts.append(_text(one))
    if inspect.isclass(one) and issubclass(one, Enum):
        parts += ["", *(f"- `{name}.{member.name}`" for member in one)]
    elif inspect.isclass(one):
        for method, value in members(one):
            parts.append(f"\n#### {name}.{method}\n")
            if not isinstance(value, property):
                returns = str(inspect.signature(value).return_annotation)
                marked = inspect.iscoroutinefunction(value) or hasattr(value, "_is_coroutine")
                is_awaited = marked or returns.startswith("Coroutine[")
                waits = "await " if is_awaited else ""
                _, *parameters = inspect.signature(value).parameters.values()
                parts.append(f"`{waits}{_call(method, parameters)}`\n")
            parts.append(_text(value))
    return "\n".join(parts)


def _call(name: str, parameters: list[inspect.Parameter]) -> str:
    """A call with its arguments, without types: the text names them."""
    arguments: list[str] = []
    for parameter in parameters:
        match parameter.kind:
            case inspect.Parameter.VAR_POSITIONAL:
                arguments.append(f"*{parameter.name}")
                continue
            case inspect.Parameter.VAR_KEYWORD:
                arguments.append(f"**{parameter.name}")
                continue
            case inspect.Parameter.KEYWORD_ONLY if not any(a.startswith("*") for a in arguments):
                arguments.append("*")
        default = parameter.default
        if default is parameter.empty:
            arguments.append(parameter.name)
        else:
            plain = default is None or isinstance(default, int | float | str | bool | tuple)
            arguments.append(f"{parameter.name}={default!r}" if plain else f"{parameter.name}=...")
    return f"{name}({', '.join(arguments)})"


def _text(one: Any) -> str:
    """The docstring, its sections as lists."""
    document = inspect.getdoc(one)
    assert document, f"{one} has no docstring"
    parts: list[str] = []
    for paragraph in document.split("\n\n"):
        title, _, body = paragraph.partition("\n")
        if match := SECTION.match(title):
            parts += [title, *_items(textwrap.dedent(body), match[1])]
        else:
            parts.append(paragraph)
    return "\n\n".join(parts)


def _items(body: str, section: str) -> list[str]:
    """The lines of a section of a docstring: a list of names, or a text."""
    if section not in ("Args", "Raises", "Attributes"):
        return [" ".join(body.split())]
    items = re.split(r"\n(?=\w+: )", body)
    items = [" ".join(item.split()) for item in items]
    if section == "Raises":
        items = [part for item in items for part in re.split(r"(?<=\.) (?=[A-Z]\w+: )", item)]
    named = (item.partition(": ") for item in items)
    return ["\n".join(f"- `{name}`: {text}" for name, _, text in named)]


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
