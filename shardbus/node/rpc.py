"""Calls from node to node: a node answers questions by name, and asks other nodes.

A call is an ask of the reserved type `$node`. Its method is the question, its payload the
arguments, its answer plain data. `register` adds an answer; an answer that takes time is a
coroutine, and at most `WORK_MAX` of them run at once.

Source: S2.82-S2.84.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from shardbus.errors import BufferFull, RequestError, Unhandled, UnknownEntityType
from shardbus.ids import NodeId
from shardbus.task_set import TaskSet
from shardbus.transport.asks import Unsent, refuse
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.session import Session
from shardbus.wire.batch import AskRun
from shardbus.wire.schema import decode_value, encode_value

WORK_MAX = 1000
"""Answers that take time and run at once, at most."""


class NodeRpc:
    """Answers questions of other nodes, and asks theirs.

    Args:
        timeout: seconds to wait for a node's answer about an entity type.
        members: the nodes that `ask_all` asks.
    """

    TYPE = "$node"

    def __init__(
        self,
        timeout: Callable[[NodeId, str], float],
        members: Callable[[], list[NodeId]],
    ) -> None:
        self._timeout, self.members = timeout, members
        self._answers: dict[str, Callable[..., Any]] = {}
        self._work = TaskSet()
        self._me: NodeId
        self._endpoint: Endpoint

    def register(self, name: str, answer: Callable[..., Any]) -> None:
        """Answer the question `name` with `answer`, which returns plain data or a coroutine."""
        self._answers[name] = answer

    def start(self, me: NodeId, endpoint: Endpoint) -> None:
        """Send through `endpoint`; questions to `me` stay in this process."""
        self._me, self._endpoint = me, endpoint

    async def ask(self, node: NodeId, question: str, *args: object, of: str = "") -> Any:
        """Ask a node. `of`: the entity type whose timeout applies.

        Raises:
            RequestError: no answer in time, no such question, or the node is gone.
        """
        if node == self._me:
            answer = self._answer(question)(*args)
            return await answer if isinstance(answer, Coroutine) else answer
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        session = self._endpoint.session_to(node.address, node)
        timeout_ms = round(1000 * self._timeout(node, of))
        key = (self.TYPE, question)
        session.ask(key, "", encode_value(args), timeout_ms, future, decode_value)
        return await future

    async def ask_all(self, question: str, *args: object, of: str = "") -> dict[NodeId, Any]:
        """Ask every member. Members that do not answer in time are missing from the result; the
        answer of a member that does not know the type is None."""
        nodes = self.members()
        answers = await asyncio.gather(
            *(self.ask(node, question, *args, of=of) for node in nodes), return_exceptions=True
        )
        return {
            node: None if isinstance(answer, UnknownEntityType) else answer
            for node, answer in zip(nodes, answers, strict=True)
            if not isinstance(answer, BaseException) or isinstance(answer, UnknownEntityType)
        }

    def unsent(self, questions: list[Unsent], error: RequestError) -> None:
        """Fail questions that the session did not send before it ended."""
        for question in questions:
            if question.waiting is not None:
                refuse(question.waiting, error)

    def asked(self, session: Session, run: AskRun) -> None:
        """Answer the questions of another node."""
        for payload, corr in zip(run.payloads, run.corrs, strict=True):
            try:
                value = self._answer(run.method)(*decode_value(payload))
                if not isinstance(value, Coroutine):
                    session.reply(corr, encode_value(value))
                elif len(self._work) < WORK_MAX:
                    self._answer_later(session, corr, value)
                else:
                    value.close()
                    raise BufferFull(f"{WORK_MAX} questions are being answered")
            except (RequestError, TypeError) as e:
                session.fail(corr, e)

    def _answer(self, question: str) -> Callable[..., Any]:
        answer = self._answers.get(question)
        if answer is None:
            raise Unhandled(f"this node does not answer {question!r}")
        return answer

    def _answer_later(self, session: Session, corr: int, value: Coroutine[Any, Any, Any]) -> None:
        async def work() -> None:
            try:
                answer = encode_value(await value)
            except (RequestError, TypeError) as e:
                if session.lost is None:
                    session.fail(corr, e)
            else:
                if session.lost is None:
                    session.reply(corr, answer)

        self._work.spawn(work())
