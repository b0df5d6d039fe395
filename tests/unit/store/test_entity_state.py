"""Loads and saves of one node: saves that an ended activation has sent are in the state that its
successor loads, and unsent ones are refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product
from typing import Any

import pytest

from shardbus.errors import StaleActivation, StoreError, StoreUnavailable
from shardbus.store import entity_state
from shardbus.store.batches import BatchEnded, failures
from shardbus.store.entity_state import EntityStates
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Save

ENTITY = ("t", "0", "e")


class Held(MemoryStore):
    """A store whose saves wait at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self._open = True
        self.gate = asyncio.Event()
        self.loads = 0

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        await self.gate.wait()
        return await super().save_states(saves)

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        self.loads += 1
        return await super().load_state(entity_type, shard, entity_id, fence)


class Lanes(Held):
    """The same with a group of saves for each shard."""

    def lane(self, entity_type: str, shard: str) -> int:
        return int(shard)


async def turns(number: int = 12) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def save(states: EntityStates, data: bytes, entity: tuple[str, str, str] = ENTITY) -> Any:
    return asyncio.ensure_future(states.save(*entity, 1, data))


@pytest.mark.parametrize("kind", [Held, Lanes])
async def test_a_load_waits_for_a_save_that_was_sent(kind: type[Held]) -> None:
    states = EntityStates(store := kind(), 1)
    sent = save(states, b"1")
    await turns()
    load = asyncio.ensure_future(states.load(*ENTITY, 1))
    other = await states.load("t", "0", "other", 1)
    await turns()
    assert (other, store.loads, load.done()) == (None, 1, False)
    store.gate.set()
    assert await load == b"1"
    await sent


@pytest.mark.parametrize("kind", [Held, Lanes])
async def test_saves_that_wait_are_refused_when_the_activation_ends(kind: type[Held]) -> None:
    states = EntityStates(store := kind(), 1)
    sent = save(states, b"1")
    await turns()
    behind, other = save(states, b"2"), save(states, b"3", ("t", "0", "other"))
    states.refuse_unsent(*ENTITY)
    again = save(states, b"4")  # of the next activation
    store.gate.set()
    await asyncio.wait([sent, behind, other, again])
    assert isinstance(error := behind.exception(), StaleActivation)
    assert (error.entity_type, error.entity_id, error.fence, error.what) == ("t", "e", 1, "save")
    assert [each.exception() for each in (sent, other, again)] == [None, None, None]
    assert await store.read_states("t", ["e", "other"]) == [b"4", b"3"]


async def test_refusals_are_forgotten_with_what_they_refuse() -> None:
    states = EntityStates(store := Held(), 1)
    saves = [save(states, b"1")]
    await turns()
    for n in range(100):
        saves.append(save(states, b"2", ("t", "0", f"e{n}")))
        await turns(1)
        states.refuse_unsent("t", "0", f"e{n}")
    store.gate.set()
    await asyncio.wait(saves)
    await save(states, b"3")
    assert not states._group._refused
    states.refuse_unsent(*ENTITY)  # nothing waits
    assert not states._group._refused


async def test_a_load_gives_up_on_a_save_without_an_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entity_state, "OUTCOME_S", 0.0)
    states = EntityStates(store := Held(), 1, within=0.0)
    sent = save(states, b"1")
    await turns()
    with pytest.raises(StoreUnavailable, match="an earlier save of t 'e' has no outcome") as error:
        await states.load(*ENTITY, 1)
    assert error.value.definite
    assert (store.loads, states.errors) == (0, 1)
    store.gate.set()
    await sent
    assert await states.load(*ENTITY, 1) == b"1"


async def test_a_load_that_is_given_up_leaves_the_save_alone() -> None:
    states = EntityStates(store := Held(), 1)
    sent = save(states, b"1")
    await turns()
    load = asyncio.ensure_future(states.load(*ENTITY, 1))
    await turns()
    load.cancel()
    await turns()
    store.gate.set()
    await sent
    assert await states.load(*ENTITY, 1) == b"1"


# Every order of saves, ends, loads, answers, failures and repeats


@dataclass(eq=False)
class Request:
    """A request that the server has not answered. A caller that gives it up leaves it there."""

    number: int
    work: Callable[[], Coroutine[Any, Any, Any]]
    entity_ids: list[str]
    answer: asyncio.Future[Any]
    result: Any = None
    executed: bool = False


