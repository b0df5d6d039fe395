"""Notices when source files change, by asking for their times again and again.

Files that count: `*.py`, `pyproject.toml`, and files that were named. Folders that are left out:
hidden ones, `__pycache__`, `node_modules`, and virtual environments, which have `pyvenv.cfg`. An
editor writes in several steps, so a change counts once two pictures in a row are equal.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shardbus_cli.exit_codes import CommandFailure

POLL_S = 0.2
FILES_MAX = 20_000
LEFT_OUT = ("__pycache__", "node_modules", "site-packages")
NAMED = ("pyproject.toml",)

Stamp = tuple[int, int, int]
"""Time of the last change in nanoseconds, size in bytes, inode."""


def picture(folder: Path, more: Iterable[Path] = ()) -> dict[str, Stamp]:
    """Return the stamps of all source files below a folder, and of some others.

    Raises:
        CommandFailure: there are more than `FILES_MAX`.
    """
    stamps: dict[str, Stamp] = {}
    for at, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_left_out(at, name)]
        for name in files:
            if name.endswith(".py") or name in NAMED:
                _add(stamps, os.path.join(at, name))
        if len(stamps) > FILES_MAX:
            raise CommandFailure(
                f"{str(folder)!r} has more than {FILES_MAX} source files",
                "run --reload in the directory of the project",
            )
    for file in more:
        _add(stamps, str(file))
    return stamps


def _is_left_out(at: str, name: str) -> bool:
    hidden = name.startswith(".") or name in LEFT_OUT
    return hidden or os.path.exists(os.path.join(at, name, "pyvenv.cfg"))


def _add(stamps: dict[str, Stamp], file: str) -> None:
    try:
        stat = os.stat(file)
    except OSError:  # it was removed meanwhile
        return
    stamps[file] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def changed(before: Mapping[str, Stamp], after: Mapping[str, Stamp]) -> list[str]:
    """Return the files that were added, removed or changed, in order."""
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) != after.get(name))


class SourceFiles:
    """Watches the files in a thread of its own. `on_change` is called there with the names."""

    def __init__(
        self, folder: Path, more: Iterable[Path], on_change: Callable[[list[str]], None]
    ) -> None:
        self._folder, self._more, self._on_change = folder, tuple(more), on_change
        self._ended = threading.Event()
        self._reported_stamps: dict[str, Stamp] = {}
        self._last_stamps: dict[str, Stamp] = {}
        self._thread = threading.Thread(target=self._run, name="shardbus-source", daemon=True)

    def start(self) -> None:
        """Take the first picture, and start the thread.

        Raises:
            CommandFailure: there are too many files.
        """
        self._reported_stamps = self._last_stamps = picture(self._folder, self._more)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()

    def look(self) -> list[str]:
        """Take a picture; return the files changed since the last change, if nothing changes
        now."""
        before, self._last_stamps = self._last_stamps, picture(self._folder, self._more)
        if self._last_stamps != before or self._last_stamps == self._reported_stamps:
            return []
        names = changed(self._reported_stamps, self._last_stamps)
        self._reported_stamps = self._last_stamps
        return names

    def _run(self) -> None:
        while not self._ended.wait(POLL_S):
            try:
                names = self.look()
            except CommandFailure:  # files were added; the next picture may be small enough again
                continue
            if names:
                self._on_change(names)
