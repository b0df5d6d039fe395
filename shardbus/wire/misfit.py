"""A value that cannot be sent or stored as it is, and the text of an error of foreign code.

Source: docs/how-to/define-entities.md.
"""

from __future__ import annotations

from shardbus import error_text
from shardbus.error_text import is_a

TEXT_MAX = 1000
"""Characters of a foreign error's text."""
PATH_MAX = 200
"""Characters of a place."""


class Misfit(TypeError):
    """A value would arrive as something else, or would not arrive. `path` is its place below the
    value that is sent."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path = reason, path

    def __str__(self) -> str:
        return f"{self.path.removeprefix('.')}: {self.reason}" if self.path else self.reason

    def within(self, place: str) -> Misfit:
        """Return the same misfit as a value around it sees it."""
        return Misfit(self.reason, (place + self.path)[:PATH_MAX])


def text_of(error: BaseException) -> str:
    """Return the text of an error, also if its `__str__` raises."""
    return error_text.text_of(error, TEXT_MAX)


def described(error: BaseException) -> str:
    """Return the text of an error, with its class unless that is one which encoders raise."""
    if is_a(error, RecursionError):
        return "is nested too deep"
    if is_a(error, TypeError, ValueError, OverflowError):
        return text_of(error)
    return error_text.described(error, TEXT_MAX)
