"""The commands of a link to one Redis server, and their order; calls that begin without its
task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,  # noqa: A004
    NoScriptError,
)

from shardbus.errors import StoreUnavailable
from shardbus.store.redis_link import Durability, RedisLink, RedisSession
from shardbus.store.redis_scripts import LOAD_STATES, SAVE_STATES
from tests.unit.store.store_suite import LONG_S, SHORT_S


class Client:
    """Notes the keys of the scripts that it is given. It connects once `connects` is set."""

    def __init__(self) -> None:
        self.connecting, self.connects = asyncio.Event(), asyncio.Event()
        self.keys: list[Any] = []

    async def execute_command(self, *args: Any) -> Any:
        if args[0] == "INFO":
            self.connecting.set()
            await self.connects.wait()
            return {"run_id": "1"}
        self.keys.append(args[3])
        return [b"1"]

    async def exchange(self, commands: Sequence[Any]) -> list[Any]:
        return [await self.execute_command(*command) for command in commands]

    def pipeline(self, transaction: Any = True) -> Any:
        raise AssertionError("the client keeps a connection")

    async def aclose(self) -> None: ...


async def test_a_call_that_is_given_up_while_its_link_connects_is_not_sent() -> None:
    """It would get a later number than its sender's calls over another link, and undo these."""
    client = Client()
    link = RedisLink(lambda: client, RedisSession("s" * 10, "redis://r"), timeout=LONG_S)
    link.open()
    given_up = asyncio.create_task(link.call(LOAD_STATES, ["a"]))
    await client.connecting.wait()
    given_up.cancel()
    await asyncio.wait([given_up])
    other = asyncio.create_task(link.call(LOAD_STATES, ["b"]))
    client.connects.set()
    assert await other == [b"1"]
    assert client.keys == ["b"]
    await link.close()


class LosingClient(Client):
    """Its connection is lost before the first answer to a script."""

    def __init__(self) -> None:
        super().__init__()
        self.connects.set()

    async def exchange(self, commands: Sequence[Any]) -> list[Any]:
        if commands[0][0] != "INFO":
            raise ConnectionError("Connection closed by server.")
        return await super().exchange(commands)


class RefusedClient(Client):
    """The server does not let it in."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def exchange(self, commands: Sequence[Any]) -> list[Any]:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationError("WRONGPASS invalid username-password pair"),
        ConnectionError("max number of clients reached"),
    ],
)
async def test_a_call_without_an_answer_stays_in_doubt_where_no_connection_follows(
    error: Exception,
) -> None:
    """The server may have run it, whatever it says to the next connection."""
    clients = iter([LosingClient()])
    link = RedisLink(
        lambda: next(clients, None) or RefusedClient(error),
        RedisSession("s" * 10, "redis://r"),
        timeout=SHORT_S,
    )
    link.open()
    with pytest.raises(StoreUnavailable) as raised:
        await link.call(LOAD_STATES, ["a"])
    assert not raised.value.definite
    await link.close()


async def test_a_call_that_was_never_sent_is_definite() -> None:
    error = AuthenticationError("WRONGPASS invalid username-password pair")
    link = RedisLink(
        lambda: RefusedClient(error), RedisSession("s" * 10, "redis://r"), timeout=SHORT_S
    )
    link.open()
    with pytest.raises(StoreUnavailable) as raised:
        await link.call(LOAD_STATES, ["a"])
    assert raised.value.definite
    await link.close()


class DirectClient(Client):
    """A connected client that can begin commands. `replies` has the results or errors of `rest`."""

    def __init__(self) -> None:
        super().__init__()
        self.connects.set()
        self.able = True
        self.begun: list[tuple[Sequence[Any], bytes, Callable[[bool], None]]] = []
        self.replies: asyncio.Queue[Any] = asyncio.Queue()

    def begin(self, command: Sequence[Any], usual: bytes, ended: Callable[[bool], None]) -> bool:
        if self.able:
            self.begun.append((command, usual, ended))
        return self.able

    async def rest(self, count: int) -> list[Any]:
        reply = await self.replies.get()
        if isinstance(reply, Exception) and not isinstance(reply, NoScriptError):
            raise reply
        return [reply]

    def answer(self, usual: bool) -> None:
        self.begun.pop(0)[2](usual)


class Begun:
    """A link over direct clients, and the outcomes of its calls that have begun."""

    def __init__(self, timeout: float = LONG_S, durability: Durability | None = None) -> None:
        self.clients: list[DirectClient] = []
        self.link = RedisLink(self._connect, RedisSession("s" * 10, "redis://r"), timeout=timeout)
        self.link.open(durability)
        self.told: asyncio.Queue[Awaitable[Any] | None] = asyncio.Queue()
        self.on_end: Callable[[Awaitable[Any] | None], None] = self.told.put_nowait

    def _connect(self) -> Any:
        self.clients.append(DirectClient())
        return self.clients[-1]

    @property
    def client(self) -> DirectClient:
        return self.clients[-1]

    async def connected(self) -> Begun:
        await self.link.call(LOAD_STATES, ["a"])
        await asyncio.sleep(0)
        return self

    def differs(self, reply: object) -> Awaitable[Any]:
        """Answer the call that has begun with something else; return its caller's outcome."""
        self.client.replies.put_nowait(reply)
        self.client.answer(False)
        answer = self.told.get_nowait()
        assert answer is not None
        return answer

    def begin(self) -> bool:
        return self.link.begin(SAVE_STATES, ["b"], [], lambda reply: self.on_end(reply))


