"""The page before real nodes, in real processes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from shardbus import EntityFailed
from tests.browser.windows import Windows, live, shows, text_of
from tests.process.app import Account, Page
from tests.process.failing_app import Customer, Order
from tests.process.nodes import NodeProcess, Processes
from tests.process.test_workers import start as start_unit
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]

TOKEN = "the operator of real nodes"
FAILING = "tests.process.failing_app:bus"
SETTINGS = ("http.write=true", f"http.token={TOKEN}", "sharding.rebalance_interval=1s")


def url_of(node: NodeProcess) -> str:
    return f"http://127.0.0.1:{node.http_port}/ui"


async def wake(lab: Processes, count: int = 200) -> None:
    """Start entities in every shard."""
    async with lab.client() as client:
        asks = (client.ref(Page, f"page-{n}").hit(1, n) for n in range(count))
        await asyncio.gather(*asks)


async def lanes(page: Any) -> dict[str, int]:
    """How many shards the page shows at each node."""
    words = await page.evaluate("""() => {
        const rows = [...document.querySelectorAll("#nodes tbody tr")];
        const text = (row) => [row.cells[0].querySelector("bdi"), row.cells[5]];
        return rows.map((row) => text(row).map((place) => place.textContent));
    }""")
    return {name: int(count) for name, count in words if count.isdigit()}


async def test_a_kill_is_seen_within_two_seconds_of_the_clusters_knowing_it(
    windows: Windows, lab: Processes
) -> None:
    nodes = await lab.cluster(3, settings=SETTINGS)
    await wake(lab)
    page = await windows.open(url_of(nodes[0]))
    await live(page)
    await shows(page, ".map-summary", "24 shards on 3 nodes, all run")
    victim = nodes[2]
    seconds: list[float] = []

    async def cluster_knows() -> bool:
        cluster = await nodes[0].page("/v1/cluster")
        members = await nodes[0].page("/v1/nodes")
        if not cluster or not members:
            return False
        if not seconds and any(node.startswith(victim.address) for node in cluster["unreachable"]):
            seconds.append(time.monotonic())
        gone = all(row["address"] != victim.address for row in members["nodes"])
        if gone and not seconds:
            seconds.append(time.monotonic())
        return bool(seconds)

    async def page_shows() -> bool:
        text = await text_of(page, "#nodes tbody")
        return "unreachable" in text or victim.address not in text

    victim.kill()
    knows = asyncio.create_task(until(cluster_knows, "a cluster that misses the node"))
    await until(page_shows, "a page that misses the node")
    seen = time.monotonic()
    await knows
    print(f"the page showed it {seen - seconds[0]:.3f} s after /v1/cluster did")
    await shows(page, "#moves tbody", "node gone")
    await shows(page, ".map-summary", "24 shards on 2 nodes")
    await shows(page, "#problems", f"{victim.address} was lost at")
    await shows(page, "#problems", "keep-majority")
    await shows(page, "#problems", "8 of its 8 shards of page have a home again")


async def test_what_fails_is_in_attention_and_its_exceptions_are_with_the_handlers(
    windows: Windows, lab: Processes
) -> None:
    [node] = await lab.cluster(1, settings=SETTINGS, app=FAILING)
    page = await windows.open(url_of(node))
    await live(page)
    await shows(page, "#problems", "Nothing needs attention")
    async with lab.client(timeout=5.0) as client:
        with pytest.raises(EntityFailed):
            await client.ref(Order, "o-1").pay(3)
        with pytest.raises(EntityFailed, match="it does not start"):
            await client.ref(Customer, "c-1").hit()
    await shows(page, "#problems", "order pay has 1 failure, the last one ValueError: no money")
    await shows(page, "#problems", "customer c-1 has not started")
    await shows(page, "#failing-count", "2")
    await page.goto(f"{url_of(node)}#handlers")
    await page.get_by_label("that have failed").check()
    await shows(page, "#handlers tbody", "ValueError: no money for 3")
    await shows(page, "#handlers tbody", "LookupError: no row for c-1")
    await page.locator("#handlers summary", has_text="no money").click()
    await shows(page, "#handlers details[open]", "Of o-1 on")
    await shows(page, "#handlers details[open] pre", "in pay")


async def test_moves_are_seen_and_a_drain_shows_its_plan_before(
    windows: Windows, lab: Processes
) -> None:
    nodes = await lab.cluster(2, settings=SETTINGS)
    await wake(lab)
    page = await windows.open(url_of(nodes[1]))
    await live(page)
    await shows(page, ".map-summary", "24 shards on 2 nodes, all run")
    await page.get_by_role("button", name="Token").click()
    await page.get_by_role("textbox", name="Token").fill(TOKEN)
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name=f"drain {nodes[0].address}").click()
    await shows(page, "#dialog", "page: 12 moves")
    assert "draining" not in await text_of(page, "#nodes")
    await page.get_by_role("button", name=f"Drain {nodes[0].address}", exact=True).click()
    await shows(page, "#dialog", "Done")
    await page.keyboard.press("Escape")
    await shows(page, "#nodes tbody", "draining")
    await shows(page, "#moves tbody", "drain")
    await shows(page, ".map-summary", "24 shards on 1 node")
    await until(lambda: _all_at(page, nodes[1].address), "every shard at the other node")
    await page.get_by_role("button", name=f"uncordon {nodes[0].address}").click()
    await page.get_by_role("button", name=f"Uncordon {nodes[0].address}", exact=True).click()
    await shows(page, "#dialog", "Done")
    await page.keyboard.press("Escape")
    await shows(page, "#moves tbody", "rebalance")
    await shows(page, ".map-summary", "24 shards on 2 nodes")
    await page.get_by_role("button", name="Rebalance page").click()
    await shows(page, "#dialog", "page: ")
    await page.get_by_role("button", name="Rebalance now").click()
    await shows(page, "#dialog", "Done")


async def _all_at(page: Any, address: str) -> bool:
    return (await lanes(page)).get(address, 0) >= 24


async def test_entities_settings_and_slow_handlers_of_real_nodes(
    windows: Windows, lab: Processes
) -> None:
    settings = (*SETTINGS, "node.zone=east", "sharding.slow_handler_after=1s")
    [node] = await lab.cluster(1, settings=settings)
    await wake(lab, 8)
    async with lab.client() as client:
        await client.ref(Page, "page-3").hit_late.tell(1, 2, "never")
        slow = asyncio.ensure_future(client.ref(Account, "a-1").add_late(1, "later"))
        page = await windows.open(f"{url_of(node)}#trouble")
        await shows(page, "#slow tbody", "add_late of account 'a-1' has waited")
        await shows(page, "#drops tbody", "failed")
        await page.get_by_role("button", name="show failed of page").click()
        await shows(page, "#letters tbody", "page-3")
        (lab.folder / "later").touch()
        assert await slow == "saved"
    await page.goto(f"{url_of(node)}#events")
    await shows(page, "#event-list", "epoch claimed")
    await page.goto(f"{url_of(node)}#settings")
    await page.get_by_label("that are not defaults").check()
    await shows(page, "#settings tbody", "--set node.zone")
    assert TOKEN not in await text_of(page, "#settings")
    await page.goto(f"{url_of(node)}#entities")
    await shows(page, "#entity-summary", "in memory")
    await page.locator("#entity-type").select_option("page")
    await page.locator("#entity-prefix").fill("page-7")
    await page.get_by_role("button", name="List those in memory").click()
    await shows(page, "#entity-list", "page-7")
    await page.get_by_role("button", name="Look up this id").click()
    await shows(page, "#entity-detail", "the home is known")


async def test_the_workers_of_a_unit_have_one_page(windows: Windows, lab: Processes) -> None:
    unit = await start_unit(lab)
    page = await windows.open(url_of(unit))
    await shows(page, "#summary", "3 of 3 nodes up")
    await shows(page, "#link", "live")
