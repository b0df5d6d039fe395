"""Run one of the peers of `benchmarks.durable`, in an environment that has it.

    python -m benchmarks.durable_peers dbos FOLDER      reads SECONDS from a line, calls, and prints
                                                        calls a second and the median in us
    python -m benchmarks.durable_peers restate PORT     serves the counters of Restate

DBOS runs in the process of its caller. Its counter is a workflow with one step, which adds to a row
of a SQLite database; its own database is SQLite, too. The counter of Restate is a virtual object.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from importlib import import_module
from typing import Any

from benchmarks.lanes import laned

KEYS = [f"counter-{n}" for n in range(64)]


async def dbos(folder: str) -> None:
    """Call workflows for as many seconds as each line of the standard input has."""
    product: Any = import_module("dbos").DBOS
    rows = sqlite3.connect(f"{folder}/counters.db", isolation_level=None)
    rows.execute("PRAGMA journal_mode = WAL")
    rows.execute("PRAGMA synchronous = NORMAL")
    rows.execute("CREATE TABLE counters (key TEXT PRIMARY KEY, value INTEGER)")

    async def count(key: str, amount: int) -> int:
        sql = (
            "INSERT INTO counters VALUES (?, ?)"
            " ON CONFLICT (key) DO UPDATE SET value = value + excluded.value RETURNING value"
        )
        value: int = rows.execute(sql, (key, amount)).fetchone()[0]
        return value

    step = product.step()(count)

    async def add(key: str, amount: int) -> int:
        value: int = await step(key, amount)
        return value

    workflow = product.workflow()(add)
    url = f"sqlite:///{folder}/dbos.db"
    product(config={"name": "counters", "system_database_url": url, "log_level": "ERROR"})
    product.launch()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await laned(lambda key: workflow(key, 1), KEYS, float(line))), flush=True)
    product.destroy()


async def restate(port: int) -> None:
    """Serve the counters until the process is ended."""
    product: Any = import_module("restate")
    counter = product.VirtualObject("Counter")

    async def add(context: Any, amount: int) -> int:
        value: int = (await context.get("value") or 0) + amount
        context.set("value", value)
        return value

    counter.handler()(add)
    config = import_module("hypercorn.config").Config()
    config.bind = [f"127.0.0.1:{port}"]
    await import_module("hypercorn.asyncio").serve(product.app([counter]), config)


if __name__ == "__main__":
    if sys.argv[1] == "dbos":
        asyncio.run(dbos(sys.argv[2]))
    else:
        asyncio.run(restate(int(sys.argv[2])))
