"""Messages that stay on their node: handled where they are awaited, and never elsewhere than a
message that took the loopback would have been."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus import AskTimeout, Entity, EntityFailed, ReentrancyError, Rejection, ShardBus, handler
from shardbus.errors import MailboxFull
from shardbus.node.node import Node
from shardbus.shells import direct_messages
from shardbus.shells.message_account import account_of
from shardbus.transport import direct_message
from tests.loopback.nodes import Nodes
from tests.waiting import PATIENCE_S, until

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="")


@dataclass
class Refused(Rejection):
    left: int


@dataclass
class Checked:
    """A value whose class runs code where it is read."""

    text: str

    def __post_init__(self) -> None:
        READERS.append(asyncio.current_task())


READERS: list[Any] = []


def application() -> tuple[ShardBus, Any]:
    """Entities that log what they handle."""
    bus, world = ShardBus("shop"), SimpleNamespace()
    world.log = log = list[str]()
    world.gate = asyncio.Event()
    world.tasks = []

    class Parts(Entity):
        def __init__(self) -> None:
            self.rows = [1]

        def note(self, text: str) -> None:
            log.append(f"{self.context.entity_id}:{text}")

        def other(self, entity_id: str) -> Any:
            return self.context.ref("other" if entity_id.startswith("o") else "one", entity_id)

        @handler
        async def do(self, text: str) -> str:
            self.note(text)
            return text

        @handler
        def do_plainly(self, text: str) -> str:
            self.note(text)
            return text

        @handler
        async def wait(self, text: str) -> str:
            self.note(f"{text} begins")
            await world.gate.wait()
            self.note(f"{text} ends")
            return text

        @handler
        async def share(self, rows: list[int]) -> list[int]:
            self.rows.extend(rows)
            return self.rows

        @handler
        async def checked(self) -> Checked:
            checked = Checked("x")
            READERS.clear()
            return checked

        @handler
        async def fails(self) -> None:
            raise ValueError("no")

        @handler
        async def refuses(self) -> None:
            raise Refused(3)

        @handler
        async def marks(self) -> str:
            SEEN.set(self.context.entity_id)
            world.tasks.append(asyncio.current_task())
            return SEEN.get()

        @handler
        async def asks(self, path: list[str], text: str) -> str:
            """Ask the next entity on a path, and between two notes nothing else is handled."""
            self.note("begins")
            before = asyncio.current_task()
            if path:
                answer = await self.other(path[0]).asks(path[1:], text)
            else:
                answer = text
            assert asyncio.current_task() is before
            self.note("ends")
            return answer

        @handler
        async def asks_often(self, entity_id: str, times: int) -> None:
            for _ in range(times):
                await self.other(entity_id).do("x")

        @handler
        async def asks_what_tells_back(self) -> None:
            """Ask an entity that tells this one."""
            self.note("begins")
            await self.other("b").tells(self.context.entity_id)
            self.note("ends")

        @handler
        async def tells(self, entity_id: str) -> None:
            await self.other(entity_id).do.tell("told")
            self.note("told it")

        @handler
        async def stops(self) -> None:
            self.note("stops")
            self.context.stop()

        @handler
        async def asks_twice(self, first: str, path: list[str]) -> Any:
            """Ask one that waits, then others, then wait for the first."""
            waiting = self.other(first).asks_back(self.context.entity_id)
            await self.other(path[0]).asks(path[1:], "x")
            return await waiting

        @handler
        async def asks_back(self, entity_id: str) -> Any:
            await asyncio.sleep(0)
            return await self.other(entity_id).do("back")

    bus.entity("one", shards=8, mailbox=4, supervision={Exception: "resume"})(
        type("One", (Parts,), {})
    )
    bus.entity("other", shards=8, supervision={Exception: "resume"})(type("Other", (Parts,), {}))
    return bus, world


class Home:
    """One node, and what its entities have seen."""

    def __init__(self, node: Node, world: Any) -> None:
        self.node, self.log, self.gate, self.tasks = node, world.log, world.gate, world.tasks

    def ref(self, entity_id: str) -> Any:
        return self.node.ref("one", entity_id)

    async def started(self, *ids: str) -> None:
        """Start entities, and forget what they have seen."""
        for entity_id in ids:
            await self.node.ref("other" if entity_id[0] == "o" else "one", entity_id).do("start")
        await asyncio.sleep(0)
        self.log.clear()

    def missing(self) -> int:
        return sum(abs(account_of(region).missing) for region in self.node.regions.values())


@pytest.fixture(params=["direct", "batched"])
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if asks may be direct. Whatever entities see is the same."""
    if request.param == "batched":
        monkeypatch.setattr(direct_messages, "DEPTH_MAX", 0)
    return bool(request.param == "direct")


