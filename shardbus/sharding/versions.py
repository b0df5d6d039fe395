"""The order of two versions of the application.

A version is numbers with dots, and perhaps a suffix for builds before that release:

    1.9 < 1.10.0-alpha < 1.10.0-alpha.2 < 1.10.0-rc2 < 1.10.0-rc10 < 1.10 = v1.10.0 = 1.10.0+b7 < 2

Missing numbers are zeros. A `v` in front and everything after a plus are ignored. In the suffix,
numbers compare as numbers and come before words, words compare by their letters, and a longer
suffix comes later. A text without a number in front counts as a suffix of version 0, so every text
has a place.

Source: B.19, B.64; semantic versioning, clause 11.
"""

from __future__ import annotations

import re

LENGTH_MAX = 200
"""Characters of a version that are compared."""

DIGITS = "0123456789"

_PARTS = re.compile(r"(?:v(?=[0-9]))?([0-9.]*)([^+]*)")
_WORDS = re.compile(r"[0-9]+|[^0-9.\-_ ]+")

Order = tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]
"""A key that compares as the versions do."""


def order_of(version: str) -> Order:
    """Return the key of a version; equal versions have equal keys."""
    parts = _PARTS.match(version.strip().lower()[:LENGTH_MAX])
    assert parts is not None  # every part of it may be empty
    numbers = [int(number or 0) for number in parts[1].rstrip(".").split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    before = tuple(
        (False, int(word), "") if word[0] in DIGITS else (True, 0, word)
        for word in _WORDS.findall(parts[2])
    )
    return tuple(numbers), not before, before
