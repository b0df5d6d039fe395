"""The files of a replica: starts after an end, a crash, damage, and a compaction."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardbus.errors import ConfigError
from shardbus.replica import disk as module
from shardbus.replica.disk import Disk
from shardbus.replication import log

LIMIT = 10**6


class Opened:
    """A disk, and its reads. Bodies `gone N` are records of a compaction."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.read: list[bytes] = []
        self.disk = Disk(path, limit)
        self.disk.open(self._take, self.read.clear)

    def _take(self, body: memoryview) -> int:
        self.read.append(bytes(body))
        return int(bytes(body[5:])) if body[:5] == b"gone " else 0


def test_a_disk_keeps_its_id_and_its_frames(tmp_path: Path) -> None:
    first = Opened(tmp_path / "new" / "replica")
    assert first.disk.is_new
    first.disk.write(b"a")
    first.disk.write(b"b")
    first.disk.close()
    again = Opened(tmp_path / "new" / "replica")
    assert (again.read, again.disk.is_new) == ([b"a", b"b"], False)
    assert again.disk.id == first.disk.id
    again.disk.write(b"c")
    again.disk.close()
    assert Opened(tmp_path / "new" / "replica").read == [b"a", b"b", b"c"]


def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    first = Opened(tmp_path)
    with pytest.raises(ConfigError, match="another process"):
        Opened(tmp_path)
    first.disk.close()
    Opened(tmp_path).disk.close()


def last_segment(path: Path) -> Path:
    return max(path.glob("log-*"))


def test_a_torn_tail_is_cut_off_before_the_next_frame(tmp_path: Path) -> None:
    first = Opened(tmp_path)
    first.disk.write(b"a")
    first.disk.write(b"b" * 100)
    first.disk.close()
    name = last_segment(tmp_path)
    os.truncate(name, name.stat().st_size - 50)
    second = Opened(tmp_path)
    assert second.read == [b"a"]
    assert second.disk.dropped == log.FRAME_BYTES + 50
    second.disk.write(b"c")
    second.disk.close()
    assert Opened(tmp_path).read == [b"a", b"c"]


def test_a_segment_without_a_whole_header_is_made_anew(tmp_path: Path) -> None:
    first = Opened(tmp_path)
    first.disk.write(b"a")
    first.disk.close()
    (tmp_path / "log-0000000002").write_bytes(b"shbu")
    second = Opened(tmp_path)
    second.disk.write(b"b")
    second.disk.close()
    assert Opened(tmp_path).read == [b"a", b"b"]


def test_a_damaged_log_makes_a_new_disk_and_is_put_aside(tmp_path: Path) -> None:
    first = Opened(tmp_path)
    first.disk.write(b"a")
    first.disk.write(b"b")
    first.disk.close()
    name = last_segment(tmp_path)
    image = bytearray(name.read_bytes())
    image[log.HEADER_BYTES + 3] ^= 1
    name.write_bytes(image)
    second = Opened(tmp_path)
    assert "segment 1 is damaged" in second.disk.damage
    assert second.disk.is_new
    assert second.disk.id != first.disk.id
    assert second.read == []
    [aside] = tmp_path.glob("damaged-*")
    assert (aside / name.name).read_bytes() == image
    second.disk.write(b"c")
    second.disk.close()
    assert Opened(tmp_path).read == [b"c"]


def test_a_failed_sync_makes_a_new_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Opened(tmp_path)
    first.disk.write(b"a")

    def fails(descriptor: int) -> None:
        raise OSError("input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "fdatasync", fails)
        with pytest.raises(OSError, match="input/output"):
            first.disk.write(b"b")
    first.disk.close()
    second = Opened(tmp_path)
    assert (second.read, second.disk.damage) == ([], "a sync has failed")
    second.disk.close()
    assert Opened(tmp_path).disk.damage == ""


def test_a_compaction_leaves_the_rows_and_few_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 500)
    first = Opened(tmp_path, limit=2000)
    for n in range(100):
        first.disk.write(b"%50d" % n)
    assert first.disk.plan.wants_compaction
    number = first.disk.begin_compaction()
    first.disk.write(b"all rows")
    first.disk.write(b"gone %d" % number)
    crashed = sorted(tmp_path.glob("log-*"))
    first.disk.end_compaction()
    first.disk.write(b"later")
    first.disk.close()
    assert len(crashed) > len(list(tmp_path.glob("log-*"))) == 1
    second = Opened(tmp_path, limit=2000)
    assert second.read == [b"all rows", b"gone %d" % number, b"later"]
    assert second.disk.damage == ""


def test_a_crash_in_a_compaction_leaves_what_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 500)
    first = Opened(tmp_path, limit=2000)
    before = [b"%50d" % n for n in range(50)]
    for body in before:
        first.disk.write(body)
    first.disk.begin_compaction()
    first.disk.write(b"half of the rows")
    first.disk.close()
    assert Opened(tmp_path, limit=2000).read == [*before, b"half of the rows"]


def test_a_crash_while_segments_are_removed_leaves_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 500)
    first = Opened(tmp_path, limit=2000)
    for n in range(50):
        first.disk.write(b"%50d" % n)
    number = first.disk.begin_compaction()
    first.disk.write(b"gone %d" % number)
    first.disk.close()
    oldest = min(tmp_path.glob("log-*"))
    oldest.unlink()
    second = Opened(tmp_path, limit=2000)
    assert second.disk.damage == ""
    second.disk.close()
    (tmp_path / f"log-{number:010}").unlink()
    assert "is missing" in Opened(tmp_path, limit=2000).disk.damage


def test_a_disk_that_was_given_up_is_put_aside_with_the_reason(tmp_path: Path) -> None:
    first = Opened(tmp_path).disk
    first.write(b"one")
    first.give_up("it was set back")
    first.close()
    blank = Opened(tmp_path)
    assert (blank.disk.is_new, blank.disk.damage) == (True, "it was set back")
    assert blank.read == []
    assert blank.disk.id != first.id
    blank.disk.close()


def test_a_log_learns_the_room_of_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Opened(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=7, f_frsize=4096))
    first.disk.write(b"a")
    assert first.disk.plan.room == 7 * 4096
