"""Exit codes, and the failure that a command reports on one line.

    0 ok or drained     3 app cannot be loaded             6 refused
    1 failed            4 cluster or store unreachable     7 drain deadline passed
    2 usage             5 unhealthy or check failed

A message that its entity refuses is 6, too.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardbus.errors import ShardBusError


class ExitCode(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    APP = 3
    UNREACHABLE = 4
    UNHEALTHY = 5
    REFUSED = 6
    DRAIN_DEADLINE = 7


class CommandFailure(Exception):
    """A command failed. It is printed on one line, and the process ends with `code`."""

    def __init__(self, message: str, hint: str = "", *, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    @classmethod
    def of(cls, error: ShardBusError) -> CommandFailure:
        """Return the failure for an error of the library."""
        from shardbus import errors

        match error:
            case errors.ConfigError():
                code = ExitCode.USAGE
            case errors.Refused() | errors.Rejection():
                code = ExitCode.REFUSED
            case errors.StaleEpoch() | errors.StaleFence():
                code = ExitCode.FAILED
            case errors.StoreError():
                code = ExitCode.UNREACHABLE
            case _:
                code = ExitCode.FAILED
        if isinstance(error, errors.Rejection):
            return cls(f"{error.type}: {error.message}" if error.message else error.type, code=code)
        return cls(error.message if error.hint else str(error), error.hint, code=code)

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message