async def home(nodes: Nodes) -> Home:
    bus, world = application()
    return Home(await nodes.start(bus), world)


async def handled_in_its_await(ask: Any) -> tuple[Any, bool]:
    """Return the answer of an ask, and whether it came without a turn of the loop."""
    turns = list[int]()
    asyncio.get_running_loop().call_soon(turns.append, 1)
    answer = await ask
    return answer, not turns


async def test_an_idle_entity_handles_an_ask_where_it_is_awaited() -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        for call in (node.ref("a").do, node.ref("a").do_plainly):
            ask = call("x")
            assert node.log == []  # not inside the sender's call
            assert await handled_in_its_await(ask) == ("x", True)
            assert node.log.pop() == "a:x"
        assert node.missing() == 0


async def test_an_idle_entity_handles_a_tell_where_it_is_awaited() -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        for call in (node.ref("a").do, node.ref("a").do_plainly):
            tell = call.tell("x")
            assert node.log == []  # not inside the sender's call
            assert await handled_in_its_await(tell) == (None, True)
            assert node.log.pop() == "a:x"
            await tell  # once is enough
            assert node.log == []
        assert node.missing() == 0


async def test_a_tell_that_is_awaited_elsewhere_or_not_at_all_takes_the_loopback() -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        node.ref("a").do.tell("x")
        await until(lambda: node.log == ["a:x"], "it comes")
        await asyncio.wait_for(node.ref("a").do.tell("y"), PATIENCE_S)
        node.ref("a").do.tell_nowait("z")
        await until(lambda: node.log == ["a:x", "a:y", "a:z"], "they come")
        assert node.missing() == 0


async def test_many_tells_take_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    tells, hand_over = list[int](), direct_messages.DirectMessages._hand_over_tell
    monkeypatch.setattr(
        direct_messages.DirectMessages,
        "_hand_over_tell",
        lambda *args: [tells.append(1), hand_over(*args)],
    )
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        direct = list[int]()
        for many in (3, 10, 10, 3, 3):
            await asyncio.sleep(0)
            before = len(tells)
            for n in range(many):
                await node.ref("a").do.tell(f"{many} {n}")
            direct.append(len(tells) - before)
        assert direct == [3, direct_message.TELLS_MAX, 0, 0, 3]
        await until(lambda: len(node.log) == 29, "they come")
        assert node.missing() == 0


