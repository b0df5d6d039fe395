"""Hot spots: the shards and entities with the most messages, lately."""

from __future__ import annotations

from shardbus.shells.hot_spots import HALF_LIFE_S, NOTED_MAX, SHOWN, HotSpots


def test_N9_the_parts_of_shards_and_entities_are_told() -> None:
    spots = HotSpots()
    spots.add("1", "a", 60)
    spots.add("1", "b", 20)
    spots.add("2", "c", 20)
    assert spots.row() == {
        "messages": 100,
        "shards": [["1", 0.8], ["2", 0.2]],
        "entities": [["1", "a", 0.6], ["1", "b", 0.2], ["2", "c", 0.2]],
    }


def test_only_a_few_are_told_and_nothing_at_first() -> None:
    spots = HotSpots()
    assert spots.row() == {"messages": 0, "shards": [], "entities": []}
    for shard in range(20):
        spots.add(str(shard), "x", 1)
    row = spots.row()
    assert (len(row["shards"]), len(row["entities"])) == (SHOWN, SHOWN)


def test_N9_a_shard_that_was_hot_before_is_overtaken() -> None:
    spots = HotSpots()
    spots.add("old", "a", 100)
    for _ in range(2 * HALF_LIFE_S):
        spots.pace()
    spots.add("new", "b", 75)
    assert spots.row()["messages"] == 100
    assert spots.row()["shards"] == [["new", 0.75], ["old", 0.25]]


def test_what_is_noted_without_a_reader_is_bounded_and_counted() -> None:
    spots = HotSpots()
    for n in range(2 * NOTED_MAX + 1):
        spots.add("1", "a", 1)
        assert len(spots._noted) <= NOTED_MAX, n
    assert spots.row() == {
        "messages": 2 * NOTED_MAX + 1,
        "shards": [["1", 1.0]],
        "entities": [["1", "a", 1.0]],
    }
