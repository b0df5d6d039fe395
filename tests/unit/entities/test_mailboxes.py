"""The bounds on mailboxes, in messages and in bytes, and the senders that wait for room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.config.settings import ShardingSettings
from shardbus.entities.activation import Activation, Message, Shard
from shardbus.entities.entity_type import Invoker
from shardbus.entities.mailboxes import (
    CHECK_MAX_S,
    CHECK_MIN_S,
    MESSAGE_BYTES,
    STEP_MAX_S,
    MailboxLimits,
)
from shardbus.errors import MailboxFull
from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns

BLOB = 1000


class Gates:
    def __init__(self) -> None:
        self.gates: dict[int, asyncio.Event] = {}

    def __getitem__(self, n: int) -> asyncio.Event:
        return self.gates.setdefault(n, asyncio.Event())


class Mail(Entity):
    gates: Gates
    stashes = False

    @handler
    async def wait(self, n: int) -> int:
        await self.gates[n].wait()
        return n

    @handler
    async def put(self, n: int, blob: bytes) -> None:
        await self.gates[n].wait()

    @handler
    def put_aside(self) -> None:
        if not self.stashes:
            self.stashes = True
            self.context.stash()

    @handler
    async def bring_back(self, n: int) -> None:
        self.context.unstash_all()
        await self.gates[n].wait()

    @handler
    async def pipe(self, n: int) -> None:
        self.context.pipe_to_self(asyncio.sleep(0, "done"))
        await self.gates[n].wait()

    @handler
    async def part(self, n: int) -> None:
        self.context.passivate(stop_message="last")
        await self.gates[n].wait()

    @handler
    def last(self) -> None:
        """Holds: messages that come now wait for the next incarnation."""

    def receive(self, message: object) -> None:
        """The outcome of its work."""


def bench(gates: Gates) -> Bench:
    bus = ShardBus("m")
    bus.entity("mail")(Mail)
    Mail.gates = gates
    return Bench(bus, mailbox_bytes=10 * BLOB, passivate_after=0)


def burst(b: Bench, n: int) -> list[asyncio.Future[Any]]:
    """More than there is room for."""
    return [b.ask("e", "put", n, bytes(BLOB)) for _ in range(40)]


def refused(outcomes: list[asyncio.Future[Any]]) -> int:
    return sum(o.done() and isinstance(o.exception(), MailboxFull) for o in outcomes)


# How an entity that handles something comes to its mailbox


async def with_the_first_message(b: Bench, gates: Gates) -> None:
    b.tell("e", "wait", 1)


async def which_is_empty_again(b: Bench, gates: Gates) -> None:
    b.tell("e", "wait", 0)
    b.tell("e", "wait", 1)
    gates[0].set()
    await turns()


async def with_its_stash(b: Bench, gates: Gates) -> None:
    b.tell("e", "put_aside")
    b.tell("e", "bring_back", 1)


async def with_an_outcome(b: Bench, gates: Gates) -> None:
    b.tell("e", "pipe", 1)
    await turns()


async def with_a_stop_message(b: Bench, gates: Gates) -> None:
    b.tell("e", "part", 1)


async def and_holds(b: Bench, gates: Gates) -> None:
    await with_a_stop_message(b, gates)
    gates[1].set()
    await turns()


@pytest.mark.parametrize(
    "way",
    [
        with_the_first_message,
        which_is_empty_again,
        with_its_stash,
        with_an_outcome,
        with_a_stop_message,
        and_holds,
    ],
)
async def test_B107_the_bound_in_bytes_holds_for_every_mailbox(way: Any) -> None:
    """The content of one is reckoned by its first and last message, so it is about the bound."""
    b = bench(gates := Gates())
    await way(b, gates)
    activation = b.activation("e")
    assert activation is not None
    assert activation.busy
    b.pass_ticks(20)
    outcomes = burst(b, 2)
    assert 24 <= refused(outcomes) <= 34
    b.pass_ticks(20)
    more = burst(b, 2)
    assert refused(more) == 40
    gates[1].set()
    gates[2].set()
    activation.stop()
    await asyncio.gather(*outcomes, *more, return_exceptions=True)


async def test_an_entity_that_is_idle_again_is_measured_no_more() -> None:
    b = bench(gates := Gates())
    await which_is_empty_again(b, gates)
    gates[1].set()
    await turns()
    b.pass_ticks(20)
    assert not b.host.runner.mailbox_limits._activations


# Senders that wait for room


class Clock:
    """A loop of one timer, whose time passes only by `check`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Clock:
        assert self.timer is None
        self.timer = (seconds, call)
        return self

    def cancel(self) -> None:
        self.timer = None

    def check(self, late: float = 0.0) -> float:
        """Let the timer pass, and `late` seconds more; return the timer's seconds."""
        assert self.timer is not None
        (seconds, call), self.timer = self.timer, None
        self.now += seconds + late
        call()
        return seconds

    def check_for(self, seconds: float) -> None:
        """Let the timer pass again and again, for as long as it is set."""
        end = self.now + seconds
        while self.timer is not None and self.now < end:
            self.check()


