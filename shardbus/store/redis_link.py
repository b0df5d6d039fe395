"""The link to a Redis server: one queue, one task and one connection for many callers.

A caller queues a script call and waits. The task sends everything queued as one pipeline and
distributes the answers. So callers share round trips and keep their order, and a caller can be
cancelled at any moment without mixing up answers: only the task reads.

The task drops the connection if no answer comes, or if the server cannot write now (READONLY,
LOADING, MASTERDOWN and similar; see `redis_errors`). It connects again, which finds the current
master, and sends the calls that still wait. A caller waits at most `timeout` seconds and then gets
`StoreUnavailable`, at once if the server is full, cannot write to its disk, or refuses the user.
A server with another run id may have lost writes that the last one had acknowledged;
`on_new_server` is called once the link has met it. The client library's own retries are off,
because a repeated call must carry a new sequence number (see `redis_scripts`).

A link to one master of a cluster sends nothing again that another master may answer: its calls end
with `Bounced`, and `redis_cluster` decides where they go next.

A call with a usual answer needs no task until another one comes. If the link is connected and does
nothing else, the call goes in the turn of its caller; any other call waits for the task.

    IDLE ──call──> TASK ──nothing waits──> IDLE
     │ call with a  ^
     │ usual answer │ another answer, half of the time is over, connection lost: the task goes on
     v              │ with the call; the usual answer, and calls wait
    BEGUN ──────────┘
      └──> IDLE  the usual answer

`send` returns the future of the reply, and `call` awaits it. Both have the same deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from redis import exceptions as redis_errors

from shardbus.errors import StoreUnavailable
from shardbus.ids import Address
from shardbus.quantities import counted
from shardbus.store.outage import Outage
from shardbus.store.redis_errors import trouble_of
from shardbus.store.redis_packing import Value
from shardbus.store.redis_scripts import SEQUENCE_WIDTH, Script
from shardbus.store.trouble import Trouble
from shardbus.task_set import TaskSet

BATCH_CALLS = 512
BATCH_BYTES = 4 * 1024 * 1024
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.2


class NotSynced(Exception):
    """The server ran a batch, and it is not known to be as durable as `Durability` says."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


class Durability(msgspec.Struct, frozen=True):
    """The places that a batch must have reached before it is answered.

    The server waits for the writes of this connection. A repeated call whose first write went over
    another connection writes nothing, so each batch also writes to a key, which `key` returns.
    """

    key: Callable[[], str]
    fsync: bool = False
    """The log of the server is on its disk."""
    replicas: int = 0
    """The number of replicas that have it in memory."""

    @property
    def usual(self) -> bytes:
        """The usual replies to the commands that follow a batch, as the server sends them."""
        synced = b"*2\r\n:1\r\n:0\r\n" if self.fsync else b""
        followed = b":%d\r\n" % self.replicas if self.replicas else b""
        return b":0\r\n" + synced + followed

    def commands(self, sequence: int, milliseconds: int) -> list[tuple[Value, ...]]:
        """Return the commands that follow a batch."""
        commands: list[tuple[Value, ...]] = [("HSET", self.key(), "sequence", sequence)]
        if self.fsync:
            commands.append(("WAITAOF", 1, 0, milliseconds))
        if self.replicas:
            commands.append(("WAIT", self.replicas, milliseconds))
        return commands

    def check(self, replies: list[Any]) -> None:
        """Raise NotSynced if the replies to these commands say so."""
        for reply in replies:
            if isinstance(reply, Exception):
                raise NotSynced(f"has not confirmed its writes: {reply}", "check its log")
        if self.fsync and replies[1][0] < 1:
            raise NotSynced("has not synced its log", "check the server's disk and its log")
        if self.replicas and replies[-1] < self.replicas:
            replicas = counted(self.replicas, "replica")
            raise NotSynced(
                f"has its writes on {replies[-1]} of {replicas}",
                "start its replicas, or lower ?replicas=",
            )


class Bounced(Exception):
    """A call that this server did not answer. `to`: the server that it names instead. `once`: it
    does so for this call only, because a slot is on its way."""

    def __init__(
        self, trouble: Trouble, in_doubt: bool, to: Address | None = None, once: bool = False
    ) -> None:
        self.trouble, self.in_doubt, self.to, self.once = trouble, in_doubt, to, once


