"""The page for operators: files with a strict policy, for all readers, and no data of the node."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from shardbus.config.settings import HttpSettings
from shardbus.errors import ConfigError
from shardbus.http import dashboard
from shardbus.http.app import create_app
from shardbus.http.dashboard import INDEX, PAGE, TYPES, PageFiles
from tests.unit.http.http_kit import HERE, OPERATOR, THERE, FakeNode, client_of, with_tokens

PATHS = [PAGE if name == INDEX else f"{PAGE}/{name}" for name in sorted(PageFiles().files)]


def test_the_page_is_complete() -> None:
    assert PAGE in PATHS
    assert {f"{PAGE}/{name}" for name in ("app.js", "style.css", "icon.svg")} < set(PATHS)


def test_files_that_a_packer_has_left_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard.resources, "files", lambda package: tmp_path)
    with pytest.raises(ConfigError, match="the files of the page /ui are not installed"):
        PageFiles()


@pytest.mark.parametrize("path", PATHS)
async def test_a_file_has_a_strict_policy_and_is_not_sent_twice(path: str) -> None:
    async with client_of(FakeNode()) as client:
        first = await client.get(path)
        again = await client.get(path, headers={"if-none-match": f'"x", {first.headers["etag"]}'})
        other = await client.get(path, headers={"if-none-match": '"x"'})
    assert (first.status_code, again.status_code, other.status_code) == (200, 304, 200)
    assert again.content == b""
    ending = path.rpartition(".")[2] if "." in path else "html"
    assert first.headers["content-type"] == TYPES[ending]
    for answer in (first, again):
        [policy] = answer.headers.get_list("content-security-policy")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers.get_list("cache-control") == ["no-cache"]
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_page_names_only_files_of_its_own() -> None:
    async with client_of(FakeNode()) as client:
        texts = {path: (await client.get(path)).text for path in PATHS}
    page = texts[PAGE]
    named = re.findall(r'(?:src|href)="([^#"]+)"', page)
    assert {f"/{name}" for name in named} < set(PATHS)
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", page)
    for path, text in texts.items():
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert f"{PAGE}/{name}" in PATHS, f"{path} imports {name}"
        assert "innerHTML" not in text
        assert path.endswith("/dom.js") or "replaceChildren" not in text, "`show` leaves out null"
        urls = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert urls <= {"http://www.w3.org/2000/svg"}, path


@pytest.mark.parametrize("host", [HERE, THERE])
async def test_the_page_needs_no_token_and_its_data_does(host: str) -> None:
    settings = with_tokens(host, operator=True, reader=True)
    node = FakeNode()
    async with client_of(node, settings) as client:
        for path in PATHS:
            assert (await client.get(path)).status_code == 200
        for path in ("/ui/none.js", "/ui/index.html", "/ui/", "/ui/..%2Fpage.py"):
            assert (await client.get(path)).status_code == 404
        assert (await client.get("/v1/overview")).status_code == 401
        assert node.requests == []
        bearer = {"authorization": f"Bearer {OPERATOR}"}
        assert (await client.get("/v1/overview", headers=bearer)).status_code == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/ui", {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
        ("/ui", {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
        ("/ui", {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "document"}, 403),
        ("/ui", {}, 403),
        ("/ui/app.js", {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 403),
        ("/v1/nodes", {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 403),
    ],
)
async def test_a_link_elsewhere_may_open_the_page_and_nothing_more(
    path: str, headers: dict[str, str], status: int
) -> None:
    async with client_of(FakeNode()) as client:
        answer = await client.get(path, headers={"sec-fetch-site": "cross-site", **headers})
    assert answer.status_code == status


async def test_the_page_has_no_other_method_and_no_foreign_name() -> None:
    async with client_of(FakeNode()) as client:
        assert (await client.post("/ui")).status_code == 405
    transport = httpx.ASGITransport(create_app(FakeNode().pages, HttpSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://evil.example") as client:
        assert (await client.get("/ui")).status_code == 403
