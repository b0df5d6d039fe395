#!/bin/sh
# uvloop: a timer for the next half millisecond has no time, and fires before it.
#
# Version: uvloop 0.23.0, CPython 3.11.7 and 3.13.0, Linux.
#
# `loop.call_later` and `loop.call_at` are declared to return `asyncio.TimerHandle`, whose `when()` is
# documented. uvloop rounds the delay to whole milliseconds. If that gives 0, it returns what
# `call_soon` returns: `uvloop.loop.Handle`, which has no `when`, and which runs in the next turn, so
# up to half a millisecond before the time that was asked for. A program that keeps a handle to
# compare its time with a new deadline works with asyncio, works for most timers of uvloop,
# and raises AttributeError where a deadline happens to be near. A callback that trusts that its time
# has come must look at a clock.
#
# Seen:
#   asyncio 0.0003 TimerHandle when=True early=False
#   asyncio 0.0100 TimerHandle when=True early=False
#   uvloop  0.0003 Handle      when=False early=True
#   uvloop  0.0100 TimerHandle when=True early=True, or False
#
# Exit code 0: it behaves so. 1: it has changed. 2: the packages could not be installed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'uvloop==0.23.0' || exit 2
cat >"$folder/program.py" <<'PROGRAM'
import asyncio
import sys
import time

import uvloop


async def probe(delay: float) -> tuple[str, bool, bool]:
    """Return the handle's type, whether it has `when`, and whether it fired early, ever."""
    loop, early = asyncio.get_running_loop(), False
    for _ in range(50):
        fired = asyncio.Event()
        times: list[float] = []

        def fire() -> None:
            times.append(time.monotonic())
            fired.set()

        begun = time.monotonic()
        handle = loop.call_later(delay, fire)
        await fired.wait()
        early = early or times[0] < begun + delay - 0.0000005
    return type(handle).__name__, hasattr(handle, "when"), early


found = {}
for name, new_loop in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        for delay in (0.0003, 0.01):
            kind, when, early = found[name, delay] = runner.run(probe(delay))
            print(f"{name:7} {delay:.4f} {kind:11} when={when} early={early}")

as_seen = (
    found["asyncio", 0.0003] == ("TimerHandle", True, False)
    and found["asyncio", 0.01][:2] == ("TimerHandle", True)
    and found["uvloop", 0.0003] == ("Handle", False, True)
    and found["uvloop", 0.01][:2] == ("TimerHandle", True)
)
sys.exit(0 if as_seen else 1)
PROGRAM
"$folder/venv/bin/python" "$folder/program.py"
