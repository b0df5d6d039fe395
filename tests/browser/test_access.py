"""The page for everybody: checked by axe in every view, dark and light, wide and narrow."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.config.settings import HttpSettings
from shardbus.wire.schema import encode_value
from tests.browser.conftest import Serve
from tests.browser.synthetic import Fleet
from tests.browser.windows import Windows, live

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]

OPERATOR = "the operator of this test"
VIEWS = ("cluster", "handlers", "entities", "trouble", "events", "settings")


async def violations(page: Any) -> list[str]:
    """Return axe's findings."""
    from axe_playwright_python.base import AXE_FILE_PATH

    await page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
    report = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    first = ((violation["id"], violation["nodes"][0]) for violation in report["violations"])
    return [f"{rule}: {at['html'][:160]} ({at['failureSummary'][:200]})" for rule, at in first]


async def stored_state(page: Any, fleet: Fleet) -> dict[str, list[str]]:
    """Return axe's findings while a stored state is shown, edited, refused and removed."""
    fleet.saved = {entity_id: encode_value({"items": {"tea": 2}}) for entity_id in fleet.ids}
    await page.get_by_role("button", name="Token").click()
    await page.get_by_role("textbox", name="Token").fill(OPERATOR)
    await page.keyboard.press("Enter")
    await page.get_by_role("textbox", name="Arguments as JSON").fill('["tea"]')
    await page.get_by_role("button", name="Send", exact=True).click()
    await page.locator(".sending pre").wait_for()
    await page.get_by_role("button", name="Show the stored state").click()
    await page.get_by_role("button", name="Edit").wait_for()
    by_view = {"stored": await violations(page)}
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_role("textbox", name="The state as JSON").fill("{")
    await page.get_by_role("button", name="Save").click()
    await page.locator(".stored .failure").wait_for()
    by_view["editing"] = await violations(page)
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Remove…").click()
    by_view["removal"] = await violations(page)
    await page.keyboard.press("Escape")
    return by_view


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 380)])
async def test_no_view_is_closed_to_anybody(
    windows: Windows, serve: Serve, scheme: str, width: int
) -> None:
    fleet = await serve(Fleet(nodes=3, shards=24), HttpSettings(write=True, token=OPERATOR))
    # axe itself needs rights that the policy forbids; every other test runs under the policy.
    page = await windows.open(fleet.url, width=width, color_scheme=scheme, bypass_csp=True)
    await live(page)
    fleet.fleet.cut(2)
    fleet.fleet.move("5", 0)
    failed = fleet.fleet.handler("pay", "", calls=9, failures=2, p50=0.1, p99=31.0)
    fleet.fleet.handling.append({**failed, "last": [fleet.fleet.exception("no money")]})
    fleet.fleet.rates = {"cart": {"4": 12.0, "5": 3.0}}
    by_view: dict[str, list[str]] = {}
    for view in VIEWS:
        await page.goto(f"{fleet.url}#{view}")
        if view == "cluster":
            await page.locator(".map").first.focus()
            await page.keyboard.press("ArrowRight")
            await page.keyboard.press("Enter")
            await page.get_by_role("button", name="List its entities").wait_for()
        if view == "entities":
            await page.get_by_role("button", name="List those in memory").click()
            await page.locator("#entity-list .long-row").nth(1).click()
            await page.get_by_role("button", name="Ask again").wait_for()
            by_view |= await stored_state(page, fleet.fleet)
        by_view[view] = await violations(page)
    await page.goto(f"{fleet.url}#cluster")
    await page.get_by_role("button", name="As a table").click()
    by_view["table"] = await violations(page)
    await page.get_by_role("button", name="drain 10.0.0.2:7355").click()
    await page.locator("#dialog h3").wait_for()
    by_view["drain"] = await violations(page)
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    by_view["help"] = await violations(page)
    assert {view: lines for view, lines in by_view.items() if lines} == {}
