"""A message that an operator sends to an entity from its panel."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.config.settings import HttpSettings
from tests.browser.conftest import Serve
from tests.browser.synthetic import Fleet
from tests.browser.test_cluster import FAILING, SETTINGS, TOKEN, url_of
from tests.browser.test_stored_state import OPERATOR, give_token, look_up, press
from tests.browser.windows import Windows, shows
from tests.process.nodes import Processes
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

ARGUMENTS = "#send-arguments"


@pytest.mark.long
async def test_a_message_needs_the_token_and_shows_the_answer_or_the_error(
    windows: Windows, serve: Serve
) -> None:
    fleet = Fleet(nodes=2, shards=8)
    served = await serve(fleet, HttpSettings(write=True, token=OPERATOR))
    windows.expects_errors = True
    page = await windows.open(served.url)
    await look_up(page, served.url, "cart-7")
    await shows(page, "#send-declared", "(item: str, count: int = 1)")
    await page.locator(ARGUMENTS).fill('["tea", 2')
    await press(page, "Send")
    await shows(page, ".sending .failure", "This is not JSON")
    assert await page.locator(ARGUMENTS).get_attribute("aria-invalid") == "true"
    await page.locator(ARGUMENTS).fill('["tea", 9223372036854775807]')
    await press(page, "Send")
    await shows(page, ".sending .failure", "token is missing or wrong")
    assert fleet.sent == []
    await press(page, "Give the token")
    await give_token(page, OPERATOR)
    await press(page, "Send")
    await shows(page, ".sending pre", '"big": 9223372036854775807')
    await shows(page, ".sending [role=status]", "Answer of add after 3 ms")
    assert fleet.sent == [("cart", "cart-7", "add", ["tea", 2**63 - 1], False)]
    text = "ValueError: <b>no money</b>"
    fleet.failure_of_send = {"error": "EntityFailed", "message": text, "hint": "mend it"}
    await press(page, "Send")
    await shows(page, ".sending .failure", f"EntityFailed after 3 ms: {text}. mend it")
    fleet.failure_of_send = None
    await page.locator("#send-handler").select_option("total")
    await shows(page, "#send-declared", "It takes (): nothing.")
    assert await page.locator(ARGUMENTS).is_hidden()
    await page.get_by_label("without waiting for an answer").check()
    await press(page, "Send")
    await shows(page, ".sending [role=status]", "Sent to total.")
    assert fleet.sent[-1] == ("cart", "cart-7", "total", [], True)


async def test_a_node_that_takes_no_commands_offers_no_form(windows: Windows, serve: Serve) -> None:
    fleet = Fleet(nodes=1, shards=4)
    fleet.write = False
    served = await serve(fleet)
    page = await windows.open(served.url)
    await look_up(page, served.url, "cart-7")
    await shows(
        page, ".sending", "Off on this node: start it with http.write = true and http.token"
    )
    assert await page.locator(".sending form").count() == 0


@pytest.mark.long
async def test_a_real_entity_answers_and_fails(windows: Windows, lab: Processes) -> None:
    [node] = await lab.cluster(1, settings=SETTINGS, app=FAILING)
    page: Any = await windows.open(url_of(node))
    await look_up(page, url_of(node), "o-1", "order")
    await page.get_by_role("button", name="Token").click()
    await give_token(page, TOKEN)
    await page.locator("#send-handler").select_option("pay")
    await page.locator(ARGUMENTS).fill('{"amount": 3}')
    await press(page, "Send")
    await shows(page, ".sending .failure", "EntityFailed after")
    await shows(page, ".sending .failure", "ValueError: no money for 3.")
    said = "order: message sent to pay of 'o-1': by operator at 127.0.0.1"
    await until(lambda: said in node.err.read_text(), "the line of the log")
