"""The queue of one entity: its order, its counts, and the time that asks have left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardbus.transport.asks import CoarseClock
from shardbus.transport.run_queue import (
    RUN_MESSAGES_MAX,
    RUN_WEIGHT_MAX,
    EntityRun,
    RunQueue,
    weight_of,
)
from shardbus.wire.batch import AskRun, TellRun


def tells(*numbers: int, method: str = "add", size: int = 1, trace: str = "") -> TellRun:
    payloads = [number.to_bytes(4, "big") + bytes(size) for number in numbers]
    return TellRun("line", method, ["a"] * len(numbers), payloads, trace)


def ask(number: int, timeout_ms: int = 1000) -> AskRun:
    return AskRun("line", "add", timeout_ms, ["a"], [number.to_bytes(4, "big")], [number])


def numbers(runs: list[EntityRun]) -> list[int]:
    return [int.from_bytes(payload[:4], "big") for run in runs for payload in run.payloads]


RUNS = st.lists(
    st.tuples(st.sampled_from("tsax"), st.integers(1, 5), st.sampled_from([1, 20_000])),
    max_size=40,
)


@given(RUNS, st.data())
def test_messages_leave_in_the_order_in_which_they_came(runs: list[object], data: object) -> None:
    queue, put, left, number = RunQueue(), list[int](), list[int](), 0
    for kind, count, size in runs:  # type: ignore[misc]
        new = list(range(number, number + count))
        number += count
        if kind == "a":
            for message in new:
                queue.put(ask(message), 0)
        else:
            trace = "00-x" if kind == "x" else ""
            queue.put(tells(*new, method=kind, size=size, trace=trace), 0)
        put += new
        queue.check()
        if queue and data.draw(st.booleans()):  # type: ignore[attr-defined]
            left += numbers([queue.take(0)])
            queue.check()
    assert queue.added == number
    left += numbers(queue.take_all(0))
    assert left == put
    assert queue.left == queue.added
    assert queue.weight == 0
    assert not queue


def test_lone_tells_of_one_method_share_runs_of_a_bounded_size() -> None:
    queue = RunQueue()
    for number in range(2 * RUN_MESSAGES_MAX):
        queue.put(tells(number), 0)
    assert [len(run.ids) for run in queue.runs] == [RUN_MESSAGES_MAX] * 2
    for number in range(8):
        queue.put(tells(number, size=RUN_WEIGHT_MAX // 3), 0)
    assert all(weight_of(run) <= RUN_WEIGHT_MAX for run in queue.runs)


def test_an_ask_has_the_time_left_that_it_has_not_waited() -> None:
    queue = RunQueue()
    queue.put(ask(1, 1000), 10)
    queue.put(ask(2, 100), 10)
    later = 10 + 500 // CoarseClock.TICK_MS
    left = [run.timeout_ms for run in queue.take_all(later) if isinstance(run, AskRun)]
    assert left == [500, 0]
