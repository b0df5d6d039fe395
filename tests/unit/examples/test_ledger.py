"""The example of event-sourced accounts."""

from __future__ import annotations

import pytest

from examples.ledger import Account, Balance, TooLittle
from shardbus.testing import EntityProbe


async def test_a_balance_is_what_its_events_make() -> None:
    async with EntityProbe(Account, "ada") as probe:
        assert await probe.ref.deposit(50) == 50
        assert await probe.ref.withdraw(20) == 30
        with pytest.raises(TooLittle) as refused:
            await probe.ref.withdraw(31)
        assert refused.value.left == 30
        await probe.crash()
        assert await probe.ref.balance() == Balance(30, 2)
