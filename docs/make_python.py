"""Writes `docs/reference/python.md` from the docstrings of the public names.

    python docs/make_python.py          # or: make docs-generated

A test compares the page with this script's output, and `SECTIONS` with `shardbus.__all__`. A
public method is on the page, or in `FOR_THE_NODE`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_overloads

import shardbus
from shardbus.client.blocking import BlockingData, BlockingQueue, BlockingWork
from shardbus.client.work_queue import ClientQueue, Work
from shardbus.cluster import Cluster
from shardbus.delivery import WorkQueue
from shardbus.embedding import EmbeddedNode
from shardbus.entities import entity_options
from shardbus.entities.entity_options import EntityArguments
from shardbus.placement import ExternalAllocation
from shardbus.routing.refs import Ref
from shardbus.store.replicated_data import ReplicatedData, SharedValues
from shardbus.testing import ClusterStore, EntityProbe, TestCluster, TestNode

PAGE = Path(__file__).parent / "reference" / "python.md"

INTRO = """\
# Python

Made by `docs/make_python.py` from the docstrings; do not edit.

What `from shardbus import ...` gives, and `from shardbus.testing import ...` at the end. [Define
entities](../how-to/define-entities.md), [Keep state](../how-to/keep-state.md) and
[Send](../how-to/send.md) show it at work. Times are in seconds where no other unit is named.
A type of one letter stands for the class or function that is given; [other types](#other-types)
has the rest.

A reference (`bus.ref`, `self.context.ref`, `client.ref`) has each handler of its class as a call:
`await ref.add(2)` asks, `await ref.add.tell(2)` tells, and `ref.add.tell_nowait(2)` raises
BufferFull instead of waiting. With the blocking client the same calls block. `Ref` below has what
each reference can do besides.
"""

SECTIONS: dict[str, tuple[str, ...]] = {
    "Applications": ("ShardBus", "Passivation", "Instances", "Handoff", "Directive"),
    "Entities": (
        "Entity",
        "EventSourced",
        "Projection",
        "Context",
        "handler",
        "event",
        "behaviour",
        "StopReason",
    ),
    "Sending": ("AsyncClient", "Client", "Region", "Envelope", "StartEntity"),
    "Allocation": ("LeastShard", "LeastShardThreshold", "ConsistentHashing"),
    "The cluster": (),
    "Replicated values": (),
    "Errors": (),
    "Testing": (),
}
"""The public names by section. Errors are all that are exceptions."""

BESIDE: dict[str, tuple[type, ...]] = {
    "Applications": (EmbeddedNode,),
    "Entities": (WorkQueue,),
    "Sending": (Ref, ClientQueue, Work, BlockingQueue, BlockingWork),
    "The cluster": (Cluster, ExternalAllocation),
    "Replicated values": (SharedValues, ReplicatedData, BlockingData),
    "Testing": (TestCluster, TestNode, ClusterStore, EntityProbe),
}
"""Classes that an application gets and does not import, and the classes of `shardbus.testing`."""

FOR_THE_NODE: dict[str, frozenset[str]] = {
    "ShardBus": frozenset({"attach", "set_away"}),
    "AsyncClient": frozenset({
        "busy", "contact", "on_asks", "on_control", "on_flush", "on_relayed", "on_tells",
        "router_of", "to_contact",
    }),
    "ReplicatedData": frozenset({"answer_step"}),
    "ClientQueue": frozenset({"confirm", "release", "extend", "decode", "leave"}),
    "WorkQueue": frozenset({"cancel", "leave", "wake", "receive", "on_start", "sizes"}),
}  # fmt: skip
"""Methods that the library calls itself."""

INTERNAL = {
    "ShardBus": frozenset({"types", "version_source"}),
    "AsyncClient": frozenset({"timeout_ms", "tracer"}),
    "TestCluster": frozenset({"world"}),
    "StaleActivation": frozenset({"message", "hint", "args"}),
    "Rejection": frozenset({"wire_form"}),
}
"""Attributes that are not for applications, or shown of the base class."""

OTHER_TYPES = """\
## Other types

Types in the signatures above that are not among the public names.

| type | from | what it is |
|---|---|---|"""

WIDE = 96
"""Characters of a call that stands in one line."""

MADE_FOR_YOU = frozenset(
    {
        "Context",
        "Region",
        "Ref",
        "Cluster",
        "ExternalAllocation",
        "SharedValues",
        "ReplicatedData",
        "BlockingData",
        "TestNode",
        "ClusterStore",
        "EmbeddedNode",
        "ClientQueue",
        "Work",
        "BlockingQueue",
        "BlockingWork",
    }
)
"""Classes whose objects the library makes."""

STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
TYPE_NAME = re.compile(r"(?<![.\w'])[A-Z]\w+")
"""The name of a class or of an alias in an annotation, without its quoted parts."""
SECTION = re.compile(r"^(Args|Raises|Returns|Yields|Attributes):$")


def render() -> str:
    """The whole page."""
    listed = [(title, list(_objects(title))) for title in SECTIONS]
    parts = [INTRO]
    for title, objects in listed:
        names = ", ".join(f"[`{name}`](#{_anchor(name)})" for name, _ in objects)
        parts.append(f"- [{title}](#{_anchor(title)}): {names}")
    parts.append("- [Other types](#other-types)")
    for title, objects in listed:
        parts.append(f"\n## {title}")
        parts += (_described(name, value) for name, value in objects)
    parts.append(f"\n{OTHER_TYPES}")
    parts += _other_types([value for _, objects in listed for _, value in objects])
    return "\n".join(parts) + "\n"


def _objects(title: str) -> Iterator[tuple[str, Any]]:
    yield from ((name, getattr(shardbus, name)) for name in SECTIONS[title])
    yield from ((value.__name__, value) for value in BESIDE.get(title, ()))
    if title == "Errors":
        public = (getattr(shardbus, name) for name in shardbus.__all__)
        errors = [value for value in public if _is_error(value)]
        errors.sort(key=lambda error: [base.__name__ for base in error.__mro__[-4::-1]])
        yield from ((error.__name__, error) for error in errors)


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


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
        return "\n".join([*parts, _text(one), *_attributes(one)])
    if name not in MADE_FOR_YOU and not (inspect.isclass(one) and issubclass(one, Enum)):
        parts.append(_call(name, one, "" if inspect.isclass(one) else None))
    parts.append(_text(one))
    if inspect.isclass(one) and issubclass(one, Enum):
        parts += ["", *(f"- `{name}.{member.name}`" for member in one)]
    elif inspect.isclass(one):
        parts += [] if _in_call(name, one) else _attributes(one)
        for method, value in members(one):
            parts.append(f"\n#### {name}.{method}\n")
            if isinstance(value, property):
                parts.append(f"`{method}: {returned(value.fget)[1]}`\n")
            else:
                document = inspect.getdoc(value) or ""
                calls = (_call(method, each, None, document) for each in signatures(value))
                parts.append("\n".join(calls))
            parts.append(_text(value))
    return "\n".join(parts)


def _in_call(name: str, cls: type) -> bool:
    """True if the call that makes an object names all attributes of the class, with their types."""
    named = set(inspect.signature(cls).parameters)
    return name not in MADE_FOR_YOU and set(attributes(cls)) <= named


def signatures(function: Any) -> Iterable[Any]:
    """Return the overloads of a function, or the function."""
    return get_overloads(inspect.unwrap(function)) or [function]


def returned(function: Any) -> tuple[str, str]:
    """Return `await ` or nothing, and the type of the answer."""
    text = _type(inspect.signature(function).return_annotation)
    if match := re.fullmatch(r"(?:Coroutine\[Any, Any, |Sent\[)(.+)\]", text):
        return "await ", match[1]
    is_async = inspect.iscoroutinefunction(function) or hasattr(function, "_is_coroutine")
    return "await " if is_async else "", text


def _type(annotation: Any) -> str:
    """Return a type as the code has it."""
    if annotation is inspect.Parameter.empty:
        return "Any"
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return " ".join(text.split())


def _call(name: str, function: Any, returns: str | None, document: str = "") -> str:
    """A call with its arguments, their types and the type of its answer. `returns`: the text for
    the answer, None for the annotation of the function; `document` names the options."""
    waits, answer = returned(function) if returns is None else ("", returns)
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    arguments = list(_arguments(function, parameters, document))
    arrow = f" -> {answer}" if answer else ""
    line = f"{waits}{name}({', '.join(arguments)}){arrow}"
    if len(line) <= WIDE:
        return f"`{line}`\n"
    rows = "".join(f"    {argument},\n" for argument in arguments)
    return f"```text\n{waits}{name}(\n{rows}){arrow}\n```\n"


def _arguments(function: Any, parameters: list[inspect.Parameter], document: str) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        kind, declared = parameter.kind, _type(parameter.annotation)
        if options := re.fullmatch(r"Unpack\[(\w+)\]", declared):
            yield from () if starred else ("*",)
            yield from _options(function, options[1], document)
            continue
        if kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            yield "*"
        starred |= kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        text = f"{STARS.get(kind.name, '')}{parameter.name}: {declared}"
        default = parameter.default
        if default is not parameter.empty:
            plain = default is None or isinstance(default, int | float | str | bool | tuple)
            text += f" = {default!r}" if plain and not isinstance(default, Enum) else " = ..."
        yield text


def _options(function: Any, name: str, document: str) -> Iterator[str]:
    """Yield the options of a TypedDict that a docstring names, and one line for all others."""
    declared = inspect.unwrap(function).__globals__[name]
    for option in re.findall(r"^ +(\w+): ", document, re.MULTILINE):
        if option in declared.__annotations__:
            value = declared.__annotations__[option]
            yield f"{option}: {_type(getattr(value, '__forward_arg__', value))} = ..."
    yield f"**options: Unpack[{name}]"


def _other_types(objects: Iterable[Any]) -> Iterator[str]:
    """Yield a row for each type of shardbus that is named in a signature and is not public."""
    types: dict[str, Any] = {}
    for function in (each for member in objects for each in _functions(member)):
        names = getattr(inspect.unwrap(function), "__globals__", {})
        for annotation in getattr(function, "__annotations__", {}).values():
            types |= {name: names.get(name) for name in TYPE_NAME.findall(_type(annotation))}
    for value in EntityArguments.__annotations__.values():
        named = TYPE_NAME.findall(getattr(value, "__forward_arg__", str(value)))
        types |= {name: getattr(entity_options, name, None) for name in named}
    for name, value in sorted(types.items()):
        if name in shardbus.__all__ or name in shown():
            continue
        module = getattr(value, "__module__", "")
        if inspect.isclass(value) and module.startswith("shardbus"):
            text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
            yield f"| `{name}` | `{module}` | {text.partition('. ')[0].rstrip('.')} |"
        elif spelled := _alias(name, value):
            yield f"| `{name}` | | `{spelled.replace('|', chr(92) + '|')}` |"


def _alias(name: str, value: object) -> str:
    """Return the text of an alias that a module of shardbus defines, empty if none does."""
    for module_name, module in sorted(sys.modules.items()):
        is_there = module_name.startswith("shardbus.") and vars(module).get(name) is value
        if not is_there or module.__file__ is None:
            continue
        source = Path(module.__file__).read_text(encoding="utf-8")
        if f"\n{name} = " in source:
            for node in ast.parse(source).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                    is_variable = isinstance(node.value, ast.Call)
                    return "" if is_variable else ast.unparse(node.value)
    return ""


def _functions(member: Any) -> Iterator[Any]:
    """Yield the functions whose signatures the page shows for a public object."""
    if not inspect.isclass(member):
        yield member
        return
    if member.__name__ not in MADE_FOR_YOU:
        yield member.__init__
    for _, value in members(member):
        yield value.fget if isinstance(value, property) else value


def shown() -> frozenset[str]:
    """Return the names of the classes on the page that are not public names."""
    return frozenset(cls.__name__ for classes in BESIDE.values() for cls in classes)


def _annotations(cls: type) -> dict[str, Any]:
    annotations: dict[str, Any] = vars(cls).get("__annotations__", {})
    return annotations


def attributes(cls: type) -> dict[str, str]:
    """Return the public attributes that a class declares or sets, with their types.

    Raises:
        AssertionError: the code does not say the type of one.
    """
    hidden = INTERNAL.get(cls.__name__, frozenset())
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    types = {name: _type(declared) for name, declared in _annotations(cls).items()}
    for name, value in vars(cls).items():
        if isinstance(value, bool | int | str) and name not in types:
            types[name] = type(value).__name__
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            for name, declared in _set_by(function):
                types[name] = types.get(name) or declared
            break
    return {
        name: declared
        for name, declared in types.items()
        if not name.startswith("_") and name not in hidden
    }


def _set_by(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a constructor sets, with their types."""
    arguments = (*function.args.args, *function.args.kwonlyargs, *function.args.posonlyargs)
    types = {a.arg: ast.unparse(a.annotation) for a in arguments if a.annotation is not None}
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            for part in ast.walk(target):
                if not (isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)):
                    continue
                declared = types.get(part.attr, "")
                if isinstance(node, ast.AnnAssign):
                    declared = ast.unparse(node.annotation)
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    declared = declared or type(node.value.value).__name__
                if not part.attr.startswith("_"):
                    yield part.attr, declared


def _attributes(cls: type) -> list[str]:
    """The attributes of a class as a list, with the texts below their declarations."""
    texts = _texts_below(cls)
    rows = []
    for name, declared in attributes(cls).items():
        assert declared, f"{cls.__name__}.{name} has no type: annotate it where it is set"
        text = texts.get(name, "")
        rows.append(f"- `{name}: {declared}`{': ' if text else ''}{text}")
    return ["\nAttributes:\n", *rows] if rows else []


def _texts_below(cls: type) -> dict[str, str]:
    """Return the texts that stand below declarations of a class, by name."""
    texts = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls)))):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        for before, after in zip(node.body, node.body[1:], strict=False):
            match before, after:
                case (
                    ast.Assign(targets=[target]) | ast.AnnAssign(target=target),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    name = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
                    texts[name] = " ".join(text.split())
    return texts


def _text(value: Any) -> str:
    """The docstring, its sections as lists."""
    document = inspect.getdoc(value)
    assert document, f"{value} has no docstring"
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
