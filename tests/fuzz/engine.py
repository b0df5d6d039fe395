"""Feed inputs to targets: one after the other, or in rounds.

A round has a seed and a process of its own, so that the peak of memory belongs to the round. The
rounds that have ended stand in a file, one per line, so that a run that was ended goes on.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from tests.fuzz import corpus
from tests.fuzz.judge import Finding, judge
from tests.fuzz.mutation import Mutator
from tests.fuzz.sequences import SEQUENCES
from tests.fuzz.targets import DECODERS, Target

TARGETS = {target.name: target for target in (*DECODERS, *SEQUENCES)}
FINDINGS_MAX = 5
"""Findings of one target, after which the next target begins."""
PROGRESS_S = 30.0


@dataclass(frozen=True)
class Round:
    """The result of one round: the inputs that were judged, and the findings as text."""

    seed: int
    inputs: int
    seconds: float
    findings: tuple[str, ...]


def fuzz(target: Target, inputs: int, seed: int, *, keep: bool) -> tuple[int, list[Finding]]:
    """Feed inputs to one target; print its line. Returns how many inputs were judged, which are
    fewer after `FINDINGS_MAX` findings, and the findings."""
    mutator = Mutator(target, corpus.load(target.name), Random(f"{seed} {target.name}"))
    by_key: dict[str, Finding] = {}
    began = shown = time.monotonic()
    count = 0
    while count < inputs and len(by_key) < FINDINGS_MAX:
        data = mutator.first[count] if count < len(mutator.first) else mutator.next()
        count += 1
        said, finding = judge(target, data)
        mutator.outcome(data, said)
        if finding is not None and finding.what not in by_key:
            by_key[finding.what] = finding
            print(f"FOUND {finding}\n      {data[:2000].hex()}", flush=True)
        if count % 1000 == 0 and (now := time.monotonic()) - shown > PROGRESS_S:
            shown = now
            print(f"      {target.name} {count:,} of {inputs:,}", flush=True)
    rate = count / max(1e-9, time.monotonic() - began)
    kept = corpus.add(target.name, mutator.new_inputs[:40]) if keep else 0
    print(
        f"{target.name:10} {count:>10,} inputs  {rate:>8,.0f}/s"
        f"  {len(mutator.new_inputs):>4} outcomes  {len(by_key)} findings"
        + (f"  {kept} kept" if keep else ""),
        flush=True,
    )
    return count, list(by_key.values())


def shares(targets: Iterable[Target], inputs: int) -> dict[str, int]:
    """Return how many of the inputs each target gets."""
    targets = list(targets)
    whole = sum(target.share for target in targets)
    return {target.name: max(1, inputs * target.share // whole) for target in targets}


def play(names: list[str], inputs: int, seed: int, keep: bool) -> Round:
    """Fuzz these targets once."""
    began, judged, lines = time.monotonic(), 0, list[str]()
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        for name, share in shares((TARGETS[name] for name in names), inputs).items():
            count, findings = fuzz(TARGETS[name], share, seed, keep=keep)
            judged += count
            lines += [
                f"{finding.target} {finding.what} {finding.data.hex()}" for finding in findings
            ]
    finally:
        logging.disable(disabled)
    return Round(seed, judged, time.monotonic() - began, tuple(lines))


def played(state: Path | None) -> dict[int, Round]:
    """Return the rounds that a file names, by seed."""
    if state is None or not state.exists():
        return {}
    lines = state.read_text(encoding="ascii").splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["seed"]: Round(**row | {"findings": tuple(row["findings"])}) for row in rows}


def play_rounds(
    names: list[str], inputs: int, seeds: range, state: Path | None, jobs: int
) -> list[Round]:
    """Play the rounds that `state` does not have; return all of them."""
    done = {seed: round_ for seed, round_ in played(state).items() if seed in seeds}
    each = max(1, inputs // len(seeds))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        todo = [pool.submit(play, names, each, s, False) for s in seeds if s not in done]
        for ended in as_completed(todo):
            round_ = ended.result()
            done[round_.seed] = round_
            if state is not None:
                with state.open("a", encoding="ascii") as file:
                    file.write(json.dumps(asdict(round_)) + "\n")
            print(f"== round {round_.seed}: {len(done)} of {len(seeds)}", flush=True)
    return [done[seed] for seed in seeds]
