"""The output of `shardbus dev`."""

from __future__ import annotations

import shlex

from shardbus import Entity, ShardBus, handler
from shardbus_cli.dev.guide import banner, example_of, reloaded, ways_to_other_shards
from shardbus_cli.dev.layout import places

bus = ShardBus("guide")


@bus.entity("mute")
class Mute(Entity):
    """Has no handler."""

    def receive(self, message: str) -> None: ...


@bus.entity("plain")
class Plain(Entity):
    @handler
    def merge(self, rows: dict[str, int]) -> None: ...

    @handler
    def name(self, word: str, times: int = 1, rows: dict[str, int] | None = None) -> None: ...


def test_an_example_is_a_call_that_a_type_takes() -> None:
    types = {name: kind.interface for name, kind in bus.types.items()}
    assert example_of(types) == ["plain", "a-1", "name", '"text"', "2"]
    del types["plain"]
    assert example_of(types) == []


def test_the_banner_has_addresses_and_commands_that_work_as_they_stand() -> None:
    nodes = places(2, 7355, 8558)
    example = ["counter", "a-1", "add", '"a b"']
    text = banner("shop", nodes, {1: 41, 2: 42}, ".shardbus/state.db", example, reloads=True)
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "ready: 2 nodes in cluster 'shop'"
    assert "2     127.0.0.1:7365  http://127.0.0.1:8568  42" in lines
    [ask] = [line for line in lines if line.startswith("shardbus ask")]
    assert shlex.split(ask) == ["shardbus", "ask", *example]
    assert "kill -9 42    # node 2, which comes back" in lines
    assert "export" not in text, "8558 is where commands ask"
    other = banner("shop", places(1, 7000, 8000), {1: 41}, "redis://x", [], reloads=False)
    assert "export SHARDBUS_NODE_URL=http://127.0.0.1:8000" in other
    assert "kill" not in other


def test_a_reload_names_what_changed() -> None:
    assert reloaded(["app.py"], 1.25).startswith("app.py changed: the nodes run the new code")
    assert "app.py and 2 more changed" in reloaded(["app.py", "b.py", "c.py"], 1.0)


def test_other_shards_than_stored_are_said_with_commands_that_work_as_they_stand() -> None:
    kept = ways_to_other_shards("cart", "shop", "sqlite:////tmp/a b/.shardbus/state.db")
    assert (
        "`shardbus data remove cart --store 'sqlite:////tmp/a b/.shardbus/state.db'"
        " --cluster shop`, which keeps states, or `shardbus dev --fresh`" in kept
    )
    assert "--fresh" not in ways_to_other_shards("cart", "shop", "redis://127.0.0.1:6379/0")
