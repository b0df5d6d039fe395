#!/bin/bash
# pyzmq 27.1.0 (zmq.asyncio) with mypy 1.18.2 and pyright 1.1.406: a forgotten `await` before `recv()`.
#
# Expected: what forgetting `await` before a coroutine does. Nothing runs, Python warns "was never awaited", and strict
#   checkers report the line.
# Behaviour: the methods of `zmq.asyncio.Socket` return futures and act at once. So the line takes a message off the
#   socket, which no code ever gets; no interpreter warns, with `-X dev -W error` and the loop's debug mode neither;
#   mypy --strict and pyright in strict mode find nothing. mypy's optional `unused-awaitable` finds it. pyright has a
#   rule for coroutines (reportUnusedCoroutine), and one for every result that is not used, whatever it is.
# Output seen:
#   received: 2 3
#   mypy --strict: 0 errors; with unused-awaitable: 1
#   pyright strict: 0 errors
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pyzmq==27.1.0 mypy==1.18.2 'pyright[nodejs]==1.1.406'
cat > program.py <<'PY'
import asyncio

import zmq
import zmq.asyncio


async def main() -> list[str]:
    context = zmq.asyncio.Context()
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    pull.bind("inproc://work")
    push.connect("inproc://work")
    for number in (b"1", b"2", b"3"):
        await push.send(number)
    pull.recv()  # the forgotten await
    got: list[bytes] = [await pull.recv() for _ in range(2)]
    context.destroy(linger=0)
    return [message.decode() for message in got]


if __name__ == "__main__":
    print("received:", *asyncio.run(main(), debug=True))
PY
printf '{"typeCheckingMode": "strict", "venvPath": ".", "venv": "venv", "include": ["program.py"]}\n' > pyrightconfig.json
received=$(venv/bin/python -X dev -W error program.py)
strict=$(venv/bin/mypy --strict program.py | grep -c ': error:' || true)
optional=$(venv/bin/mypy --strict --enable-error-code unused-awaitable program.py | grep -c 'unused-awaitable' || true)
pyright=$(venv/bin/pyright 2>/dev/null | grep -c ' error: ' || true)
echo "$received"
echo "mypy --strict: $strict errors; with unused-awaitable: $optional"
echo "pyright strict: $pyright errors"
[ "$received" = "received: 2 3" ] && [ "$strict" = 0 ] && [ "$optional" = 1 ] && [ "$pyright" = 0 ]
