"""The corpus: inputs that found a defect once, or that reach far into a decoder.

`corpus/TARGET.hex` has one input per line in hexadecimal digits; a line with `#` says the meaning
of the next one.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("corpus")


def load(target: str) -> list[bytes]:
    """Return the inputs of a target."""
    path = FOLDER / f"{target}.hex"
    if not path.exists():
        return []
    lines = path.read_text(encoding="ascii").splitlines()
    return [bytes.fromhex(line) for line in lines if line and not line.startswith("#")]


def add(target: str, inputs: list[bytes], size_max: int = 512) -> int:
    """Add small inputs that are not there yet. Returns how many were added."""
    stored = set(load(target))
    new = [data for data in dict.fromkeys(inputs) if data not in stored and len(data) <= size_max]
    if new:
        with (FOLDER / f"{target}.hex").open("a", encoding="ascii") as file:
            file.writelines(f"{data.hex()}\n" for data in new if data)
    return len(new)
