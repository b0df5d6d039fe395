"""`state list`, `state show` and `state check`: what entities have saved, from a real store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from shardbus.store.opening import open_store
from shardbus.store.protocol import Save
from shardbus.wire.schema import encode_value
from shardbus_cli.exit_codes import ExitCode
from shardbus_cli.main import run

APP = """
from dataclasses import dataclass, field
from shardbus import Entity, ShardBus, handler

bus = ShardBus("shop")

@dataclass
class Lines:
    lines: dict[str, int] = field(default_factory=dict)

@bus.entity("cart", state_version=2)
class Cart(Entity):
    state: Lines

@bus.entity("plain")
class Plain(Entity):
    @handler
    def get(self) -> int:
        return 1

@bus.migrate(Cart, 1)
def to_lines(value):
    return {"lines": {item: 1 for item in value["items"]}}
"""
V2 = b"\xc1\x00\x02"


@pytest.fixture
def url(tmp_path: Path) -> str:
    where = f"sqlite:///{tmp_path}/store.db"

    async def fill() -> None:
        store = open_store(where, cluster="shop")
        await store.start()
        states = {
            "a/1": encode_value({"items": ["tea"]}),
            "a/2": V2 + encode_value({"lines": {"tea": 2}}),
            "b/1": encode_value({"items": []}),
        }
        saves = [
            Save("cart", "7", key, 1, data, n) for n, (key, data) in enumerate(states.items(), 1)
        ]
        raw = encode_value({"items": [b"\x00\xff"], 7: 1.5})
        assert set(await store.save_states([*saves, Save("raw", "7", "r", 1, raw, 9)])) == {None}
        await store.close()

    asyncio.run(fill())
    return where


def spoil(url: str, count: int) -> None:
    async def spoil_them() -> None:
        store = open_store(url, cluster="shop")
        await store.start()
        saves = [Save("cart", "7", f"x{n}", 1, b"\xc1\x00\x09\x80", 100 + n) for n in range(count)]
        await store.save_states(saves)
        await store.close()

    asyncio.run(spoil_them())


@pytest.fixture
def app(tmp_path: Path) -> str:
    (tmp_path / "shopping.py").write_text(APP, encoding="utf-8")
    return f"{tmp_path / 'shopping.py'}:bus"


def test_states_are_listed_and_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = ("--store", url, "--cluster", "shop")
    assert run(["state", "list", "cart", *named]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ID", "VERSION", "BYTES", "STATE"]
    assert [line.split()[:2] for line in lines[1:]] == [["a/1", "1"], ["a/2", "2"], ["b/1", "1"]]

    assert run(["state", "list", "cart", *named, "--prefix", "a/", "--limit", "1"]) == 0
    shown = capsys.readouterr()
    assert "a/1" in shown.out
    assert "a/2" not in shown.out
    assert "there are more" in shown.err

    assert run(["state", "list", "raw", *named, "--json"]) == 0
    row = {"id": "r", "version": 1, "bytes": 22, "state": {"items": ["AP8="], "7": 1.5}}
    assert json.loads(capsys.readouterr().out) == {"type": "raw", "states": [row], "more": False}

    assert run(["state", "show", "cart", "a/2", *named]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == {"lines": {"tea": 2}}
    assert run(["state", "show", "cart", "gone", *named]) == ExitCode.REFUSED
    assert "cart 'gone' has no stored state" in capsys.readouterr().err


def test_a_check_reads_every_state_by_the_classes_of_an_application(
    url: str, app: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["state", "check", app, "--store", url]) == 0
    said = capsys.readouterr().out
    assert said == "cart: 3 states read, 2 of version 1, 1 of version 2\n"
    spoil(url, 25)
    assert run(["state", "check", app, "--store", url]) == ExitCode.UNHEALTHY
    said = capsys.readouterr().out
    assert "cart 'x0', version 9: this class reads versions up to 2" in said
    assert "cart: and 5 more" in said
    assert run(["state", "check", app, "--store", url, "--json"]) == ExitCode.UNHEALTHY
    found = json.loads(capsys.readouterr().out)["types"]["cart"]
    assert (found["read"], found["failed"], len(found["unreadable"])) == (3, 25, 20)


def test_a_check_of_a_type_without_states_is_refused(
    url: str, app: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, why in (("plain", "has no state"), ("card", "is no type of the application")):
        assert run(["state", "check", app, "--store", url, "--type", name]) == 2
        assert why in capsys.readouterr().err
