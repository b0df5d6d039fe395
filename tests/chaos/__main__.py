"""Real nodes under faults: `python -m tests.chaos [--minutes 30] [--seed 1]`, or `make chaos`.

The timeline is printed as it happens, the verdict at the end. The exit code is 1 if anything is
wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Chaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        verdict = asyncio.run(Chaos(Path(folder), chosen.seed, 60 * chosen.minutes).run())
    print(f"\n{verdict}")
    return int(bool(verdict.wrong))


if __name__ == "__main__":
    sys.exit(main())
