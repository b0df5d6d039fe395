"""The calls of a strategy that the user wrote: in a thread, while the coordinator goes on.

A strategy of shardbus is quick and does not fail, so the coordinator calls it like a function. One
of the user's may ask a service, or never return. In the event loop it would stop every type on its
node; then the next node would coordinate, call it, and stop, and so would each of the others. So
the coordinator gathers the questions of a turn, and hands them to the shell as one AskStrategy. The
shell calls the strategy in a thread, one call at a time for each type, and answers
StrategyAnswered. Until then the shards wait, and everything else goes on.

    IDLE ──ask──> ASKED ──answered──> IDLE
     ^            │   │ deadline
     │ rested     │   v
     │    failed  │  LATE
     │            v   │ answered
     └───────── RESTING <┘

- ASKED: the strategy has `ANSWER_S` for all questions of a turn.
- LATE: it has not returned, and is not called a second time. Shards go to the regions with the
  fewest, at once, and none moves for balance: messages must not wait for a strategy, and a shard
  at another place than the best one answers. An answer that comes now is too late.
- RESTING: it was late, or no thread could call it. It is not asked again for `REST_S`, twice as
  long each time in a row, so that a strategy which is always late does not cost each new shard
  another `ANSWER_S`.

The coordinator repeats its question in later turns: `ask` returns the answer once it is there, for
one turn. An answer may be older than the table, so the coordinator checks that it still fits.

Not here: the checks of an answer (`allocation.checked`), and the thread (`shells.strategy_thread`).

Source: S0.19, S2.25, S2.63; docs/how-to/tune.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from typing import TypeVar, cast

from shardbus.backoff import doubling
from shardbus.error_text import type_name
from shardbus.sharding.allocation.checked import (
    ALLOCATE,
    CheckedStrategy,
    FewestShards,
    StrategyFault,
)
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.events import AskStrategy, StrategyAnswered

ANSWER_S = 2.0
"""Seconds in which a strategy must answer the questions of one turn."""
REST_S, REST_MAX_S = 10.0, 600.0
"""Seconds for which a strategy that was late is not asked: the first time, and at most."""
REPEAT_S = 10.0
"""Seconds after which a strategy that has still not returned is reported again."""

INSTEAD = "shards go to the regions with the fewest, and none moves for balance"

T = TypeVar("T")
Question = Callable[[AllocationStrategy], T]
"""Asks a strategy. It reads nothing that changes, for it runs in another thread."""


class CallState(Enum):
    """The state of the strategy's call."""

    IDLE = "idle"
    ASKED = "asked"
    LATE = "late"
    RESTING = "resting"


class StrategyCalls:
    """The calls of a strategy; `strategy` returns it as it is now. `guard` wraps the strategy
    before it is called: it may keep pinned shards from it, or put rows on distinct nodes."""

    __slots__ = (
        "_answers", "_asked_at", "_asked_keys", "_calling", "_due", "_guard", "_late", "_number",
        "_questions", "_strategy", "state",
    )  # fmt: skip

    def __init__(
        self,
        strategy: Callable[[], AllocationStrategy],
        guard: Callable[[AllocationStrategy], AllocationStrategy],
    ) -> None:
        self.state = CallState.IDLE
        self._strategy, self._guard = strategy, guard
        self._questions: dict[Hashable, Question[object]] = {}
        self._asked_keys: dict[Hashable, None] = {}
        self._answers: dict[Hashable, object] = {}
        self._calling: CheckedStrategy | None = None
        self._number = self._late = 0
        self._asked_at = 0.0
        self._due: float | None = None

    def ask(self, key: Hashable, question: Question[T]) -> T | None:
        """Return the answer to a question, None if it is not there yet. A strategy that is late or
        rests is not asked: `FewestShards` answers at once."""
        if key in self._answers:
            return cast("T", self._answers.pop(key))
        if self.state in (CallState.LATE, CallState.RESTING):
            return question(self._guard(FewestShards()))
        if key not in self._asked_keys:
            self._questions[key] = question
        return None

    def has_answer(self, key: Hashable) -> bool:
        """True if the answer to this question has come, in this turn."""
        return key in self._answers

    def waits(self) -> str:
        """Return the awaited answer as text; empty if the coordinator waits for none."""
        waits = self.state is CallState.ASKED or (self._questions and self.state is CallState.IDLE)
        return f"{self._method()} is to answer" if waits else ""

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        return self._due

    def tick(self, now: float) -> list[StrategyFault]:
        """Apply due changes of state; return a fault of a strategy that has not returned."""
        if self._due is None or now < self._due:
            return []
        if self.state is CallState.RESTING:
            self.state, self._due = CallState.IDLE, None
            return []
        if self.state is CallState.ASKED:
            self.state = CallState.LATE
            self._late += 1
            self._asked_keys, self._questions = {}, {}
        self._due = now + REPEAT_S
        method = (self._calling.calling if self._calling is not None else "") or ALLOCATE
        since = f" for {now - self._asked_at:.0f} s: {INSTEAD}"
        return [StrategyFault(method, "has not returned", since)]

    def on_answer(self, answered: StrategyAnswered, now: float) -> tuple[StrategyFault, ...]:
        """Take the answers for the next turn; return the faults of the calls."""
        if answered.number != self._number or self._calling is None:
            return ()
        self._calling, self._asked_keys = None, {}
        if self.state is CallState.ASKED and answered.answers:
            self._answers = dict(answered.answers)
            self.state, self._due, self._late = CallState.IDLE, None, 0
        else:
            self._late += self.state is CallState.ASKED
            self.state = CallState.RESTING
            self._due = now + doubling(REST_S, REST_MAX_S, self._late)
        return answered.faults

    def end_turn(self, now: float) -> list[AskStrategy]:
        """Forget the answers that were not fetched, and ask new questions if none is under way."""
        self._answers = {}
        if self.state is not CallState.IDLE or not self._questions:
            return []
        questions, self._questions = self._questions, {}
        self._asked_keys = dict.fromkeys(questions)
        self._number += 1
        number, faults, guard = self._number, list[StrategyFault](), self._guard
        self._calling = checked = CheckedStrategy(self._strategy(), faults.append)
        self.state, self._asked_at, self._due = CallState.ASKED, now, now + ANSWER_S

        def answer() -> StrategyAnswered:
            planner = guard(checked)
            answers = {key: question(planner) for key, question in questions.items()}
            return StrategyAnswered(number, answers, tuple(faults))

        return [AskStrategy(number, answer)]

    def _method(self) -> str:
        calling = self._calling.calling if self._calling is not None else ""
        return f"{type_name(self._strategy())}.{calling or ALLOCATE}"
