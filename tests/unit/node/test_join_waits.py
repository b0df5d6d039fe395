"""The reasons that a joining node names, and when."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from shardbus.ids import Address
from shardbus.membership.trials import BrokenLink
from shardbus.node.join_waits import FIRST_S, LOG_AGAIN_MAX_S, LOOK_AGAIN_S, LOOKS_MAX, JoinWaits
from tests.virtual_time import virtual

SEED, OWN, PEER = Address("s", 7355), Address("me", 7356), Address("p", 7355)
SILENT = BrokenLink(SEED, "messages", "no answer")
CLOSED = BrokenLink(OWN, "gossip", "nothing has come yet", PEER)


class Node:
    """A node that reports its broken links once a second."""

    def __init__(self) -> None:
        self.there, self.looks = "connection refused", list[Address]()
        self.loop = asyncio.get_running_loop()
        self.waits = JoinWaits(self.look, self.loop)

    async def look(self, address: Address, channel: str) -> str:
        self.looks.append(address)
        return self.there

    async def lines(self, seconds: float, *links: BrokenLink) -> list[tuple[int, str]]:
        texts = []
        for _ in range(round(seconds)):
            if (waited := self.waits.update(links)) is not None:
                texts.append((round(waited), self.waits.describe()))
            await asyncio.sleep(1.0)
        return texts


@virtual
async def test_a_seed_without_an_answer_is_named_and_what_listens_there() -> None:
    node = Node()
    lines = await node.lines(8.0, SILENT)
    text = "s:7355 (messages): no answer (connection refused)"
    assert lines == [(6, text)]
    assert node.waits.describe() == text


@virtual
async def test_nothing_is_named_before_it_has_lasted() -> None:
    node = Node()
    assert await node.lines(FIRST_S - 1, SILENT) == []
    assert node.waits.describe() == ""
    assert node.looks == []


@virtual
async def test_a_closed_port_of_its_own_is_named_with_the_node_that_does_not_reach_it() -> None:
    node = Node()
    [(_, line)] = await node.lines(8.0, CLOSED)
    assert "p:7355 does not reach this node at me:7356 (gossip): nothing has come yet" in line
    assert node.looks == []


@virtual
async def test_the_lines_come_ever_more_rarely() -> None:
    node = Node()
    at = [at for at, _ in await node.lines(1500.0, CLOSED)]
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert at[0] == FIRST_S
    assert pauses == sorted(pauses)
    assert max(pauses) == LOG_AGAIN_MAX_S
    assert len(at) < 12


@virtual
async def test_another_cause_is_named_at_once() -> None:
    node = Node()
    await node.lines(100.0, CLOSED)
    assert len(await node.lines(FIRST_S + 3, SILENT)) == 1


@virtual
async def test_an_address_is_looked_at_again_and_not_too_often() -> None:
    node = Node()
    await node.lines(FIRST_S + 2, SILENT)
    node.there = ""
    await node.lines(3 * LOOK_AGAIN_S, SILENT)
    assert node.waits.describe() == "s:7355 (messages): no answer"
    assert len(node.looks) == 4


@virtual
async def test_the_addresses_under_observation_are_bounded() -> None:
    node = Node()
    many = [BrokenLink(Address("s", port), "messages", "no answer") for port in range(1, 50)]
    await node.lines(FIRST_S + 4, *many)
    assert len(set(node.looks)) == LOOKS_MAX
    assert node.waits.describe().endswith("; and 44 more")


@virtual
async def test_a_member_waits_for_nothing() -> None:
    node = Node()
    await node.lines(20.0, SILENT)
    assert await node.lines(20.0) == []
    assert node.waits.describe() == ""
