"""Numbers with their nouns, as a person reads them: "1 shard", "2 shards".

    counted(1, "shard")                              "1 shard"
    counted(2, "entity", "entities")                 "2 entities"
    counted(3, "message waits", "messages wait")     "3 messages wait"
    how_ended(-9)                                    "was ended by SIGKILL": a process

A number in a text for people is written by this function. `tests/unit/test_quantities.py` finds the
texts that are not. A limit is a constant above one and needs none.

Source: B.149.
"""

from __future__ import annotations

import signal


def counted(number: int, noun: str, many: str = "") -> str:
    """Return the number with its noun. `many`: the plural, if it is not the noun with an s."""
    return f"{number} {noun if number == 1 else many or f'{noun}s'}"


def how_ended(code: int) -> str:
    """Return in words how a process ended; a negative code is a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
