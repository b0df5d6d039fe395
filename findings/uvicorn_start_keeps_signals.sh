#!/bin/bash
# uvicorn 0.38.0: SIGINT and SIGTERM while an application's lifespan starts.
#
# Expected: a signal that comes while the application starts (it waits for a database, say) cancels the start, or ends the
#   process as soon as the start has an end; a second SIGINT ends it at once, as it does later ("Press CTRL+C to quit").
# Behaviour: uvicorn has taken over both signals before the lifespan begins, and only notes them. The start is not cancelled,
#   however many signals come; the process goes on until the start itself is over. Then it ends without serving, and the second
#   SIGINT counts after all: the application gets no shutdown of its lifespan for the start that it has completed.
# Output seen:
#   begun
#   3 signals during the start: still running
#   started
#   ended with 143
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check uvicorn==0.38.0
cat > app.py <<'PYTHON'
import asyncio
import pathlib


async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    print("begun", flush=True)
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.05)
    print("started", flush=True)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    print("stopped", flush=True)
    await send({"type": "lifespan.shutdown.complete"})
PYTHON
venv/bin/uvicorn app:app --port 0 --log-level critical >> out.txt &
server=$!
touch out.txt
until grep -q begun out.txt; do sleep 0.1; done
for name in INT INT TERM; do
    kill -s "$name" "$server"
    sleep 0.5
done
state=ended
kill -0 "$server" 2> /dev/null && state="still running"
echo "3 signals during the start: $state" >> out.txt
touch go
code=0
wait "$server" || code=$?
echo "ended with $code" >> out.txt
cat out.txt
printf '%s\n' begun "3 signals during the start: still running" started "ended with 143" | cmp - out.txt
