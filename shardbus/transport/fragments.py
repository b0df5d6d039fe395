"""Large batches go in parts, so that small ones need not wait for them.

A message of 8 MiB takes two thirds of a second on a line of 100 Mbit/s, and what is sent behind it
on the same link would wait for so long. So a batch over `LARGE_WEIGHT` is cut into parts, each a
frame with a number of its own in the window, and no more than `PARTS_AHEAD` of them are on their
way at a time: what is sent meanwhile goes between them.

    lane     [large batch | batch that must not pass it | ...]
                 |  a part, when one before it is acknowledged
    window   part  batch  batch  part  batch  part ...

**Order.** A batch may pass what is in the lane if it names none of the entities in there. Otherwise
it goes to the end of the lane itself, and so does every batch with a Flush, which must come behind
all that was sent for its shard. Answers and the machines' messages pass: no order ties them to
entities' messages. Once the last part of a batch has its number, the window keeps the order, and
the entities of that batch are free.

**The other side** puts the parts together and takes the batch when the last has come, as if it had
come then in one piece. It acknowledges each at once: the next one waits for that. Parts are sent
again after a break like anything in the window.

**The end.** A batch whose last part was never handed on has not been handled: it comes back unsent.

The hot path is not touched: only a batch over the weight, and batches while one is in the lane,
come here.

Source: B.103, B.155.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from shardbus.errors import RemoteProtocolError
from shardbus.transport.window import Window
from shardbus.wire.batch import (
    BODY_BYTES_MAX,
    AskRun,
    Flush,
    FrameType,
    Relayed,
    Run,
    TellRun,
    encode_batch,
)

LARGE_WEIGHT = 256 * 1024
PART_BYTES = 64 * 1024
PARTS_AHEAD = 8
PART_WEIGHT = 1024
"""What a part weighs besides its bytes, so that parts of none have an end, too."""

Target = tuple[str, str]
"""An entity: type and id."""


def _targets(runs: list[Run]) -> Iterator[Target]:
    for run in runs:
        match run:
            case TellRun() | AskRun():
                yield from ((run.type, entity_id) for entity_id in run.ids)
            case Relayed():
                yield run.type, run.id
            case _:
                pass


class PendingBatch:
    """A batch in the lane, of which `at` bytes have a number."""

    __slots__ = ("at", "body", "targets")

    def __init__(self, body: bytes, targets: list[Target]) -> None:
        self.body, self.targets, self.at = body, targets, 0


class FragmentQueue:
    """Large batches of one session that are on their way, and what must not pass them."""

    __slots__ = ("_ahead", "_numbered", "_queue", "_targets", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._queue: deque[PendingBatch] = deque()
        self._targets: Counter[Target] = Counter()
        self._ahead: deque[int] = deque()
        """Numbers of parts that are not acknowledged."""
        self._numbered: deque[tuple[int, bytes]] = deque()
        """Batches whose parts all have numbers, by the last of these, until that is
        acknowledged."""

    @property
    def busy(self) -> bool:
        """Something waits here, that others might pass."""
        return bool(self._queue)

    @property
    def active(self) -> bool:
        """An acknowledgement may mean something here."""
        return bool(self._queue or self._numbered or self._ahead)

    def put(self, runs: list[Run], weight: int) -> None:
        """A batch that is large, or comes while one is."""
        body = encode_batch(runs)
        if weight <= LARGE_WEIGHT and self._may_pass(runs):
            self._window.put(body)
            return
        waiting = PendingBatch(body, list(_targets(runs)))
        self._queue.append(waiting)
        self._targets.update(waiting.targets)
        self._window.aside += len(body)
        self._window.look()
        self._feed(PARTS_AHEAD)

    def _may_pass(self, runs: list[Run]) -> bool:
        if any(isinstance(run, Flush) for run in runs):
            return False
        taken = self._targets
        return not any(target in taken for target in _targets(runs))

    def on_ack(self, acked: int) -> None:
        """Everything up to this number has come."""
        while self._ahead and self._ahead[0] <= acked:
            self._ahead.popleft()
        while self._numbered and self._numbered[0][0] <= acked:
            self._numbered.popleft()
        self._feed(PARTS_AHEAD)

    def rush(self) -> None:
        """Number everything now: somebody waits until all has come."""
        self._feed(None)

    def _feed(self, ahead: int | None) -> None:
        window, queue = self._window, self._queue
        while queue and (ahead is None or len(self._ahead) < ahead):
            first = queue[0]
            part = first.body[first.at : first.at + PART_BYTES]
            whole, first.at = len(part) == len(first.body), first.at + len(part)
            last = first.at == len(first.body)
            window.aside -= len(part)
            if last:
                queue.popleft()
                self._targets.subtract(first.targets)
                self._targets = +self._targets
            if whole:
                window.put(part)
                continue
            seq = window.put(part, FrameType.LAST_PART if last else FrameType.PART)
            self._ahead.append(seq)
            if last:
                self._numbered.append((seq, first.body))

    @property
    def bodies(self) -> list[bytes]:
        """Batches that are not acknowledged."""
        return [body for _, body in self._numbered] + [waiting.body for waiting in self._queue]

    def give_up(self) -> tuple[list[tuple[int, bytes]], list[bytes]]:
        """Batches whose last part has a number, by that number, as the window's are by theirs; and
        those that come behind everything with a number."""
        numbered, queued = list(self._numbered), [waiting.body for waiting in self._queue]
        self._queue.clear()
        self._numbered.clear()
        self._ahead.clear()
        self._targets.clear()
        self._window.aside = 0
        return numbered, queued


class FragmentAssembly:
    """The parts of one batch, as they come."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        """One more.

        Raises:
            RemoteProtocolError: together they are more than a batch may be; they are forgotten.
        """
        self._parts.append(part)
        self._size += len(part) + PART_WEIGHT
        if self._size > BODY_BYTES_MAX + BODY_BYTES_MAX // PART_BYTES * PART_WEIGHT:
            self.take()
            raise RemoteProtocolError(f"parts of more than {BODY_BYTES_MAX} bytes")

    def take(self) -> bytes:
        """The whole batch."""
        body, self._parts, self._size = b"".join(self._parts), [], 0
        return body