class Sender:
    """A session that is paused and resumed."""

    def __init__(self) -> None:
        self.lost: Exception | None = None
        self.paused = self.holds_entities = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class Holder(Sender):
    """A session whose other side can hold back single entities."""

    def __init__(self) -> None:
        super().__init__()
        self.holds_entities = True
        self.held: set[tuple[str, str]] = set()
        self.said: list[str] = []

    def hold(self, target: tuple[str, str]) -> None:
        assert target not in self.held
        self.held.add(target)
        self.said.append(f"hold {target[1]}")

    def release(self, target: tuple[str, str]) -> None:
        self.held.remove(target)
        self.said.append(f"release {target[1]}")


PATIENCE = 2.0
ROOM = 8
INVOKER = Invoker("put", lambda entity: None, False, {})


class Limited:
    """The limits of mailboxes, entities with full mailboxes, and their senders."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        chosen = {"mailbox": ROOM, "mailbox_patience": PATIENCE, **settings}
        options = ShardingSettings().for_type("mail", chosen)
        self.limits = MailboxLimits(options, self.clock, None, "mail")  # type: ignore[arg-type]

    def entity(self, messages: int = 0, size: int = 0, name: str = "e") -> Activation:
        made = Activation(Shard("0", 1), name)
        self.limits.mailbox_of(made).extend(self.message(size) for _ in range(messages))
        return made

    def message(self, size: int = 0) -> Message:
        return Message(INVOKER, bytes(size), None, -2, 0)

    def tell(
        self, sender: Any, *entities: Activation, soft: bool = True, owed: bool = False
    ) -> bool:
        """One run of a tell for each entity; whether all were queued."""
        self.limits.arrives(soft, owed)
        queued = [self.limits.admits(e, self.message()) for e in entities]
        self.limits.handed_out()
        if self.limits.met:
            self.limits.pause(sender)
        return all(queued)


def box(activation: Activation) -> deque[Message]:
    assert activation.mailbox is not None
    return activation.mailbox


def test_S3_20_waiting_messages_are_counted_by_shard() -> None:
    made = Limited()
    for shard, count in (("1", 2), ("2", 0), ("1", 3)):
        activation = Activation(Shard(shard, 1), "e")
        made.limits.mailbox_of(activation).extend(made.message() for _ in range(count))
    assert made.limits.waiting_by_shard() == {"1": 5}
    assert made.limits.waiting == 5


def test_a_tell_for_a_full_mailbox_is_queued_and_pauses_its_sender() -> None:
    limited, sender = Limited(), Sender()
    full = limited.entity(ROOM)
    assert limited.tell(sender, full)
    assert sender.paused
    assert limited.limits.pauses == 1


@pytest.mark.parametrize(
    ("soft", "settings"), [(False, {}), (True, {"mailbox_patience": 0})], ids=["forced", "off"]
)
def test_a_tell_that_cannot_wait_is_dropped(soft: bool, settings: dict[str, Any]) -> None:
    limited, sender = Limited(**settings), Sender()
    assert not limited.tell(sender, limited.entity(ROOM), soft=soft)
    assert not sender.paused


def test_an_ask_for_a_full_mailbox_is_refused() -> None:
    limited = Limited()
    limited.limits.arrives(True)
    ask = Message(INVOKER, b"", Sender(), 1, 10**6)  # type: ignore[arg-type]
    assert not limited.limits.admits(limited.entity(ROOM), ask)
    assert not limited.limits.met


def test_a_sender_goes_on_once_a_quarter_is_free() -> None:
    limited, sender = Limited(), Sender()
    full = limited.entity(ROOM)
    limited.tell(sender, full)
    while len(box(full)) > ROOM * 3 // 4 + 1:
        box(full).popleft()
    limited.clock.check()
    assert sender.paused
    box(full).popleft()
    limited.clock.check()
    assert not sender.paused
    assert limited.clock.timer is None


def test_a_sender_waits_for_every_mailbox_that_it_filled() -> None:
    limited, sender = Limited(), Sender()
    first, second = limited.entity(ROOM), limited.entity(ROOM)
    limited.tell(sender, first)
    limited.tell(sender, second)
    box(first).clear()
    limited.clock.check()
    assert sender.paused
    box(second).clear()
    limited.clock.check()
    assert not sender.paused
    assert limited.limits.pauses == 1


def test_an_entity_that_goes_on_is_waited_for_without_end() -> None:
    limited, sender = Limited(), Sender()
    full = limited.entity(ROOM + 500)
    limited.tell(sender, full)
    while len(box(full)) > ROOM:
        box(full).popleft()
        limited.clock.check()
    assert limited.clock.now > 5 * PATIENCE
    assert sender.paused


def test_an_entity_that_stands_still_is_waited_for_until_the_patience_ends() -> None:
    limited, sender = Limited(), Sender()
    stuck, other = limited.entity(ROOM), limited.entity(ROOM)
    limited.tell(sender, stuck)
    limited.clock.check_for(PATIENCE - 2 * CHECK_MAX_S)
    assert sender.paused
    limited.clock.check_for(4 * CHECK_MAX_S)
    assert not sender.paused
    assert not limited.tell(sender, stuck), "its messages are dropped now"
    assert not sender.paused
    assert limited.tell(Sender(), other), "those of others are not"


def test_a_stuck_entity_that_has_room_again_is_stuck_no_more() -> None:
    limited, sender = Limited(), Sender()
    stuck = limited.entity(ROOM)
    limited.tell(sender, stuck)
    limited.clock.check_for(2 * PATIENCE)
    box(stuck).popleft()
    limited.clock.check()
    box(stuck).append(limited.message())
    assert not limited.tell(sender, stuck), "one message less is no room"
    box(stuck).clear()
    limited.clock.check()
    box(stuck).extend(limited.message() for _ in range(ROOM))
    assert limited.tell(sender, stuck)
    assert sender.paused


def test_a_loop_that_stood_still_makes_no_entity_stuck() -> None:
    limited, sender = Limited(), Sender()
    limited.tell(sender, limited.entity(ROOM))
    limited.clock.check()
    for _ in range(int(PATIENCE / STEP_MAX_S) - 1):
        limited.clock.check(late=1000.0)
        assert sender.paused
    limited.clock.check(late=1000.0)
    limited.clock.check(late=1000.0)
    assert not sender.paused


def test_a_sender_that_is_lost_waits_no_more() -> None:
    limited, lost, other = Limited(), Sender(), Sender()
    full, roomy = limited.entity(ROOM), limited.entity(ROOM)
    limited.tell(lost, full)
    limited.tell(other, roomy)
    lost.lost = ConnectionError("gone")
    box(roomy).clear()
    limited.clock.check()
    assert not other.paused
    assert limited.clock.timer is None, "no sender waits, so nothing is checked"


def test_checks_begin_often_and_become_rare() -> None:
    limited, sender = Limited(), Sender()
    full = limited.entity(ROOM)
    limited.tell(sender, full)
    pauses = [limited.clock.check() for _ in range(8)]
    assert pauses[:6] == [CHECK_MIN_S * 2**n for n in range(6)]
    assert pauses[6:] == [CHECK_MAX_S] * 2
    limited.tell(Sender(), limited.entity(ROOM))
    limited.clock.check()
    assert limited.clock.check() < CHECK_MAX_S


BYTES = 20_000


def over(limited: Limited, *entities: Activation) -> None:
    """Let the limits find that the mailboxes hold more bytes than they may."""
    limited.limits.room = 0
    assert limited.limits.admits(entities[0], limited.message())
    assert limited.limits.room < 0


def test_B107_entities_blocked_by_the_bound_in_bytes_hold_senders_for_the_patience() -> None:
    limited = Limited(mailbox_bytes=BYTES)
    a, b = limited.entity(3, BYTES // 4), limited.entity(3, BYTES // 4)
    senders = [Sender(), Sender()]
    over(limited, a)
    for sender, entity in zip(senders, (a, b), strict=True):
        assert limited.tell(sender, entity)
    assert all(s.paused for s in senders)
    limited.clock.check_for(PATIENCE - 2 * CHECK_MAX_S)
    assert all(s.paused for s in senders)
    limited.clock.check_for(4 * CHECK_MAX_S)
    assert not any(s.paused for s in senders), "neither can go on before the other"
    assert not limited.tell(senders[0], b)


def test_B107_progress_of_any_mailbox_keeps_senders_waiting_for_bytes() -> None:
    limited, sender = Limited(mailbox_bytes=BYTES, mailbox=10_000), Sender()
    full = limited.entity(3000, 10)
    over(limited, full)
    limited.tell(sender, full)
    for _ in range(500):
        box(full).popleft()
        limited.clock.check()
    assert limited.clock.now > 5 * PATIENCE
    assert sender.paused


def test_B107_senders_that_wait_for_bytes_go_on_once_a_quarter_is_free() -> None:
    limited, sender = Limited(mailbox_bytes=BYTES), Sender()
    per = BYTES // 4 - MESSAGE_BYTES
    full = limited.entity(5, per)
    over(limited, full)
    limited.tell(sender, full)
    box(full).popleft()
    limited.clock.check()
    assert sender.paused, "full to the bound"
    box(full).popleft()
    limited.clock.check()
    assert not sender.paused
    assert limited.clock.timer is None


async def test_the_longest_mailboxes_are_named_with_their_shards() -> None:
    b = bench(gates := Gates())
    await with_the_first_message(b, gates)
    assert b.host.runner.mailbox_limits.fullest(2) == []
    for entity_id, count in (("e", 2), ("f", 4), ("g", 3)):
        for _ in range(count):
            b.tell(entity_id, "wait", 1)
    limits = b.host.runner.mailbox_limits
    assert [(i, n) for i, _, n in limits.fullest(2)] == [("f", 3), ("e", 2)]
    for entity_id, shard, _ in limits.fullest(9):
        activation = b.activation(entity_id)
        assert activation is not None
        assert activation.shard.shard == shard
    assert (limits.waiting, limits.paused) == (7, 0)
    gates[1].set()
    await turns()
    assert limits.fullest(2) == []


# Senders that hold back single entities


def test_a_sender_that_can_holds_back_the_full_entity_only() -> None:
    limited, sender = Limited(), Holder()
    first, second = limited.entity(ROOM, name="a"), limited.entity(ROOM, name="b")
    assert limited.tell(sender, first)
    assert limited.tell(sender, first, second), "what was on its way"
    assert sender.said == ["hold a", "hold b"]
    assert not sender.paused
    box(first).clear()
    limited.clock.check()
    assert sender.said[2:] == ["release a"]
    box(second).clear()
    limited.clock.check()
    assert sender.held == set()
    assert limited.clock.timer is None
    assert limited.limits.pauses == 1


def test_every_sender_of_an_entity_gets_a_turn_when_it_has_room() -> None:
    """The first one fills the mailbox again at once."""
    limited, senders = Limited(), [Holder(), Holder(), Holder()]
    full = limited.entity(ROOM)
    for sender in senders:
        limited.tell(sender, full)

    def fill_again(target: tuple[str, str]) -> None:
        Holder.release(senders[0], target)
        box(full).extend(limited.message() for _ in range(ROOM))
        limited.tell(senders[0], full)

    senders[0].release = fill_again  # type: ignore[method-assign]
    box(full).clear()
    limited.clock.check()
    assert [each.said for each in senders] == [
        ["hold e", "release e", "hold e"],
        ["hold e", "release e"],
        ["hold e", "release e"],
    ]


def test_an_entity_that_stands_still_is_held_for_the_patience() -> None:
    limited, sender = Limited(), Holder()
    stuck = limited.entity(ROOM)
    limited.tell(sender, stuck)
    limited.clock.check_for(PATIENCE - 2 * CHECK_MAX_S)
    assert sender.held
    limited.clock.check_for(4 * CHECK_MAX_S)
    assert not sender.held
    assert not limited.tell(sender, stuck)
    assert not sender.held


def test_an_entity_with_much_is_full_before_the_others() -> None:
    """Over three quarters of the bytes, each has its share of the last quarter."""
    limited, sender = Limited(mailbox_bytes=BYTES, mailbox=1000), Holder()
    large, small, idle = (
        limited.entity(3, BYTES // 4, "large"),
        limited.entity(2, 1, "small"),
        limited.entity(0, 0, "idle"),
    )
    limited.limits.room = 0
    assert limited.tell(sender, large, small, idle)
    assert sender.held == {("mail", "large")}
    ask = Message(INVOKER, b"", Sender(), 1, 10**6)  # type: ignore[arg-type]
    assert not limited.limits.admits(large, ask)
    assert limited.limits.admits(small, ask)
    assert limited.limits.admits(idle, ask)
    assert not sender.paused
    box(large).popleft()
    limited.clock.check()
    assert not sender.held
    assert limited.clock.timer is None


def test_over_the_bound_in_bytes_the_whole_session_waits() -> None:
    limited, sender = Limited(mailbox_bytes=BYTES), Holder()
    full, idle = limited.entity(5, BYTES // 4), limited.entity(0, 0, "idle")
    over(limited, full)
    limited.tell(sender, idle)
    assert sender.paused
    box(full).clear()
    limited.clock.check()
    assert not sender.paused
    assert limited.clock.timer is None


def test_owed_messages_are_taken_over_the_bound_in_messages_up_to_twice_the_bytes() -> None:
    limited, sender = Limited(mailbox_bytes=BYTES), Holder()
    full = limited.entity(ROOM, 1)
    assert limited.tell(sender, full, soft=False, owed=True)
    assert not sender.held
    box(full).clear()
    box(full).extend(limited.message(BYTES // 10) for _ in range(20))
    limited.limits.room = 0
    assert not limited.tell(sender, full, soft=False)
    assert limited.limits.admits(limited.entity(), limited.message()), "measured now"
    assert not limited.tell(sender, full, soft=False, owed=True)


def test_a_lost_session_is_forgotten_with_its_holds() -> None:
    limited, sender = Limited(), Holder()
    limited.tell(sender, limited.entity(ROOM))
    sender.lost = ConnectionError("gone")
    limited.clock.check()
    assert limited.limits.paused == 0
    assert limited.clock.timer is None