@pytest.fixture
async def begun() -> Begun:
    return await Begun().connected()


async def test_a_call_begins_at_once_and_ends_with_the_usual_answer(begun: Begun) -> None:
    tasks = asyncio.all_tasks()
    assert begun.begin()
    [(command, usual, _)] = begun.client.begun
    assert command[:4] == ("EVALSHA", SAVE_STATES.sha, 1, "b")
    assert usual == b"*0\r\n"
    assert begun.link.busy_for("b")
    begun.client.answer(True)
    assert begun.told.get_nowait() is None
    assert not begun.link.busy_for("b")
    assert asyncio.all_tasks() == tasks
    await begun.link.close()


async def test_a_call_begins_only_over_a_connection_that_does_nothing_else() -> None:
    begun = Begun()
    assert not begun.begin(), "not connected"
    await begun.connected()
    assert begun.begin()
    assert not begun.begin(), "another one is in flight"
    begun.client.answer(True)
    waiting = asyncio.create_task(begun.link.call(LOAD_STATES, ["a"]))
    await asyncio.sleep(0)
    assert not begun.begin(), "the task is at work"
    await waiting
    await asyncio.sleep(0)
    begun.client.able = False
    assert not begun.begin(), "the connection ends"
    await begun.link.close()
    assert not begun.begin(), "closed"


async def test_nothing_begins_where_something_must_follow_each_batch() -> None:
    begun = Begun(durability=Durability(lambda: "sync", fsync=False))
    await begun.connected()
    assert not begun.begin()
    await begun.link.close()


async def test_calls_that_wait_for_a_begun_one_are_sent_behind_it(begun: Begun) -> None:
    assert begun.begin()
    waiting = asyncio.create_task(begun.link.call(LOAD_STATES, ["c"]))
    await asyncio.sleep(0)
    assert begun.client.keys == ["a"]
    begins = list[bool]()
    begun.on_end = lambda _: begins.append(begun.begin())
    begun.client.answer(True)
    assert begins == [False], "what waits comes first"
    assert await waiting == [b"1"]
    assert begun.client.keys == ["a", "c"]
    await begun.link.close()


async def test_another_answer_is_read_by_the_task(begun: Begun) -> None:
    assert begun.begin()
    assert await begun.differs([1, b"9"]) == [1, b"9"]
    assert len(begun.clients) == 1
    await begun.link.close()


async def test_a_script_that_the_server_has_lost_is_sent_in_full(begun: Begun) -> None:
    assert begun.begin()
    assert await begun.differs(NoScriptError("NOSCRIPT")) == [b"1"]
    assert begun.client.keys == ["a", "b"]
    await begun.link.close()


async def test_a_begun_call_is_sent_again_over_a_new_connection(begun: Begun) -> None:
    assert begun.begin()
    assert await begun.differs(ConnectionError("reset")) == [b"1"]
    assert [client.keys for client in begun.clients] == [["a"], ["b"]]
    await begun.link.close()


async def test_a_begun_call_without_an_answer_ends_in_time() -> None:
    """It is sent again after half of that time; a late answer of the first time is ignored."""
    begun = Begun(timeout=SHORT_S)
    await begun.connected()
    assert begun.begin()
    reply = await asyncio.wait_for(begun.told.get(), LONG_S)
    assert reply is not None
    assert await reply == [b"1"]
    assert [client.keys for client in begun.clients] == [["a"], ["b"]]
    begun.clients[0].answer(True)
    assert begun.told.empty()
    await begun.link.close()


@pytest.mark.parametrize("handed_over", [False, True])
async def test_a_begun_call_fails_when_its_link_closes(begun: Begun, handed_over: bool) -> None:
    assert begun.begin()
    if handed_over:
        begun.client.answer(False)
    await begun.link.close()
    reply = begun.told.get_nowait()
    assert reply is not None
    with pytest.raises(StoreUnavailable, match="was closed here") as error:
        await reply
    assert not error.value.definite
    assert begun.told.empty()