class RedisPipeline(Protocol):
    def execute_command(self, *args: Any) -> Any: ...
    def execute(self, raise_on_error: bool = ...) -> Awaitable[list[Any]]: ...


class RedisClient(Protocol):
    """The methods of a redis-py client, for one server or for a cluster. A link uses `exchange` of
    `redis_client.LinkRedis` instead, if the client has it."""

    def pipeline(self, transaction: Any = ...) -> Any: ...
    def execute_command(self, *args: Any) -> Any: ...
    def aclose(self) -> Any: ...


class _Call(msgspec.Struct, eq=False):
    script: Script
    keys: Sequence[Value]
    args: Sequence[Any]
    size: int
    answer: asyncio.Future[Any]
    until: float = 0.0
    """When its caller waits no longer."""
    follows: int = 0
    """The replies behind its own, if it has begun."""
    timer: asyncio.TimerHandle | None = None
    asking: bool = False
    """Send ASKING first: the key's slot is on its way to this server."""
    in_full: bool = False
    """Send the text of the script, because the server does not know its digest."""
    was_in_doubt: bool = False
    in_doubt: bool = False
    """Whether the server may have run it: it was sent, and no answer says that it did not run.
    `was_in_doubt`: the same before it was sent last."""

    def end(self, answer: asyncio.Future[Any]) -> None:
        """The caller has its answer, or has given up."""
        if self.timer is not None:
            self.timer.cancel()

    def command(self, session: str, sequence: int) -> tuple[Value, ...]:
        name = ("EVAL", self.script.source) if self.in_full else ("EVALSHA", self.script.sha)
        seq = str(sequence).zfill(SEQUENCE_WIDTH)
        sign = self.script.sign
        args = self.args if sign is None else sign(session + seq, self.args)
        return (*name, len(self.keys), *self.keys, session, seq, *args)


class RedisSession:
    """The state that the links of one store object share: the `session` that names it in every
    call, the sequence of its commands, and its knowledge of the servers that `shown` names."""

    def __init__(self, session: str, shown: str) -> None:
        self.session, self.shown = session, shown
        self._sequence = 0
        self.outage = Outage(shown)
        self.servers: dict[Address | None, str] = {}
        """The run ids that the last connections met: of each master of a cluster by its address,
        else of the one server, under None."""
        self.on_new_server: Callable[[], None] = lambda: None

    def next_sequence(self) -> int:
        """Return the number of the next command."""
        self._sequence += 1
        return self._sequence

    def meet(self, run_id: str, at: Address | None = None) -> None:
        """Report the run id of the server; empty if it hides it, and is taken for another one."""
        before, self.servers[at] = self.servers.get(at), run_id
        if before is not None and (not run_id or before != run_id):
            self.on_new_server()


