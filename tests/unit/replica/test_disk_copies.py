"""Disks that stand still: reading them with all their damage, writing a new one, and backups."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.replica import disk_copies
from shardbus.replica.backup_file import BackupWriter, read_backup
from shardbus.replica.disk import FAILED, Disk
from shardbus.replica.disk_copies import has_log, read_disk, write_alone
from shardbus.replica.server import ReplicaServer
from shardbus.replication.messages import Ballot, Row
from shardbus.replication.registers import Registers
from shardbus.replication.ring import ReplicaRing, RingMember, first_ring, renewed_ring
from shardbus.replication.values import StateValue, state_key
from shardbus.wire.disk_frames import LogTurn, encode_turn

ME = Address("127.0.0.1", 7357)
FORMER = first_ring((RingMember(1), RingMember(2), RingMember(3)), 3)
COUNT = 50


def some_rows(count: int = COUNT) -> Registers:
    registers = Registers()
    for k in range(count):
        ballot = Ballot(1, 0, 5, k)
        registers.merge(state_key("cart", str(k)), Row(ballot, ballot, StateValue(k, b"x")), 0.0)
    return registers


def alone(member: RingMember) -> ReplicaRing:
    return renewed_ring([FORMER], member, FORMER.store)


def test_a_new_disk_has_all_rows_and_serves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_copies, "TURN_ROWS", 7)
    rows = some_rows()
    ring, aside = write_alone(tmp_path, 2**28, rows, ME, alone)
    copy = read_disk(tmp_path)
    assert (copy.findings, copy.ring, aside) == ([], ring, None)
    assert copy.registers.rows == rows.rows
    disk = Disk(tmp_path, 2**28)
    server = ReplicaServer("shop", ME, [ME], disk, None)  # type: ignore[arg-type]
    server.open()
    facts = server.status()
    assert (facts["ring"], facts["rows"], facts["unmerged"]) == (ring.number, COUNT, 0)
    disk.close()


def test_a_disk_that_was_founded_by_half_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_alone(tmp_path, 2**28, some_rows(), ME, alone)
    monkeypatch.setattr(Disk, "completed", lambda disk: None)
    write_alone(tmp_path, 2**28, some_rows(3), ME, alone)
    assert not has_log(tmp_path), "a restore may begin again"
    with pytest.raises(ConfigError, match="cut short") as refused:
        read_disk(tmp_path)
    [former] = tmp_path.glob("former-*")
    assert str(former) in refused.value.hint
    assert len(read_disk(former).registers.rows) == COUNT
    disk = Disk(tmp_path, 2**28)
    disk.open(lambda body: 0, lambda: None)
    assert (disk.is_new, "cut short" in disk.damage) == (True, True)
    disk.close()


def test_a_disk_in_use_and_no_disk_are_refused(tmp_path: Path) -> None:
    write_alone(tmp_path, 2**28, some_rows(), ME, alone)
    disk = Disk(tmp_path, 2**28)
    disk.open(lambda body: 0, lambda: None)
    with pytest.raises(ConfigError, match="a process has the replica"):
        read_disk(tmp_path)
    with pytest.raises(ConfigError, match="another process has the replica"):
        write_alone(tmp_path, 2**28, some_rows(), ME, alone)
    disk.close()
    with pytest.raises(ConfigError, match="no log"):
        read_disk(tmp_path / "nothing")


def test_damage_is_named_with_its_place_and_the_rest_is_read(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 2**28)
    disk.open(lambda body: 0, lambda: None)
    for k in range(9):
        records = some_rows(k + 1).take_records()[-1:]
        disk.write(b"\x93" if k == 2 else encode_turn(LogTurn(records)))
    disk.close()
    [segment] = tmp_path.glob("log-*")
    data = bytearray(segment.read_bytes())
    place = data.rindex(b"cart")
    data[data.rindex(b"cart", 0, place)] ^= 1
    segment.write_bytes(data)
    copy = read_disk(tmp_path)
    assert "segment 1 is damaged after" in copy.findings[0]
    assert "segment 1: the frame at byte" in copy.findings[1]
    assert len(copy.registers.rows) == 6
    (tmp_path / FAILED).write_text("a sync has failed")
    assert "given up: a sync has failed" in read_disk(tmp_path).findings[-1]


def test_a_backup_is_whole_or_refused(tmp_path: Path) -> None:
    path, rows = tmp_path / "backup", some_rows()
    with BackupWriter(path) as writer:
        writer.add(rows)
        assert not path.exists()
        writer.complete(FORMER)
    copy = read_backup(path)
    assert (copy.registers.rows, copy.ring, writer.rows) == (rows.rows, FORMER, COUNT)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="there already"), BackupWriter(path):
        pass
    data = path.read_bytes()
    for wrong in (data[:-1], data[: len(data) // 2], data[:9], b"", b"x" * 100):
        path.write_bytes(wrong)
        with pytest.raises(ConfigError):
            read_backup(path)
    data = bytearray(data)
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="damaged after"):
        read_backup(path)


def test_a_backup_without_its_end_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    with BackupWriter(path) as writer:
        writer.add(some_rows())
    assert list(tmp_path.iterdir()) == []
    with BackupWriter(path) as writer:
        writer.complete(FORMER)
    whole = path.read_bytes()
    write_alone(tmp_path / "disk", 2**28, some_rows(), ME, alone)
    path.write_bytes(whole[:40])
    with pytest.raises(ConfigError, match="its end is missing"):
        read_backup(path)
    [segment] = (tmp_path / "disk").glob("log-*")
    with pytest.raises(ConfigError, match="no backup"):
        read_backup(segment)
