#!/bin/sh
# uvloop: after `uvloop.install()`, a loop of asyncio in the main thread can start no process.
#
# Version: uvloop 0.21.0, CPython 3.11.7, Linux.
#
# `uvloop.install()` sets the policy of the process, and programs that make their loop another way, as by
# `asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)`, are not concerned, one would think: the policy makes
# no loop for them. But up to Python 3.13 a loop of asyncio takes the watcher of its child processes from the
# policy, and uvloop's has none: its own loops need none. So `create_subprocess_exec` raises a bare
# NotImplementedError without a text, in a loop that has nothing of uvloop. A library that is imported by an application with
# `uvloop.install()` at its top, and runs asyncio's loop, must bring a policy of its own.
#
# Seen:
#   before uvloop.install(): 0
#   after  uvloop.install(): NotImplementedError('')
#   in a loop of uvloop:     0
#
# Exit code 0: it behaves so. 1: it has changed. 2: the packages could not be installed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'uvloop==0.21.0' || exit 2
cat >"$folder/program.py" <<'PROGRAM'
import asyncio
import sys
import warnings

import uvloop

warnings.simplefilter("ignore")


async def exit_code() -> int | None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    return await process.wait()


def shown(new_loop: type) -> str:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        try:
            return repr(runner.run(exit_code()))
        except NotImplementedError as e:
            return f"NotImplementedError({str(e)!r})"


before = shown(asyncio.SelectorEventLoop)
uvloop.install()
after, own = shown(asyncio.SelectorEventLoop), shown(uvloop.Loop)
print(f"before uvloop.install(): {before}\nafter  uvloop.install(): {after}\nin a loop of uvloop:     {own}")
sys.exit(0 if (before, after, own) == ("0", "NotImplementedError('')", "0") else 1)
PROGRAM
"$folder/venv/bin/python" "$folder/program.py"
