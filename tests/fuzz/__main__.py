"""Fuzz every decoder, and the state of a session.

    python -m tests.fuzz [--inputs 1000000] [--seed 1] [--keep] [target ...]
    python -m tests.fuzz --inputs 10000000 --rounds 100 --state FILE [--jobs 2] [target ...]
    python -m tests.fuzz --coverage [--inputs 1000000] [target ...]

Each line is a target with its inputs, inputs per second and distinct outcomes. A finding is a line
with the input in hexadecimal digits; put it into `tests/fuzz/corpus`, and mend the defect. The
exit code is 1 if there is one. `--keep` adds inputs with new outcomes to the corpus.

`--rounds` cuts a long run into rounds. Round n has the seed n later than the first, and a process
of its own, so that the peak of memory belongs to the round. `--state` names a file to which each
round adds a line when it ends; the same command then goes on with the rounds that are missing.

`--coverage` uses atheris, which steers by the branches that an input takes. It needs a package of
that name (`pip install atheris`), and runs each target in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.fuzz.engine import TARGETS, play, play_rounds, shares
from tests.fuzz.targets import Target


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
    parser.add_argument("--rounds", type=int, default=0, help="cut the run into rounds")
    parser.add_argument("--state", type=Path, help="the file of the rounds that have ended")
    parser.add_argument("--jobs", type=int, default=1, help="rounds at a time")
    parser.add_argument("--coverage", action="store_true", help="steer by coverage, with atheris")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.targets if name not in TARGETS]:
        parser.error(f"there is no target {', '.join(unknown)}")
    names = chosen.targets or list(TARGETS)
    if chosen.coverage:
        targets = [TARGETS[name] for name in names]
        return cover(targets, shares(targets, chosen.inputs), chosen.seed)
    if chosen.rounds:
        seeds = range(chosen.seed, chosen.seed + chosen.rounds)
        rounds = play_rounds(names, chosen.inputs, seeds, chosen.state, chosen.jobs)
    else:
        rounds = [play(names, chosen.inputs, chosen.seed, chosen.keep)]
    findings = [finding for round_ in rounds for finding in round_.findings]
    print(f"{sum(round_.inputs for round_ in rounds):,} inputs, {len(findings)} findings")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
