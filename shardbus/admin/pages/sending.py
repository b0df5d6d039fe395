"""Messages that an operator sends to an entity, as any sender of its type does.

The arguments are JSON, encoded as for a client that has only the handler's name: the annotations of
the handler decide on the entity's node which types arrive. The log names the operator, the entity
and the handler, before the message is sent, and never the arguments.

Source: docs/how-to/dashboard.md; B.149.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Annotated, Any

from shardbus.admin.administration import Administration
from shardbus.config.options import closest
from shardbus.errors import ConfigError, EntityFailed, Rejection, RequestError, advice_of
from shardbus.http.page import Body, EntityId, EntityType, Json, Number, Operator, page
from shardbus.sharding.events import Note
from shardbus.wire.plain_json import from_json, to_json
from shardbus.wire.schema import Interface, decode_value, encode_arguments, encode_value

WITHIN_MAX_MS = 4000
"""For an answer: less than a page may take."""
ANSWER_MAX = 256 * 1024
"""Characters of an answer that a page shows."""


@page("POST", "/v1/send/{type}/{id}")
async def send(
    admin: Administration,
    type: EntityType,
    id: EntityId,
    arguments: Body,
    operator: Operator,
    handler: str = "",
    tell: bool = False,
    within: Annotated[int, Number(1, WITHIN_MAX_MS)] = WITHIN_MAX_MS,
) -> Json:
    """Send a message to an entity and wait for the answer; with `tell=true` without an
    answer. The body has the arguments of `handler` as JSON: a list, or an object
    of their names; without `handler` it is a message for `receive`. `within` is in milliseconds.

    `type`, `id`, `handler`, `seconds`, `answer` (JSON as text, indented; null after a tell or an
    error), and `error`, null or an object of `error` (the class), `message` and `hint`: if it is
    safe to send it again. Values that JSON lacks are as in [an
    export](../how-to/keep-state.md#move-states-to-another-store). The log names the client, the
    entity and the handler, not the arguments. Arguments that the handler does not take, and a
    handler that the type does not have, are 400.
    """
    region = admin.region(type)
    payload = _payload(region.entity_type.interface, handler, arguments)
    admin.node.note(type, sent(handler, id, operator))
    sender, began = region.sender, admin.node.loop.time()
    answer, error = None, None
    try:
        key = sender.key(handler)
        if tell:
            sender.tell_nowait(key, id, payload)
        else:
            reply = await sender.ask(key, id, payload, within, decode_value)
            answer = await asyncio.to_thread(as_text, reply)  # it may be long
    except RequestError as raised:
        error = error_row(raised)
    seconds = admin.node.loop.time() - began
    head = {"type": type, "id": id, "handler": handler or "receive"}
    return {**head, "seconds": round(seconds, 4), "answer": answer, "error": error}


def _payload(interface: Interface, handler: str, body: object) -> bytes:
    """Return the encoded arguments of a handler, or the message for `receive`.

    Raises:
        ConfigError: the type has no such handler, or it takes no such arguments.
    """
    try:
        plain = from_json(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the arguments: {error}") from None
    if not handler:
        if not interface.messages:
            raise ConfigError(f"{interface.name!r} has no receive", hint="name a handler")
        return encode_value(plain)
    method = interface.methods.get(handler)
    if method is None:
        near = closest(handler, interface.methods)
        hint = f"did you mean {near}?" if near else "`GET /v1/handlers` lists them"
        raise ConfigError(f"{interface.name!r} has no handler {handler!r:.100}", hint=hint)
    if not isinstance(plain, list | dict):
        raise ConfigError("the arguments are neither a list nor an object", hint="send [ ... ]")
    args, names = ((), plain) if isinstance(plain, dict) else (plain, {})
    signature = inspect.Signature(method.parameters)
    try:
        bound = signature.bind(*args, **names)
    except TypeError as error:
        raise ConfigError(f"{handler}{signature}: {error}") from None
    if names:
        bound.apply_defaults()
    return encode_arguments(bound.args)


def as_text(answer: object) -> str:
    """Return an answer as JSON, indented: a browser must not read its numbers. Of instances, an
    error is its class and text. The end of a very long one is cut."""
    if isinstance(answer, dict):
        answer = {
            key: error_row(value) if isinstance(value, RequestError) else value
            for key, value in answer.items()
        }
    text = json.dumps(to_json(answer), ensure_ascii=False, indent=2)
    return text if len(text) <= ANSWER_MAX else f"{text[:ANSWER_MAX]}\n..."


def error_row(error: RequestError) -> dict[str, Any]:
    """Return an error as the page shows it."""
    is_named = isinstance(error, EntityFailed | Rejection)  # their texts name the exception
    return {
        "error": type(error).__name__,
        "message": str(error) if is_named else error.message,
        "hint": error.hint or advice_of(error),
    }


def sent(handler: str, entity_id: str, operator: str) -> Note:
    """Return the log's note about a message that an operator sends."""
    text = f"to {handler or 'receive'} of {entity_id!r:.100}: by {operator:.100}"
    return Note("message_sent", text, entity_id=entity_id)
