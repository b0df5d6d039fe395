"""The window: numbers, acknowledgements, gaps, room; everything once and in order over a link that
loses, repeats and shuffles."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbus.transport.window import (
    ACK_EVERY,
    AHEAD_BATCHES,
    AHEAD_BYTES,
    WINDOW_BATCHES,
    WINDOW_BYTES,
    Window,
)
from shardbus.wire.batch import FrameType

DATA, ACK, NAK = int(FrameType.DATA), int(FrameType.ACK), int(FrameType.NAK)


class Wire:
    """Takes frames, or not."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, int, bytes]] = []
        self.has_room = True

    def __call__(self, kind: int, seq: int, ack: int, body: bytes) -> bool:
        if self.has_room:
            self.frames.append((int(kind), seq, ack, body))
        return self.has_room

    @property
    def sent(self) -> list[int]:
        return [seq for kind, seq, _, _ in self.frames if kind == DATA]


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def window(wire: Wire) -> Window:
    window = Window(wire)
    window.open = True
    return window


# Sending


def test_nothing_leaves_before_the_link_is_open(wire: Wire) -> None:
    window = Window(wire)
    window.put(b"a")
    assert (wire.frames, window.outstanding, window.batches, window.last) == ([], 1, 1, 1)
    window.open = True
    window.pump()
    assert wire.frames == [(DATA, 1, 0, b"a")]


def test_batches_are_numbered_and_carry_an_acknowledgement(wire: Wire, window: Window) -> None:
    window.put(b"a")
    window.accept(1)
    window.put(b"b")
    assert wire.frames == [(DATA, 1, 0, b"a"), (DATA, 2, 1, b"b")]
    assert not window.owes_ack


def test_an_acknowledgement_frees_all_before_it(wire: Wire, window: Window) -> None:
    for body in (b"a", b"bb", b"ccc"):
        window.put(body)
    window.on_ack(2)
    assert (window.outstanding, window.batches, window.acked) == (3, 1, 2)
    window.on_ack(1)
    window.on_ack(0)
    assert (window.outstanding, window.acked) == (3, 2)
    window.resend()
    assert wire.sent == [1, 2, 3, 3]


def test_a_resend_keeps_the_order(wire: Wire, window: Window) -> None:
    for body in (b"a", b"b", b"c"):
        window.put(body)
    window.on_ack(1)
    window.resend()
    assert wire.frames[3:] == [(DATA, 2, 0, b"b"), (DATA, 3, 0, b"c")]


