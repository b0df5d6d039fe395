"""Questions that nodes ask each other for their operators (`node.rpc`), declared beside the pages
that ask them.

    @question("stats")
    def answer_stats(admin: Administration) -> ...

The coordinator of a type answers where its shards are; each node answers for its own entities.
Commands to a coordinator are questions, too: they are answered once they are stored or done, and a
refusal is an answer. A node that does not run the type's coordinator answers None. The name of a
question and its arguments are the same in every release.

Source: docs/reference/http.md; S2.82-S2.84.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from shardbus.admin.administration import Administration
from shardbus.errors import ShardBusError, UnknownEntityType
from shardbus.http.page import declared_in
from shardbus.transport.permissions import LIST_STORED, OUTBOX, VALUES

P = ParamSpec("P")
R = TypeVar("R")


class Answer(msgspec.Struct, Generic[P, R], frozen=True):
    """The answer of a node to a question; its first argument is the node."""

    question: str
    answer: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.answer(*args, **kwargs)


def question(name: str) -> Callable[[Callable[P, R]], Answer[P, R]]:
    """Declare that a function answers a question."""
    return partial(Answer, name)


def refusing(
    answer: Callable[P, Coroutine[Any, Any, Any]],
) -> Callable[P, Coroutine[Any, Any, Any]]:
    """Let an answer return a refusal as it raises it (`shard_control.agreed`)."""

    @wraps(answer)
    async def answer_or_refuse(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            return await answer(*args, **kwargs)
        except UnknownEntityType:
            raise
        except ShardBusError as error:
            return {"refused": [type(error).__name__, error.message, error.hint]}

    return answer_or_refuse


def register(admin: Administration, *modules: ModuleType) -> None:
    """Let a node answer the questions that modules declare."""
    for declared in declared_in(Answer, *modules):
        strangers = declared.question in (OUTBOX, VALUES) or (
            declared.question == LIST_STORED and admin.node.settings.security.list_states
        )
        admin.node.rpc.register(
            declared.question, partial(declared.answer, admin), to_clients=strangers
        )
