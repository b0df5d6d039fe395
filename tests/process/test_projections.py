"""A read side of accounts on nodes that are killed is exact: each event once and in order, in the
state of its part and in the sum to which the parts deliver."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from shardbus import AsyncClient, RequestError
from shardbus_cli.main import run
from tests.markers import soak_only
from tests.process.nodes import NodeProcess, Processes
from tests.process.test_event_sourced import amounts
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.long
ACCOUNTS, ROUNDS = 20, 10
TOKEN = "an operator's own token"
SETTINGS = ("http.write=true", f"http.token={TOKEN}")


@pytest.mark.parametrize("kind", ["redis", *soak_only("sqlite")])
async def test_the_read_side_is_exact_after_a_node_was_killed(
    kind: str,
    tmp_path: Path,
    redis_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", TOKEN)
    store_url = redis_url if kind == "redis" else f"sqlite:///{tmp_path}/store.db"
    lab = Processes(tmp_path, store_url)

    def shardbus(node: NodeProcess, *words: str) -> Any:
        url = f"http://127.0.0.1:{node.http_port}"
        code = run(["projection", *words, "--json", "--node", url])
        written = capsys.readouterr()
        assert code == 0, written.err
        return json.loads(written.out)

    try:
        nodes = await lab.cluster(3, app="examples.ledger:bus", settings=SETTINGS)
        contacts = [f"tcp://{node.address}" for node in nodes]
        names = [f"account-{n}" for n in range(ACCOUNTS)]
        async with AsyncClient(*contacts, cluster="ledger") as client:

            async def deposit(name: str, amount: int) -> None:
                try:
                    await client.call("account", name, "deposit", amount, timeout=PATIENCE_S)
                except RequestError:
                    """It may be stored or not."""

            for turn in range(1, ROUNDS + 1):
                deposits = [asyncio.create_task(deposit(name, turn)) for name in names]
                if turn == 5:
                    await asyncio.sleep(0)
                    nodes[1].kill()
                await asyncio.gather(*deposits)
            stored = await amounts(store_url, names)

            async def lines(name: str) -> Any:
                return await client.call(
                    "statement", f"{name}/statement", "lines", timeout=PATIENCE_S
                )

            for name in names:
                await until(lambda: _equal(lines(name), stored[name]), f"the lines of {name}")  # noqa: B023
            total = sum(map(sum, stored.values()))

            async def summed() -> bool:
                bank = await client.call("bank", "all", "total", timeout=PATIENCE_S)
                amount = bank["amount"] if isinstance(bank, dict) else bank.amount
                assert amount <= total, "an amount was delivered twice"
                return bool(amount == total)

            await until(summed, "the sum of the bank")
            [row] = shardbus(nodes[0], "list")["projections"]
            assert (row["name"], row["behind"], row["stopped"]) == ("statement", 0, 0)
            part = shardbus(nodes[2], "show", "statement", names[3])
            assert (part["handled"], part["behind"]) == (len(stored[names[3]]), 0)
            assert shardbus(nodes[0], "rewind", "statement", names[3])["rewound"] == [names[3]]
            await until(lambda: _equal(lines(names[3]), stored[names[3]]), "the lines again")
            assert shardbus(nodes[0], "retry", "statement")["retried"] == 0
            assert len(shardbus(nodes[0], "rewind", "statement", "--all")["rewound"]) == ACCOUNTS
    finally:
        lab.close()


async def _equal(lines: Any, expected: list[int]) -> bool:
    found = await lines
    assert len(found) <= len(expected), "an event was handled twice"
    return bool(found == expected)
