#!/bin/sh
# libfaketime: the monotonic clock and the boot clock show the time of the wall, and a faster clock
# makes the timers of asyncio late.
#
# Version: libfaketime 2.1.0 (PyPI), CPython 3.11.7, Linux.
#
# Programs are run under libfaketime to see what they do when the clock on the wall is wrong. It
# replaces all clocks, not only that one. Even with no offset, CLOCK_MONOTONIC and CLOCK_BOOTTIME
# count from 1970, so their readings compare with nothing outside of the process: neither with
# another process's, nor with a time of the kernel. With a rate, a wait of epoll is not scaled:
# `asyncio.sleep(1)` takes one true second, in which the process's own clocks go on by ten, so every
# timer fires late by nine tenths of the time that passes, and code that compares the loop's clock
# with a deadline finds it long past. A wait until an absolute time of the monotonic clock, as
# CPython's time.sleep makes it, is not shown here: it waits for the replaced time on the true clock.
# To change the wall's clock alone, set FAKETIME_DONT_FAKE_MONOTONIC=1, as the second line shows.
#
# Seen:
#   no offset        monotonic-wall 0 s, boot-wall 0 s
#   wall alone       monotonic is 1.8e9 s behind the wall
#   rate 10          asyncio.sleep(1) took 10 s by the process's own monotonic clock
#
# Exit code 0: it behaves so. 1: it has changed. 2: the packages could not be installed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'libfaketime==2.1.0' || exit 2
library=$(find "$folder/venv" -name 'libfaketime.so.1' | head -n 1)
test -n "$library" || exit 2
cat >"$folder/clocks.py" <<'PROGRAM'
import asyncio
import time

wall = time.time()
monotonic, boot = (time.clock_gettime(c) for c in (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME))


async def slept() -> float:
    begun = time.monotonic()
    await asyncio.sleep(1)
    return time.monotonic() - begun


took = asyncio.run(slept())
print(round(monotonic - wall), round(boot - wall), round(took))
PROGRAM
under() { env "$@" LD_PRELOAD="$library" "$folder/venv/bin/python" "$folder/clocks.py"; }
all=$(under FAKETIME=+0)
alone=$(under FAKETIME=+0 FAKETIME_DONT_FAKE_MONOTONIC=1)
fast=$(under FAKETIME='+0 x10')
echo "no offset  (monotonic-wall, boot-wall, own seconds of asyncio.sleep(1)): $all"
echo "wall alone: $alone"
echo "rate 10:    $fast"
set -- $all
test "$1" -eq 0 && test "$2" -eq 0 && test "$3" -le 3 || exit 1
set -- $alone
test "$1" -lt -1000000000 || exit 1
set -- $fast
test "$3" -ge 10 || exit 1
