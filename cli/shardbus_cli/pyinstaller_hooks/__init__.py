"""shardbus in programs that PyInstaller freezes.

PyInstaller finds the hooks of this folder by the entry point `pyinstaller40`. Each names the data
files and the modules of a package that its imports do not show.

Source: docs/how-to/libraries.md.
"""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """Return the folder of the hooks."""
    return [str(Path(__file__).parent)]
