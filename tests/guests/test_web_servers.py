"""The application of docs/how-to/web.md under servers for ASGI, word for word, and one with a node
inside."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from tests.doc_blocks import blocks
from tests.guests.nodes import served, settings
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_factories=["asyncio"])]

WORKER = ("-k", "uvicorn_worker.UvicornWorker", "-w", "2")
SERVERS: dict[str, tuple[str, ...]] = {
    "uvicorn": ("uvicorn", "page:app", "--port"),
    "uvicorn-asyncio": ("uvicorn", "page:app", "--loop", "asyncio", "--port"),
    "uvicorn-workers": ("uvicorn", "page:app", "--workers", "2", "--port"),
    "uvicorn-reload": ("uvicorn", "page:app", "--reload", "--port"),
    "gunicorn": ("gunicorn", "page:app", *WORKER, "-b"),
    "gunicorn-preload": ("gunicorn", "page:app", *WORKER, "--preload", "-b"),
    "gunicorn-asgi": ("gunicorn", "page:app", "-k", "asgi", "-w", "2", "-b"),
    "hypercorn": ("hypercorn", "page:app", "-b"),
    "hypercorn-uvloop": ("hypercorn", "page:app", "-k", "uvloop", "-w", "2", "-b"),
    "granian": ("granian", "--interface", "asgi", "page:app", "--port"),
    "granian-workers": ("granian", "--interface", "asgi", "--workers", "2", "page:app", "--port"),
}
"""Each command line ends with an option for the port (`--port`) or the address (`-b`)."""
ENDING = """

from contextlib import asynccontextmanager

def tell(what):
    with open(os.environ["TOLD"], "a") as file:
        file.write(f"{what} ")

@asynccontextmanager
async def told():
    tell("begins")
    yield
    tell("ends")

app.router.lifespan_context = lifespan(told, lambda: AsyncClient(*NODES, cluster="shop"))
"""


def page_bus(text: str) -> Any:
    """Return the application's ShardBus, for a node in this process."""
    module = ModuleType("page_of_servers")
    sys.modules[module.__name__] = module
    exec(compile(text, "page", "exec", dont_inherit=True), module.__dict__)
    return module.bus


@asynccontextmanager
async def running(name: str, folder: Path, nodes: str = "") -> AsyncIterator[tuple[str, Any]]:
    """Run a server over `page.py` in this folder. Yields its URL and its process."""
    *command, option = SERVERS[name]
    port = free_port()
    where = str(port) if option == "--port" else f"127.0.0.1:{port}"
    env = os.environ | {
        "NODES": nodes or "tcp://127.0.0.1:9",
        "PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name(command[0])), *command[1:], option, where],
            cwd=folder,
            env=env | {"TOLD": str(folder / "told")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def answers(browser: httpx.AsyncClient, process: Any, log: Path) -> None:
    """Wait until the server answers."""

    async def up() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return (await browser.get("/docs")).status_code == 200
        except httpx.HTTPError:
            return False

    await until(up, "an answer")


async def ends(process: Any, folder: Path, workers: int) -> None:
    """End the server once every worker has begun. The lifespan of each ends before its process."""
    told_file = folder / "told"
    await until(lambda: told_file.read_text().split() == ["begins"] * workers, "every worker")
    process.send_signal(signal.SIGTERM)
    await until(lambda: process.poll() is not None, "the end of the server")
    assert told_file.read_text().split()[workers:] == ["ends"] * workers


@pytest.mark.parametrize("name", SERVERS)
async def test_the_page_under_a_server(name: str, tmp_path: Path) -> None:
    text = next(b.text for b in blocks("docs/how-to/web.md") if b.language == "python")
    (tmp_path / "page.py").write_text(text + ENDING)
    async with (
        served(page_bus(text)) as client,
        running(name, tmp_path, f"tcp://{client.contact.address}") as (url, process),  # type: ignore[union-attr]
        httpx.AsyncClient(base_url=url, timeout=60) as browser,
    ):
        await answers(browser, process, tmp_path / "log")
        for n in range(20):
            answer = await browser.post(f"/articles/{name}{n}/orders?amount=2")
            assert answer.json() == {"left": 1}, (tmp_path / "log").read_text()
        again = [browser.post(f"/articles/{name}{n}/orders?amount=2") for n in range(20)]
        statuses = Counter(answer.status_code for answer in await asyncio.gather(*again))
        assert statuses == {409: 20}
        await ends(process, tmp_path, 2 if "2" in SERVERS[name] else 1)


@pytest.mark.parametrize("name", [name for name in SERVERS if "2" not in SERVERS[name]])
async def test_a_node_inside_a_server(name: str, tmp_path: Path) -> None:
    text = next(b.text for b in blocks("docs/how-to/web.md") if b.language == "python")
    app_settings = settings()
    inside = f"app.router.lifespan_context = lifespan(told, lambda: bus.run({app_settings!r}))"
    route = """
@app.post("/here/{name}")
async def order_here(name: str) -> int:
    return await bus.ref(Article, name).order(2)
"""
    ending = ENDING.rpartition("\napp.router")[0]
    (tmp_path / "page.py").write_text(f"{text}{ending}\n{inside}\n{route}")
    async with (
        running(name, tmp_path) as (url, process),
        httpx.AsyncClient(base_url=url, timeout=60) as browser,
    ):
        await answers(browser, process, tmp_path / "log")
        greetings = [(await browser.post(f"/here/{n}")).json() for n in range(20)]
        assert greetings == [1] * 20, (tmp_path / "log").read_text()
        await ends(process, tmp_path, 1)
