"""The command that starts an interpreter beside this process, for a replica, a worker or a node of
`shardbus dev`."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any


def interpreter(code: str) -> list[str]:
    """Return the words that run code in an interpreter which finds the modules of this process. One
    file of shiv or pex adds the folders of its packages to the path only at its own start."""
    packages = str(Path(__file__).parents[2])
    if packages not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        places: list[Any] = sys.path
        path = [place for place in places if isinstance(place, str)]
        code = f"import sys; sys.path += [p for p in {path!r} if p not in sys.path]; {code}"
    return [sys.executable, "-c", code]