def test_a_window_of_bytes_closes_it_and_half_of_them_open_it(window: Window) -> None:
    quarter = bytes(WINDOW_BYTES // 4)
    for _ in range(4):
        window.put(quarter)
    assert window.writable
    window.put(b"x")
    assert not window.writable
    assert not window.on_ack(1)
    assert not window.writable
    assert not window.on_ack(2)  # one byte over the half
    assert window.on_ack(3)
    assert window.writable
    assert not window.on_ack(5)


def test_too_many_batches_close_the_window_too(wire: Wire, window: Window) -> None:
    for _ in range(WINDOW_BATCHES - 1):
        window.put(b"")
    assert window.writable
    for _ in range(WINDOW_BATCHES + 10):
        window.put(b"")
    assert not window.writable
    assert wire.sent[-1] == 2 * WINDOW_BATCHES
    window.on_ack(4)
    assert wire.sent[-1] == 2 * WINDOW_BATCHES + 4
    assert not window.on_ack(WINDOW_BATCHES)
    assert window.on_ack(WINDOW_BATCHES + WINDOW_BATCHES // 2 + 9)


def test_an_acknowledgement_of_a_batch_that_was_not_sent_is_ignored(
    wire: Wire, window: Window
) -> None:
    window.put(b"a")
    wire.has_room = False
    window.put(b"b")
    assert (window.sent, window.on_ack(2), window.acked, window.batches) == (1, False, 0, 2)
    assert (window.on_ack(1), window.acked, window.batches) == (False, 1, 1)


@pytest.mark.parametrize("resends", [0, 1, 5])
def test_at_most_two_windows_of_bytes_are_in_flight_also_after_resends(
    wire: Wire, window: Window, resends: int
) -> None:
    body = bytes(WINDOW_BYTES // 4)
    for _ in range(12):
        window.put(body)
    for _ in range(resends):
        wire.frames.clear()
        window.resend()
    assert wire.sent == list(range(1, 9))
    assert window.in_flight == AHEAD_BYTES == 8 * len(body)
    window.on_ack(2)
    assert wire.sent == list(range(1, 11))
    assert window.in_flight == AHEAD_BYTES


def test_at_most_two_windows_of_batches_are_in_flight(wire: Wire, window: Window) -> None:
    for _ in range(AHEAD_BATCHES + 5):
        window.put(b"a")
    assert len(wire.sent) == AHEAD_BATCHES


def test_a_link_without_room_is_tried_again_by_its_owner(wire: Wire, window: Window) -> None:
    wire.has_room = False
    window.put(b"a")
    window.put(b"b")
    assert window.blocked
    wire.has_room = True
    window.put(b"c")
    assert wire.frames == []
    window.blocked = False
    window.pump()
    assert wire.sent == [1, 2, 3]


# Receiving


@pytest.mark.parametrize(
    ("seq", "taken", "answer"),
    [
        (1, False, (ACK, 2)),
        (2, False, (ACK, 2)),
        (3, True, None),
        (4, False, (NAK, 2)),
        (2**63, False, (NAK, 2)),
    ],
)
def test_only_the_next_batch_is_taken(
    wire: Wire, window: Window, seq: int, taken: bool, answer: tuple[int, int] | None
) -> None:
    window.accept(1)
    window.accept(2)
    assert window.accept(seq) is taken
    assert [(kind, ack) for kind, _, ack, _ in wire.frames] == ([answer] if answer else [])
    assert window.received == 2 + taken
    assert window.duplicates == (seq < 3)


def test_every_few_batches_are_acknowledged_at_once(wire: Wire, window: Window) -> None:
    for seq in range(1, 2 * ACK_EVERY + 1):
        assert window.accept(seq)
        assert window.owes_ack is bool(seq % ACK_EVERY)
    assert wire.frames == [(ACK, 0, ACK_EVERY, b""), (ACK, 0, 2 * ACK_EVERY, b"")]


def test_an_acknowledgement_that_found_no_room_is_still_owed(wire: Wire, window: Window) -> None:
    window.accept(1)
    wire.has_room = False
    window.acknowledge()
    assert window.owes_ack
    wire.has_room = True
    window.acknowledge()
    assert not window.owes_ack


def test_an_acknowledgement_names_the_last_batch_sent_so_a_lost_tail_is_found(
    wire: Wire, window: Window
) -> None:
    window.put(b"a")
    window.acknowledge()
    assert wire.frames[-1] == (ACK, 1, 0, b"")
    assert window.missing(1)
    window.accept(1)
    assert not window.missing(1)


# The end


def test_given_up_batches_come_back_if_they_were_never_handed_on(
    wire: Wire, window: Window
) -> None:
    window.put(b"a")
    window.put(b"b")
    window.on_ack(1)
    wire.has_room = False
    for body in (b"c", b"d"):
        window.put(body)
    window.resend()
    assert window.clear() == [(2, b"b"), (3, b"c"), (4, b"d")]
    assert window.sent == 2
    assert (window.outstanding, window.batches, window.writable) == (0, 0, True)
    assert window.clear() == []


# Both sides


class Peer:
    """One side: a window, its taken messages, and a pipe towards the other that its connection
    owns."""

    def __init__(self) -> None:
        self.pipe: deque[tuple[int, int, int, bytes]] = deque()
        self.got: list[bytes] = []
        self.has_room = True
        self.window = Window(self._transmit)

    def _transmit(self, kind: int, seq: int, ack: int, body: bytes) -> bool:
        if self.has_room:
            self.pipe.append((kind, seq, ack, body))
        return self.has_room

    def receive(self, frame: tuple[int, int, int, bytes]) -> None:
        kind, seq, ack, body = frame
        self.window.on_ack(ack)
        if kind == DATA:
            if self.window.accept(seq):
                self.got.append(body)
        elif kind == NAK:
            self.window.resend()
        elif self.window.missing(seq):
            self.window.acknowledge(FrameType.NAK)


ACT_NAMES = ["put", "put", "deliver", "deliver", "lose", "repeat", "shuffle", "break", "room"]
ACTS = st.lists(
    st.tuples(st.sampled_from(ACT_NAMES), st.integers(0, 1), st.integers(0, 7)), max_size=120
)


@settings(max_examples=3 * settings.default.max_examples)
@given(ACTS)
def test_everything_arrives_once_and_in_order(acts: list[tuple[str, int, int]]) -> None:
    peers = Peer(), Peer()
    for peer in peers:
        peer.window.open = True
    put: tuple[list[bytes], list[bytes]] = ([], [])

    def reconnect() -> None:
        for peer in peers:
            peer.pipe.clear()
            peer.window.blocked, peer.has_room = False, True
        received = [peer.window.received for peer in peers]
        for peer, ack in zip(peers, reversed(received), strict=True):
            peer.window.on_ack(ack)
            peer.window.resend()

    def deliver(me: int) -> None:
        if peers[me].pipe:
            peers[1 - me].receive(peers[me].pipe.popleft())

    for act, me, at in acts:
        pipe = peers[me].pipe
        match act:
            case "put":
                put[me].append(b"%d/%d" % (me, len(put[me])))
                peers[me].window.put(put[me][-1])
            case "deliver":
                deliver(me)
            case "lose" if pipe:
                del pipe[at % len(pipe)]
            case "repeat" if pipe:
                pipe.append(pipe[at % len(pipe)])
            case "shuffle" if pipe:
                pipe.rotate(at)
            case "break":
                reconnect()
            case "room":
                peers[me].has_room = not peers[me].has_room
        for side in (0, 1):
            assert peers[1 - side].got == put[side][: len(peers[1 - side].got)]

    reconnect()
    for _ in range(10_000):
        if not any(peer.pipe for peer in peers):
            if not any(peer.window.batches for peer in peers):
                break
            for peer in peers:
                peer.window.acknowledge()
        deliver(0)
        deliver(1)
    assert (peers[1].got, peers[0].got) == put
    assert [peer.window.outstanding for peer in peers] == [0, 0]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_every_batch_is_acknowledged_lost_or_returned(put: int, room: int, ack: int) -> None:
    """No batch is both returned and possibly received, and none disappears."""
    peer = Peer()
    peer.window.open = True
    for i in range(put):
        peer.has_room = i < room
        peer.window.put(b"%d" % i)
    handed = [body for kind, _, _, body in peer.pipe if kind == DATA]
    peer.window.on_ack(min(ack, len(handed)))
    sent, left = peer.window.sent, peer.window.clear()
    fresh = [body for seq, body in left if seq > sent]
    lost = [body for seq, body in left if seq <= sent]
    assert handed + fresh == [b"%d" % i for i in range(put)]
    assert lost == handed[min(ack, len(handed)) :]


# Batches that give messages back


def test_only_batches_that_never_left_are_changed_from_the_newest_on(
    wire: Wire, window: Window
) -> None:
    for body in (b"1", b"2"):
        window.put(body)
    wire.has_room = False
    for body in (b"3", b"4", b"5"):
        window.put(body)
    window.resend()  # none of them gets through: the first two wait again
    seen: list[bytes] = []

    def change(body: bytes) -> bytes:
        seen.append(body)
        return body * 3

    window.rewrite_unsent(change)
    assert seen == [b"5", b"4", b"3"]
    assert window.bodies == [b"1", b"2", b"333", b"444", b"555"]
    assert window.outstanding == sum(map(len, window.bodies)) == window.unsent
    seen.clear()
    window.rewrite_unsent(lambda body: None if body == b"444" else change(body))
    assert seen == [b"555"]


def test_no_batch_before_a_part_of_a_large_one_is_changed(wire: Wire, window: Window) -> None:
    wire.has_room = False
    window.put(b"1")
    window.put(b"2", FrameType.LAST_PART)
    window.put(b"3")
    seen: list[bytes] = []
    window.rewrite_unsent(lambda body: seen.append(body) or body)
    assert seen == [b"3"]
