"""The pictures of docs/how-to/dashboard.md, taken of five real nodes under load and a drain.

`make screenshots` writes them to docs/images; otherwise they are only taken and weighed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_cluster import SETTINGS, TOKEN, url_of
from tests.browser.test_stored_state import look_up, press
from tests.browser.windows import Windows, shows
from tests.process import app
from tests.process.nodes import Processes
from tests.process.warm import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.soak]

FOLDER = os.environ.get("PICTURES", "")
BYTES_MAX = 200_000
ENTITIES, POINTS, SHARDS = 400, 14, "120"
WINDOWS = {
    "dashboard-light": {"color_scheme": "light", "width": 1180, "height": 1240},
    "dashboard-dark": {"color_scheme": "dark", "width": 1180, "height": 900},
    "dashboard-phone": {"color_scheme": "light", "width": 380, "height": 800},
}


def application(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The application of the process tests with as many shards as the nodes here declare."""
    monkeypatch.setenv("APP_SHARDS", SHARDS)
    spec = importlib.util.spec_from_file_location("app_of_pictures", str(app.__file__))
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    return made


async def send(lab: Processes, types: Any, ends: asyncio.Event) -> None:
    """Send to entities of every shard until the pictures are taken."""
    async with lab.client() as client:
        seq = 0
        await client.ref(types.Account, "savings-1").add(120)
        while not ends.is_set():
            seq += 1
            asks = (client.ref(types.Page, f"page-{n}").hit(1, seq) for n in range(ENTITIES))
            await asyncio.gather(*asks, return_exceptions=True)
            await asyncio.sleep(0.3)


def points(page: Any) -> Any:
    """How many points a plot has."""
    return page.evaluate(
        "document.querySelector('#plot-received path.line').getAttribute('d').split('L').length"
    )


async def test_the_pictures_of_the_docs(
    windows: Windows, lab: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = application(monkeypatch)
    for n in range(5):
        zone = f"node.zone={'east' if n % 2 else 'west'}"
        await lab.start(settings=(*SETTINGS, zone, "node.version=2.4.1"), APP_SHARDS=SHARDS)
    await lab.agree()
    ends = asyncio.Event()
    sending = asyncio.create_task(send(lab, types, ends))
    folder = ROOT / FOLDER if FOLDER else tmp_path
    folder.mkdir(exist_ok=True)
    still = {"reduced_motion": "reduce"}
    pages = {
        name: await windows.open(url_of(lab.all[0]), **how, **still)
        for name, how in WINDOWS.items()
    }
    first = pages["dashboard-light"]
    await until(lambda: _at_least(first, POINTS), "a line in the plots")
    await first.get_by_role("button", name="Token").click()
    await first.get_by_role("textbox", name="Token").fill(TOKEN)
    await first.keyboard.press("Enter")
    await first.get_by_role("button", name=f"drain {lab.all[3].address}").click()
    await shows(first, "#dialog", "page: ")
    await take(first.locator("#dialog"), folder / "dashboard-drain.png")
    await first.get_by_role("button", name=f"Drain {lab.all[3].address}", exact=True).click()
    await shows(first, "#dialog", "Done")
    await first.keyboard.press("Escape")
    for name, page in pages.items():
        await page.bring_to_front()
        await shows(page, "#nodes tbody", "draining")
        await shows(page, ".map-summary", "119 shards on 4 nodes, all run")
        await page.evaluate("scrollTo(0, 0)")
        if "dark" in name:
            place = "document.querySelector('#map-title').getBoundingClientRect().top"
            await page.evaluate(f"scrollBy(0, {place} - 80)")
        await take(page, folder / f"{name}.png")
    await look_up(first, url_of(lab.all[0]), "savings-1", "account")
    await press(first, "Token")
    await first.get_by_role("textbox", name="Token").fill(TOKEN)
    await first.keyboard.press("Enter")
    await press(first, "Show the stored state")
    await press(first, "Edit")
    await take(first.locator("#entity-detail"), folder / "dashboard-state.png")
    ends.set()
    await sending


async def _at_least(page: Any, count: int) -> bool:
    return bool(await points(page) >= count)


async def take(place: Any, file: Path) -> None:
    """Take a picture, of a size that a page of the documentation can bear."""
    await place.screenshot(path=file)
    assert file.stat().st_size < BYTES_MAX
