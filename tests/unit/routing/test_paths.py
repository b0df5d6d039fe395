"""Ids of entities that live within others, and the shards of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus import ConfigError, Entity, ShardBus
from shardbus.bounds import TYPES_WITHIN_MAX
from shardbus.config.settings import Settings, ShardingSettings
from shardbus.entities.type_settings import TABLE_SETTINGS, settings_by_type
from shardbus.ids import shard_of
from shardbus.routing.paths import (
    ancestors,
    child_id,
    described_within,
    parent_id,
    shard_function_of,
)
from tests.unit.declaring import Anything

texts = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
own_ids = texts.filter(lambda text: "/" not in text)


@dataclass
class Amount:
    value: int = 0


class Stateful(Anything):
    state: Amount


def application(**order: object) -> tuple[ShardBus, type, type, type]:
    bus = ShardBus("shop")
    order_class = bus.entity("order", **{"shards": 8, **order})(type("Order", (Anything,), {}))
    item = bus.entity("item", within=order_class)(type("Item", (Anything,), {}))
    note = bus.entity("note", within=item)(type("Note", (Anything,), {}))
    return bus, order_class, item, note


@given(texts, own_ids)
def test_S3_6_parent_and_own_id_make_the_id_and_come_back(parent: str, inner_id: str) -> None:
    assert parent_id(child_id(parent, inner_id)) == parent


@pytest.mark.parametrize("wrong", ["", "3", "/3", "7/", "/"])
def test_an_id_without_one_of_its_parts_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="names no parent"):
        parent_id(wrong)


@pytest.mark.parametrize("entity_id", ["", "a/b", "a\n", "x" * 300])
def test_an_invalid_own_id_is_refused(entity_id: str) -> None:
    with pytest.raises(ConfigError):
        child_id("7", entity_id)


@given(texts, own_ids, own_ids)
def test_S3_5_the_shard_is_that_of_the_outermost_parent(
    head: str, inner_id: str, inner: str
) -> None:
    bus, *_ = application()
    item, note = (shard_function_of(bus.types[name].interface) for name in ("item", "note"))
    assert item(f"{head}/{inner_id}") == note(f"{head}/{inner_id}/{inner}") == shard_of(head, 8)


def test_a_shard_function_of_the_parent_is_used() -> None:
    bus, *_ = application(extract_shard_id=lambda entity_id: f"of-{entity_id[0]}")
    assert shard_function_of(bus.types["note"].interface)("7a/3/x") == "of-7"


def test_a_description_gives_the_same_interface() -> None:
    bus, *_ = application()
    interface = bus.types["note"].interface
    names = [ancestor.name for ancestor in ancestors(interface)]
    assert names == ["item", "order"]
    seen = described_within("note", interface.layout, interface.shards, names)
    assert (seen.layout, seen.shards) == (interface.layout, interface.shards)
    assert [ancestor.name for ancestor in ancestors(seen)] == names
    assert shard_function_of(seen)("7/3/x") == shard_function_of(interface)("7/3/x")


def test_types_live_within_each_other_up_to_a_bound() -> None:
    bus = ShardBus("deep")
    inner = bus.entity("t0")(type("T0", (Anything,), {}))
    for n in range(1, TYPES_WITHIN_MAX):
        inner = bus.entity(f"t{n}", within=inner)(type(f"T{n}", (Anything,), {}))
    with pytest.raises(ConfigError, match=f"at most {TYPES_WITHIN_MAX} types"):
        bus.entity("last", within=inner)(type("Last", (Anything,), {}))


@pytest.mark.parametrize(
    "options",
    [
        {"shards": 8},
        {"allocation": "consistent-hashing"},
        {"role": "db"},
        {"extract_shard_id": lambda entity_id: "1"},
        {"use_lease": "shards"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_concerns_the_table_is_declared_for_the_outermost_type(
    options: dict[str, object],
) -> None:
    bus, order, *_ = application()
    with pytest.raises(ConfigError, match="lives within 'order'"):
        bus.entity("bill", within=order, **options)(type("Bill", (Anything,), {}))


def test_a_type_with_instances_has_no_place_to_live_within() -> None:
    bus = ShardBus("shop")
    quote = bus.entity("quote", instances=3)(type("Quote", (Anything,), {}))
    with pytest.raises(ConfigError, match="within and instances"):
        bus.entity("tick", within=quote)(type("Tick", (Anything,), {}))
    order = bus.entity("order")(type("Order", (Anything,), {}))
    with pytest.raises(ConfigError, match="within and instances"):
        bus.entity("item", within=order, instances=2)(type("Item", (Anything,), {}))


def test_within_names_a_type_of_this_application() -> None:
    other, order, *_ = application()
    bus = ShardBus("shop")
    for wrong in (order, Entity, "order"):
        with pytest.raises(ConfigError, match="no entity type of this application"):
            bus.entity("item", within=wrong)(type("Item", (Anything,), {}))  # type: ignore[arg-type]
    assert other.types


def test_the_settings_of_the_table_are_those_of_the_outermost_type() -> None:
    bus, *_ = application(handoff_timeout=33.0, rebalance_interval=2.0)
    chosen = settings_by_type(bus.types, Settings())
    for key in TABLE_SETTINGS:
        assert getattr(chosen["note"], key) == getattr(chosen["order"], key), key
    assert chosen["note"].handoff_timeout == 33.0


def test_a_section_of_an_inner_type_sets_nothing_of_the_table() -> None:
    bus, *_ = application()
    wrong = Settings(sharding=ShardingSettings(types={"item": {"role": "db"}}))
    with pytest.raises(ConfigError, match=r"sharding\.types\.item\.role"):
        settings_by_type(bus.types, wrong)
    right = Settings(sharding=ShardingSettings(types={"item": {"passivate_after": 5.0}}))
    assert settings_by_type(bus.types, right)["item"].passivate_after == 5.0


def test_remembered_entities_need_a_table_that_remembers() -> None:
    bus, order, *_ = application()
    bus.entity("bill", within=order, remember=True)(type("Bill", (Anything,), {}))
    with pytest.raises(ConfigError, match="'bill' remembers its entities"):
        settings_by_type(bus.types, Settings())


OWN_SETTINGS = {
    "remember", "passivate_after", "active_entity_limit", "passivation_strategy",
    "passivation_protected", "passivation_window", "slow_handler_after", "mailbox", "mailbox_bytes",
    "mailbox_patience", "entity_restart_backoff", "entity_restart_backoff_min",
    "entity_recovery_strategy", "entity_recovery_constant_rate_frequency",
    "entity_recovery_constant_rate_number_of_entities", "state_limit", "state_compression",
    "state_ttl", "state_sweep_rate", "dead_letters", "dead_letter_bytes", "dead_letter_payloads",
    "snapshot_after", "events_kept", "durable_mailbox_messages", "durable_mailbox_bytes",
}  # fmt: skip
"""Settings of the entities of a type, wherever they live."""


def test_every_setting_is_one_of_the_table_or_of_the_entities() -> None:
    settings = set(ShardingSettings.__dataclass_fields__) - {"types"}
    assert settings == OWN_SETTINGS | set(TABLE_SETTINGS), "say where a new setting belongs"
    assert not OWN_SETTINGS & set(TABLE_SETTINGS)


def test_the_mode_of_hand_offs_must_fit_every_type_of_the_table() -> None:
    bus = ShardBus("shop")
    order = bus.entity("order", handoff="forward")(type("Order", (Anything,), {}))
    bus.entity("item", within=order)(Stateful)
    with pytest.raises(ConfigError, match=r"'item'.*forward"):
        settings_by_type(bus.types, Settings())
