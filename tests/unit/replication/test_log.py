"""The append log of a replica: its remains after a crash, a cut and a flipped bit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardbus.replication.log import (
    FRAME_BYTES,
    HEADER_BYTES,
    ROOM_MARGIN,
    SEARCHES_MAX,
    SEGMENT_BYTES,
    LogPlan,
    Segment,
    SegmentEnd,
    SegmentHeader,
    damage_of,
    decode_header,
    frame,
    read_segment,
)

HEADER = SegmentHeader(3, 2**63 - 1, b"\x00marker\xff")
BODIES = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=8)


def written(bodies: list[bytes], header: SegmentHeader = HEADER) -> bytes:
    return header.encode() + b"".join(frame(header.marker, body) + body for body in bodies)


def ends(bodies: list[bytes]) -> list[int]:
    """The places at which frames end, and the header."""
    places = [HEADER_BYTES]
    for body in bodies:
        places.append(places[-1] + FRAME_BYTES + len(body))
    return places


def whole(segment: Segment) -> list[bytes]:
    return [bytes(body) for body in segment.bodies]


def test_a_header_comes_back():
    assert decode_header(HEADER.encode() + b"more") == HEADER


@given(BODIES)
def test_what_is_written_is_read(bodies):
    segment = read_segment(written(bodies))
    assert (segment.header, whole(segment)) == (HEADER, bodies)
    assert (segment.length, segment.end) == (len(written(bodies)), SegmentEnd.WHOLE)


@given(BODIES, st.data())
def test_a_cut_leaves_the_frames_before_it(bodies, data):
    places = ends(bodies)
    cut = data.draw(st.integers(HEADER_BYTES, places[-1]))
    segment = read_segment(written(bodies)[:cut])
    n = max(i for i, place in enumerate(places) if place <= cut)
    assert whole(segment) == bodies[:n]
    assert segment.length == places[n]
    assert segment.end is (SegmentEnd.WHOLE if cut == places[n] else SegmentEnd.TORN)


@given(BODIES, st.data())
def test_a_torn_frame_is_dropped_whatever_its_pages_have(bodies, data):
    """A crash during the last write leaves any of its bytes, and zeros for the others."""
    places = ends(bodies)
    image = bytearray(written(bodies))
    before = bytes(image)
    first = data.draw(st.integers(places[-2], places[-1] - 1))
    last = data.draw(st.integers(first + 1, places[-1]))
    image[first:last] = bytes(last - first)
    segment = read_segment(bytes(image))
    if bytes(image) == before:
        assert segment.end is SegmentEnd.WHOLE
    else:
        assert (whole(segment), segment.end) == (bodies[:-1], SegmentEnd.TORN)


@given(BODIES, st.data())
def test_a_flipped_bit_before_the_last_frame_is_damage(bodies, data):
    image = bytearray(written(bodies))
    place = data.draw(st.integers(0, max(HEADER_BYTES, ends(bodies)[-2]) - 1))
    image[place] ^= 1 << data.draw(st.integers(0, 7))
    segment = read_segment(bytes(image))
    assert segment.end is SegmentEnd.DAMAGED
    assert whole(segment) == bodies[: len(segment.bodies)]


@given(BODIES, st.binary(min_size=1, max_size=80))
def test_what_follows_the_last_frame_is_no_frame(bodies, rest):
    segment = read_segment(written(bodies) + rest)
    assert (whole(segment), segment.end) == (bodies, SegmentEnd.TORN)


def test_zeros_are_no_frame():
    segment = read_segment(written([b"a"]) + bytes(4096))
    assert (whole(segment), segment.end) == ([b"a"], SegmentEnd.TORN)


def test_a_search_through_too_many_markers_says_damage():
    rest = HEADER.marker * (SEARCHES_MAX + 1)
    assert read_segment(written([b"a"]) + rest).end is SegmentEnd.DAMAGED
    assert read_segment(written([b"a"]) + HEADER.marker * 9).end is SegmentEnd.TORN


def test_a_header_that_a_crash_has_cut_is_torn_and_another_one_damage():
    for cut in range(HEADER_BYTES):
        segment = read_segment(HEADER.encode()[:cut])
        assert (segment.header, segment.end) == (None, SegmentEnd.TORN)
    assert read_segment(bytes(HEADER_BYTES)).end is SegmentEnd.TORN
    assert read_segment(bytes(HEADER_BYTES + 1)).end is SegmentEnd.DAMAGED


def segments(*numbers: int, disk: int = 2**63 - 1) -> dict[int, Segment]:
    headers = [SegmentHeader(number, disk, b"m" * 8) for number in numbers]
    return {h.number: Segment(h, (), 99, SegmentEnd.WHOLE) for h in headers}


def ended(number: int, end: SegmentEnd, *, header: bool = True) -> dict[int, Segment]:
    header_ = SegmentHeader(number, 2**63 - 1, b"m" * 8) if header else None
    return {number: Segment(header_, (), 99, end)}


def test_a_log_is_one_if_no_segment_is_missing():
    assert damage_of({}, 0) == ""
    assert damage_of(segments(1, 2, 3), 0) == ""
    assert damage_of(segments(1, 3), 0) == "segment 2 is missing"
    assert damage_of(segments(2, 3), 0) == "segment 1 is missing"
    assert damage_of(segments(2, 3, 4), 4) == "", "a crash came while segments were removed"
    assert damage_of(segments(4, 5), 4) == ""
    assert damage_of(segments(5), 4) == "segment 4 is missing"


def test_only_the_last_segment_may_be_torn():
    torn = ended(2, SegmentEnd.TORN)
    assert damage_of(segments(1) | torn, 0) == ""
    assert damage_of(segments(1, 3) | torn, 0) == "segment 2 is damaged after 99 bytes"
    assert damage_of(segments(1) | ended(2, SegmentEnd.TORN, header=False), 0) == ""
    damaged = ended(2, SegmentEnd.DAMAGED)
    assert damage_of(segments(1) | damaged, 0) == "segment 2 is damaged after 99 bytes"


def test_a_segment_of_another_log_is_damage():
    assert damage_of(segments(1) | segments(2, disk=5), 0) == "segment 2 is of another log"
    moved = {2: segments(1)[1]}
    assert damage_of(moved, 2) == "segment 2 is of another log"


def test_a_full_segment_takes_no_further_frame():
    plan = LogPlan(limit=10**9)
    assert plan.begins_segment
    assert plan.opened() == 1
    plan.wrote(SEGMENT_BYTES - HEADER_BYTES - FRAME_BYTES - 1)
    assert not plan.begins_segment
    plan.wrote(1)
    assert plan.begins_segment
    assert plan.opened() == 2


def test_a_compaction_removes_the_segments_before_it():
    plan = LogPlan(limit=1000)
    plan.opened()
    plan.wrote(900)
    assert not plan.wants_compaction
    plan.wrote(900)
    assert plan.wants_compaction
    assert plan.begin_compaction() == 2
    assert not plan.wants_compaction, "one is under way"
    plan.wrote(800)
    plan.opened()
    plan.wrote(100)
    assert plan.compacted() == [1]
    assert sorted(plan.sizes) == [2, 3]
    assert not plan.wants_compaction, "its rows alone are nearly as many bytes"
    plan.wrote(1010)
    assert plan.wants_compaction


def test_rows_are_written_anew_while_the_disk_has_room_for_them() -> None:
    """A disk that is full below the limit of its log could not be compacted any more."""
    plan = LogPlan(limit=10**12)
    plan.opened()
    plan.wrote(10**7)
    plan.room = 10**8
    assert not plan.wants_compaction
    plan.room = plan.bytes + ROOM_MARGIN - 1
    assert plan.wants_compaction
    plan.begin_compaction()
    plan.wrote(8 * 10**6)
    plan.compacted()
    assert not plan.wants_compaction, "there is nothing to gain"
    plan.wrote(2 * 10**6)
    assert not plan.wants_compaction
    plan.wrote(10**6)
    assert plan.wants_compaction
