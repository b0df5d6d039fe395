"""Messages for the `receive` of a type that has none: a text names the handler to call.

    a message of method ""  ──the type has `receive`─────────────────────> receive
                            ──a text that names a handler───────────────> that handler, no arguments
                            ──any other text, any other value────────────> Unhandled

So `client.ask("counter", "page-7", "total")` does the same as `shardbus ask counter page-7 total`.
A client that names a type by a string does not know its handlers, so the host decides. This is the
slow path: for a type with `receive`, and for calls by name, no message comes here.

Source: docs/how-to/send.md; docs/reference/cli.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TypeVar

from msgspec.structs import replace

from shardbus.entities.entity_type import EntityType
from shardbus.errors import SchemaError, Unhandled
from shardbus.routing.refs import NO_ARGUMENTS
from shardbus.wire.batch import METHOD_MAX, AskRun, Relayed, TellRun
from shardbus.wire.missing_handlers import hint_of_call
from shardbus.wire.schema import decode_value

R = TypeVar("R", TellRun, AskRun)


def handler_runs(run: R, entity_type: EntityType) -> Iterator[R]:
    """Return a run for which the type has no handler as runs that may have one, in order."""
    if run.method:
        yield run
        return
    texts = [_text(payload) for payload in run.payloads]
    for text, group in groupby(range(len(texts)), texts.__getitem__):
        at = list(group)
        columns = {"ids": [run.ids[i] for i in at], "payloads": [NO_ARGUMENTS] * len(at)}
        if isinstance(run, AskRun):
            columns["corrs"] = [run.corrs[i] for i in at]
        yield replace(run, method=text if text in entity_type.interface.methods else "", **columns)


def handler_call(message: Relayed, entity_type: EntityType) -> Relayed:
    """Return a forwarded message for which the type has no handler as one that may have one."""
    text = "" if message.method else _text(message.payload)
    if text not in entity_type.interface.methods:
        return message
    return replace(message, method=text, payload=NO_ARGUMENTS)


def unhandled(entity_type: EntityType, method: str) -> Unhandled:
    """Return the error for a message that no handler of the type takes."""
    name = entity_type.name
    if method:
        hint = hint_of_call(entity_type.interface, method)
        return Unhandled(f"{name} has no handler {method!r:.100}{hint}")
    return Unhandled(f"{name} has no receive, and the message names no handler")


def _text(payload: bytes) -> str:
    """Return a payload that is a text, as long as the name of a method may be; else ""."""
    if len(payload) > METHOD_MAX:
        return ""
    try:
        value = decode_value(payload)
    except SchemaError:
        return ""
    return value if isinstance(value, str) else ""
