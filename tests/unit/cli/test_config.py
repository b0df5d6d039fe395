"""`check` and `config show`: settings are examined, shown with their origin, and refused."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from shardbus.config.loading import load
from shardbus.ids import NodeId
from shardbus.store.sqlite import SqliteStore
from shardbus_cli import config, data
from shardbus_cli.config import read_file
from shardbus_cli.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[3]


def test_check_examines_everything_and_starts_nothing(shell, apps):
    good = ("check", "good_app", "--set", f"store.url=sqlite:///{apps}/s.db")
    assert shell(*good, "--json") == ExitCode.OK
    checks = json.loads(shell.out)["checks"]
    assert list(checks) == ["app", "types", "downing", "exposure", "keys", "store"]
    bad = (*good, "--set", "http.host=10.0.0.1", "--set", "store.url=nope://x")
    assert shell(*bad) == ExitCode.UNHEALTHY
    failed = [line.split()[0] for line in shell.out.splitlines() if " FAILED " in line]
    assert failed == ["exposure", "store"]


def test_check_takes_a_store(shell, apps):
    assert shell("check", "good_app", "--store", "memory://") == ExitCode.OK
    assert "memory://" in shell.out
    assert shell("check", "good_app", "--store", "nope://x") == ExitCode.UNHEALTHY


def test_check_finds_a_stored_table_of_another_number_of_shards(shell, apps):
    (apps / "cut_app.py").write_text(CUT)
    path = apps / "s.db"

    async def cut_differently() -> None:
        store = SqliteStore(str(path), cluster="shop", timeout=60.0)
        await store.start()
        await store.claim_epoch("cart", 1, "crc32/40")
        await store.write_homes("cart", 1, {"7": (NodeId("127.0.0.1", 7355, 1), 1)}, 1)
        await store.close()

    asyncio.run(cut_differently())
    assert shell("check", "cut_app", "--set", f"store.url=sqlite:///{path}") == ExitCode.UNHEALTHY
    [line] = [line for line in shell.out.splitlines() if "FAILED" in line]
    assert "'crc32/80', the store has 'crc32/40'" in line
    assert "shardbus data remove cart --store" in line


CUT = """
from shardbus import Entity, ShardBus
bus = ShardBus("shop")
@bus.entity(name="cart", shards=80)
class Cart(Entity):
    def receive(self, message): ...
"""
TYPED = """
from shardbus import Entity, ShardBus
bus = ShardBus("shop")
@bus.entity(name="Cart")
class Cart(Entity):
    def receive(self, message): ...
@bus.entity(name="page", use_lease="shards")
class Page(Entity):
    def receive(self, message): ...
@bus.entity(name="kept", remember=True)
class Kept(Entity):
    def receive(self, message): ...
