"""The page in a browser, before a synthetic cluster: its content, and how people reach it."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.config.settings import HttpSettings
from tests.browser.conftest import Serve
from tests.browser.synthetic import Fleet, Served
from tests.browser.windows import Windows, live, shows, text_of
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

OUTLINE = "getComputedStyle(document.activeElement).outlineStyle"
OPERATOR = "the operator of this test"


async def test_nodes_shards_and_problems_are_shown_and_follow_the_cluster(
    windows: Windows, fleet: Served
) -> None:
    page = await windows.open(fleet.url)
    await live(page)
    assert await text_of(page, "#cluster-name") == "shop"
    await shows(page, "#nodes tbody", "10.0.0.3:7355")
    await shows(page, ".map-summary", "24 shards on 3 nodes, all run")
    await shows(page, "#problems", "Nothing needs attention")
    fleet.fleet.cut(2)
    await shows(page, "#problems", "10.0.0.3:7355 is unreachable")
    await shows(page, "#nodes tbody", "✕ unreachable")
    fleet.fleet.move("5", 0, "node_gone")
    await shows(page, "#moves tbody", "node gone")
    await shows(page, "#announcement", "Shard 5 moved to 10.0.0.1:7355")
    await page.goto(f"{fleet.url}#events")
    await shows(page, "#event-list", "UnreachableMember")
    await shows(page, "#event-list li:last-child", "cart: two shards move")
    await page.locator("#event-filter").fill("unreach")
    await shows(page, "#event-summary", "1 event")


async def test_a_drain_shows_its_plan_and_needs_the_operators_token(
    windows: Windows, serve: Serve
) -> None:
    fleet = Fleet(nodes=3, shards=24)
    windows.expects_errors = True
    served = await serve(fleet, HttpSettings(write=True, token=OPERATOR))
    page = await windows.open(served.url)
    await live(page)
    await page.get_by_role("button", name="drain 10.0.0.2:7355").click()
    await shows(page, "#dialog h3", "cart: 8 moves")
    await shows(page, "#dialog tbody", "-8")
    await page.get_by_role("button", name="Drain 10.0.0.2:7355", exact=True).click()
    await shows(page, "#dialog .failure", "token is missing or wrong")
    assert fleet.posted == []
    await page.get_by_role("button", name="Give the token").click()
    await page.get_by_role("textbox", name="Token").fill(OPERATOR)
    await page.keyboard.press("Enter")
    await until(lambda: page.locator("#dialog").is_hidden(), "the end of the dialog")
    await page.get_by_role("button", name="drain 10.0.0.2:7355").click()
    await shows(page, "#dialog h3", "cart: 8 moves")
    await page.get_by_role("button", name="Drain 10.0.0.2:7355", exact=True).click()
    await shows(page, "#dialog", "Done")
    assert fleet.posted == [(fleet.names[1], "draining")]
    await page.keyboard.press("Escape")
    await shows(page, "#nodes tbody", "draining")
    assert await page.evaluate("sessionStorage.length") == 0
    assert not any(OPERATOR.split()[-1] in url for url in windows.requested_urls)


async def test_B166_dropped_messages_are_shown_by_reason_and_replayed(
    windows: Windows, serve: Serve
) -> None:
    fleet = Fleet(nodes=3, shards=24)
    fleet.drops.append(["cart", "failed", 9])
    fleet.letters.insert(0, fleet.letter("cart", "failed", "cart-9"))
    windows.expects_errors = True
    served = await serve(fleet, HttpSettings(write=True, token=OPERATOR))
    page = await windows.open(f"{served.url}#trouble")
    await live(page)
    await shows(page, "#letters tbody", "cart-9")
    assert await page.locator("#letters tbody tr").count() == 3
    assert await page.locator("#letters-replay").is_hidden(), "no reason is chosen"
    await page.get_by_role("button", name="show expired of cart").press("Enter")
    await shows(page, "#letters-summary", "Those with reason expired of cart.")
    await until(lambda: _rows(page, 2), "those of one reason")
    await page.get_by_role("button", name="Replay…").click()
    await shows(page, "#dialog .failure", "token is missing or wrong")
    await page.get_by_role("button", name="Give the token").click()
    await page.get_by_role("textbox", name="Token").fill(OPERATOR)
    await page.keyboard.press("Enter")
    await until(lambda: page.locator("#dialog").is_hidden(), "the end of the dialog")
    await page.get_by_role("button", name="Replay…").click()
    await shows(page, "#dialog tbody", "cart-1")
    assert fleet.posted == []
    await page.get_by_role("button", name="Replay them").click()
    await shows(page, "#dialog", "Done: 2 messages sent.")
    assert fleet.posted == [("replay", "cart", "expired")]
    await page.keyboard.press("Escape")
    await shows(page, "#letters tbody", "No dropped message is kept.")
    await page.get_by_role("button", name="Show all").click()
    await shows(page, "#letters tbody", "cart-9")


async def _rows(page: Any, count: int) -> bool:
    return bool(await page.locator("#letters tbody tr").count() == count)


async def test_a_node_that_needs_a_token_gives_the_page_and_no_data_before(
    windows: Windows, serve: Serve
) -> None:
    fleet = Fleet(nodes=2, shards=4)
    windows.expects_errors = True
    served = await serve(fleet, HttpSettings(reader_token=OPERATOR))
    page = await windows.open(served.url)
    await shows(page, "#dialog", "This node's pages need a token")
    await shows(page, "#link", "needs a token")
    assert await text_of(page, "#nodes") == ""
    await page.get_by_role("textbox", name="Token").fill(OPERATOR)
    await page.get_by_label("keep it until").check()
    await page.get_by_role("button", name="Use it").click()
    await live(page)
    await page.reload()
    await live(page)
    await shows(page, ".map-summary", "4 shards")


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "<script>document.title='owned'</script>",
    "javascript:alert(1)",
    "\u202eexe.txt",
    "a\u2028b\u200bc",
    "{{7*7}}${7*7}",
    "é́́́́́́́" * 12,
    "x" * 256,
    "a/b?c#d&e=%00",
)


@pytest.mark.long
async def test_names_stay_names_whatever_is_in_them(windows: Windows, serve: Serve) -> None:
    fleet = Fleet(nodes=2, shards=4, types=(HOSTILE[0], HOSTILE[1], HOSTILE[3]))
    fleet.zone = HOSTILE[1]
    fleet.rows = {name: [n % 2, "r"] for n, name in enumerate(HOSTILE)}
    fleet.ids = list(HOSTILE)
    fleet.drops = [[HOSTILE[0], HOSTILE[1], 4]]
    report = {"at": "2026-01-01T00:00:00Z", "node": fleet.names[0], "type": HOSTILE[0]}
    fleet.reports = [{**report, "how": "waited", "text": HOSTILE[1] * 50}]
    fleet.letters = [fleet.letter(HOSTILE[0], HOSTILE[1], hostile) for hostile in HOSTILE]
    fleet.handling = [
        fleet.handler(hostile, HOSTILE[1], HOSTILE[0], failures=1, last=[fleet.exception(hostile)])
        for hostile in HOSTILE
    ]
    fleet.changes = [[HOSTILE[1], 1.0, HOSTILE[0], HOSTILE[3], HOSTILE[1], 0.1]]
    served = await serve(fleet)
    page = await windows.open(served.url, width=380)
    await live(page)
    await shows(page, "#moves", HOSTILE[0])
    await shows(page, "#nodes", HOSTILE[1][:30])
    fleet.tell(HOSTILE[1], fleet.names[0], HOSTILE[0])
    for view, place, shown in (
        ("handlers", "#handlers", "<script>document.title"),
        ("trouble", "#drops", HOSTILE[1]),
        ("trouble", "#slow", "<script>document.title"),
        ("trouble", "#letters", "⟨U+202E⟩exe.txt"),
        ("events", "#event-list", HOSTILE[0]),
        ("settings", "#settings", "<script>"),
    ):
        await page.goto(f"{served.url}#{view}")
        await shows(page, place, shown)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 380, view
    await page.goto(f"{served.url}#entities")
    await page.get_by_role("button", name="List those in memory").click()
    await shows(page, "#entity-list", "⟨U+202E⟩exe.txt")
    for hostile in HOSTILE:
        await page.locator("#entity-prefix").fill(hostile)
        await page.get_by_role("button", name="Look up this id").click()
        shown = await page.evaluate(
            "(t) => import('/ui/format.js').then((m) => m.visible(t))", hostile
        )
        await shows(page, "#entity-detail h3", shown)
        await until(lambda hostile=hostile: fleet.looked[-1] == hostile, "the question")
    assert "owned" not in await page.title()
    assert await page.locator("img").count() == 0


@pytest.mark.long
async def test_everything_is_reached_by_keys(windows: Windows, fleet: Served) -> None:
    page = await windows.open(fleet.url)
    await live(page)
    order = []
    for _ in range(12):
        await page.keyboard.press("Tab")
        order.append(await page.evaluate("document.activeElement.innerText"))
        assert (
            await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        )
    assert order[:4] == ["Skip to the content", "Token", "Theme: system", "?"]
    views = [text.partition(" ")[0] for text in order[4:10]]
    assert views == ["Cluster", "Handlers", "Entities", "Trouble", "Events", "Settings"]
    await page.keyboard.press("m")
    await until(
        lambda: page.evaluate("document.activeElement.className === 'map'"), "the focused map"
    )
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        await page.keyboard.press(key)
    await shows(page, ".map-line", "shard 4 · running · 10.0.0.2:7355")
    await page.keyboard.press("Enter")
    await shows(page, "#shard-detail", "Shard 4")
    await page.get_by_role("button", name="List its entities").press("Enter")
    await shows(page, "#entity-summary", "entities in memory")
    await page.locator("#entity-list .long").focus()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await shows(page, "#entity-detail", "messages go there directly")
    await shows(page, "#entity-detail .causes", "add takes 240 ms (p99), 31 messages wait")
    await shows(page, "#entity-detail .causes", "To do: make it shorter")
    await page.locator("#main").focus()
    await page.keyboard.press("?")
    await shows(page, "#dialog", "Keyboard")
    await page.keyboard.press("Escape")
    for digit, view in enumerate(
        ("cluster", "handlers", "entities", "trouble", "events", "settings"), 1
    ):
        await page.keyboard.press(str(digit))
        await until(lambda v=view: page.locator(f"#view-{v}").is_visible(), view)
    await page.keyboard.press("/")
    field = "document.activeElement.id === 'entity-prefix'"
    await until(lambda: page.evaluate(field), "the focused field")
    await page.keyboard.type("cart-1")
    await page.keyboard.press("Enter")
    await shows(page, "#entity-summary", "111 entities in memory")


@pytest.mark.long
async def test_the_map_has_a_table_and_a_choice_of_theme(windows: Windows, fleet: Served) -> None:
    page = await windows.open(fleet.url, color_scheme="dark")
    await live(page)
    back = "getComputedStyle(document.body).backgroundColor"
    dark = await page.evaluate(back)
    await page.get_by_role("button", name="As a table").click()
    await shows(page, "#map-table", "10.0.0.2:7355")
    await shows(page, "#map-table [role=row]", "4")
    for _ in range(2):
        await page.get_by_role("button", name="Theme").click()
    assert await page.evaluate(back) != dark
    await page.reload()
    await live(page)
    assert await page.evaluate(back) != dark


@pytest.mark.long
async def test_types_come_first_and_their_maps_stand_side_by_side_with_their_load(
    windows: Windows, serve: Serve
) -> None:
    fleet = Fleet(nodes=3, shards=24, types=("cart", "page"))
    fleet.rates = {"cart": {"4": 12.5, "5": 0.5}, "page": {}}
    served = await serve(fleet)
    page = await windows.open(served.url)
    await live(page)
    table = await page.locator("#types").bounding_box()
    assert table["y"] + table["height"] < 450, "every type is in sight at once"
    await until(lambda: page.evaluate(BOXES), "two maps")
    cart, other = await page.evaluate(BOXES)
    assert cart["y"] == other["y"]
    assert cart["right"] < other["left"]
    await shows(page, ".map-summary", "Most messages: 12.5/s for one shard")
    assert await page.evaluate(SHADES) == [0, 1, 4], "none, little and most"
    await page.locator(".map").first.focus()
    for _ in range(2):
        await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowDown")
    await shows(page, ".map-line", "shard 4 · running · 10.0.0.2:7355 · 12.5/s")
    await page.get_by_role("button", name="As a table").click()
    row = page.locator("#map-table [role=row]", has_text="12.5")
    await until(row.is_visible, "the shard with the most in the table")
    await page.locator("#map-table .long").focus()
    await page.keyboard.press("End")
    await shows(page, "#map-table", "page")


BOXES = """() => {
    const cards = [...document.querySelectorAll(".map-card")];
    return cards.length > 1 && cards.map((one) => one.getBoundingClientRect().toJSON());
}"""
SHADES = """() => {
    const canvas = document.querySelector(".map");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const part = (value) => value.toString(16).padStart(2, "0");
    const hex = (i) => `#${[0, 1, 2].map((n) => part(data[i + n])).join("")}`;
    const found = new Set();
    for (let i = 0; i < data.length; i += 4) found.add(hex(i));
    const style = getComputedStyle(canvas);
    const shade = (n) => style.getPropertyValue(`--load${n}`).trim();
    return [0, 1, 2, 3, 4].filter((n) => found.has(shade(n)));
}"""


@pytest.mark.long
async def test_handlers_are_shown_with_their_latencies_and_last_exceptions(
    windows: Windows, serve: Serve
) -> None:
    fleet = Fleet(nodes=2, shards=8, types=("cart", "page"))
    failed = fleet.handler("pay", "amount: int", "page", 40, failures=2, p50=0.002, p99=2.4)
    fleet.handling.append({**failed, "last": [fleet.exception("no money")]})
    served = await serve(fleet)
    page = await windows.open(f"{served.url}#handlers")
    await shows(page, "#handlers-summary", "3 handlers.")
    await shows(page, "#handlers tbody", "add (item: str, count: int = 1)")
    row = page.locator("#handlers tbody tr", has_text="pay")
    cells = await row.locator("td.amount").all_inner_texts()
    assert cells == ["40", "0.13/s", "2 ms", "2.4 s", "2"]
    await page.locator("#handlers summary", has_text="no money").click()
    await shows(page, "#handlers details[open]", "Of cart-7 on 10.0.0.1:7355")
    await shows(page, "#handlers details[open] pre", "in pay")
    await page.get_by_label("that have failed").check()
    await shows(page, "#handlers-summary", "1 handler.")
    await page.goto(f"{served.url}#cluster")
    await page.get_by_role("link", name="Handlers of cart").click()
    await shows(page, "#handlers-summary", "2 handlers.")


async def test_a_fresh_tab_shows_the_last_hour(windows: Windows, serve: Serve) -> None:
    fleet = Fleet(nodes=2, shards=8)
    fleet.grows_by = 0
    fleet.hour = [
        {"ago": 10.0 * (360 - n), "nodes": 2, "received": 40 + n % 7, "handled": 30.0}
        for n in range(360)
    ]
    fleet.ended = [{"node": "10.0.9.9:7355#beef", "ago": 600.0}]
    served = await serve(fleet)
    page = await windows.open(served.url)
    await shows(page, "#plots-span", "the last hour")
    await shows(page, "#plots-ended", "With the part of 10.0.9.9:7355, which ended at ")
    line = "document.querySelector('#plot-received path.line').getAttribute('d').split('L').length"
    await until(lambda: page.evaluate(f"{line} > 300"), "the points of an hour")
    await shows(page, "#plot-received", "highest 46/s")
    await shows(page, "#plot-handled", "highest 30 s")
