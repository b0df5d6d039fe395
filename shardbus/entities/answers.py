"""What an asker is told: the handler's value, or why there is none.

Source: B.108, B.122; docs/guarantees.md.
"""

from __future__ import annotations

from typing import Any

from shardbus.entities.context import Context
from shardbus.errors import EntityFailed, ReentrancyError, SchemaError
from shardbus.transport.session import Session
from shardbus.wire.schema import encode_value


def answer(activation: Context, value: Any, session: Session, corr: int) -> None:
    """Answer with what the handler returned, unless it has put the message aside."""
    if activation.extras is not None and activation.extras.put_aside():
        return
    try:
        session.reply(corr, encode_value(value))
    except SchemaError as e:
        text = f"the handler returned what cannot travel: {e.message}"
        session.fail(corr, EntityFailed("SchemaError", text))


def told(activation: Context, error: BaseException) -> Exception:
    """What the asker of a handler that raised is told. Along a cycle of asks everybody gets the
    error that names it; who asked its first entity from outside sees that entity fail."""
    me = (activation.entity_type, activation.entity_id)
    match error:
        case EntityFailed():
            return error
        case ReentrancyError(cycle=(first, *_)) if first != me:
            return error
        case _:
            return EntityFailed(type(error).__name__, str(error))
