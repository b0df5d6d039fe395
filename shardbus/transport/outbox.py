"""The open batch of a session: where messages become runs.

Neighbours that share type and method become one run, two list appends each; that is the whole cost
of sending a message on a known way. A batch is closed at the end of the loop iteration that began
it, or when it weighs enough, by the subclass's `flush`. An ask that finds nothing under way is a
batch of its own and leaves at once: who waits for it may well be alone. What is sent next waits for
the end of the turn again, so that of many asks one travels by itself.

What has no room may be refused, but only where a run is opened (`allowance`).

Source: docs/architecture.md; N.16.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from shardbus.errors import EntityFailed, MessageTooLarge
from shardbus.transport.asks import Asks, Key, Waiter, fail_of, refuse
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.wire.batch import (
    PAYLOAD_BYTES_MAX,
    AskRun,
    Chain,
    Control,
    Flush,
    Relayed,
    ReplyRun,
    Run,
    TellRun,
)
from shardbus.wire.schema import Decode

BATCH_WEIGHT_MAX = 128 * 1024
ENVELOPE_WEIGHT = 192
"""What an envelope weighs besides its payload: a batch is full at 128 KiB or some 500 small ones.
With half of that, ZeroMQ's threads take twice the time for each message."""
ASK_WEIGHT = 1024
"""An ask and an answer weigh more. Somebody waits: with batches of some 120, many asks travel in
several of them, so that both sides have work at the same time instead of taking turns."""


def too_large(size: int) -> MessageTooLarge:
    """The error of a message over the limit."""
    return MessageTooLarge(f"a message of {size} bytes, at most {PAYLOAD_BYTES_MAX}")


