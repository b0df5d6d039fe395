"""`state list`, `state show` and `state check`: saved states, from a real store."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from shardbus.deliveries.record import DeliveryRecord, ResultForm
from shardbus.ids import shard_of
from shardbus.store.journal_protocol import Append, journals_of
from shardbus.store.opening import open_store
from shardbus.store.protocol import Reminders, Save, reminder_store
from shardbus.store.transfer import Importer, StoredEntity
from shardbus.wire.schema import encode_value
from shardbus.wire.stored_state import numbered, split_record, with_record
from shardbus_cli.exit_codes import ExitCode
from shardbus_cli.main import run
from tests.waiting import PATIENCE_S

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

    def receive(self, message): ...

@bus.entity("plain")
class Plain(Entity):
    @handler
    def get(self) -> int:
        return 1

@bus.migrate(Cart, 1)
def to_lines(value):
    return {"lines": {item: 1 for item in value["items"]}}
"""
LEDGER = """
from dataclasses import dataclass
from shardbus import EventSourced, ShardBus, event

bus = ShardBus("shop")

@dataclass
class Balance:
    amount: int = 0

@dataclass
class Moved:
    amount: int

@bus.entity("account")
class Account(EventSourced):
    state: Balance

    @event
    def moved(self, event: Moved) -> None: ...

    def receive(self, message): ...
"""
V2 = b"\xc1\x00\x02"


@pytest.fixture
def url(tmp_path: Path) -> str:
    where = f"sqlite:///{tmp_path}/store.db"

    async def fill() -> None:
        store = open_store(where, cluster="shop", timeout=PATIENCE_S)
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
        store = open_store(url, cluster="shop", timeout=PATIENCE_S)
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
    row = {
        "id": "r",
        "version": 1,
        "bytes": 22,
        "revision": ANY,
        "state": {"$map": [["items", [{"$bytes": "AP8="}]], [7, 1.5]]},
    }
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
    cart = json.loads(capsys.readouterr().out)["types"]["cart"]
    assert (cart["read"], cart["failed"], len(cart["unreadable"])) == (3, 25, 20)


