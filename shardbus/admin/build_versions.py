"""The versions of a process's software: Python, shardbus, and the libraries that matter for faults.

Source: docs/reference/http.md.
"""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from shardbus.version import VERSION

LIBRARIES = (
    "pyzmq", "msgpack", "msgspec", "redis", "asyncpg", "prometheus-client", "starlette",
    "uvicorn", "h11", "uvloop", "opentelemetry-sdk",
)  # fmt: skip
"""Those that are not installed are left out."""


@cache
def build_versions() -> dict[str, str]:
    """Return each version by name. Read once for a process."""
    from shardbus.transport.zmq.sockets import libzmq_version

    versions = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    versions["shardbus"] = VERSION
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue
    return {**versions, "libzmq": libzmq_version()}
