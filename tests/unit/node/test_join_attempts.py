"""The remedy that a node names which does not come into a cluster."""

from __future__ import annotations

import asyncio

import pytest

from shardbus.config.settings import Settings
from shardbus.ids import Address
from shardbus.membership.joining import NO_ANSWER, NO_MEMBER
from shardbus.membership.trials import BrokenLink
from shardbus.node.join_attempts import ONE_LIST, JoinAttempts
from shardbus.store.memory import MemoryStore
from tests.virtual_time import virtual

ME, SEED, OTHER = Address("me", 7355), Address("s", 7355), Address("t", 7355)


async def looks_well(address: Address, channel: str) -> str:
    return ""


@virtual
@pytest.mark.parametrize(
    ("answers", "is_named"),
    [
        ([NO_MEMBER], True),
        ([NO_MEMBER, NO_MEMBER], True),
        ([NO_MEMBER, NO_ANSWER], False),
        ([NO_ANSWER], False),
    ],
    ids=["a seed", "two seeds", "one silent", "silent"],
)
async def test_seeds_of_which_none_founds_need_one_list(
    caplog: pytest.LogCaptureFixture, answers: list[str], is_named: bool
) -> None:
    """As nodes that name each other, and not themselves."""
    loop = asyncio.get_running_loop()
    joins = JoinAttempts(
        ME, Settings(), MemoryStore(), loop, lambda event: None, lambda: False, looks_well
    )
    joins.by(["s:7355", "t:7355"])
    links = [
        BrokenLink(at, "messages", why) for at, why in zip((SEED, OTHER), answers, strict=False)
    ]
    for _ in range(8):
        joins.watch(lambda: links, ended=False)
        await asyncio.sleep(1.0)
    [line] = [record.getMessage() for record in caplog.records]
    assert "in no cluster after" in line
    assert (ONE_LIST in line, ONE_LIST in joins.describe("")) == (is_named, is_named)
    await joins.close()
