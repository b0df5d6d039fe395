"""The keys of a type are spread over the slots of a cluster, by shard."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from shardbus.ids import shard_of
from shardbus.store import redis_keys
from shardbus.store.redis_keys import RedisKeys, slot_of
from shardbus.testing.store_suite import NASTY_IDS

KEYS = RedisKeys("shardbus:shop")


def test_all_of_a_shard_is_in_one_slot() -> None:
    for shard in ("7", "17~2", "a}b{c", "ü/:"):
        keys = [KEYS.entity("cart", shard, name) for name in NASTY_IDS]
        slots = {slot_of(key) for key in (*keys, *KEYS.remembered("cart", shard))}
        assert slots == {KEYS.slot("cart", shard)}


def test_three_masters_have_a_third_of_the_states_each() -> None:
    held = [0, 0, 0]
    for n in range(3000):
        held[KEYS.slot("cart", shard_of(f"e-{n}", 100)) * 3 // 16384] += 1
    assert all(0.25 <= count / 3000 <= 0.42 for count in held), held


def test_the_table_and_each_lease_have_slots_of_their_own() -> None:
    assert len({slot_of(key) for key in KEYS.table("cart")}) == 1
    assert slot_of(KEYS.table("cart")[0]) == slot_of(KEYS.shards("cart"))
    assert len({slot_of(KEYS.lease(f"shard {n}")) for n in range(100)}) > 90


def test_the_key_of_an_entity_says_whose_it_is() -> None:
    for name in NASTY_IDS:
        key = KEYS.parse(KEYS.entity(name, name, name))
        assert key is not None
        assert (key[:3], key.journal) == ((name, name, name), False)
    key = KEYS.parse("shardbus:shop:{a%2Fb}:entity:c")
    assert key is not None
    assert key[:3] == ("a/b", None, "c")
    for other in (
        *KEYS.table("cart"),
        *KEYS.remembered("cart", "7"),
        KEYS.lease("cart"),
        "shardbus:shop2:{cart/7}:entity:c",
    ):
        assert KEYS.parse(other) is None
    assert KEYS.old_list_type("shardbus:shop:{a%2Fb}:shards") == "a/b"
    assert KEYS.old_list_type("shardbus:shop:{a/b}:shards") is None


@pytest.mark.parametrize("name", ["12/entity-5", "a/b/c", "/", "a b/c", "ä/1", "{x}/y:z", "%2F/1"])
def test_the_name_of_a_journal_is_percent_encoded(name: str) -> None:
    key = KEYS.journal("$mailbox/cart", "12", name)
    assert key == f"shardbus:shop:{{%24mailbox%2Fcart/12}}:journal:{quote(name, safe='')}"
    assert KEYS.parse_journal(key) == ("$mailbox/cart", "12", name)


def test_the_parts_of_keys_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_keys, "PLACES_MAX", 2)
    made: list[tuple[str, str]] = []
    parts = redis_keys.ByShard(lambda place: made.append(place) or len(made))
    for shard in ("1", "2", "1", "3", "1"):
        assert parts["page", shard] > 0
        assert len(parts) <= 2
    assert [shard for _, shard in made] == ["1", "2", "3", "1"]
