"""Fuzz one target by coverage: atheris keeps inputs that reach new branches.

    python -m tests.fuzz.coverage TARGET INPUTS SEED

`tests.fuzz --coverage` runs this. The process ends at the first finding, whose input libFuzzer
writes into the working directory.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["shardbus"]):
    from tests.fuzz import corpus
    from tests.fuzz.engine import TARGETS
    from tests.fuzz.judge import judge


def main() -> None:
    name, inputs, seed = sys.argv[1:4]
    target = TARGETS[name]

    def one(data: bytes) -> None:
        _, finding = judge(target, data)
        if finding is not None:
            raise AssertionError(str(finding))

    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate((*target.seeds, *corpus.load(name))):
            Path(folder, str(number)).write_bytes(data)
        options = [f"-runs={inputs}", f"-seed={seed}", "-max_len=65536", "-print_final_stats=0"]
        atheris.Setup([sys.argv[0], "-verbosity=0", *options, folder], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