class SessionOutbox(ABC):
    """See the module. A subclass says what `flush` does."""

    __slots__ = (
        "_ask_corrs",
        "_ask_deadline",
        "_ask_ids",
        "_ask_key",
        "_ask_payloads",
        "_ask_timeout_ms",
        "_asks",
        "_chained_key",
        "_expect",
        "_limit",
        "_loop",
        "_replies",
        "_reply_corrs",
        "_reply_payloads",
        "_runs",
        "_scheduled",
        "_send_buffer_limit",
        "_tell_ids",
        "_tell_key",
        "_tell_payloads",
        "_weight",
        "name",
        "writable",
    )

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        asks: Asks,
        send_buffer_limit: SendBufferLimit | None,
    ) -> None:
        self.name = name
        """The other process."""
        self.writable = True
        """There is room; a sender who finds none waits for `room`."""
        self._send_buffer_limit = send_buffer_limit or SendBufferLimit()
        self._loop, self._asks = loop, asks
        self._expect = asks.expect
        self._scheduled = False
        self._runs: list[Run] = []
        self._weight, self._limit = 0, BATCH_WEIGHT_MAX
        self._tell_key: Key | None = None
        self._ask_key: Key | Chain | None = None
        """What the messages of the open run of asks share: their key, or the chain they come by."""
        self._chained_key: Key | None = None
        self._ask_timeout_ms = self._ask_deadline = 0
        self._replies: ReplyRun | None = None
        self._tell_ids: list[str]
        self._tell_payloads: list[bytes]
        self._ask_ids: list[str]
        self._ask_payloads: list[bytes]
        self._ask_corrs: list[int]
        self._reply_corrs: list[int]
        self._reply_payloads: list[bytes]

    # ---- sending

    def tell(self, key: Key, entity_id: str, payload: bytes) -> None:
        """Add a message to the open batch.

        Raises:
            BufferFull: too much waits already.
        """
        if key is not self._tell_key:
            if not self.writable and self.is_full:
                raise self._send_buffer_limit.refusal(key[0], self.name)
            self._open_tells(key)
        self._tell_ids.append(entity_id)
        self._tell_payloads.append(payload)
        self._weight = weight = self._weight + len(payload) + ENVELOPE_WEIGHT
        if weight > BATCH_WEIGHT_MAX:
            self._full()

    def tell_kept(self, key: Key, entity_id: str, payload: bytes) -> None:
        """`tell` a message that this process has taken already: it is not refused."""
        if key is not self._tell_key:
            self._open_tells(key)
        self.tell(key, entity_id, payload)

    def ask(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
    ) -> None:
        """Add a message and remember who waits: a future with the function that reads its answer,
        or a Waiter. If too much waits already, they get BufferFull."""
        if key is not self._ask_key or timeout_ms != self._ask_timeout_ms:
            if not self.writable and self.is_full:
                refuse((waiter, decode, 0), self._send_buffer_limit.refusal(key[0], self.name))
                return
            self._open_asks(key, timeout_ms)
        asks = self._asks
        corr = asks.corr = asks.corr + 1
        asks.entries[corr] = (waiter, decode, self._ask_deadline)
        self._ask_ids.append(entity_id)
        self._ask_payloads.append(payload)
        self._ask_corrs.append(corr)
        self._weight = weight = self._weight + len(payload) + ASK_WEIGHT
        if weight > self._limit:
            self._full()

    def ask_within(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
        chain: Chain,
    ) -> None:
        """`ask`, from inside an entity: `chain`, never empty, says who waits. A handler uses one
        object for it, so that what it asks of many entities shares a run."""
        if (
            chain is not self._ask_key
            or key is not self._chained_key
            or timeout_ms != self._ask_timeout_ms
        ):
            if not self.writable and self.is_full:
                refuse((waiter, decode, 0), self._send_buffer_limit.refusal(key[0], self.name))
                return
            self._open_asks(key, timeout_ms, chain)
            self._ask_key, self._chained_key = chain, key
        self._ask_ids.append(entity_id)
        self._ask_payloads.append(payload)
        self._ask_corrs.append(self._expect(waiter, decode, timeout_ms))
        self._weight += len(payload) + ASK_WEIGHT
        if self._weight > self._limit:
            self._full()

    def reply(self, corr: int, payload: bytes) -> None:
        """Answer an ask that came by this session."""
        if self._replies is None:
            self._open_replies()
        self._reply_corrs.append(corr)
        self._reply_payloads.append(payload)
        self._weight += len(payload) + ASK_WEIGHT
        if self._weight > BATCH_WEIGHT_MAX:
            self._full_of_replies()

    def fail(self, corr: int, error: Exception) -> None:
        """Answer an ask with an error."""
        fail = fail_of(corr, error)
        self._put(fail, len(fail.text) + len(fail.detail))

    def relay(
        self,
        key: Key,
        shard: str,
        entity_id: str,
        payload: bytes,
        hops: int,
        timeout_ms: int,
        waiter: Waiter | None,
        chain: Chain = (),
        via: int = 0,
    ) -> None:
        """Pass on a message that came from elsewhere; `via`: by which link, if it is a tell."""
        corr = self._expect(waiter, None, timeout_ms) if waiter is not None else 0
        self._put(
            Relayed(key[0], shard, entity_id, key[1], payload, corr, timeout_ms, hops, chain, via),
            len(payload),
        )

    def flush_shard(
        self, entity_type: str, shard: str, hops: int, timeout_ms: int, waiter: Waiter
    ) -> None:
        """Ask for an echo once everything sent so far for the shard has arrived at its home."""
        corr = self._expect(waiter, None, timeout_ms)
        self._put(Flush(entity_type, shard, corr, timeout_ms, hops), 0)

    def control(self, control: Control) -> None:
        """Send a message of the machines."""
        self._put(control, len(control.body))

    def _put(self, run: Run, size: int) -> None:
        self._tell_key = self._ask_key = None
        self._runs.append(run)
        self._schedule()
        self._weight += size + ENVELOPE_WEIGHT
        if self._weight > BATCH_WEIGHT_MAX:
            self._spill()

    def _open_tells(self, key: Key) -> None:
        run = TellRun(key[0], key[1], [], [])
        self._runs.append(run)
        self._tell_ids, self._tell_payloads = run.ids, run.payloads
        self._tell_key, self._ask_key = key, None
        self._schedule()

    def _open_asks(self, key: Key, timeout_ms: int, chain: Chain = ()) -> None:
        if self._idle and not self._runs:
            self._limit = 0  # full with its first message
        else:
            self._schedule()
        run = AskRun(key[0], key[1], timeout_ms, [], [], [], chain)
        self._runs.append(run)
        self._weight += len(chain) * ENVELOPE_WEIGHT
        self._ask_ids, self._ask_payloads = run.ids, run.payloads
        self._ask_corrs = run.corrs
        self._ask_key, self._ask_timeout_ms, self._tell_key = key, timeout_ms, None
        self._ask_deadline = self._asks.deadline(timeout_ms)

    def _open_replies(self) -> None:
        self._replies = run = ReplyRun([], [])
        self._runs.append(run)
        self._reply_corrs, self._reply_payloads = run.corrs, run.payloads
        self._schedule()

    def _full(self) -> None:
        """The open batch is over its weight: send it, unless its last message alone is more than a
        message may be."""
        run = self._runs[-1]
        if isinstance(run, TellRun | AskRun) and len(run.payloads[-1]) > PAYLOAD_BYTES_MAX:
            size = len(run.payloads.pop())
            run.ids.pop()
            if isinstance(run, AskRun):
                self._asks.take(run.corrs.pop())
            self._weight -= size
            self._schedule()
            raise too_large(size)
        self._spill()

    def _full_of_replies(self) -> None:
        """The same for answers: one that is too large becomes an error, for its asker waits."""
        run = self._replies
        if run is not None and len(run.payloads[-1]) > PAYLOAD_BYTES_MAX:
            corr, size = run.corrs.pop(), len(run.payloads.pop())
            self._weight -= size
            text = f"the answer has {size} bytes, at most {PAYLOAD_BYTES_MAX}"
            self.fail(corr, EntityFailed("MessageTooLarge", text))
            return
        self._spill()

    def _spill(self) -> None:
        self.flush()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        self.flush()

    def _reset_batch(self) -> None:
        self._runs = []
        self._weight, self._limit = 0, BATCH_WEIGHT_MAX
        self._tell_key = self._ask_key = self._replies = None

    @property
    def is_full(self) -> bool:
        """More is held than may be."""
        return self._weight + self.outstanding > self._send_buffer_limit.bytes

    @property
    def _idle(self) -> bool:
        """A message can leave now, and there is none before it that is not acknowledged."""
        return False

    @property
    @abstractmethod
    def outstanding(self) -> int:
        """Bytes that were sent or wait to be sent, without an acknowledgement."""

    @abstractmethod
    def flush(self) -> None:
        """Close the open batch and send it."""
