"""The content of the envelope, and the fate of texts that are none."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach, get_current
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from shardbus.errors import ConfigError
from shardbus.routing import tracer
from shardbus.routing.tracing import LINKS_MAX, PAUSE_S, STATE_MAX, TraceLimit, Tracing
from shardbus.wire.batch import TRACE_MAX, AskRun, TellRun, decode_batch, encode_batch
from tests import spans
from tests.virtual_time import virtual

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def span(state: str = "", flags: int = 1) -> NonRecordingSpan:
    state_ = TraceState.from_header([state]) if state else TraceState()
    context = SpanContext(int("0af7651916cd43dd8448eb211c80319c", 16), int("b7ad6b7169203331", 16),
                          False, TraceFlags(flags), state_)  # fmt: skip
    return NonRecordingSpan(context)


def test_B151_a_text_has_the_traceparent_and_the_state_of_a_sampled_span() -> None:
    assert Tracing.text(span()) == f"{PARENT}|"
    assert Tracing.text(span("a=1,b=2")) == f"{PARENT}|a=1,b=2"
    assert Tracing.text(span(f"a={'x' * STATE_MAX}")) == f"{PARENT}|"
    assert Tracing.text(span(flags=0)) == ""
    assert Tracing.text(NonRecordingSpan(trace.INVALID_SPAN_CONTEXT)) == ""


def test_what_was_written_is_read() -> None:
    carried = Tracing.read(f"{PARENT}|a=1|{PARENT}")
    assert carried is not None
    assert carried.parent.is_remote
    assert carried.parent.trace_state.get("a") == "1"
    assert [link.span_id for link in carried.links] == [carried.parent.span_id]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "|",
        "nonsense",
        PARENT[:-1],
        PARENT.replace("01", "00", 1),
        f"{PARENT[:-2]}00|",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01|",
        PARENT.upper(),
        PARENT + "\n|",
    ],
)
def test_a_text_that_is_none_or_not_sampled_is_no_context(text: str) -> None:
    assert Tracing.read(text) is None


def test_strange_states_and_links_are_left_out() -> None:
    carried = Tracing.read(f"{PARENT}|=;;\x00|nonsense|{PARENT}" + "|x" * 100)
    assert carried is not None
    assert len(carried.links) == 1


def test_a_message_that_is_relayed_often_keeps_its_last_links_and_fits() -> None:
    spans.install()
    tracing = Tracing("n1")
    text = Tracing.text(span(f"a={'x' * (STATE_MAX - 2)}"))
    seen = []
    for _ in range(LINKS_MAX + 3):
        text = tracing.passed(text, "relay", {})
        seen.append(text.rpartition("|")[2])
    assert text.split("|")[2:] == seen[-LINKS_MAX:]
    assert len(text) <= TRACE_MAX
    assert tracing.passed("nonsense", "relay", {}) == "nonsense"


def traced(tracing: Tracing, messages: int = 1) -> int:
    """Return how many of so many messages are traced, as senders find it."""
    count = 0
    for _ in range(messages):
        left = tracing.countdown = tracing.countdown - 1
        if left <= 0 or tracing.current() is not tracing.plain:
            count += tracing.parent() is not None
    return count


def test_the_ratio_is_kept_on_average_and_zero_begins_nothing() -> None:
    assert traced(Tracing("n1", 0.05, Random(3)), 20_000) == pytest.approx(1000, rel=0.1)
    never = Tracing("n1", 0.0)
    never.countdown = 500
    assert traced(never, 1000) == 0
    assert never.countdown > 1000
    assert traced(Tracing("n1", 1.0), 100) == 100


def test_messages_under_spans_leave_the_countdown_as_it_is() -> None:
    tracing = Tracing("n1", 0.01, Random(3))
    left = tracing.countdown
    with trace.use_span(span(flags=0)):
        assert traced(tracing, 1000) == 0
    with trace.use_span(span()):
        assert traced(tracing, 1000) == 1000
    assert tracing.countdown == left


def test_a_context_without_a_span_is_none() -> None:
    tracing = Tracing("n1", 0.05, Random(3))
    token = attach(baggage.set_baggage("tenant", "a"))
    try:
        assert traced(tracing, 20_000) == pytest.approx(1000, rel=0.1)
    finally:
        detach(token)


class CountedTracing(Tracing):
    """Counts how often it decides whether a message begins a trace."""

    decisions = 0

    def parent(self) -> Any:
        self.decisions += 1
        return super().parent()


def limited(ratio: float, rate: int) -> CountedTracing:
    limit = TraceLimit(rate, asyncio.get_running_loop())
    return CountedTracing("n1", ratio, Random(3), limit=limit)


@virtual
async def test_a_second_has_no_more_traces_than_the_limit() -> None:
    tracing = limited(1.0, 5)
    assert traced(tracing, 100) == 5
    await asyncio.sleep(0.3)
    assert traced(tracing, 100) == 1
    await asyncio.sleep(600)
    assert traced(tracing, 100) == 5
    with trace.use_span(span()):
        assert traced(tracing, 100) == 100
    assert traced(Tracing("n1", 1.0), 1000) == 1000


@virtual
async def test_a_rush_is_traced_up_to_the_limit_and_nothing_is_declined() -> None:
    tracing, count = limited(0.1, 100), 0
    for _ in range(2000):
        count += traced(tracing, 50)
        await asyncio.sleep(0.001)
    assert count == pytest.approx(100 + 2 * 100, rel=0.15)
    assert tracing.decisions == count


@virtual
async def test_a_high_limit_is_reached_by_pauses_that_are_not_short() -> None:
    tracing, count = limited(1.0, 5000), 0
    for _ in range(1000):
        count += traced(tracing, 20)
        await asyncio.sleep(0.001)
    assert count == pytest.approx(5000 + 5000, rel=0.05)
    tracing = limited(1.0, 5000)
    traced(tracing, 5000)
    await asyncio.sleep(PAUSE_S / 2)
    assert traced(tracing, 1000) == 0
    await asyncio.sleep(PAUSE_S)
    assert traced(tracing, 1000) >= 5000 * PAUSE_S


def test_the_current_context_is_read_from_the_variable_or_by_the_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = Tracing("n1")
    monkeypatch.delattr("opentelemetry.context._RUNTIME_CONTEXT._current_context")
    monkeypatch.setattr("shardbus.routing.tracing.get_current", quick.current)
    slow = Tracing("n1", 1.0)
    assert slow.current is quick.current
    monkeypatch.undo()
    for tracing in (Tracing("n1"), slow):
        assert tracing.current() is tracing.plain is get_current()
        with trace.use_span(span()):
            assert tracing.current() is get_current() is not tracing.plain


def test_a_span_that_is_not_sampled_is_a_parent_too() -> None:
    always = Tracing("n1", 1.0)
    with trace.use_span(span(flags=0)):
        assert traced(always) == 0
    with trace.use_span(span()):
        assert traced(Tracing("n1")) == 1
    refused = Tracing("n1", 1.0, may_begin=lambda: False)
    assert traced(refused) == 0


@pytest.mark.parametrize("error", [None, ValueError("no"), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@virtual
async def test_a_handler_has_the_span_of_its_message_and_leaves_the_context_as_it_was(
    is_async: bool, error: BaseException | None
) -> None:
    entity = SimpleNamespace(
        context=SimpleNamespace(entity_type="page", entity_id="a", shard_id="1", fence=1)
    )
    during: list[Any] = []

    def handle(entity: object) -> int:
        during.append(get_current())
        if error is not None:
            raise error
        return 7

    async def handle_later(entity: object) -> int:
        await asyncio.sleep(0.1)
        return handle(entity)

    function: Any = handle_later if is_async else handle
    loop = asyncio.get_running_loop()
    traced_function = Tracing("n1").handling(
        function, f"{PARENT}|", loop, is_async=is_async, is_ask=True, method="hit"
    )
    before = get_current()
    with nullcontext() if error is None else pytest.raises(type(error)):
        returned = traced_function(entity)
        assert (await returned if is_async else returned) == 7
    assert get_current() is before
    assert [trace.get_current_span(context).get_span_context().trace_id for context in during] == [
        int(PARENT.split("-")[1], 16)
    ]


@pytest.mark.parametrize("error", [None, ValueError("no")], ids=repr)
def test_a_call_under_a_context_leaves_the_context_as_it_was(error: Exception | None) -> None:
    before, during = get_current(), list[Any]()
    context = trace.set_span_in_context(span())

    def call() -> None:
        during.append(get_current())
        if error is not None:
            raise error

    with nullcontext() if error is None else pytest.raises(ValueError, match="no"):
        Tracing.under(context, call)
    assert during == [context]
    assert get_current() is before


class OldTellRun(msgspec.Struct, array_like=True, tag_field="op", tag=0):
    """The fields that a build without traces knows."""

    type: str
    method: str
    ids: list[str]
    payloads: list[bytes]


def test_B151_builds_without_traces_read_traced_messages_and_theirs_are_read() -> None:
    batch = encode_batch([TellRun("page", "hit", ["a"], [b"x"], f"{PARENT}|")])
    [run] = msgspec.msgpack.decode(batch, type=list[OldTellRun])
    assert (run.ids, run.payloads) == (["a"], [b"x"])
    [read] = decode_batch(msgspec.msgpack.encode([run]))
    assert isinstance(read, TellRun)
    assert read.trace == ""
    [ask_run] = decode_batch(encode_batch([AskRun("p", "m", 1, ["a"], [b""], [1], (), "t")]))
    assert isinstance(ask_run, AskRun)
    assert ask_run.trace == "t"


def test_without_opentelemetry_tracing_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "shardbus.routing.tracing", None)
    with pytest.raises(ConfigError, match="OpenTelemetry") as refused:
        tracer.open_tracing("n1", 0.0, Random(), asyncio.new_event_loop())
    assert "shardbus[otel]" in str(refused.value.hint)
