"""Which host names are looked up, when, and the known answers of each.

The system's look-up of a name blocks its thread, where a name server does not answer for 10 s and
longer, and cannot be ended. So look-ups run in threads (`name_resolver`), and this machine decides
which. ZeroMQ is given numeric addresses only: it would look names up in the thread that carries all
of its connections.

    Wanted ──> waiting ──> running ── Answered ──> known
                  ^           ├────── after `OVERDUE_S`: reported; its thread stays taken
                  └── pause ──┴────── Failed: reported, and repeated while a connection needs it

Rules:

1.  A name has at most one look-up under way, and all names together `LOOKUPS_MAX`: a name server
    that never answers holds at most that many threads. Of the waiting names the least often
    failed is first, and of several the longest waiting. So the names of dead nodes do not keep
    the name of a new one waiting.
2.  An answer younger than `FRESH_S` is used as it is. An older one is used until there is a newer:
    it stays known when look-ups fail or hang.
3.  After a failure the name pauses for `PAUSE_MIN_S`, doubled up to `PAUSE_MAX_S`. Look-ups are
    repeated until one answers, or until no connection needs the name any more (`Settled`).
4.  A known answer is *sure* unless a new process may have taken the name since the look-up began:
    the answer may then be its predecessor's. Connections try any answer; only at a sure one does a
    refused connection prove that the process has ended.
5.  At most `NAMES_MAX` names are known. A new one replaces the name that was used least recently
    and has no look-up under way or waiting; without such a name it is reported as unknown.

Every report is about a name; `known_name` returns all there is to know. Not here: threads, clocks,
and which of several addresses a connection uses (`destination`).

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

LOOKUPS_MAX = 8
NAMES_MAX = 1024
FRESH_S = 1.0
OVERDUE_S = 2.0
PAUSE_MIN_S = 0.25
PAUSE_MAX_S = 10.0
NEVER = float("-inf")


class Wanted(msgspec.Struct, frozen=True):
    """A connection or a probe needs the addresses of a name. `new_process`: another process than
    before may have the name now."""

    name: str
    new_process: bool = False


class Settled(msgspec.Struct, frozen=True):
    """No connection and no probe waits for this name any more."""

    name: str


class Answered(msgspec.Struct, frozen=True):
    """A look-up has returned numeric addresses, the preferred one first."""

    name: str
    addresses: tuple[str, ...]


class LookUpFailed(msgspec.Struct, frozen=True):
    """A look-up has returned no address."""

    name: str
    reason: str


LookUpEvent = Wanted | Settled | Answered | LookUpFailed


class LookUp(msgspec.Struct, frozen=True):
    """Look the name up in a thread, and report Answered or LookUpFailed."""

    name: str


class ReportName(msgspec.Struct, frozen=True):
    """Tell those who wait for the name that `known_name` has the outcome."""

    name: str


LookUpEffect = LookUp | ReportName


class KnownName(msgspec.Struct, frozen=True):
    """The knowledge of a name. `addresses`: of the last answer. `reason`: why there is no newer
    one; empty if there was no failure since."""

    addresses: tuple[str, ...] = ()
    sure: bool = False
    reason: str = "not looked up yet"


class _Name(msgspec.Struct):
    wanted_at: float
    addresses: tuple[str, ...] = ()
    answered_at: float = NEVER
    sure: bool = False
    failures: int = 0
    reason: str = "not looked up yet"
    not_before: float = NEVER
    running_since: float = NEVER
    overdue: bool = False
    outdated: bool = False
    """A new process may have taken the name after the running look-up began."""


class NameLookups:
    """The names of one process's connections."""

    def __init__(self) -> None:
        self._names: dict[str, _Name] = {}
        """The least recently used one is first."""
        self._waiting: set[str] = set()
        self._running: set[str] = set()

    def known_name(self, name: str) -> KnownName:
        """Return the knowledge of a name."""
        entry = self._names.get(name)
        if entry is None:
            return KnownName()
        return KnownName(entry.addresses, entry.sure, entry.reason)

    @property
    def running(self) -> int:
        """Number of look-ups that have not returned."""
        return len(self._running)

    def handle(self, event: LookUpEvent, now: float) -> list[LookUpEffect]:
        """Handle one event."""
        match event:
            case Wanted(name, new_process):
                return self._want(name, new_process, now)
            case Settled(name):
                self._waiting.discard(name)
                return []
            case Answered(name, addresses):
                self._answered(name, addresses, now)
            case LookUpFailed(name, reason):
                self._failed(name, reason, now)
            case _:
                assert_never(event)
        return [ReportName(event.name), *self._begin(now)]

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        names = self._names
        due = [names[n].running_since + OVERDUE_S for n in self._running if not names[n].overdue]
        if len(self._running) < LOOKUPS_MAX:
            due += [names[n].not_before for n in self._waiting - self._running]
        return min(due, default=None)

    def tick(self, now: float) -> list[LookUpEffect]:
        """Report overdue look-ups, and begin those whose pause is over."""
        late: list[LookUpEffect] = []
        for name in sorted(self._running):
            entry = self._names[name]
            if not entry.overdue and now >= entry.running_since + OVERDUE_S:
                entry.overdue, entry.reason = True, f"no answer within {OVERDUE_S:g} s"
                late.append(ReportName(name))
        return late + self._begin(now)

    def check(self) -> None:
        """Audit the whole state."""
        assert len(self._running) <= LOOKUPS_MAX
        assert len(self._names) <= NAMES_MAX
        assert self._running | self._waiting <= self._names.keys()

    def _want(self, name: str, new_process: bool, now: float) -> list[LookUpEffect]:
        entry = self._names.pop(name, None)
        if entry is None:
            if not self._make_room():
                return [ReportName(name)]
            entry = _Name(now)
        self._names[name] = entry
        if new_process:
            entry.sure, entry.outdated = False, name in self._running
        if entry.sure and now < entry.answered_at + FRESH_S:
            return [ReportName(name)]
        if name not in self._waiting:
            self._waiting.add(name)
            entry.wanted_at = now
        begun = self._begin(now)
        pauses = name not in self._running and now < entry.not_before
        return [ReportName(name), *begun] if pauses or entry.overdue else begun

    def _make_room(self) -> bool:
        """Forget a name if there are too many. Returns False if all are in use."""
        if len(self._names) < NAMES_MAX:
            return True
        for name in self._names:
            if name not in self._running and name not in self._waiting:
                del self._names[name]
                return True
        return False

    def _begin(self, now: float) -> list[LookUpEffect]:
        """Begin as many look-ups as may run."""
        names = self._names
        due = [n for n in self._waiting - self._running if names[n].not_before <= now]
        due.sort(key=lambda n: (names[n].failures, names[n].wanted_at, n))
        begun = due[: LOOKUPS_MAX - len(self._running)]
        for name in begun:
            self._running.add(name)
            names[name].running_since = now
        return [LookUp(name) for name in begun]

    def _answered(self, name: str, addresses: tuple[str, ...], now: float) -> None:
        entry = self._ended(name)
        entry.addresses, entry.answered_at, entry.reason = addresses, now, ""
        entry.failures, entry.not_before = 0, NEVER
        entry.sure = not entry.outdated
        if entry.sure:
            self._waiting.discard(name)
        entry.outdated = False

    def _failed(self, name: str, reason: str, now: float) -> None:
        entry = self._ended(name)
        entry.reason, entry.outdated = reason, False
        entry.not_before = now + min(PAUSE_MIN_S * 2.0**entry.failures, PAUSE_MAX_S)
        entry.failures = min(entry.failures + 1, 32)

    def _ended(self, name: str) -> _Name:
        entry = self._names[name]
        self._running.discard(name)
        entry.running_since, entry.overdue = NEVER, False
        return entry
