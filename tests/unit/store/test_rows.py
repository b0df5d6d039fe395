"""Stored rows that cannot be true are named; the other rows are a table."""

from __future__ import annotations

import pytest

from shardbus.errors import StoreError
from shardbus.ids import NodeId
from shardbus.store.rows import Row, table_of

A, B = NodeId("10.0.0.1", 7355, 1), NodeId("10.0.0.2", 7355, 2)


def read(*rows: Row, epoch: object = 3, layout: object = "crc32/100") -> object:
    return table_of("counter", epoch, layout, rows)


def test_bytes_texts_and_numbers_are_read_the_same() -> None:
    table = table_of(
        "counter", b"0000003", b"crc32/100", [(b"7", str(A).encode(), b"0012"), ("8", B, 13)]
    )
    assert (table.epoch, table.layout, table.dropped) == (3, "crc32/100", ())
    assert table.homes == {"7": (A, 12), "8": (B, 13)}


def test_of_two_rows_for_one_shard_the_higher_fence_counts() -> None:
    for rows in ([("7", A, 5), ("7", B, 6)], [("7", B, 6), ("7", A, 5)]):
        table = table_of("counter", 3, "crc32/100", rows)
        assert table.homes == {"7": (B, 6)}
        assert table.dropped == ("shard '7': it is stored twice",)


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("huge", ["x" * 2**22, b"\xff" * 2**22, b"9" * 2**22, "9" * 2**22])
def test_a_huge_value_is_refused_by_its_length_and_shown_in_part(
    at: int, huge: str | bytes
) -> None:
    row: list[object] = ["7", str(A), 1]
    row[at] = huge
    [dropped] = table_of("counter", 3, "crc32/100", [tuple(row)]).dropped  # type: ignore[list-item]
    assert len(dropped) < 600
    for epoch, layout in ((huge, "crc32/100"), (3, huge)):
        with pytest.raises(StoreError) as failed:
            table_of("counter", epoch, layout, [])
        assert len(str(failed.value)) < 600


def test_what_is_longer_than_any_name_is_not_decoded() -> None:
    """To decode bytes that are no UTF-8 takes long, and so does to show them."""

    class Watched(bytes):
        def decode(self, *args: str, **kwargs: str) -> str:
            raise AssertionError("decoded")

    huge = Watched(b"\xff" * 5000)
    [dropped] = table_of("counter", 3, "crc32/100", [("7", huge, 1)]).dropped
    assert "longer than 4096" in dropped


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((b"\xff", str(A), 1), "is not UTF-8"),
        (("", str(A), 1), "1 to 256 bytes"),
        (("7", b"\xff", 1), "is not UTF-8"),
        (("7", None, 1), "is not text"),
        (("7", "10.0.0.1:7355", 1), "not a node"),
        (("7", str(A), None), "fence None is not 1 to"),
        (("7", str(A), True), "fence True is not 1 to"),
        (("7", str(A), 1.5), "fence 1.5 is not 1 to"),
        (("7", str(A), "1e3"), "fence '1e3' is not 1 to"),
        (("7", str(A), 0), "fence 0 is not 1 to"),
        (("7", str(A), "9" * 5000), "is not 1 to"),
    ],
)
def test_a_row_that_cannot_be_true_is_named_with_the_reason(row: Row, why: str) -> None:
    table = table_of("counter", 3, "crc32/100", [row, ("8", B, 13)])
    assert table.homes == {"8": (B, 13)}
    [text] = table.dropped
    assert text.startswith("shard ")
    assert why in text
    assert len(text) < 250


@pytest.mark.parametrize(
    ("epoch", "layout"),
    [("x", "crc32/9"), (-1, "crc32/9"), (2**31, "crc32/9"), (None, "crc32/9"), (1, None), (1, b"")],
)
def test_a_table_without_epoch_or_layout_is_damaged(epoch: object, layout: object) -> None:
    with pytest.raises(StoreError, match="'counter' is damaged"):
        read(epoch=epoch, layout=layout)
