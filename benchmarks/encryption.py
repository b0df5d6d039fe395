"""The cost of encryption: tells and asks with a secret and without, in turn, in one run.

    python -m benchmarks.encryption [--rounds 5] [--seconds 3] [--payload 64]

Each round is one `shardbus bench` without a secret and one with, one producer process and one node,
over the loopback. Prints a JSON line for each measurement: the median of both, and their ratio.
Goals: tells at least 0.5 x, p50 of asks one at a time at most 1.3 x.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from shardbus.transport.secret_file import new_secret, secrets_text, write_private

COMMAND = "import sys; from shardbus_cli.main import main; sys.exit(main())"


def measured(words: list[str]) -> dict[str, float]:
    """Return the values of one run of `shardbus bench`, by name."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SHARDBUS_")}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "bench", "--json", *words],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"]: row["value"] for row in rows}


def main() -> None:
    """Measure in turn and print the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--payload", type=int, default=64)
    options = parser.parse_args()
    plain: dict[str, list[float]] = defaultdict(list)
    keyed: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "cluster.secret"
        write_private(secret, secrets_text([new_secret()]))
        words = ["--seconds", str(options.seconds), "--payload", str(options.payload)]
        for _ in range(options.rounds):
            for flags, rates in (([], plain), (["--secret", str(secret)], keyed)):
                for name, value in measured([*words, *flags]).items():
                    rates[name].append(value)
    for name, values in plain.items():
        before, after = statistics.median(values), statistics.median(keyed[name])
        row = {"name": name, "plain": before, "encrypted": after, "ratio": after / before}
        print(json.dumps({key: _rounded(value) for key, value in row.items()}))


def _rounded(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
