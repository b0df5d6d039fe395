"""Calls from node to node: the answers, questions and refusals of a node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.errors import (
    BufferFull,
    ConfigError,
    EntityFailed,
    NodeLost,
    RequestError,
    SchemaError,
    Unhandled,
    UnknownEntityType,
)
from shardbus.ids import NodeId
from shardbus.node.rpc import WORK_MAX, NodeRpc
from shardbus.transport.permissions import NODE
from shardbus.wire.batch import AskRun
from shardbus.wire.schema import decode_value, encode_value
from tests.waiting import turns, until

ME, PEER, LOST = NodeId("a", 1, 1), NodeId("b", 1, 2), NodeId("c", 1, 3)


class Session:
    """A session that records questions, answers and failures."""

    def __init__(self) -> None:
        self.lost: RequestError | None = None
        self.permissions = NODE
        self.questions: list[tuple[object, ...]] = []
        self.replies: dict[int, Any] = {}
        self.failures: dict[int, Exception] = {}
        self.outbox = self

    def ask(
        self,
        key: object,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiting: asyncio.Future[Any],
        decode: Any,
    ) -> None:
        self.questions.append((key, decode_value(payload), timeout_ms))
        self.waiting = waiting

    def reply(self, corr: int, payload: bytes) -> None:
        self.replies[corr] = decode_value(payload)

    def fail(self, corr: int, error: Exception) -> None:
        self.failures[corr] = error


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def rpc(session: Session) -> NodeRpc:
    opened: Any = session
    return NodeRpc(
        ME,
        lambda node: opened,
        lambda node, of: 0.5 if of == "slow" else 3.0,
        lambda: [ME, PEER, LOST],
    )


def run(method: str, *arguments: tuple[object, ...]) -> AskRun:
    payloads = [encode_value(row) for row in arguments]
    made: Any = SimpleNamespace(method=method, payloads=payloads, corrs=range(1, len(payloads) + 1))
    return made


async def test_a_node_answers_its_own_questions_without_a_session(
    rpc: NodeRpc, session: Session
) -> None:
    async def later(value: int) -> int:
        return value + 1

    rpc.register("now", lambda value: value)
    rpc.register("later", later)
    assert [await rpc.ask(ME, "now", 1), await rpc.ask(ME, "later", 1)] == [1, 2]
    with pytest.raises(Unhandled, match="'never'"):
        await rpc.ask(ME, "never")
    assert session.questions == []


@pytest.mark.parametrize(("of", "timeout_ms"), [("", 3000), ("slow", 500)])
async def test_a_question_to_a_peer_has_the_timeout_of_its_type(
    rpc: NodeRpc, session: Session, of: str, timeout_ms: int
) -> None:
    asking = asyncio.ensure_future(rpc.ask(PEER, "table", "x", 1, of=of))
    await turns()
    assert session.questions == [(("$node", "table"), ["x", 1], timeout_ms)]
    session.waiting.set_result("the table")
    assert await asking == "the table"


async def test_all_are_asked_and_those_without_an_answer_are_missing(
    rpc: NodeRpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(node: NodeId, question: str, *args: object, of: str = "") -> Any:
        if node == LOST:
            raise NodeLost("gone")
        if node == PEER:
            raise UnknownEntityType("no such type")
        return 7

    monkeypatch.setattr(rpc, "ask", ask)
    assert await rpc.ask_all("stats") == {ME: 7, PEER: None}


async def test_answers_and_refusals_go_back_on_the_session(rpc: NodeRpc, session: Any) -> None:
    def refuse() -> None:
        raise UnknownEntityType("no such type")

    async def late(value: int) -> int:
        if value < 0:
            raise NodeLost("gone")
        return value

    for answer in (refuse, late):
        rpc.register(answer.__name__, answer)
    rpc.answer_questions(session, run("refuse", ()))
    assert isinstance(session.failures.pop(1), UnknownEntityType)
    rpc.answer_questions(session, run("never", ()))
    assert isinstance(session.failures.pop(1), Unhandled)
    rpc.answer_questions(session, run("late", (5,), (-1,), ()))
    await until(lambda: len(session.replies) + len(session.failures) == 3, "all three")
    assert session.replies == {1: 5}
    assert {corr: type(error) for corr, error in session.failures.items()} == {
        2: NodeLost,
        3: SchemaError,
    }


async def test_answers_that_take_time_are_bounded(rpc: NodeRpc, session: Any) -> None:
    gate = asyncio.Event()

    async def slow() -> bool:
        return await gate.wait()

    rpc.register("slow", slow)
    rpc.answer_questions(session, run("slow", *[()] * (WORK_MAX + 1)))
    assert [type(error) for error in session.failures.values()] == [BufferFull]
    gate.set()
    await until(lambda: len(session.replies) == WORK_MAX, "the answers")


async def test_an_answer_for_a_session_that_is_lost_is_dropped(rpc: NodeRpc, session: Any) -> None:
    gate = asyncio.Event()

    async def slow() -> bool:
        return await gate.wait()

    rpc.register("slow", slow)
    rpc.answer_questions(session, run("slow", ()))
    session.lost = NodeLost("gone")
    gate.set()
    await until(lambda: not len(rpc._work), "the end of the answer")
    assert (session.replies, session.failures) == ({}, {})


async def test_questions_that_were_not_sent_fail(rpc: NodeRpc) -> None:
    waits: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    question: Any = SimpleNamespace(waiting=(waits, decode_value, 0))
    session: Any = SimpleNamespace(waiting=None)
    rpc.unsent([question, session], NodeLost("gone"))
    with pytest.raises(NodeLost):
        await waits


@pytest.mark.parametrize(
    "arguments",
    [(), (1,), ("page",), ("page", "x", []), ("page", 1, "n"), ("page", 1, [1]), (0, 1, []), "pag"],
)
async def test_arguments_that_do_not_fit_get_an_error_and_never_the_answer(
    rpc: NodeRpc, session: Session, arguments: Any, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[object] = []

    def plan(name: str, add: int, remove: list[str]) -> None:
        calls.append(name)

    rpc.register("plan", plan)
    rpc.answer_questions(session, run("plan", arguments))  # type: ignore[arg-type]
    assert isinstance(session.failures[1], SchemaError)
    assert (calls, caplog.messages) == ([], [])
    rpc.answer_questions(session, run("plan", ("page", 1, ["n"])))  # type: ignore[arg-type]
    assert calls == ["page"]


@pytest.mark.parametrize("error", [ConfigError("no node: 'x'"), KeyError("x")])
@pytest.mark.parametrize("late", [False, True])
async def test_an_answer_that_fails_is_an_answer(
    rpc: NodeRpc, session: Session, error: Exception, late: bool
) -> None:
    def now() -> None:
        raise error

    async def later() -> None:
        raise error

    rpc.register("question", later if late else now)
    rpc.answer_questions(session, run("question", ()))  # type: ignore[arg-type]
    await until(lambda: session.failures, "the answer")
    assert str(error) in str(session.failures[1])
    assert isinstance(session.failures[1], EntityFailed)
