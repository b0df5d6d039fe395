"""The descriptors of a process, and the few that are held in reserve."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shardbus.transport import descriptors
from shardbus.transport.descriptors import DescriptorReserve, descriptors_limit, in_use


def test_open_descriptors_are_counted(tmp_path: Path) -> None:
    before = in_use()
    with (tmp_path / "a").open("w"), (tmp_path / "b").open("w"):
        assert in_use() == before + 2
    assert in_use() == before
    assert descriptors_limit() > before


def test_all_are_in_use_if_none_is_left_for_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(descriptors.os, "listdir", none_left)
    assert in_use() == descriptors_limit()


def test_a_reserve_is_given_up_one_by_one_and_taken_back() -> None:
    before = in_use()
    reserve = DescriptorReserve(2)
    assert in_use() == before + 2
    assert reserve.give()
    assert reserve.short
    assert reserve.give()
    assert not reserve.give()
    assert in_use() == before
    reserve.fill()
    assert not reserve.short
    reserve.close()
    assert in_use() == before


def test_what_is_not_left_is_taken_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, really = DescriptorReserve(2), os.open

    def none_left(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    reserve.give()
    monkeypatch.setattr(descriptors.os, "open", none_left)
    reserve.fill()
    assert reserve.short
    monkeypatch.setattr(descriptors.os, "open", really)
    reserve.fill()
    assert not reserve.short
    reserve.close()
