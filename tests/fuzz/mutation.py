"""Makes inputs out of inputs.

The pool begins with the seeds and the corpus. An input whose outcome is new (another error, another
path of the value that did not fit) joins it, so that the search goes on from there. This sees less
than coverage does, and costs nothing; `coverage` is the other engine.
"""

from __future__ import annotations

import re
import struct
from random import Random

from tests.fuzz.targets import ALWAYS, Target

SIZE_MAX = 64 * 1024
LARGE_MAX = 4 * 2**20
"""One in 20,000 inputs grows up to this."""
POOL_MAX = 4096
NUMBERS = (0, 1, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53)
NUMBERS += (2**62, 2**63 - 1, 2**63, 2**64 - 1)
MARKS = bytes(
    (0x00, 0x0A, 0x2E, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, *range(0xC0, 0xE0), 0xFF)
)
_DIGITS = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")


class Mutator:
    """The inputs of one target."""

    def __init__(self, target: Target, corpus: list[bytes], random: Random) -> None:
        self._random, self._words = random, target.words
        self.first = [*ALWAYS, *target.seeds, *corpus]
        """Inputs that are tried before any is changed."""
        self._pool = [data for data in self.first if len(data) <= SIZE_MAX]
        self._seen: set[str] = set()
        self.new_inputs: list[bytes] = []
        """Inputs with new outcomes."""

    def outcome(self, data: bytes, said: str) -> None:
        """Note the outcome of an input."""
        kind = said if said.startswith("state") else _DIGITS.sub("*", said[:200])
        if kind not in self._seen and len(self._pool) < POOL_MAX and len(data) <= SIZE_MAX:
            self._seen.add(kind)
            self._pool.append(data)
            self.new_inputs.append(data)

    def next(self) -> bytes:
        """Return an input that was most likely not tried before."""
        random = self._random
        data = bytearray(random.choice(self._pool))
        for _ in range(1 + int(random.random() * 4)):
            self._change(data)
        if random.random() < 0.00005 and data:
            data *= 1 + random.randrange(LARGE_MAX) // len(data)
        return bytes(data)

    def _change(self, data: bytearray) -> None:
        random = self._random
        at = int(random.random() * (len(data) + 1))
        match int(random.random() * 10):
            case 0 | 1 if at < len(data):
                data[at] ^= 1 << int(random.random() * 8)
            case 2 | 3 if at < len(data):
                data[at] = random.choice(MARKS)
            case 4:
                del data[at : at + 1 + int(random.random() * 16)]
            case 5:
                part = data[at : at + 1 + int(random.random() * 64)]
                if len(data) < SIZE_MAX:
                    data[at:at] = part * (1 + int(random.random() * 3))
            case 6:
                size = random.choice("BHIQ")
                number = random.choice(NUMBERS) % 2 ** (8 * struct.calcsize(size))
                packed = struct.pack(random.choice("<>") + size, number)
                data[at : at + len(packed)] = packed
            case 7:
                other = random.choice(self._pool)
                begin = int(random.random() * (len(other) + 1))
                data[at:] = other[begin : begin + SIZE_MAX]
            case 8 if self._words:
                data[at:at] = random.choice(self._words)
            case _:
                data[at:at] = random.randbytes(1 + int(random.random() * 8))
