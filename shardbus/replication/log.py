"""The append log of a replica: its frames, its segments, and how a start reads them. Pure.

    segment  = header, frame, frame ...          one file of at most SEGMENT_BYTES and one frame
    header   = magic, number, disk, marker, crc  `marker` is random, of this segment alone
    frame    = marker, length, crc, body         all that one turn of the replica writes

**A turn is one frame, one write and one sync**, and the next turn is written after the sync. So a
crash can spoil the last frame only, in any of its pages, and nothing follows it: such a *torn tail*
was never acknowledged, and is dropped. A spoiled frame before another whole one, in a segment
before the last, or a header that does not fit is *damage*: the disk has lost writes that it may
have acknowledged. It must not vote with the rest, so a replica goes on with a new disk.

The search for a whole frame behind a spoiled one goes from marker to marker. The marker never
leaves the process, so a stored state has no such bytes but by chance. A search with more
than `SEARCHES_MAX` markers says damage, which is the safe answer.

**Compaction needs no cut.** Rows merge by the higher promise and ballot, in any order and number.
So the replica begins a segment, writes every row that it has in memory into the log, some with each
turn, and then the record `compacted`, with the number of that segment. Once that is synced, the
segments before are removed, the oldest first. A crash at any point leaves the older segments, or
the record that says that they may be gone.

A log cannot show that a file was cut between two frames, or replaced by an older copy. The number
of starts of a disk is in the log, for others to compare.

Not here: files (`shardbus.replica.disk`), and the meaning of a body (`records`).

Source: docs/architecture.md; S2.32, S3.85.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import msgspec

MAGIC = b"shbuslg2"
READABLE = (b"shbuslg1", MAGIC)
"""Versions of logs. The first one has no rings after the first; a version that reads it alone takes
a later log for damaged, and puts it aside."""
MARKER_BYTES = 8
SEGMENT_BYTES = 64 * 2**20
"""A segment that has this many bytes gets no further frame."""
BODY_BYTES_MAX = 2**30
ROOM_MARGIN = 256 * 1024
"""Free bytes of a disk for the turns that come while rows are written anew."""
GAIN_MIN = 256 * 1024
"""Bytes that the log of a disk without much room has above its rows before it is compacted."""
SEARCHES_MAX = 10_000

_HEADER = Struct(f">8sQQ{MARKER_BYTES}sI")
_FRAME = Struct(f">{MARKER_BYTES}sII")
HEADER_BYTES, FRAME_BYTES = _HEADER.size, _FRAME.size


class SegmentHeader(NamedTuple):
    """The begin of a segment. `number` counts from 1; `disk` is the id of the disk, 63 bits."""

    number: int
    disk: int
    marker: bytes

    def encode(self) -> bytes:
        """Return the header as `HEADER_BYTES` bytes."""
        return _sealed(_HEADER.pack(MAGIC, self.number, self.disk, self.marker, 0))


def _sealed(header: bytes) -> bytes:
    return header[:-4] + crc32(header[:-4]).to_bytes(4, "big")


def decode_header(data: bytes | memoryview) -> SegmentHeader | None:
    """Return the header at the begin of `data`; None if there is no whole one."""
    raw = bytes(data[:HEADER_BYTES])
    if len(raw) < HEADER_BYTES or _sealed(raw) != raw:
        return None
    magic, number, disk, marker, _ = _HEADER.unpack(raw)
    return SegmentHeader(number, disk, marker) if magic in READABLE else None


def frame(marker: bytes, body: bytes) -> bytes:
    """Return the head of a frame for this body, which follows it."""
    return _FRAME.pack(marker, len(body), _crc(len(body), body))


def _crc(length: int, body: bytes | memoryview) -> int:
    return crc32(body, crc32(length.to_bytes(4, "big")))


class SegmentEnd(Enum):
    """How the frames of a segment end."""

    WHOLE = "whole"
    TORN = "torn"
    """The last frame is spoiled, and nothing whole follows it."""
    DAMAGED = "damaged"


class Segment(msgspec.Struct, frozen=True):
    """The content of a file. `length`: the bytes up to the end of the last whole frame."""

    header: SegmentHeader | None
    bodies: Sequence[memoryview]
    length: int
    end: SegmentEnd


def read_segment(data: bytes) -> Segment:
    """Return the whole frames of one file, up to the first that is spoiled."""
    header = decode_header(data)
    if header is None:
        short = len(data) <= HEADER_BYTES
        return Segment(None, (), 0, SegmentEnd.TORN if short else SegmentEnd.DAMAGED)
    view, place, bodies = memoryview(data), HEADER_BYTES, list[memoryview]()
    while place < len(data):
        body = _body_at(view, place, header.marker)
        if body is None:
            later = _whole_frame_after(data, view, place, header.marker)
            return Segment(header, bodies, place, SegmentEnd.DAMAGED if later else SegmentEnd.TORN)
        bodies.append(body)
        place += FRAME_BYTES + len(body)
    return Segment(header, bodies, place, SegmentEnd.WHOLE)


def _body_at(view: memoryview, place: int, marker: bytes) -> memoryview | None:
    """Return the body of the frame at this place; None if there is no whole one."""
    start = place + FRAME_BYTES
    if start > len(view):
        return None
    mark, length, crc = _FRAME.unpack_from(view, place)
    body = view[start : start + length]
    whole = mark == marker and 0 < length == len(body) and _crc(length, body) == crc
    return body if whole else None


def _whole_frame_after(data: bytes, view: memoryview, place: int, marker: bytes) -> bool:
    """True if a whole frame begins after this place, or too many markers are there to look."""
    for _ in range(SEARCHES_MAX):
        place = data.find(marker, place + 1)
        if place < 0:
            return False
        if _body_at(view, place, marker) is not None:
            return True
    return True


def damage_of(segments: Mapping[int, Segment], compacted: int, disk: int | None = None) -> str:
    """Return why these segments of one disk, by the numbers of their files, are no log that only a
    crash has cut; empty if they are one. `compacted`: the highest number in a record of theirs."""
    numbers = sorted(segments)
    for place, number in enumerate(numbers):
        segment, last = segments[number], place == len(numbers) - 1
        if segment.end is SegmentEnd.DAMAGED or (segment.end is SegmentEnd.TORN and not last):
            return f"segment {number} is damaged after {segment.length} bytes"
        if segment.header is None:
            continue  # the last one: the crash came before its header
        disk = segment.header.disk if disk is None else disk
        if (segment.header.number, segment.header.disk) != (number, disk):
            return f"segment {number} is of another log"
        if place and numbers[place - 1] != number - 1:
            return f"segment {number - 1} is missing"
    if numbers and numbers[0] > max(1, compacted):
        return f"segment {numbers[0] - 1} is missing"
    return ""


class LogPlan(msgspec.Struct):
    """Decides where a turn goes, when rows are written anew, and which segments may go.

        idle       `bytes` is below the limit, and the disk has room for as many bytes
        rewriting  every row is written again, into `rewritten_from` and later segments
        idle       `compacted` is synced: segments before `rewritten_from` are removed

    Args:
        limit: bytes of all segments at which rows are written anew.
    """

    limit: int
    sizes: dict[int, int] = msgspec.field(default_factory=dict)
    """Bytes of each segment that there is, by its number."""
    rewritten_from: int = 0
    """The first segment of a compaction under way; 0 without one."""
    live: int = 0
    """Bytes of all segments after the last compaction."""
    room: int = 2**62
    """Free bytes of the disk. A compaction needs room for the rows beside the log."""

    @property
    def current(self) -> int:
        """The number of the segment that takes frames; 0 if there is none."""
        return max(self.sizes, default=0)

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(self.sizes.values())

    @property
    def begins_segment(self) -> bool:
        """True if the next frame needs a new segment."""
        return self.sizes.get(self.current, SEGMENT_BYTES) >= SEGMENT_BYTES

    @property
    def wants_compaction(self) -> bool:
        """True if the log is at its limit, and has twice the bytes of its rows; or if the disk has
        just the room for rows of as many bytes, and there is some to gain."""
        if self.rewritten_from:
            return False
        if self.bytes >= max(self.limit, 2 * self.live):
            return True
        return self.room < self.bytes + ROOM_MARGIN and self.bytes >= self.live * 5 // 4 + GAIN_MIN

    def opened(self) -> int:
        """Add the next segment, with its header. Returns its number."""
        number = self.current + 1
        self.sizes[number] = HEADER_BYTES
        return number

    def wrote(self, body: int) -> None:
        """Count a frame of the current segment."""
        self.sizes[self.current] += FRAME_BYTES + body

    def begin_compaction(self) -> int:
        """Begin a segment for the rows that are written anew. Returns its number."""
        self.rewritten_from = self.opened()
        return self.rewritten_from

    def compacted(self) -> list[int]:
        """The record of the compaction is synced. Returns the segments to remove, in order."""
        gone = sorted(number for number in self.sizes if number < self.rewritten_from)
        for number in gone:
            del self.sizes[number]
        self.rewritten_from, self.live = 0, self.bytes
        return gone
