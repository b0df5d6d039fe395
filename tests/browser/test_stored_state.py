"""The stored state of an entity on the page: shown as text, edited and removed by an operator."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.config.settings import HttpSettings
from shardbus.errors import ConfigError, Refused
from shardbus.wire.schema import decode_value, encode_value
from tests.browser.conftest import Serve
from tests.browser.synthetic import Fleet
from tests.browser.test_cluster import SETTINGS, TOKEN, url_of
from tests.browser.windows import Windows, live, shows, text_of
from tests.process.app import Account
from tests.process.nodes import Processes
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]

OPERATOR = "the operator of this test"
FIELD = "#stored-text"
READ = "state read of 'a-1': by operator at 127.0.0.1"
HOSTILE = {
    "big": 2**63 - 1,
    "one": 1.0,
    "note": "<img src=x onerror=alert(1)>\u202eexe.txt\u2028\0",
}


async def look_up(page: Any, url: str, entity_id: str, type: str = "cart") -> None:
    """Open the details of an entity, once the page knows the types."""
    await page.goto(f"{url}#entities")
    await live(page)
    await page.locator("#entity-type").select_option(type)
    await page.locator("#entity-prefix").fill(entity_id)
    await page.get_by_role("button", name="Look up this id").click()
    await page.get_by_role("button", name="Ask again").wait_for()


async def give_token(page: Any, token: str) -> None:
    await page.get_by_role("textbox", name="Token").fill(token)
    await page.keyboard.press("Enter")
    await until(lambda: page.locator("#dialog").is_hidden(), "the end of the dialog")


async def press(page: Any, name: str) -> None:
    """Press a button by the keyboard."""
    button = page.get_by_role("button", name=name, exact=True)
    await button.focus()
    await page.keyboard.press("Enter")


async def focused(page: Any, name: str) -> None:
    await until(lambda: page.evaluate(f"document.activeElement.id === '{name}'"), f"focus: {name}")


async def opened(windows: Windows, serve: Serve, *, write: bool = True) -> tuple[Any, Fleet]:
    """Show the stored state of one entity to an operator."""
    fleet = Fleet(nodes=2, shards=8, types=("cart", "page"))
    fleet.write = write
    fleet.saved["cart-7"] = encode_value(HOSTILE)
    served = await serve(fleet, HttpSettings(write=write, token=OPERATOR))
    windows.expects_errors = True
    page = await windows.open(served.url)
    await look_up(page, served.url, "cart-7")
    await press(page, "Show the stored state")
    await shows(page, ".stored .failure", "token is missing or wrong")
    await press(page, "Give the token")
    await give_token(page, OPERATOR)
    await shows(page, ".stored pre", "9223372036854775807")
    return page, fleet


async def test_a_state_is_shown_as_text_to_an_operator_who_asks(
    windows: Windows, serve: Serve
) -> None:
    page, fleet = await opened(windows, serve, write=False)
    text = await text_of(page, ".stored pre")
    assert "<img src=x onerror=alert(1)>\\u202eexe.txt\\u2028\\u0000" in text
    assert '"one": 1.0' in text
    assert await page.locator("img").count() == 0
    assert await page.get_by_role("button", name="Edit").count() == 0, "writes are off"
    assert fleet.looked == ["cart-7", "state of cart-7"]
    url = page.url.partition("#")[0]
    fleet.saved["long"] = encode_value({"v": "x" * 6_000})
    for entity_id, said in (("long", "at most 5000 are shown"), ("new", "It has none")):
        await look_up(page, url, entity_id)
        await press(page, "Show the stored state")
        await shows(page, ".stored", said)
    await look_up(page, url, "page-1", "page")
    assert await page.locator(".stored").count() == 0, "its type has no state"


async def test_an_edit_keeps_every_digit_and_every_mark(windows: Windows, serve: Serve) -> None:
    page, fleet = await opened(windows, serve)
    await press(page, "Edit")
    await focused(page, "stored-text")
    await press(page, "Save")
    await shows(page, ".stored [role=status]", "Saved: ")
    assert decode_value(fleet.saved["cart-7"]) == HOSTILE
    assert type(decode_value(fleet.saved["cart-7"])["one"]) is float
    await focused(page, "stored-edit")
    await press(page, "Remove…")
    await shows(page, "#dialog", "There is no way back")
    assert "cart-7" in fleet.saved
    await press(page, "Remove it")
    await shows(page, "#dialog", "has removed it")
    assert "cart-7" not in fleet.saved
    await page.keyboard.press("Escape")
    await shows(page, ".stored", "The state is removed.")
    await press(page, "Set one")
    await page.locator(FIELD).fill('{"n": 1}')
    await press(page, "Save")
    await shows(page, ".stored pre", '"n": 1')


async def test_what_is_refused_is_said_and_the_draft_stays(windows: Windows, serve: Serve) -> None:
    page, fleet = await opened(windows, serve)
    await press(page, "Edit")
    await page.locator(FIELD).fill('{"n": 1')
    await press(page, "Save")
    await shows(page, ".stored .failure", "This is not JSON")
    assert await page.locator(FIELD).get_attribute("aria-invalid") == "true"
    await page.locator(FIELD).fill('{"n": 1}')
    for error in (
        Refused("the state of cart 'cart-7' has 20000 bytes, the limit is 10240"),
        ConfigError("the state of cart has no field $.<b>n</b>"),
    ):
        fleet.failure_of_save = error
        await press(page, "Save")
        await shows(page, ".stored .failure", error.message)
        assert await page.locator(FIELD).input_value() == '{"n": 1}'
    fleet.failure_of_save = None
    fleet.saved["cart-7"] = encode_value({"n": 2})
    await press(page, "Save")
    await shows(page, ".stored .failure", "has changed meanwhile")
    await shows(page, ".stored pre", '"n": 2')
    assert decode_value(fleet.saved["cart-7"]) == {"n": 2}
    assert await page.locator(FIELD).input_value() == '{"n": 1}'
    await press(page, "Save")
    await shows(page, ".stored [role=status]", "Saved: ")
    assert decode_value(fleet.saved["cart-7"]) == {"n": 1}
    await press(page, "Edit")
    await press(page, "Cancel")
    assert await page.locator(FIELD).count() == 0


async def test_the_owner_saves_what_was_edited_on_real_nodes(
    windows: Windows, lab: Processes
) -> None:
    nodes = await lab.cluster(3, settings=SETTINGS)
    async with lab.client() as client:
        account = client.ref(Account, "a-1")
        assert await account.add(5) == 5
        windows.expects_errors = True
        page = await windows.open(url_of(nodes[0]))
        await look_up(page, url_of(nodes[0]), "a-1", "account")
        await page.get_by_role("button", name="Token").click()
        await give_token(page, TOKEN)
        await press(page, "Show the stored state")
        await shows(page, ".stored pre", '"total": 5')
        await press(page, "Edit")
        assert await account.add(2) == 7
        await page.locator(FIELD).fill('{"total": 100}')
        await press(page, "Save")
        await shows(page, ".stored .failure", "has changed meanwhile")
        await shows(page, ".stored pre", '"total": 7')
        await page.locator(FIELD).fill('{"total": "x"}')
        await press(page, "Save")
        await shows(page, ".stored .failure", "$.total")
        await page.locator(FIELD).fill('{"total": 100}')
        await press(page, "Save")
        await shows(page, ".stored [role=status]", "Saved: ")
        assert await account.add(1) == 101
    for text, times in (("state set of 'a-1': ", 1), (READ, 3)):

        def audited(text: str = text) -> int:
            return sum(node.err.read_text().count(f"account: {text}") for node in nodes)

        await until(lambda: audited() >= times, text)  # noqa: B023
        assert audited() == times
