"""Large batches are sent in parts, so that small batches need not wait for them.

A message of 8 MiB takes two thirds of a second at 100 Mbit/s, and the messages behind it on the
same link would wait as long. So a batch over `LARGE_WEIGHT` is cut into parts. Each part is a frame
with its own number in the window, and at most `PARTS_AHEAD` parts are in flight: other batches go
between them.

    queue    [large batch | batch that must not pass it | ...]
                 |  a part, when one before it is acknowledged
    window   part  batch  batch  part  batch  part ...

**Order.** A batch may pass the queue if it names none of the entities in it. Otherwise it joins the
end of the queue. So does every batch with a Flush, which must follow everything that was sent for
its shard. Answers and control messages pass: no order ties them to messages for entities. Once the
last part of a batch has its number, the window keeps the order, and later batches for the same
entities need not wait.

**The other side** joins the parts and handles the batch when the last part arrives, as if the batch
had arrived then in one piece. It acknowledges each part at once, because the sender holds the next
one back until then. After a break, parts are sent again like any frame of the window.

**The end.** A batch whose last part was never sent has not been handled, so it is returned unsent.

Only batches over the weight, and batches sent while one is queued, pay for this.

Source: B.103, B.155.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

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
    decode_batch,
    encode_batch,
)

LARGE_WEIGHT = 256 * 1024
PART_BYTES = 64 * 1024
PARTS_AHEAD = 8
PART_WEIGHT = 1024
"""Weight of a part besides its bytes, so that the number of empty parts is bounded, too."""

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
    """A batch in the queue. Its first `at` bytes have a number."""

    __slots__ = ("at", "body", "targets")

    def __init__(self, body: bytes, targets: list[Target]) -> None:
        self.body, self.targets, self.at = body, targets, 0


class FragmentQueue:
    """The large batches of one session that are being sent, and batches that must not pass them."""

    __slots__ = ("_ahead", "_numbered", "_queue", "_targets", "_window", "active")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._queue: deque[PendingBatch] = deque()
        self._targets: Counter[Target] = Counter()
        self._ahead: deque[int] = deque()
        """Numbers of unacknowledged parts."""
        self._numbered: deque[tuple[int, bytes]] = deque()
        """Batches whose parts all have numbers, with the number of the last part, until that is
        acknowledged."""
        self.active = False
        """A batch is queued, or an acknowledgement may concern a part."""

    @property
    def busy(self) -> bool:
        """True if a batch is queued."""
        return bool(self._queue)

    def put(self, runs: list[Run], weight: int) -> None:
        """Take a batch that is large, or sent while one is queued."""
        body = encode_batch(runs)
        if weight <= LARGE_WEIGHT and self._may_pass(runs):
            self._window.put(body)
            return
        waiting = PendingBatch(body, list(_targets(runs)))
        self.active = True
        self._queue.append(waiting)
        self._targets.update(waiting.targets)
        self._window.unnumbered += len(body)
        self._window.update_writable()
        self._feed(PARTS_AHEAD)

    def rewrite_unsent(self, change: Callable[[bytes], bytes | None]) -> None:
        """Replace the body of queued batches without a numbered part by `change(body)`, from the
        newest on, until that is None."""
        for waiting in reversed(self._queue):
            if waiting.at or (new := change(waiting.body)) is None:
                break
            if new is not waiting.body:
                self._window.unnumbered += len(new) - len(waiting.body)
                waiting.body, waiting.targets = new, list(_targets(decode_batch(new)))
        self._targets = Counter(t for waiting in self._queue for t in waiting.targets)

    def _may_pass(self, runs: list[Run]) -> bool:
        if any(isinstance(run, Flush) for run in runs):
            return False
        taken = self._targets
        return not any(target in taken for target in _targets(runs))

    def on_ack(self, acked: int) -> None:
        """The other side has everything up to this number: send further parts."""
        while self._ahead and self._ahead[0] <= acked:
            self._ahead.popleft()
        while self._numbered and self._numbered[0][0] <= acked:
            self._numbered.popleft()
        self._feed(PARTS_AHEAD)
        self.active = bool(self._queue or self._numbered or self._ahead)

    def number_all(self) -> None:
        """Number every queued part now, because a caller waits until all of them arrive."""
        self._feed(None)

    def _feed(self, ahead: int | None) -> None:
        window, queue = self._window, self._queue
        while queue and (ahead is None or len(self._ahead) < ahead):
            first = queue[0]
            part = first.body[first.at : first.at + PART_BYTES]
            whole, first.at = len(part) == len(first.body), first.at + len(part)
            last = first.at == len(first.body)
            window.unnumbered -= len(part)
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
        """Bodies of unacknowledged batches."""
        return [body for _, body in self._numbered] + [waiting.body for waiting in self._queue]

    def clear(self) -> tuple[list[tuple[int, bytes]], list[bytes]]:
        """Forget all batches. Returns those whose last part has a number, each with that number,
        and then those that follow everything with a number."""
        numbered, queued = list(self._numbered), [waiting.body for waiting in self._queue]
        self._queue.clear()
        self._numbered.clear()
        self._ahead.clear()
        self._targets.clear()
        self._window.unnumbered = 0
        self.active = False
        return numbered, queued


class FragmentAssembly:
    """Joins the parts of one batch as they arrive."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        """Add the next part.

        Raises:
            RemoteProtocolError: together the parts exceed a batch's bound. They are dropped.
        """
        self._parts.append(part)
        self._size += len(part) + PART_WEIGHT
        if self._size > BODY_BYTES_MAX + BODY_BYTES_MAX // PART_BYTES * PART_WEIGHT:
            self.clear()
            raise RemoteProtocolError(f"parts of more than {BODY_BYTES_MAX} bytes")

    def take(self) -> bytes:
        """Return the whole batch and start the next."""
        body = b"".join(self._parts)
        self.clear()
        return body

    def clear(self) -> None:
        """Drop the parts that have arrived."""
        self._parts, self._size = [], 0