async def test_tells_for_a_waiting_entity_wait_for_room(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        ref = node.ref("a")
        waiting = asyncio.ensure_future(ref.wait("first"))
        await until(lambda: node.log == ["a:first begins"], "it comes")

        async def tell() -> None:
            for n in range(40):
                await ref.do.tell(str(n))
                await asyncio.sleep(0)

        telling = asyncio.ensure_future(tell())
        await until(lambda: node.node.regions["one"].host.waiting >= 4, "they come")
        assert not telling.done()
        node.gate.set()
        await asyncio.gather(waiting, telling)
        await until(lambda: len(node.log) == 42, "they come")
        assert node.log[2:] == [f"a:{n}" for n in range(40)]
        assert node.missing() == 0


async def test_a_tell_whose_handler_fails_is_counted_and_not_raised(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        drops = node.node.regions["one"].host.counts.dropped
        await node.ref("a").fails.tell()
        await node.ref("a").refuses.tell()
        assert await node.ref("a").do("x") == "x"
        assert (drops["failed"], drops["rejected"]) == (1, 1)
        assert node.missing() == 0


async def test_an_entity_that_a_tell_stops_starts_again_for_the_next(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        await node.ref("a").stops.tell()
        await node.ref("a").do.tell("next")
        await until(lambda: node.log == ["a:stops", "a:next"], "it comes")
        assert node.missing() == 0


async def test_an_entity_that_tells_itself_goes_on_first(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        await node.ref("a").tells("a")
        await until(lambda: len(node.log) == 2, "it comes")
        assert node.log == ["a:told it", "a:told"]


async def test_a_first_message_and_a_forgotten_await_take_the_loopback() -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        assert await handled_in_its_await(node.ref("new").do("x")) == ("x", False)
        ask = node.ref("new").do("y")
        await until(lambda: "new:y" in node.log, "it comes")
        assert await ask == "y"
        assert node.missing() == 0


async def test_messages_of_one_sender_keep_their_order(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        ref, want = node.ref("a"), list[str]()
        for n in range(300):
            text = f"{n}"
            want.append(f"a:{text}")
            if n % 7 in (0, 3, 6):
                await ref.do.tell(text)
            elif n % 7 == 5:
                unawaited = ref.do(text)
            elif n % 28 == 8:
                ref.do_plainly.tell(text)
                ref.do_plainly.tell(text)
                want.append(f"a:{text}")
                await ref.do.tell("at once")
                want.append("a:at once")
            else:
                await ref.do_plainly(text)
        await unawaited
        assert node.log == want
        assert node.missing() == 0


async def test_a_waiting_entity_gets_it_into_its_mailbox(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        ref = node.ref("a")
        waiting = [asyncio.ensure_future(ref.wait("first"))]
        await until(lambda: node.log == ["a:first begins"], "it comes")

        async def ask(text: str) -> Any:
            return await ref.do(text)

        waiting += [asyncio.ensure_future(ask(str(n))) for n in range(4)]
        await until(lambda: node.node.regions["one"].host.waiting == 5, "it comes")
        with pytest.raises(MailboxFull):
            await ref.do("too many")
        assert node.missing() == 0
        node.gate.set()
        await asyncio.gather(*waiting)
        assert node.log == ["a:first begins", "a:first ends", *(f"a:{n}" for n in range(4))]
        assert node.missing() == 0


async def test_arguments_and_answers_are_copies(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        rows = [2]
        answer = await node.ref("a").share(rows)
        rows.append(9)
        answer.append(7)
        assert await node.ref("a").share([]) == [1, 2]


async def test_errors_and_rejections_are_those_of_a_message(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        with pytest.raises(EntityFailed, match="no") as failed:
            await node.ref("a").fails()
        assert failed.value.type == "ValueError"
        with pytest.raises(Refused) as refused:
            await node.ref("a").refuses()
        assert (refused.value.left, refused.value.definite) == (3, False)
        assert await node.ref("a").do("x") == "x"
        assert node.missing() == 0


async def test_one_handler_has_one_task_and_one_context(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a", "b")
        mine = asyncio.current_task()
        for entity_id in ("a", "b", "a"):
            assert await node.ref(entity_id).marks() == entity_id
            assert SEEN.get() == ""
            assert asyncio.current_task() is mine
        assert len(set(map(id, node.tasks))) == 3


async def test_a_chain_of_entities_answers(most: bool) -> None:
    ids = ["a", "o1", "b", "o2", "c", "d", "e", "o3", "f", "g", "h", "i", "j", "k", "l", "m"]
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started(*ids)
        assert await node.ref("a").asks(ids[1:], "end") == "end"
        assert node.log == [f"{i}:begins" for i in ids] + [f"{i}:ends" for i in reversed(ids)]
        assert node.missing() == 0


@pytest.mark.parametrize("path", [["a"], ["b", "a"], ["o1", "a"], ["b", "o1", "c", "a"]])
async def test_a_cycle_is_refused(path: list[str], most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a", "b", "c", "o1")
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises((ReentrancyError, EntityFailed), match="a"):
                await node.ref("a").asks(path, "x")
        await until(lambda: node.missing() == 0, "it comes")


async def test_a_cycle_by_an_older_ask_is_refused(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a", "b", "c", "d")
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises((ReentrancyError, EntityFailed)):
                await node.ref("a").asks_twice("b", ["c", "d"])


async def test_an_entity_handles_one_message_at_a_time(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a", "b")
        await node.ref("a").asks_what_tells_back()
        await until(lambda: "a:told" in node.log, "it comes")
        assert node.log == ["a:begins", "b:told it", "a:ends", "a:told"]


if sys.version_info >= (3, 12):

    async def test_a_task_that_an_eager_task_makes_keeps_out_of_a_first_step() -> None:
        """From Python 3.12 on a task may begin inside the handler that makes it."""
        async with Nodes() as nodes:
            node = await home(nodes)
            await node.started("a", "b")
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            await node.ref("a").asks_what_tells_back()
            await until(lambda: "a:told" in node.log, "it comes")
            assert node.log == ["a:begins", "b:told it", "a:ends", "a:told"]


async def test_a_suspended_node_handles_nothing(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        node.node.gate.close_if_due()
        node.node.gate.closed = True
        ask = asyncio.ensure_future(node.ref("a").do("x"))
        await node.ref("a").do.tell("y")
        for _ in range(5):
            await asyncio.sleep(0)
        closed = node.node.gate.closed
        assert node.log == [] or not closed
        node.node.gate.poll()
        assert await ask == "x"
        await until(lambda: sorted(node.log) == ["a:x", "a:y"], "they come")


async def turns_of(work: Any) -> int:
    """Return the number of turns of the loop until this work is done."""
    turns, loop = [0], asyncio.get_running_loop()

    def turn() -> None:
        turns[0] += 1
        loop.call_soon(turn)

    turn()
    await work
    return turns[0]


@pytest.mark.parametrize(("turn_s", "most"), [(1e9, 16), (0.0, 10_000)])
async def test_the_loop_goes_on_between_direct_asks(
    turn_s: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_messages, "TURN_S", turn_s)
    monkeypatch.setattr(direct_message, "DIRECT_MAX", most)

    async def asks(ref: Any) -> None:
        for _ in range(100):
            await ref.do("x")

    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a", "b")
        assert await turns_of(asks(node.ref("a"))) >= 6
        monkeypatch.setattr(direct_message, "DIRECT_MAX", 16)
        assert await turns_of(node.ref("a").asks_often("b", 100)) >= 3


@pytest.mark.parametrize(("lanes", "direct"), [(8, True), (40, False)])
async def test_a_crowd_takes_batches(
    lanes: int, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_message, "DIRECT_MAX", 4)
    handed_over, hand_over = list[Any](), direct_messages.DirectMessages._hand_over_ask
    monkeypatch.setattr(
        direct_messages.DirectMessages,
        "_hand_over_ask",
        lambda *a: [handed_over.append(1), hand_over(*a)],
    )
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")

        async def lane() -> None:
            for _ in range(20):
                await node.ref("a").do("x")

        await asyncio.gather(*(lane() for _ in range(lanes)))
        assert (len(handed_over) > 15 * lanes) is direct


async def test_what_is_sent_and_accepted_is_counted_alike(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        sent, counts = node.node.endpoint.sent, node.node.regions["one"].host.counts
        before = sent.asks, sent.counts["one"], counts.accepted, counts.begun
        for _ in range(600):
            await node.ref("a").do("x")
        for _ in range(50):
            await node.ref("a").do.tell("x")
            await asyncio.sleep(0)
        await node.ref("a").do("x")
        after = sent.asks, sent.counts["one"], counts.accepted, counts.begun
        assert [b - a for a, b in zip(before, after, strict=True)] == [601, 651, 651, 651]
        assert node.missing() == 0


async def test_a_direct_ask_keeps_its_deadline() -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        with pytest.raises(AskTimeout):
            await node.ref("a").within(0.1).wait("x")
        assert node.log == ["a:x begins"]
        node.gate.set()


async def test_an_answer_of_a_class_with_code_is_read_outside_of_entities(most: bool) -> None:
    async with Nodes() as nodes:
        node = await home(nodes)
        await node.started("a")
        assert (await node.ref("a").checked()).text == "x"
        assert READERS[-1] is None
