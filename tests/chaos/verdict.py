"""The records of a run of chaos, and the judge of its pages and asks.

- no page handles a message twice, or a producer's messages in another order
- of no page do two activations handle messages at once: once one has started, an earlier one
  handles none
- an ask that was answered was handled once; one that was refused for certain, never
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.chaos.steps import Kind, not_done
from tests.process.test_ledger import ASK, Ledger

TRIES = {"ok": (1,), "refused": (0,), "unsure": (0, 1)}
"""How often an ask of each outcome may have been handled."""


@dataclass
class Verdict:
    """The result of a run. `wrong` is empty if every rule was kept; `impossible` has why this
    machine cannot do some kinds."""

    seed: int
    kinds: frozenset[Kind] = frozenset(Kind)
    """The kinds that the run's store can do."""
    timeline: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)
    done: Counter[Kind] = field(default_factory=Counter)
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def ending(self) -> str:
        """Return the last line."""
        end = "; ".join(self.wrong) or "nothing wrong"
        missing = not_done(self.done, self.kinds)
        if not missing:
            return f"seed {self.seed}: {end}, all kinds done"
        why = f" ({'; '.join(self.impossible)})" if self.impossible else ""
        return f"seed {self.seed}: {end}, NOT all kinds done: without {', '.join(missing)}{why}"

    def __str__(self) -> str:
        counts = ", ".join(f"{kind} {count}" for kind, count in sorted(self.done.items()))
        facts = ", ".join(f"{name} {value}" for name, value in self.facts.items())
        return "\n".join(["timeline:", *self.timeline, counts, facts, self.ending])


def overlaps(spans: Mapping[int, Mapping[int, list[int]]]) -> list[int]:
    """Return the pages of which an activation has a record after a later one's first."""
    pairs = []
    for page, activations in spans.items():
        last = 0
        for first, end in sorted(activations.values()):
            if first < last:
                pairs.append(page)
                break
            last = max(last, end)
    return pairs


def judge_pages(ledger: Ledger) -> list[str]:
    """Return the rules that pages have broken."""
    wrongs = {
        "reordered": ledger.reordered,
        "repeated": ledger.repeated,
        "overlaps": overlaps(ledger.busy),
    }
    return [f"{len(all_)} {what}: {all_[:5]}" for what, all_ in wrongs.items() if all_]


def judge_asks(ledger: Ledger, outcomes: Mapping[tuple[int, int], str]) -> list[str]:
    """Return the asks whose outcome differs from the handled messages, ten at most."""
    handled = {who: Counter(seqs) for who, seqs in ledger.handled.items()}
    wrong = []
    for (page, seq), outcome in outcomes.items():
        count = handled.get((page, ASK), Counter())[seq]
        if count not in TRIES[outcome]:
            wrong.append(f"page {page} ask {seq} was {outcome}, handled {count} times")
    return wrong[:10]


def ended_by_itself(
    name: str, code: int | None, log: str, *, faulted: bool, starved: bool
) -> tuple[str, str]:
    """Judge a node that ended without a signal. Return the errors, and the notes.

    Its cluster removes a node that a fault has kept silent, and one that got no core for as long.
    """
    if has_traceback(log):
        return f"{name} ended with {code} and a traceback", ""
    if faulted and code in (0, 1, 6, 7):
        return "", f"{name} had to end: {code}"
    if starved and code in (1, 6):
        return "", f"{name} ended with {code}: it got no core"
    return f"{name} ended by itself with {code}", ""


def has_traceback(log: str) -> bool:
    """True if a log has a traceback."""
    return "Traceback (most" in log


def tracebacks(logs: Iterable[tuple[str, str]]) -> list[str]:
    """Return the nodes whose logs have a traceback."""
    names = [name for name, text in logs if has_traceback(text)]
    return [f"tracebacks of {', '.join(names)}"] if names else []
