"""The commands of a link to one Redis server, and their order; calls that begin without its
task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,  # noqa: A004
    NoScriptError,
    ResponseError,
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


class BusyClient(Client):
    """The server runs a script of another user."""

    async def exchange(self, commands: Sequence[Any]) -> list[Any]:
        return [ResponseError("BUSY Redis is busy running a script.") for _ in commands]


async def test_a_busy_server_is_not_taken_for_another_one() -> None:
    """It answers INFO with an error, too, and its run id stays unknown."""
    clients: list[Client] = [LosingClient(), BusyClient(), BusyClient(), BusyClient()]
    met: list[str] = []
    session = RedisSession("s" * 10, "redis://r")
    session.on_new_server = lambda: met.append("another")
    connected = Client()
    connected.connects.set()
    link = RedisLink(lambda: clients.pop(0) if clients else connected, session, timeout=LONG_S)
    link.open()
    assert await link.call(LOAD_STATES, ["a"]) == [b"1"]
    assert (clients, met) == ([], [])
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


class FullClient(Client):
    """The server ends the connection rather than answer more than four calls at a time."""

    most = 4

    def __init__(self) -> None:
        super().__init__()
        self.connects.set()

    async def exchange(self, commands: Sequence[Any]) -> list[Any]:
        if len(commands) > self.most:
            raise ConnectionError("Connection closed by server.")
        return await super().exchange(commands)


async def test_batches_become_small_enough_for_a_server_that_limits_its_replies() -> None:
    link = RedisLink(FullClient, RedisSession("s" * 10, "redis://r"), timeout=LONG_S)
    link.open()
    keys = [f"k{n}" for n in range(100)]
    replies = await asyncio.gather(*(link.call(LOAD_STATES, [key]) for key in keys))
    assert replies == [[b"1"]] * len(keys)
    await link.close()


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
        self.begun: list[tuple[Sequence[Sequence[Any]], bytes, Callable[[bool], None]]] = []
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self.following: list[Any] = []

    def begin(
        self, commands: Sequence[Sequence[Any]], usual: bytes, ended: Callable[[bool], None]
    ) -> bool:
        if self.able:
            self.begun.append((commands, usual, ended))
        return self.able

    async def rest(self, count: int) -> list[Any]:
        reply = await self.replies.get()
        if isinstance(reply, Exception) and not isinstance(reply, NoScriptError):
            raise reply
        return [reply, *self.following][:count]

    def answer(self, usual: bool) -> None:
        self.begun.pop(0)[2](usual)


class Begun:
    """A link over direct clients."""

    def __init__(self, timeout: float = LONG_S, durability: Durability | None = None) -> None:
        self.clients: list[DirectClient] = []
        self.link = RedisLink(self._connect, RedisSession("s" * 10, "redis://r"), timeout=timeout)
        self.link.open(durability)

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

    def differs(self, reply: object) -> None:
        """Answer the call that has begun with something else."""
        self.client.replies.put_nowait(reply)
        self.client.answer(False)

    def send(self) -> asyncio.Future[Any]:
        return self.link.send(SAVE_STATES, ["b"], [])

    def begin(self) -> asyncio.Future[Any]:
        """Send a call, which goes at once."""
        before = len(self.client.begun)
        answer = self.send()
        assert len(self.client.begun) == before + 1
        return answer


@pytest.fixture
async def begun() -> Begun:
    return await Begun().connected()


async def test_a_call_begins_at_once_and_ends_with_the_usual_answer(begun: Begun) -> None:
    tasks = asyncio.all_tasks()
    answer = begun.begin()
    [([command], usual, _)] = begun.client.begun
    assert command[:4] == ("EVALSHA", SAVE_STATES.sha, 1, "b")
    assert usual == b"*0\r\n"
    assert begun.link.busy_for("b")
    begun.client.answer(True)
    assert answer.result() == []
    assert not begun.link.busy_for("b")
    assert asyncio.all_tasks() == tasks
    await begun.link.close()


async def test_a_call_begins_only_over_a_connection_that_does_nothing_else() -> None:
    begun = Begun()
    assert await begun.send() == [b"1"], "not connected"
    await asyncio.sleep(0)
    first = begun.begin()
    second = begun.send()
    assert len(begun.client.begun) == 1, "another one is in flight"
    begun.client.answer(True)
    third = begun.send()
    assert not begun.client.begun, "the task is at work"
    assert await asyncio.gather(first, second, third) == [[], [b"1"], [b"1"]]
    await asyncio.sleep(0)
    begun.client.able = False
    assert await begun.send() == [b"1"], "the connection ends"
    assert begun.client.keys == ["b"] * 4
    await begun.link.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        begun.send()


async def test_a_script_without_a_usual_answer_waits_for_the_task(begun: Begun) -> None:
    assert await begun.link.call(LOAD_STATES, ["c"]) == [b"1"]
    assert begun.client.keys == ["a", "c"]
    await begun.link.close()


DURABLE = Durability(lambda: "sync", fsync=True, replicas=2)
SYNCED = [0, [1, 0], 2]


class DurableClient(DirectClient):
    """A client of a server with a log and replicas."""

    async def exchange(self, commands: Sequence[Any]) -> list[Any]:
        if commands[0][0] == "INFO":
            return await super().exchange(commands)
        assert [command[0] for command in commands[-3:]] == ["HSET", "WAITAOF", "WAIT"]
        return [*await super().exchange(commands[:-3]), *SYNCED]


@pytest.fixture
async def durable(monkeypatch: pytest.MonkeyPatch) -> Begun:
    monkeypatch.setitem(globals(), "DirectClient", DurableClient)
    return await Begun(durability=DURABLE).connected()


async def test_the_commands_that_follow_a_batch_go_with_a_call_that_begins(durable: Begun) -> None:
    answer = durable.begin()
    [(commands, usual, _)] = durable.client.begun
    assert [command[0] for command in commands] == ["EVALSHA", "HSET", "WAITAOF", "WAIT"]
    assert usual == b"*0\r\n:0\r\n*2\r\n:1\r\n:0\r\n:2\r\n"
    durable.client.answer(True)
    assert answer.result() == []
    await durable.link.close()


async def test_a_begun_call_that_is_not_synced_is_sent_again(durable: Begun) -> None:
    answer = durable.begin()
    first = durable.client
    first.following = [0, [0, 0], 2]
    durable.differs([])
    assert await answer == [b"1"]
    assert durable.client is not first
    assert durable.client.keys == ["b"]
    await durable.link.close()


async def test_a_begun_call_whose_replies_differ_and_are_synced_is_answered(durable: Begun) -> None:
    answer = durable.begin()
    behind = asyncio.create_task(durable.link.call(LOAD_STATES, ["c"]))
    await asyncio.sleep(0)
    durable.client.following = [1, [1, 1], 3]
    durable.differs([1, b"9"])
    assert await answer == [1, b"9"]
    assert await behind == [b"1"], "the task goes on"
    assert len(durable.clients) == 1
    await durable.link.close()


async def test_calls_that_wait_for_a_begun_one_are_sent_behind_it(begun: Begun) -> None:
    answer = begun.begin()
    waiting = asyncio.create_task(begun.link.call(LOAD_STATES, ["c"]))
    await asyncio.sleep(0)
    assert begun.client.keys == ["a"]
    begun.client.answer(True)
    behind = begun.send()
    assert not begun.client.begun, "what waits comes first"
    assert await asyncio.gather(answer, waiting, behind) == [[], [b"1"], [b"1"]]
    assert begun.client.keys == ["a", "c", "b"]
    await begun.link.close()


async def test_another_answer_is_read_by_the_task(begun: Begun) -> None:
    answer = begun.begin()
    begun.differs([1, b"9"])
    assert await answer == [1, b"9"]
    assert len(begun.clients) == 1
    await begun.link.close()


async def test_a_script_that_the_server_has_lost_is_sent_in_full(begun: Begun) -> None:
    answer = begun.begin()
    begun.differs(NoScriptError("NOSCRIPT"))
    assert await answer == [b"1"]
    assert begun.client.keys == ["a", "b"]
    await begun.link.close()


async def test_a_begun_call_is_sent_again_over_a_new_connection(begun: Begun) -> None:
    answer = begun.begin()
    begun.differs(ConnectionError("reset"))
    assert await answer == [b"1"]
    assert [client.keys for client in begun.clients] == [["a"], ["b"]]
    await begun.link.close()


async def test_a_begun_call_without_an_answer_ends_in_time() -> None:
    """It is sent again after half of that time; a late answer of the first time is ignored."""
    begun = Begun(timeout=SHORT_S)
    await begun.connected()
    assert await asyncio.wait_for(begun.begin(), LONG_S) == [b"1"]
    assert [client.keys for client in begun.clients] == [["a"], ["b"]]
    begun.clients[0].answer(True)
    await asyncio.sleep(0)
    assert not begun.link.busy_for("b")
    await begun.link.close()


@pytest.mark.parametrize("handed_over", [False, True])
async def test_a_begun_call_fails_when_its_link_closes(begun: Begun, handed_over: bool) -> None:
    answer = begun.begin()
    if handed_over:
        begun.client.answer(False)
    await begun.link.close()
    with pytest.raises(StoreUnavailable, match="was closed here") as error:
        await answer
    assert not error.value.definite
