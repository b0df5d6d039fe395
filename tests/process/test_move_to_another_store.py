"""`state export --all` and `state import` bring everything that entities and clients have stored to
another kind of store: nothing is lost, and nothing takes effect again."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbus import AsyncClient
from tests.process.moving_app import Account, Jobs, Shop, Till, Total
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

APP = "tests.process.moving_app:bus"
NO_NODE = ("--node", "http://127.0.0.1:1")


async def fill(lab: Processes) -> None:
    """Deposits, items, a keyed ask, and messages that wait: in an outbox, in a durable mailbox, and
    in the state of an entity."""
    async with lab.client() as client:
        account = client.ref(Account, "ada")
        for cents in range(1, 8):
            await account.deposit(cents)
        for item in ("a", "b", "c"):
            await client.queue(Jobs, "main").put(item)
        shop = client.ref(Shop, "one")
        assert await shop.sell.ask(10, key="order-17") == 10
        await client.ref(Till, "till").put.deliver(20)
        total = client.ref(Total, Total.id_for("ada"))

        async def projected() -> bool:
            return len(await total.numbers()) == 7

        await until(projected, "the projection")
        for _ in range(3):  # each opener has a higher fence
            async with client.outbox("orders") as outbox:
                await outbox.send(client.ref(Shop, "two").add, 1)
        outbox = await client.outbox("orders").__aenter__()
        outbox._sender.abandon()  # as if its process died before it could send
        await outbox.send(client.ref(Shop, "two").add, 100)
        outbox._tasks.cancel()
        await outbox._step("close")


async def moved(client: AsyncClient) -> None:
    assert await client.ref(Account, "ada").balance() == 28
    total = client.ref(Total, Total.id_for("ada"))
    assert await total.numbers() == [1, 2, 3, 4, 5, 6, 7]
    await client.ref(Account, "ada").deposit(1)

    async def next_event() -> bool:
        return await total.numbers() == [1, 2, 3, 4, 5, 6, 7, 8]

    await until(next_event, "the next event, under the next number")
    shop = client.ref(Shop, "one")
    assert await shop.sell.ask(10, key="order-17") == 10, "not sold again"
    assert await shop.cents() == 10
    till = client.ref(Till, "till")

    async def paid() -> bool:
        return sorted(await till.got()) == [10, 20]

    await until(paid, "the message in the mailbox, and the one in the shop's state")
    async with client.outbox("orders") as outbox:
        await outbox.send(client.ref(Shop, "two").add, 1000)
    assert not outbox.failed
    assert await client.ref(Shop, "two").cents() == 1103
    queue = client.queue(Jobs, "main")
    items = []
    async for work in queue.work(most=3):
        async with work:
            items.append(work.value)
        if len(items) == 3:
            break
    assert items == ["a", "b", "c"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_everything_moves_to_another_kind_of_store(
    lab: Processes, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    source, target = f"sqlite:///{tmp_path}/old.db", request.getfixturevalue(f"{kind}_url")
    lab.store = source
    node = await lab.start(app=APP, TILL="shut")
    await fill(lab)
    assert await node.terminate() == 0
    everything = ("state", "export", "--all", "--app", APP, *NO_NODE)
    export = await done(lab.run(*everything, "--store", source))
    lines = tmp_path / "all.jsonl"
    lines.write_text(export.out.read_text())
    words = ("state", "import", str(lines), "--app", APP, "--store", target, *NO_NODE)
    dry = await done(lab.run(*words, "--dry-run"))
    assert "nothing was written" in dry.err.read_text()
    first = await done(lab.run(*words))
    again = await done(lab.run(*words))
    counts = first.err.read_text()
    assert "0 same" in counts
    assert "0 written" in again.err.read_text(), "it may be repeated"
    assert "0 journals" in again.err.read_text()
    back = await done(lab.run(*everything, "--store", target))
    assert sorted(rows_of(back)) == sorted(rows_of(export))
    lab.store = target
    await lab.start(app=APP)
    async with lab.client() as client:
        await moved(client)


def rows_of(command: NodeProcess) -> list[str]:
    """The lines without the marks of pages, which are of the store."""
    return [line.partition(',"page"')[0] for line in command.out.read_text().splitlines()]


async def done(command: NodeProcess) -> NodeProcess:
    assert await command.ended() == 0, command.err.read_text()
    return command
