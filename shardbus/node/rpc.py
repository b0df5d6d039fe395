"""Calls from node to node: a node answers questions by name, and asks other nodes.

A call is an ask of the reserved type `$node`. Its method is the question, its payload the
arguments, its answer plain data. `register` adds an answer; an answer that takes time is a
coroutine, and at most `WORK_MAX` of them run at once.

The annotations of an answer declare the types of its arguments. Arguments that do not fit get
SchemaError, before the answer runs. Only members may ask (`transport.permissions`): some questions
are commands, and HTTP has a switch and a token for them.

Source: S2.82-S2.84.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from shardbus import errors
from shardbus.error_text import described, text_of, type_name
from shardbus.ids import NodeId
from shardbus.task_set import TaskSet
from shardbus.transport.asks import Unsent, refuse
from shardbus.transport.log_limiter import log
from shardbus.transport.permissions import QUESTION_TYPE, Permissions, Role
from shardbus.transport.session import Session
from shardbus.wire.batch import AskRun
from shardbus.wire.schema import decode_value, encode_value

WORK_MAX = 1000
"""Answers that take time and run at once, at most."""


class Question:
    """A question: its name, and the function that answers it."""

    def __init__(self, name: str, answer: Callable[..., Any], *, to_clients: bool) -> None:
        self.name, self.answer, self.to_clients = name, answer, to_clients

    @cached_property
    def arguments(self) -> Any:
        """The types of the arguments as a tuple, by the annotations of the answer. Read when the
        question first comes: a node answers fifty, and gets few of them."""
        parameters = inspect.signature(self.answer, eval_str=True).parameters.values()
        types = tuple(
            Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
            for parameter in parameters
        )
        return tuple[types] if types else tuple[()]  # type: ignore[valid-type]

    def ask(self, payload: bytes, permissions: Permissions) -> Any:
        """Answer the question of a process with these permissions with encoded arguments.

        Raises:
            SchemaError: they are no MessagePack, or do not fit.
            UnknownEntityType: a client may not use the type of the first argument.
            Unhandled: the question is not answered to clients.
        """
        try:
            arguments = msgspec.convert(decode_value(payload), self.arguments)
        except msgspec.ValidationError as e:
            raise errors.SchemaError(f"{self.name}: {text_of(e)}") from None
        if permissions.role is Role.CLIENT:
            if not self.to_clients:
                raise errors.Unhandled(f"this node does not answer {self.name!r} to clients")
            if not permissions.may_use(arguments[0]):
                raise errors.UnknownEntityType(f"this client may not use {arguments[0]!r:.100}")
        return self.answer(*arguments)


@dataclass(eq=False, repr=False)
class NodeRpc:
    """Answers questions of other nodes, and asks theirs.

    Args:
        me: this node, whose questions to itself stay in this process.
        session_to: returns the session to a node.
        timeout: seconds to wait for a node's answer about an entity type.
        members: the nodes that `ask_all` asks.
    """

    TYPE = QUESTION_TYPE

    _me: NodeId
    _session_to: Callable[[NodeId], Session]
    _timeout: Callable[[NodeId, str], float]
    members: Callable[[], list[NodeId]]
    _questions: dict[str, Question] = field(default_factory=dict)
    _work: TaskSet = field(default_factory=TaskSet)

    def register(self, name: str, answer: Callable[..., Any], *, to_clients: bool = False) -> None:
        """Answer the question `name` with `answer`, which returns plain data or a coroutine. With
        `to_clients`, clients with that permission get an answer, too; its first argument is a
        type."""
        self._questions[name] = Question(name, answer, to_clients=to_clients)

    async def ask(self, node: NodeId, question: str, *args: object, of: str = "") -> Any:
        """Ask a node. `of`: the entity type whose timeout applies.

        Raises:
            RequestError: no answer in time, no such question, or the node is gone.
        """
        if node == self._me:
            answer = self._question(question).answer(*args)
            return await answer if isinstance(answer, Coroutine) else answer
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        session = self._session_to(node)
        timeout_ms = round(1000 * self._timeout(node, of))
        key = (self.TYPE, question)
        session.outbox.ask(key, "", encode_value(args), timeout_ms, future, decode_value)
        return await future

    async def ask_all(self, question: str, *args: object, of: str = "") -> dict[NodeId, Any]:
        """Ask every member. Members that do not answer in time are missing from the result; the
        answer of a member that does not know the type is None."""
        nodes = self.members()
        answers = await asyncio.gather(
            *(self.ask(node, question, *args, of=of) for node in nodes), return_exceptions=True
        )
        return {
            node: None if isinstance(answer, errors.UnknownEntityType) else answer
            for node, answer in zip(nodes, answers, strict=True)
            if not isinstance(answer, BaseException) or isinstance(answer, errors.UnknownEntityType)
        }

    def unsent(self, questions: list[Unsent], error: errors.RequestError) -> None:
        """Fail questions that the session did not send before it ended."""
        for question in questions:
            if question.waiting is not None:
                refuse(question.waiting, error)

    def answer_questions(self, session: Session, run: AskRun) -> None:
        """Answer the questions of another node."""
        for payload, corr in zip(run.payloads, run.corrs, strict=True):
            try:
                value = self._question(run.method).ask(payload, session.permissions)
                if not isinstance(value, Coroutine):
                    session.outbox.reply(corr, encode_value(value))
                elif len(self._work) < WORK_MAX:
                    self._answer_later(session, run.method, corr, value)
                else:
                    value.close()
                    raise errors.BufferFull(f"{WORK_MAX} questions are being answered")
            except Exception as e:
                session.outbox.fail(corr, _failure(run.method, e))

    def _question(self, name: str) -> Question:
        question = self._questions.get(name)
        if question is None:
            raise errors.Unhandled(f"this node does not answer {name[:100]!r}")
        return question

    def _answer_later(
        self, session: Session, question: str, corr: int, value: Coroutine[Any, Any, Any]
    ) -> None:
        async def work() -> None:
            try:
                answer = encode_value(await value)
            except Exception as e:
                if session.lost is None:
                    session.outbox.fail(corr, _failure(question, e))
            else:
                if session.lost is None:
                    session.outbox.reply(corr, answer)

        self._work.spawn(work())


def _failure(question: str, error: Exception) -> errors.RequestError:
    """Return the error that the asking node gets. Log one that is a defect of the answer."""
    if isinstance(error, errors.RequestError):
        return error
    if not isinstance(error, errors.ShardBusError):
        log.error("the answer to %r failed: %s", question, described(error))
    return errors.EntityFailed(type_name(error), text_of(error))
