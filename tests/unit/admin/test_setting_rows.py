"""Settings with who set them; secrets never."""

from __future__ import annotations

from shardbus.admin.setting_rows import APPLICATION, SUSPEND_AFTER, rows_of
from shardbus.config.loading import from_assignments, load, origins
from shardbus.config.settings import HttpSettings, NodeSettings, Settings, StoreSettings

SECRETS = Settings(
    http=HttpSettings(token="open sesame"), store=StoreSettings(url="redis://u:hunter2@h/0")
)


def test_a_row_has_key_value_and_origin() -> None:
    layers = from_assignments(["node.port=7", "sharding.types.page.retry_interval=3s"])
    rows = {row["setting"]: row for row in rows_of(load(layers), origins(layers))}
    assert rows["node.port"] == {"setting": "node.port", "value": 7, "origin": "--set node.port"}
    assert rows["node.host"]["origin"] == "default"
    port = rows["sharding.types.page.retry_interval"]
    assert (port["value"], port["origin"]) == (3.0, "--set sharding.types.page.retry_interval")
    assert SUSPEND_AFTER in rows


def test_without_origins_what_differs_was_set_by_the_application() -> None:
    rows = rows_of(Settings(node=NodeSettings(zone="east")), None)
    assert [row["setting"] for row in rows if row["origin"] == APPLICATION] == ["node.zone"]


def test_secrets_are_masked() -> None:
    text = str(rows_of(SECRETS, None))
    assert "open sesame" not in text
    assert "hunter2" not in text
    assert "***" in text
