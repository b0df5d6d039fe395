"""Real nodes under faults: `python -m tests.chaos [--minutes 30] [--seed 1] [--store sentinel]`, or
`make chaos`. The store is a Redis with Sentinels, a Redis `cluster`, a `postgres`, or
`replicas` of the nodes, with disks or in `memory`.

The timeline is printed as it happens, the verdict at the end. The exit code is 0 if nothing is
wrong, 1 if anything is, 130 after SIGINT or SIGTERM. Namespaces and disks are removed in each case;
the next run removes the remains of a killed run.

The whole program runs on a machine of its own in the nodes' network, which no wall touches.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Chaos
from tests.chaos.steps import steps
from tests.chaos.store import sweep_disks
from tests.chaos.stores import SENTINEL, STORES
from tests.chaos.verdict import Verdict
from tests.process.namespaces import Network, inside, missing


async def run(
    folder: Path, seed: int, seconds: float, network: Network | None, why: str, store: str
) -> Verdict:
    """Run in a task that SIGTERM cancels, as SIGINT does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await Chaos(folder, seed, seconds, network, why, store).run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--steps", type=int, default=0, help="print so many steps, do nothing")
    parser.add_argument("--store", choices=sorted(STORES), default=SENTINEL)
    parser.add_argument("--no-namespaces", action="store_true", help="as on a machine without")
    chosen = parser.parse_args()
    if chosen.steps:
        for step, _ in zip(steps(chosen.seed), range(chosen.steps), strict=False):
            print(step)
        return 0
    print(f"seed {chosen.seed}, store {chosen.store}", flush=True)
    sweep_disks()
    why = "--no-namespaces" if chosen.no_namespaces else missing()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        network = None
        if why:
            print(f"no splits: {why}", flush=True)
        else:
            network = Network()
            stack.callback(network.close)
            stack.enter_context(inside(network.machine().name))
        try:
            seconds = 60 * chosen.minutes
            verdict = asyncio.run(
                run(Path(folder), chosen.seed, seconds, network, why, chosen.store)
            )
        except (KeyboardInterrupt, asyncio.CancelledError):
            print("interrupted", flush=True)
            return 130
    print(f"\n{verdict}")
    return int(bool(verdict.wrong))


if __name__ == "__main__":
    sys.exit(main())