class Server(MemoryStore):
    """A store under the three rules of the protocol. A test executes, answers and fails requests in
    any order, and a failed one may be executed afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self._open = True
        self.requests: list[Request] = []
        self.late: list[Request] = []
        """Failed requests that were not executed."""
        self.numbers, self.last = count(1), dict[str, int]()
        self.log: list[tuple[str, bytes | None, int]] = []
        """The executed calls: loads and saves with their data, and the activation that asked."""
        self.activation = 0

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        activation = self.activation

        async def work() -> bytes | None:
            data = await super(Server, self).load_state(entity_type, shard, entity_id, fence)
            self.log.append(("load", data, activation))
            return data

        answered: bytes | None = await self.ask(work, [entity_id]).answer
        return answered

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        answered: list[StoreError | None] = await self.ask_save(saves).answer
        return answered

    def ask_save(self, saves: Sequence[Save]) -> Request:
        async def work() -> list[StoreError | None]:
            states = self._data().states
            before = [
                getattr(states.get((s.entity_type, s.entity_id)), "op_id", None) for s in saves
            ]
            outcomes = await super(Server, self).save_states(saves)
            for save, op_id, outcome in zip(saves, before, outcomes, strict=True):
                if outcome is None and op_id != save.op_id:
                    self.log.append(("save", save.data, int((save.data or b"0.")[:2])))
            return outcomes

        return self.ask(work, [save.entity_id for save in saves])

    def ask(self, work: Callable[[], Coroutine[Any, Any, Any]], ids: list[str]) -> Request:
        answer = asyncio.get_running_loop().create_future()
        self.requests.append(request := Request(next(self.numbers), work, ids, answer))
        return request

    async def execute(self, request: Request) -> None:
        request.executed = True
        if any(self.last.get(entity_id, 0) > request.number for entity_id in request.entity_ids):
            request.result = StoreUnavailable("late", definite=True)
            return
        self.last.update(dict.fromkeys(request.entity_ids, request.number))
        request.result = await request.work()

    async def answer(self, at: int = 0) -> None:
        request = self.requests.pop(at)
        if not request.executed:
            await self.execute(request)
        if request.answer.done():
            return
        if isinstance(request.result, Exception):
            request.answer.set_exception(request.result)
        else:
            request.answer.set_result(request.result)

    def fail(self) -> None:
        request = self.requests.pop(0)
        if not request.executed:
            self.late.append(request)
        if not request.answer.done():
            request.answer.set_exception(StoreUnavailable("no answer"))


class EagerServer(Server):
    """The same, which takes batches without a task."""

    quick = True

    def begin_saves(self, saves: Sequence[Save], ended: BatchEnded) -> None:
        def on_answer(answer: asyncio.Future[Any]) -> None:
            error = answer.exception()
            ended(failures(error, len(saves)) if isinstance(error, Exception) else answer.result())

        self.ask_save(saves).answer.add_done_callback(on_answer)


class Model:
    """One entity, activation after activation, and its laws."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.states = EntityStates(server, 1)
        self.states._group._pause = 0.0
        self.number = 0
        """Of the activation."""
        self.saves: dict[bytes, asyncio.Future[None]] = {}
        """By data, which is the activation and the save in it."""
        self.load: asyncio.Future[bytes | None] | None = None

    def save(self) -> None:
        if self.load is None or self.load.done():
            data = b"%02d.%02d" % (self.number, len(self.saves))
            self.saves[data] = save(self.states, data)

    def end(self) -> None:
        """End the activation; the next one loads."""
        if self.load is None or self.load.done():
            self.states.refuse_unsent(*ENTITY)
            self.number = self.server.activation = self.number + 1
            self.begin()

    def begin(self) -> None:
        self.load = asyncio.ensure_future(self.states.load(*ENTITY, 1))

    async def act(self, action: str) -> None:
        server = self.server
        match action:
            case "save":
                self.save()
            case "end":
                self.end()
            case "execute" if server.requests and not server.requests[0].executed:
                await server.execute(server.requests[0])
            case "answer" if server.requests:
                await server.answer()
            case "overtake" if server.requests:  # on another connection
                await server.answer(-1)
            case "fail" if server.requests:
                server.fail()
            case "late" if server.late:
                await server.execute(server.late.pop(0))
        await turns()
        if self.load is not None and self.load.done() and self.load.exception() is not None:
            self.begin()  # a start that fails is tried again
            await turns()
        self.check()

    def check(self) -> None:
        loaded, stored, written = 0, b"", set()
        for what, data, activation in self.server.log:
            assert activation >= loaded, f"a {what} of a former activation after a load"
            if what == "load":
                assert (data or b"") == stored
                loaded = activation
            else:
                assert data is not None
                stored = data
                written.add(data)
        for data, done in self.saves.items():
            if not done.done():
                continue
            error = done.exception()
            if error is None:
                assert data in written
                assert stored >= data, "what was acknowledged is lost"
            elif isinstance(error, StaleActivation):
                assert data not in written
                assert data[:2] < b"%02d" % self.number, "a save of the current activation"

    async def finish(self) -> None:
        """Answer everything; all has an outcome then."""
        for _ in range(200):
            if not (self.server.requests or self.server.late):
                break
            await self.act("late" if self.server.late else "answer")
        assert all(done.done() for done in self.saves.values())
        assert self.load is None or self.load.done()
        for done in self.saves.values():
            done.exception()


ACTIONS = ("save", "end", "execute", "answer", "overtake", "fail", "late")


async def play(kind: type[Server], actions: Sequence[str]) -> Model:
    model = Model(kind())
    for action in actions:
        await model.act(action)
    await model.finish()
    return model


def short_plays() -> Iterator[tuple[str, ...]]:
    """Yield the sequences of five actions that begin with a save."""
    for rest in product(ACTIONS, repeat=4):
        if "late" not in rest or "fail" in rest:
            yield ("save", *rest)


@pytest.mark.parametrize("kind", [Server, EagerServer])
async def test_no_order_lets_a_former_activation_write_after_a_load(kind: type[Server]) -> None:
    outcomes: dict[str, int] = {}
    for actions in short_plays():
        model = await play(kind, actions)
        for done in model.saves.values():
            name = type(done.exception()).__name__
            outcomes[name] = outcomes.get(name, 0) + 1
    assert outcomes.keys() >= {"NoneType", "StaleActivation"}


@pytest.mark.parametrize("kind", [Server, EagerServer])
async def test_no_long_order_does_either(kind: type[Server]) -> None:
    outcomes: dict[str, int] = {}
    for seed in range(300):
        rng = random.Random(seed)
        model = await play(kind, [rng.choice(ACTIONS) for _ in range(40)])
        for done in model.saves.values():
            name = type(done.exception()).__name__
            outcomes[name] = outcomes.get(name, 0) + 1
    assert outcomes.keys() == {"NoneType", "StaleActivation", "StoreUnavailable"}
