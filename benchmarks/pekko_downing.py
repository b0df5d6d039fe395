"""The members that stay after 600 splits, by the strategies here and by Pekko's.

Each split is a cluster of 3 to 7 Up members with links that fail. A pair of members that is silent
has no gossip either; the members that gossip connects share one picture, and each part decides by
its own. Pekko is asked by its own classes (`pekko_downing_jvm`, built by Maven), once for each node
that leads in its own view. An accusation (`quarantined` here) has no form in Pekko's pictures of
live members: such links are unreachable there.

    python -m benchmarks.pekko_downing [--splits 600] [--examples 2]

It prints, per kind of split and strategy, how often both keep the same members, how many members
stay, and how often none does; then examples of each difference.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random

from shardbus.ids import NodeId
from shardbus.membership.downing.split import Decision, DowningOutcome, Preference, survey
from shardbus.membership.downing.strategies import (
    down_all,
    keep_majority,
    keep_oldest,
    lease_majority,
    static_quorum,
)
from shardbus.membership.gossip import Gossip
from shardbus.membership.leader import leader_of
from shardbus.membership.member import Member, Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability

FOLDER = Path(__file__).with_name("pekko_downing_jvm")
OUT = Path(os.environ.get("PEERS", "~/.cache/shardbus-peers")).expanduser() / "pekko-downing"
STRATEGIES = ("keep-majority", "static-quorum", "keep-oldest", "lease-majority", "down-all")
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fault:
    """Links that fail: observer and subject of each flag. A pair in `silent` has no gossip."""

    kind: str
    count: int
    flags: tuple[Pair, ...]
    silent: frozenset[Pair]
    accused: frozenset[Pair] = frozenset()

    def parts(self) -> list[frozenset[int]]:
        """Return the members that gossip connects."""
        left, parts_of = set(range(self.count)), []
        while left:
            part, todo = set[int](), [min(left)]
            while todo:
                here = todo.pop()
                part.add(here)
                todo += [n for n in left - part if _pair(n, here) not in self.silent]
            left -= part
            parts_of.append(frozenset(part))
        return parts_of

    def flags_of(self, part: frozenset[int]) -> list[Pair]:
        """Return the flags in the picture of this part: the flags of its members."""
        return [pair for pair in self.flags if pair[0] in part]


def _pair(a: int, b: int) -> Pair:
    return (min(a, b), max(a, b))


def _both(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    return tuple(sorted({pair for a, b in pairs for pair in ((a, b), (b, a))}))


def draw(kind: str, dice: Random) -> Fault:
    """Draw a split of this kind."""
    count = dice.randint(3, 7)
    nodes = list(range(count))
    pairs = list(combinations(nodes, 2))
    match kind:
        case "two sides" | "three sides":
            sides = 2 if kind == "two sides" else 3
            first = dice.sample(nodes, sides)
            side = {n: dice.randrange(sides) for n in nodes} | {n: i for i, n in enumerate(first)}
            cut = [(a, b) for a, b in pairs if side[a] != side[b]]
            return Fault(kind, count, _both(cut), frozenset(cut))
        case "one node alone" | "two nodes alone":
            odd = dice.sample(nodes, 1 if kind == "one node alone" else min(2, count - 1))
            cut = [(a, b) for a, b in pairs if a in odd or b in odd]
            return Fault(kind, count, _both(cut), frozenset(cut))
        case "bad links":
            cut = dice.sample(pairs, dice.randint(1, 3))
            return Fault(kind, count, _both(cut), frozenset(cut))
        case _:
            x = dice.choice(nodes)
            others = [n for n in nodes if n != x]
            few = dice.sample(others, dice.randint(1, len(others)))
            accused = tuple(sorted((x, n) for n in few))
            return Fault(kind, count, accused, frozenset(), frozenset(accused))


KINDS = (
    "two sides",
    "three sides",
    "one node alone",
    "two nodes alone",
    "bad links",
    "one accuses",
)


# -- here -----------------------------------------------------------------------------------------


def here(fault: Fault, strategy: str, size: int) -> set[int]:
    """Return who stays by the strategies of shardbus."""
    preference = Preference(oldest_stays=strategy == "keep-oldest", unless_alone=True)
    decide: dict[str, Callable[..., Decision]] = {
        "keep-majority": keep_majority,
        "static-quorum": lambda split: static_quorum(split, size),
        "keep-oldest": lambda split: keep_oldest(split, True),
        "lease-majority": lambda split: lease_majority(split, 2.0),
        "down-all": down_all,
    }
    stays: set[int] = set()
    asking: list[tuple[float, int, set[int]]] = []
    for part in fault.parts():
        copy = _copy(fault, part)
        split = survey(copy, _node(min(part)), preference=preference)
        decision = decide[strategy](split)
        kept = set(part) - {n.port for n in split.broken}
        match decision.outcome:
            case DowningOutcome.DOWN_OTHERS | DowningOutcome.NOTHING:
                stays |= kept
            case DowningOutcome.ASK_LEASE:
                asking.append((decision.delay, min(part), kept))
            case _:
                pass
    return stays | (min(asking)[2] if asking else set())


def _node(number: int) -> NodeId:
    return NodeId(f"n{number:02}", number, number + 1)


def _copy(fault: Fault, part: frozenset[int]) -> Gossip:
    members = {
        _node(n): Member(_node(n), 2, status=Status.UP, up_number=n + 1) for n in range(fault.count)
    }
    rows: dict[NodeId, dict[NodeId, Flag]] = defaultdict(dict)
    for observer, subject in fault.flags_of(part):
        accused = (observer, subject) in fault.accused
        rows[_node(observer)][_node(subject)] = Flag.QUARANTINED if accused else Flag.UNREACHABLE
    table = Reachability({o: ObserverRow(1, row) for o, row in sorted(rows.items())})
    return Gossip(members, frozenset(map(_node, part)), reachability=table)


# -- Pekko ----------------------------------------------------------------------------------------


class Pekko:
    """Pekko's strategies in a JVM."""

    def __init__(self) -> None:
        build = ["mvn", "-q", "-B", "-f", str(FOLDER / "pom.xml"), f"-Dout={OUT}"]
        subprocess.run([*build, "compile", "dependency:copy-dependencies"], check=True)
        classes = os.pathsep.join((str(OUT / "classes"), str(OUT / "lib" / "*")))
        command = ["java", "-cp", classes, "org.apache.pekko.cluster.sbr.Judge"]
        pipe = subprocess.PIPE
        self._jvm = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def stays(self, fault: Fault, strategy: str, size: int) -> set[int]:
        """Return who stays by Pekko's strategies."""
        argument = {"static-quorum": str(size), "keep-oldest": "true"}.get(strategy, "")
        stays: set[int] = set()
        asking: list[tuple[float, int, set[int], set[int]]] = []
        for part in fault.parts():
            copy = _copy(fault, part)
            if not fault.flags_of(part):
                stays |= part
                continue
            leaders = [n for n in part if leader_of(copy, _node(n)) == _node(n)]
            down, refused, delays = set[int](), set[int](), list[float]()
            for leader in leaders:
                delay, granted, lost = self._ask(fault, part, leader, strategy, argument)
                down |= granted
                refused |= lost
                delays += [] if delay is None else [delay]
            if delays:
                asking.append((min(delays), min(part), set(part) - down, set(part) - refused))
            else:
                stays |= set(part) - down
        for place, (_, _, granted, lost) in enumerate(sorted(asking)):
            stays |= granted if place == 0 else lost
        return stays

    def _ask(
        self, fault: Fault, part: frozenset[int], viewer: int, strategy: str, argument: str
    ) -> tuple[float | None, set[int], set[int]]:
        records = ",".join(f"{a}>{b}" for a, b in fault.flags_of(part))
        seen = ",".join(map(str, sorted(part)))
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        line = f"{strategy}|{argument}|{fault.count}|{viewer}|{records}|{seen}"
        print(line, file=self._jvm.stdin, flush=True)
        answer = self._jvm.stdout.readline().rstrip("\n").split("|")
        down, lost = (set(map(int, filter(None, words.split(",")))) for words in answer[2:4])
        return (float(answer[1]) if answer[1] else None), down, lost

    def close(self) -> None:
        """End the JVM."""
        assert self._jvm.stdin is not None
        self._jvm.stdin.close()
        self._jvm.wait()


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--splits", type=int, default=600)
    parser.add_argument("--examples", type=int, default=2)
    options = parser.parse_args()
    pekko = Pekko()
    same: Counter[tuple[str, str]] = Counter()
    kept: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
    examples: dict[tuple[str, str], list[str]] = defaultdict(list)
    for number in range(options.splits):
        kind = KINDS[number % len(KINDS)]
        fault = draw(kind, Random(f"split {number}"))
        size = fault.count // 2 + 1
        for strategy in STRATEGIES:
            ours, theirs = here(fault, strategy, size), pekko.stays(fault, strategy, size)
            kept[kind, strategy].append((fault.count, len(ours), len(theirs)))
            same[kind, strategy] += ours == theirs
            if ours != theirs and len(examples[kind, strategy]) < options.examples:
                flags = " ".join(f"{a}>{b}" for a, b in fault.flags)
                examples[kind, strategy].append(
                    f"{fault.count} members, {flags}: {sorted(ours)} here, {sorted(theirs)} there"
                )
    pekko.close()
    print("| split | strategy | same | members that stay, of | none stays |")
    print("|---|---|---|---|---|")
    for (kind, strategy), rows in kept.items():
        of, ours_kept, theirs_kept = (sum(column) for column in zip(*rows, strict=True))
        none = [sum(not row[side] for row in rows) for side in (1, 2)]
        print(
            f"| {kind} | {strategy} | {same[kind, strategy]} of {len(rows)} "
            f"| {ours_kept} / {theirs_kept}, {of} | {none[0]} / {none[1]} |"
        )
    for (kind, strategy), lines in examples.items():
        for line in lines:
            print(f"{kind}, {strategy}: {line}")


if __name__ == "__main__":
    main()
