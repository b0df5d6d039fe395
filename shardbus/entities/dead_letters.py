"""Dead letters: the last messages that no handler received, for operators to read and to replay.

A message is dropped at the node that counts it (`EntityCounts`), and that node keeps it as a letter
in the ring of its entity type. A node that receives reports of drops keeps nothing: each drop is
one letter, at one node.

    a message is dropped ──> counted ──> a letter in the ring of its type
    the ring is full ──────> the oldest letters go
    an operator replays ───> the letter leaves the ring, and its message is sent as any other

- **The bound.** A ring has at most `dead_letters` letters, and at most `dead_letter_bytes` bytes.
- **Bodies.** A letter has the body of its message only if the type's setting
  `dead_letter_payloads` admits its size, because it may hold secrets. Without it, a letter cannot
  be replayed.
- **At most once.** A letter leaves its ring before its message is sent. If the message is refused
  where it is sent, the letter returns, and the refusal makes no second letter of it.
- **Strangers.** Messages of types that this node does not know, and those that their sender may not
  send, share one ring, and never have a body: no stranger fills the ring of a type, and a replay
  does nothing that the sender may not do.

A message that was answered with an error is a letter, too (`answered`): its sender knows, and may
have sent it again.

The rings are in memory and end with the node. Nothing here reads a clock; `DeadLetters` is given
one by its node.

Source: docs/how-to/operate.md; B.166.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol, TypeVar

from shardbus.config.settings import ShardingSettings

T = TypeVar("T")
LETTER_BYTES = 256
"""The weight of a letter besides its texts and its body."""
CHARACTER_BYTES_MAX = 4
TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")


class DeadLetter(NamedTuple):
    """A message that no handler received.

    `number` is unique on its node, `at` in seconds since 1970, `sender` the name of the
    process or empty. `size` is the body's; `payload` is None if the body was not kept."""

    number: int
    at: float
    entity_type: str
    reason: str
    entity_id: str
    method: str
    sender: str
    answered: bool
    trace: str
    size: int
    payload: bytes | None

    @property
    def weight(self) -> int:
        """Bytes that the letter counts in its ring."""
        texts = f"{self.entity_type}{self.entity_id}{self.method}{self.sender}"
        size = len(texts) if texts.isascii() else CHARACTER_BYTES_MAX * len(texts)
        return LETTER_BYTES + size + len(self.payload or b"")


class LetterRing:
    """The letters of one entity type, oldest first."""

    def __init__(self, letters_max: int, bytes_max: int, body_max: int) -> None:
        self.body_max = body_max
        """Bytes of the largest body that is kept; 0 for none."""
        self.bytes = 0
        self._letters_max, self._bytes_max = letters_max, bytes_max
        self._letters: OrderedDict[int, DeadLetter] = OrderedDict()
        self._replaying: DeadLetter | None = None

    def __len__(self) -> int:
        return len(self._letters)

    def __iter__(self) -> Iterator[DeadLetter]:
        """Iterate over a copy, oldest first."""
        return iter(tuple(self._letters.values()))

    def keep(self, letter: DeadLetter) -> None:
        """Add a letter, in place of the oldest ones if there is no room. A body or a letter that
        exceeds the bounds by itself is not kept."""
        if self._is_replayed(letter):
            return
        too_large = letter.size > self.body_max or letter.weight > self._bytes_max
        if letter.payload is not None and (too_large or not self.body_max):
            letter = letter._replace(payload=None)
        if letter.weight > self._bytes_max:
            return
        self._letters[letter.number] = letter
        self.bytes += letter.weight
        while len(self._letters) > self._letters_max or self.bytes > self._bytes_max:
            self.bytes -= self._letters.popitem(last=False)[1].weight

    def get(self, number: int) -> DeadLetter | None:
        """Return a letter that is still kept."""
        return self._letters.get(number)

    def replay(self, number: int, send: Callable[[DeadLetter], T]) -> T:
        """Take a letter with a body out, and send its message. Returns the result of `send`.

        Raises:
            KeyError: there is no such letter with a body. Nothing was sent.
            Exception: the error of `send`, which has sent nothing. The letter is kept as it was.
        """
        letter = self._letters[number]
        if letter.payload is None:
            raise KeyError(number)
        del self._letters[number]
        self.bytes -= letter.weight
        self._replaying = letter
        try:
            return send(letter)
        except BaseException:
            self._replaying = None
            self._put_back(letter)
            raise
        finally:
            self._replaying = None

    def _put_back(self, letter: DeadLetter) -> None:
        """Keep a letter again, where it was by its age."""
        newer = [number for number in self._letters if number > letter.number]
        self.keep(letter)
        for number in newer:
            if number in self._letters:
                self._letters.move_to_end(number)

    def _is_replayed(self, letter: DeadLetter) -> bool:
        """True if this is the message that is being replayed, and refused."""
        other = self._replaying
        return other is not None and other.payload is letter.payload and other[4:6] == letter[4:6]


