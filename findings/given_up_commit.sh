#!/bin/bash
# asyncpg 0.30.0 with PostgreSQL 15, a primary whose synchronous standby is away.
#
# Expected: `async with asyncio.timeout(...)` around an INSERT that ends with TimeoutError cancels the statement at the
#   server. So the row is not there, and the value can be taken as unchanged.
# Behaviour: that holds for a statement that waits for a lock. One that waits for its standby is *committed* by being
#   given up: until then nobody sees the row, and afterwards all do, while its caller has got TimeoutError. The server
#   only stops to wait, and says so in a WARNING, which no exception carries.
# So a writer that has given up knows nothing, and a reader must be ordered behind the write, not behind the error.
# Output seen:
#   waits for a lock: TimeoutError, rows before 0, after 0
#   waits for a standby: TimeoutError, rows before 0, after 1
set -euo pipefail
pg=$(command -v initdb || ls -d /usr/lib/postgresql/*/bin/initdb | tail -1)
pg=$(dirname "$(readlink -f "$pg")")
folder=$(mktemp -d)
chmod 755 "$folder"
as=()
if [ "$(id -u)" = 0 ]; then
  mkdir "$folder/data" && chown nobody "$folder/data"
  as=(setpriv --reuid nobody --clear-groups)
fi
trap '"${as[@]}" "$pg/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT
cd /
"${as[@]}" "$pg/initdb" -D "$folder/data" -U case -A trust -E UTF8 >/dev/null
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${as[@]}" "$pg/pg_ctl" -D "$folder/data" -w -o "-p $port -h 127.0.0.1 -k $folder/data" -l "$folder/data/log" start >/dev/null
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check asyncpg==0.30.0
cat > "$folder/program.py" <<'PY'
import asyncio
import sys

import asyncpg


async def rows(reader):
    return await reader.fetchval("SELECT count(*) FROM stock")


async def waits(reader, kind):
    """Wait until the server shows that a statement waits so."""
    text = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = $1 AND state = 'active'"
    while not await reader.fetchval(text, kind):
        await asyncio.sleep(0.01)


async def give_up(url, reader, kind):
    """Give an INSERT up while it waits. Return what its caller gets."""
    writer = await asyncpg.connect(url)
    begun = asyncio.Event()

    async def write():
        async with asyncio.timeout(None) as limit:
            begun.limit = limit
            begun.set()
            await writer.execute("INSERT INTO stock VALUES (1)")

    task = asyncio.create_task(write())
    await begun.wait()
    await waits(reader, kind)
    before = await rows(reader)
    begun.limit.reschedule(asyncio.get_running_loop().time())
    try:
        await task
        outcome = "stored"
    except TimeoutError:
        outcome = "TimeoutError"
    pid = writer.get_server_pid()
    await writer.execute("SELECT 1")  # behind the statement: it has ended at the server
    assert writer.get_server_pid() == pid
    after = await rows(reader)
    await writer.close()
    return f"{outcome}, rows before {before}, after {after}"


async def main():
    url = sys.argv[1]
    reader = await asyncpg.connect(url)
    holder = await asyncpg.connect(url)
    await reader.execute("CREATE TABLE stock (n int)")
    async with holder.transaction():
        await holder.execute("LOCK TABLE stock IN SHARE MODE")
        print("waits for a lock:", locked := await give_up(url, reader, "Lock"))
    await reader.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
    await reader.execute("SELECT pg_reload_conf()")
    while not await reader.fetchval("SELECT current_setting('synchronous_standby_names')"):
        await asyncio.sleep(0.01)
    print("waits for a standby:", alone := await give_up(url, reader, "IPC"))
    assert locked == "TimeoutError, rows before 0, after 0", locked
    assert alone == "TimeoutError, rows before 0, after 1", alone


asyncio.run(main())
PY
timeout 60 "$folder/venv/bin/python" "$folder/program.py" "postgresql://case@127.0.0.1:$port/postgres"
