#!/bin/sh
# uvloop: a loop whose class overrides `getaddrinfo` still connects by the look-ups of libuv.
#
# Version: uvloop 0.23.0, CPython 3.11.7 and 3.13.0, Linux.
#
# asyncio's `create_connection` resolves a host by `self.getaddrinfo`, so a subclass of its loop that
# overrides this one method decides how every library of the process finds its hosts: with a cache,
# a bound of time, or names of its own. `uvloop.Loop` can be subclassed, and calls of
# `loop.getaddrinfo` reach the override. But `create_connection`, and so `asyncio.open_connection` and
# every client above it, calls uvloop's own function in C. Nothing warns: the override is just unused.
#
# Seen (a name that only the override knows):
#   asyncio asked directly: True   connected: True
#   uvloop  asked directly: True   connected: False
#
# Exit code 0: it behaves so. 1: it has changed. 2: the packages could not be installed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'uvloop==0.23.0' || exit 2
cat >"$folder/program.py" <<'PROGRAM'
import asyncio
import socket
import sys
from typing import Any

import uvloop

NAME = "only-the-override-knows.invalid"


class OwnNames:
    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if host == NAME:
            host = "127.0.0.1"
        return await super().getaddrinfo(host, port, **options)  # type: ignore[misc]


class OnAsyncio(OwnNames, asyncio.SelectorEventLoop):
    pass


class OnUvloop(OwnNames, uvloop.Loop):
    pass


async def probe() -> tuple[bool, bool]:
    """Return whether a look-up, and whether a connection, used the override."""
    loop = asyncio.get_running_loop()
    asked = await loop.getaddrinfo(NAME, 80, type=socket.SOCK_STREAM)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        _, writer = await asyncio.open_connection(NAME, port)
        writer.close()
        connected = True
    except OSError:
        connected = False
    server.close()
    return asked[0][4][0] == "127.0.0.1", connected


found = {}
for name, new_loop in (("asyncio", OnAsyncio), ("uvloop", OnUvloop)):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        direct, connected = found[name] = runner.run(probe())
        print(f"{name:7} asked directly: {direct!s:5}  connected: {connected}")
sys.exit(0 if found == {"asyncio": (True, True), "uvloop": (True, False)} else 1)
PROGRAM
"$folder/venv/bin/python" "$folder/program.py"
