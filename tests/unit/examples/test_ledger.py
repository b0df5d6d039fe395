"""The example of event-sourced accounts."""

from __future__ import annotations

import pytest

from examples.ledger import Account, Balance, Bank, Statement, TooLittle, Total, bus
from shardbus.testing import EntityProbe, TestCluster


async def test_a_balance_is_what_its_events_make() -> None:
    async with EntityProbe(Account, "ada") as probe:
        assert await probe.ref.deposit(50) == 50
        assert await probe.ref.withdraw(20) == 30
        with pytest.raises(TooLittle) as refused:
            await probe.ref.withdraw(31)
        assert refused.value.left == 30
        await probe.crash()
        assert await probe.ref.balance() == Balance(30, 2)


async def test_a_statement_has_each_line_once_and_the_bank_each_amount() -> None:
    async with TestCluster(bus, nodes=1, seed=1) as cluster:
        client = cluster.client()
        for amount in (50, 30):
            await client.ref(Account, "ada").deposit(amount)
        await client.ref(Account, "ada").withdraw(20)
        await cluster.advance(5)
        assert await client.ref(Statement, Statement.id_for("ada")).lines() == [50, 30, -20]
        assert await client.ref(Bank, "all").total() == Total(60, 3)