class KeepLetter(Protocol):
    """Keeps a dropped message of one type. `sender`: the name of its process, or the mark in place
    of a correlation id. A `payload` of None is no bytes, and is never sent again."""

    def __call__(
        self,
        reason: str,
        entity_id: str,
        method: str,
        payload: bytes | None,
        sender: str | int,
        trace: str = "",
        *,
        answered: bool = False,
    ) -> None: ...


class DeadLetters:
    """The rings of one node.

    Args:
        sender_of: returns the name of the process behind an `Origin` or the mark of a session,
            empty if unknown.
        now: the time, in seconds since 1970.
    """

    def __init__(self, sender_of: Callable[[int], str], now: Callable[[], float]) -> None:
        self.rings: dict[str, LetterRing] = {}
        self._sender_of, self._now = sender_of, now
        self._numbers = count(1)
        self._strangers: LetterRing | None = None

    def keeper(self, name: str, settings: ShardingSettings) -> KeepLetter | None:
        """Make the ring of a type; return a function that keeps letters in it, None if none are
        kept."""
        if not settings.dead_letters:
            return None
        bounds = settings.dead_letters, settings.dead_letter_bytes, settings.dead_letter_payloads
        ring = self.rings[name] = LetterRing(*bounds)
        return partial(self._keep, ring, name)

    def keep_strangers(self, settings: ShardingSettings) -> None:
        """Also keep letters of unknown types and of senders without permission."""
        if settings.dead_letters:
            bounds = settings.dead_letters, settings.dead_letter_bytes
            self._strangers = LetterRing(*bounds, body_max=0)

    def strangers(
        self,
        name: str,
        reason: str,
        method: str,
        rows: Iterable[tuple[str, bytes]],
        sender: str,
        *,
        answered: bool,
    ) -> None:
        """Keep messages (id, payload) that this node does not deliver for their type or sender."""
        if self._strangers is not None:
            for entity_id, payload in rows:
                self._keep(
                    self._strangers,
                    name,
                    reason,
                    entity_id,
                    method,
                    payload,
                    sender,
                    answered=answered,
                )

    def undelivered(
        self,
        name: str,
        reason: str,
        entity_id: str,
        method: str,
        payload: bytes,
        sender: str,
        *,
        answered: bool,
    ) -> None:
        """Keep a delivery of this node, to an entity anywhere, that is given up."""
        ring = self.rings.get(name, self._strangers)
        if ring is not None:
            about = (method, payload, sender)
            self._keep(ring, name, reason, entity_id, *about, answered=answered)

    def _keep(
        self,
        ring: LetterRing,
        name: str,
        reason: str,
        entity_id: str,
        method: str,
        payload: bytes | None,
        sender: str | int,
        trace: str = "",
        *,
        answered: bool = False,
    ) -> None:
        if isinstance(sender, int):
            sender = self._sender_of(sender)
        match = TRACE.match(trace) if trace else None
        letter = DeadLetter(
            next(self._numbers),
            self._now(),
            name,
            reason,
            entity_id,
            method,
            sender,
            answered,
            match[1] if match else "",
            len(payload or b""),
            payload,
        )
        ring.keep(letter)

    def __iter__(self) -> Iterator[DeadLetter]:
        """Iterate over all letters, in each ring oldest first."""
        for ring in (*self.rings.values(), *((self._strangers,) if self._strangers else ())):
            yield from ring

    def ring_of(self, number: int) -> LetterRing | None:
        """Return the ring of a type that has this letter."""
        return next((ring for ring in self.rings.values() if ring.get(number) is not None), None)
