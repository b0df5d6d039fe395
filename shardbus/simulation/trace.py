"""The trace of a run: one lane per node, time runs downwards.

      12.345  o─GossipState──────────>     n1 to n3, which received it
      12.350            x╌GossipSeen╌o     n3 to n2, which did not
      13.000            * downed           an event at n2

An arrow stands at the time when the message arrived or was lost. Heartbeats and their replies are
hashed, but not drawn.

The digest is a hash of every effect of every machine with its time and its bytes. Two runs are the
same if their digests are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

KEPT = 400
WIDTH = 16
UNDRAWN = ("Heartbeat", "HeartbeatReply")


@dataclass(frozen=True, slots=True)
class Arrow:
    """The end of a message. `fate` is empty if it arrived, else why it did not."""

    at: float
    source: str
    target: str
    what: str
    fate: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event at a node, or in the world if `name` is empty."""

    at: float
    name: str
    what: str


class Trace:
    """The last entries, and the digest of all."""

    def __init__(self) -> None:
        self.entries: deque[Arrow | Mark] = deque(maxlen=KEPT)
        self._hash = blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()

    def hashed(self, at: float, name: str, what: str, data: bytes = b"") -> None:
        """Hash something that two equal runs have in common."""
        self._hash.update(f"{at:.6f} {name} {what} ".encode() + data)

    def arrow(self, at: float, source: str, target: str, what: str, fate: str = "") -> None:
        """Record the end of a message."""
        if what not in UNDRAWN:
            self.entries.append(Arrow(at, source, target, what, fate))

    def mark(self, at: float, name: str, what: str) -> None:
        """Record an event."""
        self.entries.append(Mark(at, name, what))

    def lanes(self, last: int) -> list[str]:
        """Draw the last entries."""
        entries = list(self.entries)[-last:]
        names = sorted({name for entry in entries for name in _names(entry) if name})
        head = " " * 10 + "".join(name.ljust(WIDTH) for name in names).rstrip()
        return [head, *(f"{entry.at:8.3f}  {_drawn(entry, names)}" for entry in entries)]


def _names(entry: Arrow | Mark) -> tuple[str, ...]:
    return (entry.source, entry.target) if isinstance(entry, Arrow) else (entry.name,)


def _drawn(entry: Arrow | Mark, names: Sequence[str]) -> str:
    if isinstance(entry, Mark):
        if not entry.name:
            return f"== {entry.what}"
        return " " * (WIDTH * names.index(entry.name)) + f"* {entry.what}"
    source, target = names.index(entry.source), names.index(entry.target)
    left, right = sorted((source, target))
    line = "╌" if entry.fate else "─"
    body = f"{line}{entry.what}{line}".ljust(WIDTH * (right - left) - 1, line)
    head = "x" if entry.fate else ("<" if target < source else ">")
    ends = ("o", head) if source < target else (head, "o")
    return (
        " " * (WIDTH * left) + ends[0] + body + ends[1] + (f"  {entry.fate}" if entry.fate else "")
    )
