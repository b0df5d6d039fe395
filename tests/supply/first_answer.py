"""Time the first answer: from `pip install` into an empty environment, as the tutorial does it.

    python -m tests.supply.first_answer dist/shardbus-0.1.0-py3-none-any.whl
    make first-answer

Only the commands count, not the time to read. A JSON line has the seconds of each step and the sum.
The packages that shardbus needs come from the package index, or from pip's cache.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.ports import free_block

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600.0
TUTORIAL = ROOT / "docs" / "tutorial.md"


class Stopwatch:
    """Seconds of named steps."""

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}
        self._last = time.monotonic()

    def note(self, step: str) -> None:
        """End a step now."""
        now = time.monotonic()
        self.steps[step] = round(now - self._last, 2)
        self._last = now


def first_answer(wheel: Path, folder: Path, first: int) -> tuple[str, dict[str, float]]:
    """Follow the tutorial up to the first answer, and return it with the seconds of the steps."""
    variables = {
        name: text for name, text in os.environ.items() if not name.startswith("SHARDBUS_")
    }
    environment = variables | {"XDG_STATE_HOME": str(folder / "state")}
    environment.pop("PYTHONPATH", None)
    watch = Stopwatch()

    def call(*command: str) -> str:
        done = subprocess.run(
            command, cwd=folder, env=environment, text=True, capture_output=True,
            check=True, timeout=LIMIT_S,
        )  # fmt: skip
        return done.stdout.strip()

    call(sys.executable, "-m", "venv", "env")
    watch.note("venv")
    call("env/bin/python", "-m", "pip", "install", "--disable-pip-version-check", str(wheel))
    watch.note("pip install")
    (folder / "stock.py").write_text(block_of_the_tutorial(), encoding="utf-8")
    port, http = str(first), str(first + 2)  # gossip takes the one between
    node = subprocess.Popen(
        ["env/bin/shardbus", "node", "start", "stock:bus", "--port", port, "--http-port", http],
        cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_line(node)
        watch.note("node start")
        ask = ("env/bin/shardbus", "ask", "article", "bolts", "put", "10")
        answer = call(*ask, "--node", f"http://127.0.0.1:{http}")
        watch.note("ask")
    finally:
        node.send_signal(signal.SIGINT)
        node.communicate(timeout=LIMIT_S)
    return answer, watch.steps


def wait_for_line(node: subprocess.Popen[str]) -> None:
    """Return when the node is ready.

    Raises:
        RuntimeError: it ended, or was not ready in time.
    """
    assert node.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(node.stdout, selectors.EVENT_READ)
        ready = selector.select(LIMIT_S) and node.stdout.readline().startswith("ready: ")
    if not ready:
        raise RuntimeError("the node of the tutorial is not ready")


def block_of_the_tutorial() -> str:
    """Return the first file that the tutorial has the reader write."""
    block = re.search(r"^```python\n(.*?)^```$", TUTORIAL.read_text("utf-8"), re.M | re.DOTALL)
    assert block is not None
    return block[1]


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="shardbus-first-") as folder:
        answer, steps = first_answer(wheel, Path(folder), free_block(3))
    line = {"answer": answer, "seconds": round(sum(steps.values()), 1), "steps": steps}
    print(json.dumps(line | {"load": round(os.getloadavg()[0], 1)}))
    sys.exit(answer != "10")


if __name__ == "__main__":
    main()
