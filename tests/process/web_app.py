"""A web application with a node inside, as docs/how-to/web.md has it. Its settings are in the
environment."""

from __future__ import annotations

from fastapi import FastAPI

from shardbus.data import Counter
from shardbus.integrations.starlette import exception_handlers, lifespan
from tests.process.app import Account, bus

app = FastAPI(lifespan=lifespan(lambda: bus.run()), exception_handlers=exception_handlers)


@app.post("/accounts/{name}")
async def add(name: str, amount: int) -> int:
    return await bus.ref(Account, name).add(amount)


@app.get("/accounts/{name}")
async def total(name: str) -> int:
    return await bus.ref(Account, name).get()


@app.post("/hits")
async def hit() -> None:
    await bus.data.update("hits", Counter, lambda hits: hits.add(1))


@app.get("/hits")
async def hits() -> int:
    value = await bus.data.get("hits")
    return int(value.data) if value is not None else 0
