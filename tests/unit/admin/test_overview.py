"""The overview and the maps, before members and coordinators that answer, do not, or are old."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.admin.administration import Administration
from shardbus.admin.brief import brief_of, drops_of
from shardbus.admin.pages import events as event_pages
from shardbus.admin.pages import history as histories
from shardbus.admin.pages import node as own_pages
from shardbus.admin.pages import overview as overviews
from shardbus.errors import Unhandled, UnknownEntityType
from shardbus.histograms import Histogram
from tests.unit.admin.admin_kit import LOST, ME, PAGE, PEER, FakeNode
from tests.virtual_time import virtual

BRIEF = {
    "types": {PAGE: {"shards": 1, "entities": 2, "received": 9, "failures": 0, "buffered": 0}},
    "suspended": "",
    "vitals": {"busy": 0.25},
    "dropped": [[PAGE, "expired", 3]],
    "slow": [],
    "late": 1,
    "store": [4, 0.5, 0],
}
MAP = {
    "epoch": 3,
    "version": "3.1",
    "nodes": [str(ME)],
    "shards": ["1"],
    "homes": [0],
    "states": "r",
    "changes": [],
    "moving": 0,
}


def pages_of(node: FakeNode) -> Administration:
    fake: Any = node
    return Administration(fake)


@virtual
async def test_members_with_their_briefs_and_one_that_is_cut_off_is_not_asked() -> None:
    node = FakeNode()
    node.rpc.answers[ME, "brief"] = BRIEF
    node.rpc.answers[PEER, "brief"] = Unhandled("an older release")
    page: Any = await overviews.overview(pages_of(node))
    assert (page["cluster"], page["write"]) == ("shop", False)
    assert [row["type"] for row in page["types"]] == [PAGE]
    mine, peer, lost = page["nodes"]
    assert (mine["answered"], mine["store"], mine["suspended"]) == (True, [4, 0.5, 0], None)
    assert mine["types"] == BRIEF["types"]
    assert (peer["answered"], peer["reachable"], peer["vitals"]) == (False, True, None)
    assert (lost["answered"], lost["reachable"]) == (False, False)
    assert (LOST, "brief") not in node.rpc.questions
    assert (mine["oldest"], peer["leader"]) == (True, True)


@virtual
async def test_many_readers_cost_the_members_one_question() -> None:
    node = FakeNode()
    node.rpc.answers[ME, "brief"] = BRIEF
    pages = pages_of(node)
    await asyncio.gather(*(overviews.overview(pages) for _ in range(20)))
    assert node.rpc.questions.count((ME, "brief")) == 1
    await asyncio.sleep(overviews.OVERVIEW_FRESH_S)
    await overviews.overview(pages)
    assert node.rpc.questions.count((ME, "brief")) == 2


@virtual
async def test_a_map_is_sent_once_for_each_version() -> None:
    node = FakeNode()
    node.rpc.answers[ME, "shard_map"] = MAP
    pages = pages_of(node)
    first = await overviews.shard_map(pages, PAGE, "")
    assert first.items() >= {**MAP, "type": PAGE, "complete": True}.items()
    same = await overviews.shard_map(pages, PAGE, "3.1")
    assert (same["shards"], same["states"], same["version"]) == (None, None, "3.1")
    await asyncio.sleep(overviews.MAP_FRESH_S)
    node.rpc.answers[ME, "shard_map"] = {"epoch": 3, "version": "3.1", "moving": 2}
    fresh = await overviews.shard_map(pages, PAGE, "")
    assert node.rpc.questions[-1] == (ME, "shard_map", PAGE, "3.1")
    assert (fresh["shards"], fresh["moving"]) == (["1"], 2), "a page that was just opened gets all"


@virtual
async def test_the_maps_of_several_types_come_together() -> None:
    node = FakeNode()
    node.rpc.answers[ME, "shard_map"] = MAP
    pages = pages_of(node)
    page: Any = await overviews.shard_maps(pages, (f"{PAGE}=", f"{PAGE}=3.1"))
    assert [map_["shards"] for map_ in page["maps"]] == [["1"], None]
    assert node.rpc.questions.count((ME, "shard_map", PAGE, "")) == 1
    with pytest.raises(UnknownEntityType):
        await overviews.shard_maps(pages, ("none=3.1",))


@virtual
async def test_members_without_an_hour_are_named() -> None:
    node = FakeNode()
    node.rpc.answers[ME, "load_history"] = (100.0, ["received"], [[91, 2.0]])
    node.rpc.answers[PEER, "load_history"] = Unhandled("an older release")
    page: Any = await histories.history(pages_of(node))
    assert page["silent"] == [str(PEER), str(LOST)]
    [row] = page["rows"]
    shown = dict(zip(page["columns"], row, strict=True))
    assert (shown["nodes"], shown["received"], shown["ago"]) == (1, 2.0, 80.0)
    node.rpc.answers[ME, "load_history"] = ValueError("a defect")
    await asyncio.sleep(histories.FRESH_S)
    with pytest.raises(ValueError, match="a defect"):
        await histories.history(pages_of(node))


@virtual
async def test_without_the_coordinator_the_homes_known_here_are_shown() -> None:
    node = FakeNode()
    pages = pages_of(node)
    page = await overviews.shard_map(pages, PAGE, "")
    assert (page["complete"], page["version"]) == (False, "")
    assert (page["shards"], page["homes"]) == (["1", "2"], [0, 1])
    with pytest.raises(UnknownEntityType):
        await overviews.shard_map(pages, "none", "")


async def test_settings_have_origins_and_secrets_are_masked() -> None:
    fake: Any = FakeNode()
    page: Any = await own_pages.settings(
        Administration(fake, {"node.version": "--set node.version"})
    )
    rows = {row["setting"]: row for row in page["settings"]}
    assert rows["node.version"]["origin"] == "--set node.version"
    assert "hunter2" not in str(page)


async def test_slow_handlers_of_all_members_newest_first() -> None:
    node = FakeNode()
    node.rpc.answers[ME, "slow_reports"] = [
        [9.0, PAGE, "waited", "old"],
        [1.0, PAGE, "blocked", "x"],
    ]
    node.rpc.answers[PEER, "slow_reports"] = [[4.0, PAGE, "waited", "y"]]
    page: Any = await event_pages.slow(pages_of(node))
    assert [(row["node"], row["text"]) for row in page["handlers"]] == [
        (str(ME), "x"),
        (str(PEER), "y"),
        (str(ME), "old"),
    ]
    assert page["silent"] == [str(LOST)]


def test_a_brief_counts_what_the_node_counts() -> None:
    counts = SimpleNamespace(accepted=7, failures=1, dropped={"expired": 2})
    times = SimpleNamespace(handled=Histogram((1.0,)), waited=Histogram((1.0,)))
    times.handled.observe(0.5, 3)
    region = SimpleNamespace(
        times=times,
        host=SimpleNamespace(shards={"1": 0, "2": 0}, entities=5, counts=counts),
        router=SimpleNamespace(region=SimpleNamespace(buffered=(3, 99))),
    )
    region.table = region
    node: Any = SimpleNamespace(
        regions={PAGE: region},
        gate=SimpleNamespace(describe=lambda: "suspended"),
        reports=SimpleNamespace(
            vitals=SimpleNamespace(vitals=SimpleNamespace(_asdict=lambda: {"busy": 0.5}))
        ),
        records=SimpleNamespace(slow=SimpleNamespace(counts={(PAGE, "waited"): 1})),
        endpoint=SimpleNamespace(
            asks_timed_out=2,
            send_buffer_limit=SimpleNamespace(refused={PAGE: 4}),
            dropped_frames={"malformed": 1},
        ),
        states=SimpleNamespace(durations={(PAGE, "load"): times.handled}, errors=0),
        membership=SimpleNamespace(runner=SimpleNamespace(dropped_frames={"late": 6})),
    )
    brief = brief_of(node)
    assert brief["types"][PAGE] == {
        "shards": 2, "entities": 5, "received": 7, "failures": 1, "buffered": 3,
        "handled": [3, 0], "waited": [0, 0],
    }  # fmt: skip
    assert brief["store"] == [3, 1.5, 0]
    assert brief["slow"] == [[PAGE, "waited", 1]]
    assert list(drops_of(node)) == [
        (PAGE, "expired", 2),
        (PAGE, "send_buffer_full", 4),
        ("", "malformed", 1),
        ("", "gossip_late", 6),
    ]