class RedisLink:
    """Calls scripts through the clients that `connect` creates. `timeout` bounds a call, in
    seconds. `at`: the address of the server if it is a master of a cluster."""

    def __init__(
        self,
        connect: Callable[[], RedisClient],
        session: RedisSession,
        *,
        timeout: float,
        at: Address | None = None,
    ) -> None:
        self._connect = connect
        self._at = at
        self._session, self._shown = session, session.shown
        self._timeout = timeout
        self._durability: Durability | None = None
        self._most = BATCH_CALLS
        """Calls of the next batch: a quarter after one whose connection broke, because its replies
        may be more than the server sends; twice as many after one that was answered."""
        self._waiting: deque[_Call] = deque()
        self._client: RedisClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun: _Call | None = None
        """A call that was sent without the task."""
        self._running, self._closing = TaskSet(), TaskSet()
        self._trouble: Trouble | None = None
        """Why the last batch failed, None if it did not."""
        self._outage = session.outage
        self._open = False
        self._run_id = ""
        """Of the server that the last connection met."""

    def open(self, durability: Durability | None = None) -> None:
        """Accept calls, and answer them once they are as durable as this says."""
        self._durability = durability
        self._open = True

    async def close(self) -> None:
        """Fail the waiting calls and close the connection."""
        self._open = False
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        begun, self._begun = self._begun, None
        if begun is not None:
            self._waiting.append(begun)
        while self._waiting:
            self._refuse(self._waiting.popleft(), Trouble("was closed here"))
        self._disconnect()
        await self._closing.wait(self._timeout)

    async def call(self, script: Script, keys: Sequence[Value], *args: Any) -> Any:
        """Run `script` on the server and return its reply: bytes, int, None or a list of them.

        Raises:
            StoreUnavailable: the server did not answer in time, or answered with an error; unless
            `definite`, the script may have run.
        """
        return await self.send(script, keys, args)

    def send(
        self, script: Script, keys: Sequence[Value], args: Sequence[Any], *, alone: bool = True
    ) -> asyncio.Future[Any]:
        """Run `script` on the server, at once if it comes `alone` and the link can. Returns the
        future of its reply, which fails as `call`."""
        call = self._new(script, keys, args, 0)
        loop = call.answer.get_loop()
        call.until = loop.time() + self._timeout
        begun = alone and self._begin(call)
        if not begun:
            call.size = script.size(args)
            self._queue(call)
        due = call.until - self._timeout / 2 if begun else call.until
        call.timer = loop.call_at(due, self._on_time, call)
        call.answer.add_done_callback(call.end)
        return call.answer

    def _begin(self, call: _Call) -> bool:
        """Send a call at once. Returns False, and sends nothing, if it must wait."""
        client: Any = self._client
        usual, durable = call.script.usual, self._durability
        if not usual or self._is_busy() or not hasattr(client, "begin"):
            return False
        sequence = self._session.next_sequence()
        commands = [call.command(self._session.session, sequence)]
        if durable is not None:
            commands += durable.commands(sequence, int(self._timeout * 400))
            usual += durable.usual
        if not client.begin(commands, usual, partial(self._on_begun, call)):
            return False
        call.in_doubt, call.follows = True, len(commands) - 1
        self._begun = call
        return True

    def _on_begun(self, call: _Call, usual: bool) -> None:
        """Go on with the call that had begun: it has an answer, or half of its time is over."""
        if self._begun is not call or self._runs():
            return
        if not usual:
            self._start()
            return
        self._begun = None
        self._outage.answered()
        if not call.answer.done():
            call.answer.set_result([])
        if self._waiting:
            self._start()

    def _on_time(self, call: _Call) -> None:
        """Half of the time of a call that had begun is over, or all of the time of any call."""
        if call.answer.done():
            return
        loop = call.answer.get_loop()
        if loop.time() < call.until:
            call.timer = loop.call_at(call.until, self._on_time, call)
            self._on_begun(call, False)
            return
        call.answer.set_exception(
            self._outage.no_answer(self._timeout, self._trouble, in_doubt=call.in_doubt)
        )

    def bounce(
        self, script: Script, keys: Sequence[Value], args: Sequence[Any], *, asking: bool = False
    ) -> asyncio.Future[Any]:
        """Return the future of a reply, as `call`, from a master of a cluster. It fails with
        `Bounced` if this server does not answer, and has no deadline of its own."""
        call = self._new(script, keys, args, script.size(args))
        call.asking = asking
        self._queue(call)
        return call.answer

    def _new(self, script: Script, keys: Sequence[Value], args: Sequence[Any], size: int) -> _Call:
        if not self._open:
            raise StoreUnavailable(f"the store {self._shown} is not open")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        return _Call(script, keys, args, size, answer)

    def _queue(self, call: _Call) -> None:
        self._waiting.append(call)
        if not self._is_busy():
            self._start()

    def _is_busy(self) -> bool:
        """True if a call is under way. Calls wait only then."""
        return self._begun is not None or self._runs()

    def _runs(self) -> bool:
        return self._task is not None and not self._task.done()

    def _start(self) -> None:
        self._trouble = None
        self._task = self._running.spawn(self._run(), name="shardbus-redis")

    async def _run(self) -> None:
        """Send waiting calls until none waits, behind a call that had begun."""
        client: Any
        begun, self._begun = self._begun, None
        pause = FIRST_PAUSE_S
        while batch := self._take() if begun is None else [begun]:
            try:
                if begun is None:
                    batch, replies = await self._exchanged(batch)
                else:
                    client, call, begun = self._client, begun, None
                    async with asyncio.timeout_at(call.until - self._timeout / 2):
                        replies = self._synced(await client.rest(1 + call.follows), 1)
            except asyncio.CancelledError:
                self._waiting.extendleft(reversed(batch))
                if self._at is not None:
                    self._bounce_waiting(Trouble("is no master any more", again=True))
                raise
            except Exception as error:  # The client library's errors have no common root.
                again = self._fail(batch, error)
            else:
                again = self._deliver(batch, replies)
            self._waiting.extendleft(reversed(again))
            if self._trouble is None:
                pause = FIRST_PAUSE_S
                continue
            self._outage.failed(self._trouble.what, self._trouble.hint)
            self._disconnect()
            if self._at is not None:
                self._bounce_waiting(self._trouble)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _exchanged(self, batch: list[_Call]) -> tuple[list[_Call], list[Any]]:
        """Connect if needed, and send the calls that are not given up. Returns them with their
        replies."""
        for call in batch:  # A refused connection says nothing about calls that were sent before.
            call.was_in_doubt = call.in_doubt
        async with asyncio.timeout(self._timeout / 2):
            client = await self._connected()
            batch = [call for call in batch if not call.answer.done()]
            return batch, await self._send(client, batch) if batch else []

    def _fail(self, batch: list[_Call], error: Exception) -> list[_Call]:
        """Note that no answer came to the batch. Returns the calls that must be sent again."""
        if isinstance(error, NotSynced):
            trouble = Trouble(str(error), error.hint, definite=False)
        else:
            trouble = trouble_of(error)
        self._trouble = trouble
        if not trouble.definite:
            self._most = max(1, min(self._most, len(batch)) // 4)
            return batch
        for call in batch:
            call.in_doubt = call.was_in_doubt
        if trouble.again:
            return batch
        for call in batch:
            self._refuse(call, trouble)
        return []

    def _take(self) -> list[_Call]:
        batch: list[_Call] = []
        size = 0
        while self._waiting and len(batch) < self._most and size < BATCH_BYTES:
            call = self._waiting.popleft()
            if not call.answer.done():
                batch.append(call)
                size += call.size
        return batch

    async def _connected(self) -> RedisClient:
        if self._client is None:
            self._client = self._connect()
            self._run_id = await run_id_of(self._client)
            self._session.meet(self._run_id, self._at)
        return self._client

    async def _send(self, client: RedisClient, batch: list[_Call]) -> list[Any]:
        """Send calls that their callers still wait for. One that was given up would be newer here
        than the calls that its caller has sent over another link since."""
        commands: list[tuple[Value, ...]] = []
        sequence = 0
        for call in batch:
            sequence = self._session.next_sequence()
            call.was_in_doubt, call.in_doubt = call.in_doubt, True
            if call.asking:
                commands.append(("ASKING",))
            commands.append(call.command(self._session.session, sequence))
        follows: list[tuple[Value, ...]] = []
        if self._durability is not None:
            follows = self._durability.commands(sequence, int(self._timeout * 400))
        sent = [*commands, *follows]
        replies = self._synced(await _exchange(client, sent), len(commands))
        if len(commands) == len(batch):
            return replies
        places = (i for i, command in enumerate(commands) if len(command) > 1)
        return [replies[i] for i in places]

    def _synced(self, replies: list[Any], count: int) -> list[Any]:
        """Return the replies to this many commands; check those that follow."""
        if self._durability is not None:
            self._durability.check(replies[count:])
        return replies[:count]

    def busy_for(self, key: Value) -> bool:
        """True while calls wait or are in flight, whatever the key."""
        return self._is_busy()

    def _deliver(self, batch: list[_Call], replies: list[Any]) -> list[_Call]:
        """Answer the calls. Returns those that must be sent again."""
        again: list[_Call] = []
        self._trouble = None
        self._most = min(2 * self._most, BATCH_CALLS)
        for call, reply in zip(batch, replies, strict=True):
            if call.answer.done():
                continue
            if isinstance(reply, redis_errors.NoScriptError):
                call.in_full, call.in_doubt = True, call.was_in_doubt
                again.append(call)
            elif reply == b"late":
                call.in_doubt = call.was_in_doubt
                again.append(call)
            elif isinstance(reply, redis_errors.AskError):  # MovedError is one, too
                call.in_doubt = call.was_in_doubt
                self._redirect(call, reply)
            elif isinstance(reply, Exception):
                trouble = trouble_of(reply)
                if trouble.definite:
                    call.in_doubt = call.was_in_doubt
                if trouble.again and self._at is not None:
                    call.answer.set_exception(Bounced(trouble, call.in_doubt))
                elif trouble.again:
                    self._trouble = trouble
                    again.append(call)
                else:
                    self._outage.failed(trouble.what, trouble.hint)
                    self._refuse(call, trouble)
            else:
                if call.script.writes:
                    self._outage.answered()
                call.answer.set_result(reply)
        return again

    def _redirect(self, call: _Call, reply: Any) -> None:
        """Answer that another master of the cluster has the keys of this call."""
        if self._at is None:
            self._refuse(call, Trouble("is a node of a cluster", "write redis+cluster://"))
            return
        to = Address(reply.host or self._at.host, reply.port)
        once = not isinstance(reply, redis_errors.MovedError)
        trouble = Trouble("moves these keys to another server", again=True)
        call.answer.set_exception(Bounced(trouble, call.in_doubt, to, once))

    def _bounce_waiting(self, trouble: Trouble) -> None:
        while self._waiting:
            call = self._waiting.popleft()
            if not call.answer.done():
                call.answer.set_exception(Bounced(trouble, call.in_doubt))

    def retire(self) -> None:
        """Bounce the waiting calls and close the connection: the server is no master any more."""
        self._open = False
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._bounce_waiting(Trouble("is no master any more", again=True))
        self._disconnect()

    @property
    def place(self) -> tuple[str, int] | None:
        """The host and port that its connection was made to. None without one."""
        place = getattr(self._client, "place", None)
        return None if place is None else place()

    def leave(self, run_id: str) -> None:
        """End the connection, unless it is to the server with this run id. The next call connects
        anew; those under way are sent again, as after any lost connection."""
        client: Any = self._client
        if self._run_id != run_id and hasattr(client, "hang_up"):
            client.hang_up()

    def _refuse(self, call: _Call, trouble: Trouble) -> None:
        trouble.refuse(call.answer, self._shown, in_doubt=call.in_doubt)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._closing.spawn(_close(client))


async def run_id_of(client: RedisClient) -> str:
    """Return the run id of the server at the other end of the connection, empty if it hides it."""
    return await _info(client, "server", "run_id")


async def is_master(client: RedisClient) -> bool:
    """True if the server at the other end of the connection says so."""
    return await _info(client, "replication", "role") == "master"


async def _info(client: RedisClient, section: str, name: str) -> str:
    """Return a field of INFO, empty if the server hides it. A server that only has no time for an
    answer, as while it runs a script of another user (BUSY), hides nothing: its error is raised."""
    [answer] = await _exchange(client, [("INFO", section)])
    if isinstance(answer, Exception) and trouble_of(answer).again:
        raise answer
    if isinstance(answer, dict):  # as the client library reads it
        return str(answer.get(name, ""))
    lines = answer.splitlines() if isinstance(answer, bytes) else ()
    begin = f"{name}:".encode()
    return next(
        (line[len(begin) :].decode(errors="replace") for line in lines if line.startswith(begin)),
        "",
    )


async def _exchange(client: RedisClient, commands: list[tuple[Value, ...]]) -> list[Any]:
    """Return the server's answer to each of these commands."""
    exchange = getattr(client, "exchange", None)
    if exchange is not None:
        replies: list[Any] = await exchange(commands)
        return replies
    pipeline: RedisPipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return await pipeline.execute(raise_on_error=False)


async def _close(client: RedisClient) -> None:
    with contextlib.suppress(Exception):
        await client.aclose()