"""


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("sharding.types.page.shards=20", "sharding.shards is 20 for 'page'"),
        ("sharding.types.kept.active_entity_limit=9", "both remember and active_entity_limit"),
        ("sharding.types.page.lease_ttl=8s", "more than four times store.timeout"),
        ("node.proxies=pag", "no entity type 'pag'; did you mean page?"),
        (
            "http.ready_types=pag",
            "http.ready_types: there is no entity type 'pag'; did you mean page?",
        ),
        ("http.ready_types=*", "there is no entity type '*'"),
    ],
)
def test_node_start_refuses_settings_that_check_reports(shell, apps, assignment, said):
    (apps / "typed_app.py").write_text(TYPED)
    assert shell("check", "typed_app", "--set", "store.url=memory://") == ExitCode.OK
    words = ("typed_app", "--set", "store.url=memory://", "--set", assignment)
    assert shell("check", *words) == ExitCode.UNHEALTHY
    assert [said in line for line in shell.out.splitlines() if "FAILED" in line] == [True]
    assert shell("node", "start", *words) == ExitCode.USAGE
    assert said in shell.err
    assert shell.err.count("\n") == 1


@pytest.mark.parametrize("command", [("check",), ("node", "start")])
def test_settings_of_a_type_that_the_app_does_not_have_are_refused(shell, apps, command):
    (apps / "typed_app.py").write_text(TYPED)
    assert shell(*command, "typed_app", "--set", "sharding.types.pgae.mailbox=5") == ExitCode.USAGE
    said = "no entity type 'pgae' (--set sharding.types.pgae.mailbox); did you mean page?"
    assert said in shell.err


def test_files_are_read_or_refused_in_one_line(shell, tmp_path):
    assert shell("config", "show", "-c", str(tmp_path / "none.toml")) == ExitCode.USAGE
    assert "there is no file" in shell.err
    broken = tmp_path / "broken.toml"
    broken.write_text("[node\n")
    assert shell("config", "show", "-c", str(broken)) == ExitCode.USAGE
    assert "is not TOML" in shell.err
    assert shell.err.count("\n") == 1


def test_config_show_names_the_origin_of_each_value_and_no_secret(shell, monkeypatch, tmp_path):
    file = tmp_path / "shop.toml"
    file.write_text('[node]\nport = 1\n[store]\nurl = "redis://u:hunter2@h/0"\n')
    monkeypatch.setenv("SHARDBUS_HTTP__TOKEN", "hunter2hunter2hunter2")
    words = ("config", "show", "-c", str(file), "--set", "sharding.types.counter.shards=7")
    assert shell(*words, "--origin") == ExitCode.OK
    assert re.search(rf"node\.port +1 +{file}", shell.out)
    assert re.search(r"http\.token +\"\*\*\*\" +environment SHARDBUS_HTTP__TOKEN", shell.out)
    assert re.search(r"sharding\.types\.counter\.shards +7 +--set", shell.out)
    assert re.search(r"http\.port +8558 +default", shell.out)
    assert "hunter2" not in shell.out
    assert shell(*words, "--json") == ExitCode.OK
    assert json.loads(shell.out)["settings"]["node.port"] == 1


@pytest.mark.parametrize(
    ("settings", "value", "origin"),
    [
        ((), 4.0, "4/5 of cluster.downing.stable_after (default)"),
        (
            ("cluster.downing.stable_after=20s",),
            16.0,
            "4/5 of cluster.downing.stable_after (--set cluster.downing.stable_after)",
        ),
        (("cluster.suspend_after=2s",), 2.0, "--set cluster.suspend_after"),
        (
            ("cluster.downing.strategy=none",),
            0.0,
            "default, no effect: no node suspends with this way of downing",
        ),
    ],
)
def test_config_show_derives_when_a_node_suspends(shell, settings, value, origin):
    words = [word for setting in settings for word in ("--set", setting)]
    assert shell("config", "show", "--origin", "--json", *words) == ExitCode.OK
    answer = json.loads(shell.out)
    assert answer["settings"]["cluster.suspend_after"] == pytest.approx(value)
    assert answer["origins"]["cluster.suspend_after"] == origin


@pytest.mark.parametrize("command", [("check",), ("node", "start")])
def test_a_suspension_that_comes_too_late_is_refused_before_a_node_starts(shell, apps, command):
    (apps / "typed_app.py").write_text(TYPED)
    assert shell(*command, "typed_app", "--set", "cluster.suspend_after=5s") == ExitCode.USAGE
    assert "cluster.suspend_after (5 s) is too long" in shell.err
    assert shell.err.count("\n") == 1


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.toml")), ids=lambda f: f.stem)
def test_the_shipped_files_are_valid_and_differ_from_the_defaults(file):
    text = file.read_text()
    settings = load([(file.name, read_file(file)), ("test", {"node": {"advertise": "10.0.0.1"}})])
    assert settings != load()
    assert len(text.splitlines()) < 40


def test_a_check_waits_for_no_replicas_that_start_with_the_nodes(shell, apps, monkeypatch):
    monkeypatch.setattr(config, "START_S", 0.05)
    url = "cluster://127.0.0.1:9,127.0.0.1:10,127.0.0.1:11"
    assert shell("check", "good_app", "--set", f"store.url={url}", "--json") == ExitCode.OK
    checks = json.loads(shell.out)["checks"]
    assert "has no majority: 127.0.0.1:9" in checks["store"]["detail"]
    assert checks["store"]["detail"].endswith("its tables are not checked")


def test_a_command_waits_for_replicas_as_long_as_for_a_call(shell, monkeypatch):
    monkeypatch.setattr(data, "CALL_TIMEOUT_S", 0.05)
    words = (
        "--store",
        "cluster://127.0.0.1:9",
        "--cluster",
        "shop",
        "--node",
        "http://127.0.0.1:9",
    )
    assert shell("data", "show", "cart", *words) == ExitCode.UNREACHABLE
    assert "has no majority" in shell.err
