"""The page before 50 nodes with 1,000 shards each. The durations are printed, and written down in
docs/measurements.md; no assertion is on the clock."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Serve
from tests.browser.synthetic import Fleet
from tests.browser.test_cluster import SETTINGS, url_of, wake
from tests.browser.windows import Windows, live, shows
from tests.process.nodes import Processes

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]

MIB = 2**20


async def memory(page: Any) -> float:
    """MiB of the page's JavaScript heap, after a collection, and of its canvases."""
    session = await page.context.new_cdp_session(page)
    await session.send("HeapProfiler.enable")
    await session.send("HeapProfiler.collectGarbage")
    usage = await session.send("Runtime.getHeapUsage")
    canvases = await page.evaluate(
        "[...document.querySelectorAll('canvas')].reduce((n, c) => n + 4 * c.width * c.height, 0)"
    )
    return float(usage["usedSize"] + usage.get("embedderHeapUsedSize", 0) + canvases) / MIB


async def test_fifty_nodes_with_a_thousand_shards_each(windows: Windows, serve: Serve) -> None:
    served = await serve(Fleet(nodes=50, shards=50_000))
    page = await windows.open(served.url)
    await shows(page, ".map-summary", "50,000 shards on 50 nodes")
    await shows(page, "#plot-received", "highest")
    paint = await page.evaluate("""() => {
        const marks = performance.getEntriesByType("paint");
        return marks.find((mark) => mark.name === "first-contentful-paint").startTime;
    }""")
    began = await page.evaluate("performance.now()")
    for shard in range(40):
        served.fleet.move(str(shard), (shard + 1) % 50)
    await shows(page, "#announcement", "40 shards moved")
    rows = await page.locator("#nodes tbody tr").count()
    elements = await page.evaluate("document.querySelectorAll('*').length")
    await page.get_by_role("button", name="As a table").click()
    await shows(page, "#map-table", "10.0.0.2:7355")
    await page.locator("#map-table .long").focus()
    await page.keyboard.press("End")
    await shows(page, "#map-table", "49999")
    listed = await page.locator("#map-table [role=row]").count()
    print(
        f"first paint {paint:.0f} ms; {await memory(page):.0f} MiB; {elements} elements; "
        f"moves after {await page.evaluate('performance.now()') - began:.0f} ms"
    )
    assert rows == 50
    assert elements < 5_000, "a shard is no element"
    assert listed < 60, "only rows in sight are elements"


async def test_the_cost_of_an_open_page(windows: Windows, serve: Serve) -> None:
    """Processor time of HTTP for one page that is open for some seconds."""
    served = await serve(Fleet(nodes=50, shards=1_000))
    page = await windows.open(served.url)
    await shows(page, ".map-summary", "1,000 shards on 50 nodes")
    seconds = float(os.environ.get("PAGE_SECONDS", "4"))
    before, began, at = len(windows.requested_urls), time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    spent, requests = time.process_time() - began, len(windows.requested_urls) - before
    passed = time.monotonic() - at
    part = 100 * spent / passed
    print(f"{requests} requests in {passed:.1f} s, {part:.2f} % of a core, with the driver's")
    assert requests <= 3 * passed + 3


def processor_seconds(pid: int) -> float:
    """Processor time of every thread of a process so far."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


async def test_the_cost_of_an_open_page_to_a_real_node(windows: Windows, lab: Processes) -> None:
    """Processor time of one of three real nodes, without a page and with one, in turn."""
    nodes = await lab.cluster(3, settings=SETTINGS)
    await wake(lab)
    pid, seconds = nodes[0].process.pid, float(os.environ.get("PAGE_SECONDS", "1"))

    async def spent() -> float:
        before = processor_seconds(pid)
        await asyncio.sleep(seconds)
        return processor_seconds(pid) - before

    alone, requests = await spent(), len(windows.requested_urls)
    page = await windows.open(url_of(nodes[0]))
    await live(page)
    await shows(page, "#plot-received", "highest")
    opened, at = len(windows.requested_urls), time.monotonic()
    with_page = await spent()
    await page.close()
    most = 3 * (time.monotonic() - at) + 3
    alone = (alone + await spent()) / 2
    more = with_page - alone
    print(f"{100 * more / seconds:.2f} % of a core beside {100 * alone / seconds:.2f} % without it")
    assert requests == 0
    assert len(windows.requested_urls) - opened <= most
