"""Fuzz every decoder, and the state of a session.

    python -m tests.fuzz [--inputs 1000000] [--seed 1] [--keep] [target ...]
    python -m tests.fuzz --coverage [--inputs 1000000] [target ...]

Each line is a target with its inputs, inputs per second and distinct outcomes. A finding is a line
with the input in hexadecimal digits; put it into `tests/fuzz/corpus`, and mend what it found. The
exit code is 1 if there is one. `--keep` adds inputs with new outcomes to the corpus.

`--coverage` uses atheris, which steers by the branches that an input takes. It needs a package of
that name (`pip install atheris`), and runs each target in a process of its own.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time
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


def fuzz(target: Target, inputs: int, seed: int, *, keep: bool) -> list[Finding]:
    """Feed inputs to one target; print its line."""
    mutator = Mutator(target, corpus.load(target.name), Random(f"{seed} {target.name}"))
    found: dict[str, Finding] = {}
    began = shown = time.monotonic()
    count = 0
    while count < inputs and len(found) < FINDINGS_MAX:
        data = mutator.first[count] if count < len(mutator.first) else mutator.next()
        count += 1
        said, finding = judge(target, data)
        mutator.outcome(data, said)
        if finding is not None and finding.what not in found:
            found[finding.what] = finding
            print(f"FOUND {finding}\n      {data[:2000].hex()}", flush=True)
        if count % 1000 == 0 and (now := time.monotonic()) - shown > PROGRESS_S:
            shown = now
            print(f"      {target.name} {count:,} of {inputs:,}", flush=True)
    rate = count / max(1e-9, time.monotonic() - began)
    kept = corpus.add(target.name, mutator.found[:40]) if keep else 0
    print(
        f"{target.name:10} {count:>10,} inputs  {rate:>8,.0f}/s  {len(mutator.found):>4} outcomes"
        f"  {len(found)} findings" + (f"  {kept} kept" if keep else ""),
        flush=True,
    )
    return list(found.values())


def cover(targets: list[Target], inputs: dict[str, int], seed: int) -> int:
    """Run the other engine for each target, in a process of its own."""
    failed = 0
    for target in targets:
        command = [sys.executable, "-m", "tests.fuzz.coverage", target.name]
        run = subprocess.run([*command, str(inputs[target.name]), str(seed)], check=False)
        failed += run.returncode != 0
        ended = "ok" if run.returncode == 0 else f"ended with {run.returncode}"
        print(
            f"{target.name:10} {inputs[target.name]:>10,} inputs by coverage  {ended}", flush=True
        )
    return int(failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="add new outcomes to the corpus")
    parser.add_argument("--coverage", action="store_true", help="steer by coverage, with atheris")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.targets if name not in TARGETS]:
        parser.error(f"there is no target {', '.join(unknown)}")
    logging.disable(logging.WARNING)
    targets = [TARGETS[name] for name in chosen.targets or TARGETS]
    shares = sum(target.share for target in targets)
    inputs = {t.name: max(1, chosen.inputs * t.share // shares) for t in targets}
    if chosen.coverage:
        return cover(targets, inputs, chosen.seed)
    findings = [f for t in targets for f in fuzz(t, inputs[t.name], chosen.seed, keep=chosen.keep)]
    print(f"{sum(inputs.values()):,} inputs, {len(findings)} findings")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
