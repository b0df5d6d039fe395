"""The world of the queue from threads to the loop. Threads here do not block.

    tell x, ask x       a thread puts a message
    refuse, accept      the router has no room for tells; it has room again
    full, room          the next tells are taken, and their sender must wait; it need not any more
    part, timeout       a part of the timeout passes; more than all of it
    now x               a thread tells without waiting
    close               the client closes

Laws: messages leave in the order in which they were put. A tell is dropped, and counted, only after
the router has refused tells for the whole timeout without a break. An ask leaves with the rest of
its time, or fails once that is over. A tell that may not wait is refused if it would wait, and only
then. A closed client takes nothing. The queue counts the bytes of its messages, and no others. At
rest nothing waits, and each ask has an outcome.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any
from unittest.mock import patch

from shardbus.client import thread_bridge
from shardbus.client.thread_bridge import ITEM_BYTES, ThreadBridge
from shardbus.errors import BufferFull, LocalProtocolError, RequestError
from shardbus.wire.schema import decode_value
from tests.explore.on_a_loop import LoopOfWorld

TIMEOUT_S, PART_S, ASK_S = 1.0, 0.6, 1.0
KEY = ("page", "add")


class Wavering:
    """A router that the world lets refuse, or wait."""

    def __init__(self, world: LoopOfWorld) -> None:
        self.world, self.refuses = world, False
        self.refused_since: float | None = None
        self.error = BufferFull("no room")
        self.sent: list[int] = []
        self.wrong = ""
        self.done = self.room = self.returned = world.loop.create_future()
        """`returned`: what the sender of the last tell waits for."""
        self.done.set_result(None)

    def tell(self, key: object, entity_id: str, payload: bytes) -> Any:
        if self.refuses:
            if self.refused_since is None:
                self.refused_since = self.world.loop.time()
            raise self.error
        self.refused_since = None
        self.sent.append(int(payload))
        self.returned = self.room
        return self.room

    def ask_for(
        self,
        answer: Any,
        key: object,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: object,
    ) -> None:
        self.sent.append(int(payload))
        left = answer.deadline - self.world.loop.time()
        if not 0 <= timeout_ms / 1000 <= left + 0.001:
            self.wrong = f"an ask that has {left:g} s more is sent with {timeout_ms} ms"
        answer.set_result(None)


class BridgeWorld:
    """A bridge without threads."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.world = LoopOfWorld()
        self.router: Any = Wavering(self.world)
        self.bridge: Any = ThreadBridge(self.world.loop, TIMEOUT_S)
        self._time = patch.object(thread_bridge, "monotonic", self.world.loop.time)
        self._time.start()
        self.answers: list[Answer] = []
        self.put = self.raised = self.dropped = 0
        self.closed = False

    def events(self) -> Iterable[str]:
        verbs = ["tell x", "ask x", "now x", "part", "timeout", "close"]
        verbs.append("accept" if self.router.refuses else "refuse")
        verbs.append("full" if self.router.room is self.router.done else "room")
        return verbs

    def do(self, event: str) -> None:
        match event.split():
            case ["tell" | "ask" | "now" as verb, entity]:
                self.world.run(self._put, verb, entity)
            case ["close"]:
                self.closed = True
                self.world.run(self.bridge.close)
            case ["refuse" | "accept"]:
                self.router.refuses = event == "refuse"
                self._pass(0.1)
            case ["full"]:
                self.router.room = self.world.loop.create_future()
            case ["room"]:
                room, self.router.room = self.router.room, self.router.done
                self.world.run(room.set_result, None)
            case ["part"]:
                self._pass(PART_S)
            case ["timeout"]:
                self._pass(TIMEOUT_S + 0.1)
        self._check()

    def _put(self, verb: str, entity: str) -> None:
        self.put += 1
        payload = b"%d" % self.put
        item: tuple[Any, ...] = (self.router, KEY, entity, payload)
        taken, answer = False, Answer(self.world.loop.time() + ASK_S)
        waits = bool(self.bridge._taken) or self.router.room is not self.router.done
        must_wait = not self.router.returned.done()
        try:
            match verb:
                case "ask":
                    call = (*item, round(ASK_S * 1000), answer, decode_value)
                    self.bridge.put(call, len(payload))
                    self.answers.append(answer)
                case "now":
                    self.bridge.tell_nowait(item)
                case _:
                    self.bridge.put(item, len(payload))
            taken = True
        except BufferFull as error:
            earlier = error is self.router.error
            assert earlier or (verb == "now" and waits), f"{verb} is refused, and need not wait"
        except (RequestError, LocalProtocolError):
            assert self.closed, f"{verb} is refused by a client that is open"
        assert not (taken and self.closed), f"a closed client takes a {verb}"
        assert not (taken and must_wait and verb == "now"), "it is taken, and there is no room"
        if not taken:
            self.put -= 1
            self.raised += 1

    def _pass(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.world.wait(0.1)
            self._check()

    def _check(self) -> None:
        sent = self.router.sent
        assert not self.router.wrong, self.router.wrong
        assert sent == sorted(set(sent)), f"sent in the order {sent}"
        weight = sum(len(item[3]) + ITEM_BYTES for item, _ in self.bridge._queue)
        assert self.bridge._weight == weight, f"{self.bridge._weight} bytes count for {weight}"
        if self.bridge.dropped > self.dropped:
            since = self.router.refused_since
            refused = 0.0 if since is None else self.world.loop.time() - since
            assert refused >= TIMEOUT_S, f"dropped after {refused:g} s without room"
            self.dropped = self.bridge.dropped

    def key(self) -> Hashable:
        since = self.bridge._refused_since
        age = None if since is None else round(self.world.loop.time() - since, 1)
        left = [a.deadline - self.world.loop.time() for a in self.answers if not a.done()]
        return (
            self.closed, round(max(min(left, default=0.0), -0.1), 1), len(left),
            self.router.refuses, self.router.room is self.router.done, len(self.bridge._queue),
            len(self.bridge._taken), self.bridge._waits_for_room,
            age, self.bridge._error is not None, min(self.dropped, 2),
        )  # fmt: skip

    def rest(self) -> None:
        for event in ("accept", "room"):
            if event in self.events():
                self.do(event)
        self._pass(1.0)
        assert not self.bridge._queue
        assert not self.bridge._taken
        assert all(answer.done() for answer in self.answers), "an ask has no outcome"
        failed = sum(answer.failed for answer in self.answers)
        accounted = len(self.router.sent) + self.bridge.dropped + failed
        assert accounted == self.put, f"{self.put} messages were put, {accounted} are known"

    def close(self) -> None:
        self._time.stop()
        self.world.close()


class Answer:
    """The outcome of an ask for which no thread waits."""

    def __init__(self, deadline: float) -> None:
        self._done, self.failed, self.deadline = False, False, deadline

    def done(self) -> bool:
        return self._done

    def set_result(self, value: object) -> None:
        assert not self._done, "an ask has two outcomes"
        self._done = True

    def set_exception(self, error: BaseException) -> None:
        self.set_result(None)
        self.failed = True
