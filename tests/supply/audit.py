"""Look the locked packages up among the known vulnerabilities.

    python -m tests.supply.audit        # or: make audit, which installs pip-audit

Exceptions are in `exceptions.toml`, each with its reason and the date until which it holds:

    [[exception]]
    id = "GHSA-xxxx-xxxx-xxxx"
    reason = "Why it does no harm here."
    until = 2027-01-31

The exit code is 0 if nothing is known, 1 if something is, 3 if a package was not checked because
the data cannot be reached, which is not the same as nothing found.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.supply.materials import DOCS_LOCK, LOCK

EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
LIMIT_S = 300.0
UNREACHED = ("ConnectionError", "ServiceError", "Max retries", "timed out", "Name or service")
NOT_CHECKED = "could not be audited"
EXIT_UNREACHED = 3


@dataclass(frozen=True)
class Accepted:
    """A vulnerability that does no harm here."""

    id: str
    reason: str
    until: datetime.date


def accepted(path: Path = EXCEPTIONS) -> list[Accepted]:
    """Return the exceptions.

    Raises:
        ValueError: one has no reason.
    """
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get("exception", [])
    exceptions = [Accepted(row["id"], row["reason"], row["until"]) for row in rows]
    for exception in exceptions:
        if len(exception.reason) < 20:
            raise ValueError(f"{exception.id} has no reason")
    return exceptions


def command(today: datetime.date, exceptions: list[Accepted]) -> list[str]:
    """Return the command of the audit. An exception that has run out does not count."""
    ignored = [
        f"--ignore-vuln={exception.id}" for exception in exceptions if today <= exception.until
    ]
    audit = [sys.executable, "-m", "pip_audit", "--progress-spinner=off", "--disable-pip"]
    locks = [f"--requirement={lock}" for lock in (LOCK, DOCS_LOCK)]
    return [*audit, "--require-hashes", *locks, *ignored]


def verdict(code: int, said: str) -> int:
    """Return the exit code for the audit's exit and output. A package of which the data says
    nothing was not checked."""
    if NOT_CHECKED in said or (code != 0 and any(word in said for word in UNREACHED)):
        return EXIT_UNREACHED
    return min(code, 1)


def main() -> int:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    try:
        run = subprocess.run(
            command(today, accepted()), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"packages were not checked: no answer within {LIMIT_S:g} s", file=sys.stderr)
        return EXIT_UNREACHED
    said = run.stdout + run.stderr
    print(said, end="")
    code = verdict(run.returncode, said)
    if code == EXIT_UNREACHED:
        print("packages were not checked: the data cannot be reached", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
