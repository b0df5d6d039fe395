"""The world of one session: an end that sends, an end that receives, a connection between them.

    tell x | tell y | large x | ask x    a sends; `large` takes several parts
    many x                               a sends four asks in one turn
    flush | drained | await x            a waits for an echo; until all is acknowledged; for room
    break, open                          the connection breaks, frames on their way are lost
    stop, go                             frames wait on their way
    lose, twice                          the next frame of a on its way is lost, or comes twice
    full, room                           the connection takes no frame of a, or takes them again
    hold x, release x                    b has no room for the entity x
    pause, resume                        b has no room at all
    answer, cancel                       b answers an ask; its asker gives it up
    part                                 a part of an ask's time passes
    second                               a second passes: asks expire, both ends repeat numbers
    close, finish                        a finds that b is gone; a leaves

Laws: per entity, b gets each message of a once and in order; a flush is behind them. An ask has one
outcome, and b is given it with no less time than it has left. Each message of a lost session came,
was returned as unsent, or counts as unconfirmed; none that was acknowledged counts. A message that
waits at a for an entity does not leave while b has no room for it. At rest nothing is outstanding,
and every future is done.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from shardbus.errors import RequestError
from shardbus.transport import inbox
from shardbus.transport.asks import CoarseClock
from shardbus.wire.schema import decode_value
from tests.explore.link import STEP_S, Link, name_of
from tests.explore.on_a_loop import AskOutcomes, LoopOfWorld

ADD = ("counter", "add")
LARGE = bytes(600_000)
ENTITIES = "x", "y"
ASK_MS = 900
PART_S, ROUNDED_S = 0.3, 0.1


class SessionWorld:
    """A link, and the input of a's session. `only`: the alphabet, all of it if that is empty.
    `slices`: messages that b hands out in one turn; 0: as many as in use."""

    def __init__(self, *only: str, slices: int = 0) -> None:
        small = {"SLICE_MESSAGES": slices, "SLICE_BYTES": slices} if slices else {}
        self._slices = patch.multiple(inbox, **small) if small else nullcontext()
        self._slices.__enter__()
        self.said: list[str] = []
        self.only = only
        self.lossy = False
        """A frame was lost without a break: only the next numbers show that."""
        self.world = LoopOfWorld()
        self.clock = CoarseClock()
        self.clock.start(self.world.loop.time)
        self.link = Link(self.world, "a", "b", self.clock)
        self.ask_outcomes = AskOutcomes()
        self.names_to: dict[str, list[str]] = {x: [] for x in ENTITIES}
        self.errors: list[RequestError] = []
        self.waits: list[Any] = []
        self.unsent: list[str] = []
        self.sent = 0
        self.paused = self.held = False
        self.floor: int | None = None
        """The messages that waited at a when a received that b has no room for x."""
        self._seen = 0
        self._timed = 0
        self._ends_at: dict[str, float] = {}
        """When the time of an ask is over."""
        self._flushed: dict[str, set[str]] = {}

    # ---- events

    def events(self) -> Iterable[str]:
        link = self.link
        if link.over:
            return ()
        verbs = [
            "tell x",
            "tell y",
            "large x",
            "ask x",
            "many x",
            "part",
            "drained",
            "await x",
            "second",
            "close",
            "finish",
        ]
        verbs.append("flush")
        verbs.append("open" if not link.stands else "break")
        if link.stands:
            verbs.append("go" if link.stopped else "stop")
        if link.a.pipe:
            verbs += ["lose", "twice"]
        verbs.append("full" if link.a.has_room else "room")
        verbs.append("release x" if self.held else "hold x")
        verbs.append("resume" if self.paused else "pause")
        if link.b.open_asks:
            verbs.append("answer")
        if self.ask_outcomes.open():
            verbs.append("cancel")
        return [event for event in verbs if not self.only or event in self.only]

    def do(self, event: str) -> None:
        link, run = self.link, self.world.run
        match event.split():
            case ["tell" | "large" | "ask" as verb, entity]:
                self._send(verb, entity)
            case ["many", entity]:
                self._send_many(entity)
            case ["part"]:
                self._wait(PART_S, quietly=True)
            case ["flush"]:
                self.floor = None  # waiting messages leave before it
                name = f"f{self._number()}"
                self._flushed[name] = {n for names in self.names_to.values() for n in names}
                self.ask_outcomes.futures[name] = self.world.loop.create_future()
                run(self._flush, name)
            case ["drained"]:
                self.waits.append(run(link.a.session.drained))
            case ["await", entity]:
                self.waits.append(run(link.a.session.outbox.room_for, ("counter", entity)))
            case ["break"]:
                link.break_()
            case ["open"]:
                link.open()
            case ["stop" | "go"]:
                link.stopped = event == "stop"
            case ["lose"]:
                self.lossy = True
                link.a.pipe.popleft()
            case ["twice"]:
                link.a.pipe.appendleft(link.a.pipe[0])
            case ["full" | "room"]:
                link.a.has_room = event == "room"
            case ["hold", entity]:
                self.held = True
                run(link.b.session.hold, ("counter", entity))
            case ["release", entity]:
                self.held, self.floor = False, None
                run(link.b.session.release, ("counter", entity))
            case ["pause"]:
                self.paused = True
                run(link.b.session.pause)
            case ["resume"]:
                self.paused = False
                run(link.b.session.resume)
            case ["answer"]:
                self.said.append(f"b answers {link.answer()}")
            case ["cancel"]:
                run(self.ask_outcomes.futures[self.ask_outcomes.open()[0]].cancel)
            case ["second"]:
                self._wait(1.0)
            case ["close"]:
                self._close()
            case ["finish"]:
                self._finish()
        link.carry()
        if event == "hold x" and link.stands and not link.stopped:
            self.floor = self._queued()
        self._look()

    def _queued(self) -> int:
        """Return the weight of the messages that wait at a for entities without room."""
        held = self.link.a.session.outbox.held
        return 0 if held is None else held.weight

    def _number(self) -> int:
        self.sent += 1
        return self.sent

    def _send(self, verb: str, entity: str) -> None:
        name = str(self._number())
        payload = name.encode() + b" " + (LARGE if verb == "large" else b"")
        session, run = self.link.a.session, self.world.run
        if verb == "ask":
            future = self.ask_outcomes.futures[name] = self.world.loop.create_future()
            self._ends_at[name] = self.world.loop.time() + ASK_MS / 1000
            run(session.outbox.ask, ADD, entity, payload, ASK_MS, future, decode_value)
        else:
            try:
                run(session.outbox.tell, ADD, entity, payload)
            except RequestError as error:
                self.errors.append(error)
                return
        self.names_to[entity].append(name)

    def _send_many(self, entity: str) -> None:
        """Send asks in one turn of the loop. The first of an idle session leaves by itself."""
        outbox, loop = self.link.a.session.outbox, self.world.loop
        names = [str(self._number()) for _ in range(4)]

        def send() -> None:
            for name in names:
                future = self.ask_outcomes.futures[name] = loop.create_future()
                outbox.ask(ADD, entity, name.encode(), ASK_MS, future, decode_value)

        self._ends_at |= dict.fromkeys(names, loop.time() + ASK_MS / 1000)
        self.names_to[entity] += names
        self.world.run(send)

    def _flush(self, name: str) -> None:
        future = self.ask_outcomes.futures[name]

        class Echo:
            def resolve(self, payload: bytes) -> None:
                if not future.done():
                    future.set_result(None)

            def fail(self, error: Exception) -> None:
                if not future.done():
                    future.set_exception(error)

        session = self.link.a.session
        session.outbox.leave(lambda target: True)  # as a router does
        session.outbox.flush_shard("counter", name, 0, 60_000, Echo())

    def _close(self) -> None:
        acked = self.link.a.session.link.window.acked
        for message in self.link.close():
            self.unsent.append(name_of(message.payload))
            if message.waiting is not None:
                message.waiting.waiter.cancel()
        self._check_loss(acked)

    def _finish(self) -> None:
        acked = self.link.a.session.link.window.acked
        self.world.run(self.link.a.session.outbox.flush)
        self.link.carry()
        acked = max(acked, self.link.a.session.link.window.acked)
        self.world.run(self.link.a.session.finish)
        self.link.over = True
        self._look()
        counted = sum(self.link.a.session.unconfirmed.values())
        confirmed = sum(n for seq, n in self.link.a.tells_in.items() if seq <= acked)
        tells = sum(map(len, self.names_to.values())) - self._asks_told()
        assert counted == tells - confirmed, (
            f"{counted} tells count as unconfirmed, of {tells} with {confirmed} confirmed"
        )

    def _asks_told(self) -> int:
        return sum(
            n in self.ask_outcomes.futures for names in self.names_to.values() for n in names
        )

    def _check_loss(self, acked: int) -> None:
        """Check a lost session's report about its messages."""
        self._look()
        arrived = {name for _, _, name in self.link.b.got}
        both = arrived.intersection(self.unsent)
        assert not both, f"{both} came, and are returned as never sent"
        tells_in = self.link.a.tells_in
        expected = sum(count for seq, count in tells_in.items() if seq > acked)
        counted = sum(self.link.a.session.unconfirmed.values())
        assert counted == expected, f"{counted} tells count as unconfirmed, {expected} may be"

    def _look(self) -> None:
        """Check the messages that b has got since."""
        got = self.link.b.got
        for kind, entity, name in got[self._seen :]:
            self.said.append(f"b gets {kind} {entity} {name}".rstrip())
            if kind == "flush":
                arrived = {n for _, _, n in got}
                late = self._flushed[entity] - arrived - self._given_up()
                assert not late, f"{late} were sent before the flush, and come behind it"
                continue
            self.ask_outcomes.handled.add(name)
            before = [n for _, e, n in got if e == entity]
            assert before.count(name) == 1, f"{name} comes twice"
            expected = [n for n in self.names_to[entity] if n in before]
            assert before == expected, f"{entity} gets {before}"
        self._seen = len(got)
        for name, left_ms in self.link.b.left_ms[self._timed :]:
            left = self._ends_at[name] - self.world.loop.time()
            assert left_ms / 1000 > left - ROUNDED_S, f"{name} has {left:g} s, b gets {left_ms} ms"
        self._timed = len(self.link.b.left_ms)
        if self.floor is not None and not self.link.over and not self.ask_outcomes.futures:
            queued = self._queued()
            assert queued >= self.floor, f"{self.floor - queued} leave for an entity without room"
            self.floor = queued
        self.ask_outcomes.check()
        assert all(error.definite for error in self.errors), "a refusal in doubt"

    def _given_up(self) -> set[str]:
        """Return the asks that are over: they need not arrive."""
        return {name for name, future in self.ask_outcomes.futures.items() if future.done()}

    def _wait(self, seconds: float, *, quietly: bool = False) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.world.wait(STEP_S)
            self.clock.move()
            self.link.carry()
        if not self.link.over and not quietly:
            self.world.run(self.link.keep_alive)
            self.link.carry()

    # ---- states and the end

    def key(self) -> Hashable:
        a, b, link = self.link.a.session, self.link.b.session, self.link
        return (
            link.state, link.a.has_room, self.paused, self.held,
            link.under_way, a.link.outstanding > 100_000, a.outbox.unflushed, a.outbox.writable,
            a.waiting_asks, a.outbox.held is not None, len(link.a.pipe) > 0, len(link.b.pipe) > 0,
            b.link.window.received == a.link.window.last, len(link.b.open_asks), len(self.waits),
            sum(len(n) for n in self.names_to.values()) - len(link.b.got),
        )  # fmt: skip

    def rest(self) -> None:
        link = self.link
        for event, wrong in (
            ("go", link.stopped), ("room", not link.a.has_room), ("open", not link.stands),
            ("release x", self.held), ("resume", self.paused),
        ):  # fmt: skip
            if wrong and not link.over:
                self.do(event)
        self._wait(0.5, quietly=True)
        if not link.over and not self.lossy:
            came = {name for _, _, name in link.b.got} | self._given_up()
            late = {name for names in self.names_to.values() for name in names} - came
            assert not late, f"{late} stand still although the connection has room"
        while link.b.open_asks and not link.over:
            self.do("answer")
        self._wait(1.0)
        self._wait(0.5)
        self._look()
        assert not self.asked_without_outcome(), f"{self.asked_without_outcome()} wait for ever"
        assert all(wait.done() for wait in self.waits), "drained is never done"
        if not link.over:
            link.check_rest()
            arrived = {name for _, _, name in link.b.got}
            for names in self.names_to.values():
                lost = set(names) - arrived - self._given_up()
                assert not lost, f"{lost} never came"
            assert link.a.session.unconfirmed == {}

    def asked_without_outcome(self) -> list[str]:
        return self.ask_outcomes.open()

    def close(self) -> None:
        for future in self.ask_outcomes.futures.values():
            if future.done() and not future.cancelled():
                future.exception()
        self.world.close()
        self._slices.__exit__(None, None, None)
