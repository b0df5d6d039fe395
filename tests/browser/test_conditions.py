"""The page in each condition of a cluster, on a telephone: nothing is wider than it, and no text is
left that only a program would write."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.conditions import CONDITIONS, OPERATOR
from tests.browser.conftest import Serve
from tests.browser.windows import Windows, shows
from tests.markers import long_only

pytestmark = pytest.mark.asyncio(loop_scope="session")

WIDTH = 375
VIEWS = ("cluster", "handlers", "entities", "trouble", "events", "settings")
SPOILED = re.compile(
    r"\bnull\b|undefined|NaN|\[object|\b0 (nodes|shards|entities)|[kM] m?s\b"
    r"|(?<![.,\d])1 (nodes|shards|entities|messages|events|handlers|failures|settings|types)\b"
)
"""Values that were not written, an amount of nothing, a large amount of a small unit, a wrong
plural."""
WIDER = """() => [...document.querySelectorAll("body *")].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width && box.right > innerWidth + 1 && !one.closest(".scrolls, nav, .unseen, .long");
}).map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 60)}`)"""


async def give_token(page: Any) -> None:
    await page.get_by_role("textbox", name="Token").fill(OPERATOR)
    await page.keyboard.press("Enter")


@pytest.mark.parametrize(
    "name", ["loaded", *long_only(*(name for name in CONDITIONS if name != "loaded"))]
)
async def test_every_condition_fits_a_telephone_and_speaks_plainly(
    windows: Windows, serve: Serve, name: str
) -> None:
    make, settings = CONDITIONS[name]
    fleet = make()
    fleet.write = settings.write
    windows.expects_errors = True
    served = await serve(fleet, settings)
    page = await windows.open(served.url, width=WIDTH, height=812)
    if settings.reader_token:
        await shows(page, "#dialog", "This node's pages need a token")
        assert not SPOILED.search(await page.locator("body").inner_text())
        await give_token(page)
    await shows(page, "#link", "live")
    for view in VIEWS:
        await page.goto(f"{served.url}#{view}")
        await page.locator(f"#view-{view}").wait_for()
        await page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done()))")
        assert await page.evaluate("document.documentElement.scrollWidth") <= WIDTH, view
        assert await page.evaluate(WIDER) == [], view
        text = await page.locator(f"#view-{view}").inner_text()
        assert not (spoiled := SPOILED.search(text)), (
            f"{view}: {spoiled and text[spoiled.start() - 40 :][:90]}"
        )
    await page.get_by_role("button", name="Token").click()
    assert not SPOILED.search(await page.locator("#dialog").inner_text())


async def test_a_cluster_before_its_first_message_says_what_comes(
    windows: Windows, serve: Serve
) -> None:
    served = await serve(CONDITIONS["fresh"][0]())
    page = await windows.open(served.url)
    await shows(
        page, ".map-summary", "No shard has a home yet: each gets one with its first message"
    )
    await shows(page, "#problems", "Nothing needs attention")
    await shows(page, "#plots-span", "the last 5 min")
    await shows(page, "#moves", "No home has changed")