def test_a_check_reads_events_with_a_snapshot_and_without(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ledger.py").write_text(LEDGER, encoding="utf-8")

    async def append(entity_id: str, name: str, version: int) -> None:
        store = open_store(url, cluster="shop", timeout=PATIENCE_S)
        await store.start()
        journals = journals_of(store)
        assert journals is not None
        entries = tuple(encode_value((name, version, {"amount": n})) for n in range(1500))
        assert await journals.append([Append("account", "7", entity_id, 1, entries, 9, 0)]) == [
            None
        ]
        await store.close()

    words = ["state", "check", f"{tmp_path}/ledger.py:bus", "--store", url]
    asyncio.run(append("a", "Moved", 1))
    assert run(words) == 0
    assert capsys.readouterr().out == "account: 0 states read\naccount: 1500 events read\n"
    asyncio.run(append("b", "Moved", 2))
    asyncio.run(append("c", "Paid", 1))
    assert run(words) == ExitCode.UNHEALTHY
    said = capsys.readouterr().out
    assert "event 1 of account 'b' (Moved, version 2): this class reads versions up to 1" in said
    assert "event 1 of account 'c' (Paid, version 1): no fold takes this event" in said


def test_a_check_of_a_type_without_states_is_refused(
    url: str, app: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, why in (("plain", "has no state"), ("card", "is no type of the application")):
        assert run(["state", "check", app, "--store", url, "--type", name]) == 2
        assert why in capsys.readouterr().err


def states(url: str, kind: str) -> dict[str, bytes | None]:
    async def read() -> dict[str, bytes | None]:
        store = open_store(url, cluster="shop", timeout=PATIENCE_S)
        await store.start()
        ids, _ = await store.page_stored(kind, "", None, 1000)
        states = await store.read_states(kind, ids)
        await store.close()
        return dict(zip(ids, states, strict=True))

    return asyncio.run(read())


def test_a_state_is_set_and_removed_in_the_store_of_a_stopped_cluster(
    url: str, app: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("--store", url, "--app", app)
    assert run(["state", "set", "cart", "a/1", '{"lines": {"tea": 7}}', *here]) == 0
    assert states(url, "cart")["a/1"] == V2 + encode_value({"lines": {"tea": 7}})
    assert run(["state", "remove", "cart", "a/2", *here]) == 0
    assert set(states(url, "cart")) == {"a/1", "b/1"}
    assert "cart 'a/2': removed" in capsys.readouterr().err
    assert run(["state", "remove", "cart", "a/2", *here]) == 0
    assert capsys.readouterr().err == "cart 'a/2' had no stored state\n"
    for wrong, why in (
        ('{"lines": {"tea": "x"}}', "the state of cart: Expected `int`, got `str` - at `$.lines"),
        ('{"owner": 1}', "the state of cart has no field $.owner"),
        ("{", "the state is no JSON"),
    ):
        assert run(["state", "set", "cart", "a/1", wrong, *here]) != 0
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1
    assert run(["state", "set", "plain", "x", "1", *here]) != 0
    assert "no type with state" in capsys.readouterr().err
    unknown = ("--store", url, "--cluster", "shop")
    assert run(["state", "set", "cart", "a/1", "{}", *unknown]) != 0
    assert "is not known; give --app" in capsys.readouterr().err


def test_an_export_is_read_by_another_store(
    url: str, app: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["state", "export", "cart", "raw", "--store", url, "--app", app]) == 0
    lines = capsys.readouterr().out
    rows = [json.loads(line) for line in lines.splitlines()]
    assert {row["id"]: row.get("version") for row in rows} == {
        "a/1": 1, "a/2": 2, "b/1": 1, "r": 1,
    }  # fmt: skip
    assert all("shard" in row for row in rows if row["type"] == "cart")
    file = tmp_path / "states.jsonl"
    file.write_text(lines.replace('"type":"raw"', '"shard":"1","type":"raw"'), encoding="utf-8")
    other = f"sqlite:///{tmp_path}/other.db"
    bring = ["state", "import", str(file), "--store", other, "--app", app]
    assert run([*bring, "--dry-run"]) == 0
    counts = "4 written, 0 same, 0 skipped, 0 reminded, 0 remembered, 0 shared, 0 journals"
    assert f"{counts}: nothing was written" in capsys.readouterr().err
    assert states(other, "cart") == {}
    assert run(bring) == 0
    assert (states(other, "cart"), states(other, "raw")) == (
        states(url, "cart"),
        states(url, "raw"),
    )
    assert run(bring) == 0
    assert "0 written, 4 same" in capsys.readouterr().err
    assert run(["state", "set", "cart", "a/1", "{}", "--store", other, "--app", app]) == 0
    assert run(bring) == ExitCode.REFUSED
    assert "line 1: cart 'a/1' has another state" in capsys.readouterr().err
    assert run([*bring, "--skip-existing", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 1
    assert run([*bring, "--replace"]) == 0
    assert states(other, "cart") == states(url, "cart")


def test_an_export_has_the_reminders_of_entities(
    url: str, app: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    due, shards = 1_764_412_800_000, set[str]()

    async def check(where: str, *, sets: bool) -> None:
        store = open_store(where, cluster="shop", timeout=PATIENCE_S)
        await store.start()
        reminders = reminder_store(store)
        assert reminders is not None
        if sets:
            await store.add_remembered("cart", "7", [], 1)
            record = Reminders(due, b"record", alone=True)
            await store.save_states([Save("cart", "7", "a/1", 2, None, 77, record)])
        for shard in await reminders.due_shards("cart"):
            shards.add(shard)
            assert await reminders.page_due("cart", shard, None, 9) == [(due, "a/1")]
            assert await reminders.load_reminders("cart", shard, ["a/1"]) == [b"record"]
        await store.close()

    asyncio.run(check(url, sets=True))
    assert run(["state", "export", "cart", "--store", url, "--app", app]) == 0
    file, other = tmp_path / "states.jsonl", f"sqlite:///{tmp_path}/other.db"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    bring = ["state", "import", str(file), "--store", other, "--app", app]
    assert run(bring) == 0
    assert "3 written, 0 same, 0 skipped, 1 reminded" in capsys.readouterr().err
    asyncio.run(check(other, sets=False))
    assert shards == {"7", shard_of("a/1", 100)}  # the present shard, whatever the line says
    assert run(bring) == 0
    assert "0 written, 4 same" in capsys.readouterr().err


def test_a_state_is_removed_with_its_reminders_and_only_with_a_word_on_waiting_messages(
    url: str, app: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = shard_of("a/1", 100)

    async def look(*, fills: bool) -> tuple[bytes | None, int]:
        """Return the reminders of the entity, and the number of its messages."""
        store = open_store(url, cluster="shop", timeout=PATIENCE_S)
        await store.start()
        reminders, journals = reminder_store(store), journals_of(store)
        assert reminders is not None
        assert journals is not None
        kind, name = "$mailbox/cart", f"{shard}/a/1"
        if fills:
            await store.add_remembered("cart", shard, [], 1)
            record = Reminders(1_764_412_800_000, b"record", alone=True)
            await store.save_states([Save("cart", shard, "a/1", 2, None, 77, record)])
            await journals.append([Append(kind, shard, name, 5, (b"1", b"2", b"3"), 99, 0)])
        [stored] = await reminders.load_reminders("cart", shard, ["a/1"])
        page = await journals.read(kind, shard, name, 0, 9)
        await store.close()
        return stored, len(page.entries)

    asyncio.run(look(fills=True))
    remove = ["state", "remove", "cart", "a/1", "--store", url, "--app", app]
    assert run(remove) == ExitCode.REFUSED
    assert "3 messages wait in the durable mailbox of cart 'a/1'" in capsys.readouterr().err
    assert "a/1" in states(url, "cart")
    assert asyncio.run(look(fills=False)) == (b"record", 3)
    assert run([*remove, "--keep-messages"]) == 0
    assert "a/1" not in states(url, "cart")
    assert asyncio.run(look(fills=False)) == (None, 3)


def test_an_import_writes_when_its_lines_are_long_and_not_only_when_they_are_many(
    url: str,
    app: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []
    put = Importer.put

    async def counted(importer: Importer, entities: Sequence[StoredEntity]) -> Any:
        written.append(len(entities))
        return await put(importer, entities)

    monkeypatch.setattr(Importer, "put", counted)
    assert run(["state", "export", "cart", "--store", url, "--app", app]) == 0
    file = tmp_path / "states.jsonl"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    for most, of_each in ((10**6, [3]), (1, [1, 1, 1, 0])):
        written.clear()
        monkeypatch.setattr("shardbus_cli.state_lines.BATCH_BYTES", most)
        other = f"sqlite:///{tmp_path}/other-{most}.db"
        assert run(["state", "import", str(file), "--store", other, "--app", app]) == 0
        assert written == of_each
        assert states(other, "cart") == states(url, "cart")


def test_a_line_that_is_no_state_stops_an_import_with_its_number(
    url: str, app: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "states.jsonl"
    good = '{"type": "cart", "id": "n", "state": {"items": []}}'
    for bad, why in (
        ("nonsense", "line 3: it is no JSON"),
        ('{"type": "cart", "id": "m", "version": 9, "state": 1}', "line 3: the stored state of"),
        ('{"type": "other", "id": "m", "state": 1}', "line 3: the shard of other 'm' is not known"),
    ):
        file.write_text(f"{good}\n\n{bad}\n", encoding="utf-8")
        error = run(["state", "import", str(file), "--store", url, "--app", app])
        assert error == ExitCode.REFUSED
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1
    assert "n" not in states(url, "cart")
    assert run(["state", "import", "no/such", "--store", url, "--app", app]) == ExitCode.USAGE


def test_an_export_goes_on_at_a_page(
    url: str, app: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shardbus.store.listing.PAGE", 1)
    monkeypatch.setattr("shardbus.store.listing.stored_pages.__defaults__", ("", None, 1))
    export = ["state", "export", "cart", "--store", url, "--app", app]
    assert run(export) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in rows] == ["a/1", "a/2", "b/1"]
    assert run([*export, "--after", rows[2]["page"]]) == 0
    rest = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in rest] == ["b/1"]
    assert run([*export, "raw", "--after", rows[2]["page"]]) == ExitCode.USAGE


@pytest.fixture
def project(app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose application is `app`, and no node at the default address."""
    (tmp_path / "pyproject.toml").write_text('[tool.shardbus]\napp = "shopping.py:bus"\n')
    monkeypatch.setattr("shardbus_cli.app_and_cluster.running_cluster", lambda node: None)
    monkeypatch.delenv("SHARDBUS_NODE_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_project_names_the_cluster(
    url: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["state", "list", "cart", "--store", url]) == 0
    assert "a/1" in capsys.readouterr().out


def test_a_mistyped_type_without_states_is_named(
    url: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["state", "list", "crat", "--store", url]) == 0
    assert "has no entity type 'crat'; did you mean cart?" in capsys.readouterr().err
    assert run(["state", "show", "crat", "a/2", "--store", url]) == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert "crat 'a/2' has no stored state; cluster " in said
    assert "did you mean cart?" in said
    assert run(["state", "show", "cart", "nobody", "--store", url]) == ExitCode.REFUSED
    assert "entity type" not in capsys.readouterr().err


def test_the_default_store_of_a_project_is_read_while_no_node_answers(
    url: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "state" / "shardbus").mkdir(parents=True)
    (project / "store.db").rename(project / "state" / "shardbus" / "shop.db")
    assert run(["state", "list", "cart"]) == 0
    said = capsys.readouterr()
    assert "a/1" in said.out
    assert "no node answers at http://127.0.0.1:8558: this is read from sqlite:///" in said.err
    assert run(["state", "show", "cart", "a/2", "--cluster", "shop"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "a/2"


def test_the_store_of_dev_is_read_while_no_node_answers(
    url: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / ".shardbus").mkdir()
    shutil.copy(project / "store.db", project / ".shardbus" / "state.db")
    assert run(["state", "show", "cart", "a/2"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "a/2"
    (project / "state" / "shardbus").mkdir(parents=True)
    (project / "store.db").rename(project / "state" / "shardbus" / "shop.db")
    assert run(["state", "list", "cart"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "there are two stores; name one: --store sqlite:///" in said
    assert "state.db, of `shardbus dev`, or --store sqlite:///" in said


def test_without_a_project_the_cluster_must_be_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shardbus_cli.app_and_cluster.running_cluster", lambda node: None)
    monkeypatch.chdir(tmp_path)
    assert run(["state", "list", "cart", "--store", url]) == ExitCode.USAGE
    assert (
        "give --cluster NAME or --app APP, or run this beside a pyproject.toml"
        in capsys.readouterr().err
    )


def test_all_types_of_a_project_are_exported(
    url: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["state", "export", "--all", "--store", url]) == 0
    assert {json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()} == {
        "a/1",
        "a/2",
        "b/1",
    }


@pytest.mark.parametrize("command", ["set", "remove"])
def test_a_change_in_the_store_keeps_the_numbers_of_deliveries(
    url: str, app: str, command: str
) -> None:
    """Else a key that was asked, or a delivery, takes effect once more."""
    record = DeliveryRecord()
    record.keep("order-17", ResultForm.VALUE, b"\x01", 1)
    stored = with_record(record.stored(), encode_value({"items": ["tea"]}))
    place = ("cart", "a/1")

    async def change(data: bytes | None = None) -> bytes | None:
        store = open_store(url, cluster="shop", timeout=PATIENCE_S)
        await store.start()
        if data is not None:
            await store.save_states([Save("cart", "7", "a/1", 2, data, 11)])
        [found] = await store.read_states("cart", ["a/1"])
        await store.close()
        return found

    asyncio.run(change(stored))
    values = ('{"lines": {"tea": 9}}',) if command == "set" else ()
    words = ("state", command, *place, *values, "--store", url, "--app", app)
    assert run([*words, "--node", "http://127.0.0.1:1"]) == 0
    after, alone = split_record(asyncio.run(change()) or b"")
    assert "order-17" in DeliveryRecord.of(after).results
    assert bool(alone) == (command == "set")


@pytest.mark.parametrize("command", ["set", "remove"])
@pytest.mark.parametrize("known", [True, False])
def test_a_state_that_is_made_by_events_is_not_changed(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, known: bool
) -> None:
    """By its class, or by the number of an event that it has."""
    (tmp_path / "ledger.py").write_text(LEDGER, encoding="utf-8")

    async def fill() -> None:
        store = open_store(url, cluster="shop", timeout=PATIENCE_S)
        await store.start()
        data = numbered(6, encode_value({"amount": 6}))
        await store.save_states([Save("account", "7", "a", 1, data, 12)])
        await store.close()

    asyncio.run(fill())
    named = ("--app", f"{tmp_path}/ledger.py:bus") if known else ("--cluster", "shop")
    values = ('{"amount": 100}',) if command == "set" else ()
    words = ("state", command, "account", "a", *values, "--store", url, *named)
    code = run([*words, "--node", "http://127.0.0.1:1"])
    assert (code, "made by events" in capsys.readouterr().err) == (ExitCode.REFUSED, True)
