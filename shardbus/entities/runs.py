"""Runs: rows of messages for one method, each handled where it arrived.

Each message finds its activation by one look-up in a dict (`arrive` starts an entity that is not
active), the handler's own decoder reads its payload, and the handler is called. Nothing is
allocated for a message but its arguments and its answer. A message for a busy entity goes into the
mailbox.

A run is described once (`Run`), and has three ways:

    `_call_each`     plain handlers
    `_await_each`    coroutine functions: one coroutine awaits handler after handler, which costs
                     little more than a call while none of them waits
    `_begin_each`    handlers that wait: each has a coroutine of its own

If a handler waits in `_await_each`, the coroutine belongs to that message from there on: a task
carries it to its end. The next ones probably wait, too, as handlers that save do, so the rest of
the row goes to `_begin_each`, until one does not wait. One loop for all would have to test every
message for its kind, and to make a coroutine for each run of plain handlers.

**One handler, one task, one context** (`eager`). The handlers of a row share a task and a context
as long as none of them leaves a trace there. One that keeps the task, sets a context variable or
raises ends its row, and the rest goes on under another task, in another context.

**A message that its sender awaits** (`handle_one`; `transport.direct_message`) is a run of one, in
the sender's own step. The coroutine that awaits its handler returns nothing, so that its end raises
no exception, and gives an answer to the future of the ask, which needs no place among the asks that
wait.

Dataclasses are decoded ahead, a run at once, before the first message is handled: that takes less
time than one by one. A message that goes into a mailbox instead is decoded again later.

Source: S2.47-S2.49, S4.15; B.108, B.122, B.136.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from types import NoneType
from typing import Any

from shardbus.entities.activation import Activation, Message
from shardbus.entities.entity_type import Invoker
from shardbus.entities.runner import EntityRunner, answer, invoked
from shardbus.entities.running_handlers import NONE_LEFT
from shardbus.entities.unfinished_work import finish, is_unfinished
from shardbus.tasks.eager import references
from shardbus.transport.direct_message import DirectMessage
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain

Find = Callable[[str], Activation | None]
Arrive = Callable[[str, bytes, int], Activation | None]
"""Starts the entity of a message (entity id, payload, correlation id) that is not active. If the
message does not belong here, takes it and returns None."""

Row = tuple[str, bytes, int, Activation | None]
"""A message of a run: entity id, payload, correlation id, and the activation, if there was one when
the run began. Of one that has left memory since then `busy` is true."""
Rows = Iterator[Row]
Run = tuple[Find, Arrive, Invoker, Session | None, int, Chain, list[Any] | None]
"""The properties that the messages of a run share: the functions that find and start an entity, the
method, the asker, deadline, chain, and the payloads that are decoded, the next one last; None: they
are decoded one by one."""

AHEAD_MIN, AHEAD_MAX = 8, 1024
"""Shorter runs gain nothing by decoding ahead; longer ones would hold too much in memory."""

RUN_SLICE = 64
"""Messages of a run between two checks of the gate."""


def _slices(rows: Rows, count: int) -> Iterator[Rows]:
    """Yield slices of the rows of a run of `count` messages."""
    for _ in range(0, count, RUN_SLICE):
        yield islice(rows, RUN_SLICE)


def read_ahead(invoker: Invoker, payloads: list[bytes]) -> list[Any] | None:
    """Decode the payloads of a run; the first one is last in the list. Returns None if the run is
    too short or too long, or if any payload is undecodable; the messages are then decoded one by
    one."""
    if not AHEAD_MIN <= len(payloads) <= AHEAD_MAX or (read_all := invoker.read_all) is None:
        return None
    try:
        ahead = read_all(payloads)
    except BaseException:  # of a class's own checks
        return None
    if len(ahead) != len(payloads):  # a StopIteration of one ends the list
        return None
    ahead.reverse()
    return ahead


ENDED: Any = object()
"""In place of what a coroutine waits for: it has ended."""


def row_of(invoker: Invoker, session: Session | None, message: DirectMessage) -> Message:
    """Return a direct message as one of a mailbox."""
    return Message(invoker, message.payload, session, message.corr, 0, message.chain)


class RunHandler:
    """Handles the runs of one entity type on one node; its runner does the work behind a
    message."""

    def __init__(self, runner: EntityRunner) -> None:
        self._runner, self._eager = runner, runner.eager
        self._gate, self._counts = runner.gate, runner.counts
        self._diverted = 0
        """Messages of the current run that no handler got there: they wait, or belong elsewhere."""

    def deliver(
        self,
        find: Find,
        arrive: Arrive,
        invoker: Invoker,
        session: Session | None,
        ids: Sequence[str],
        payloads: Sequence[bytes],
        corrs: int | Sequence[int],
        deadline: int,
        chain: Chain = (),
        ahead: list[Any] | None = None,
    ) -> None:
        """Handle a run of messages. `corrs`: the same correlation id for all, or one each. `ahead`:
        the payloads as `read_ahead` has decoded them."""
        runner = self._runner
        count, left = len(ids), iter(payloads)
        marks = repeat(corrs) if isinstance(corrs, int) else corrs
        activations: Iterable[Activation | None] = map(find, ids)
        if count >= AHEAD_MIN:
            # Together: the processor waits for the memory of several at once.
            activations = [*activations]
        rows = zip(ids, left, marks, activations)  # noqa: B905 (`strict` costs as much as the call)
        outer = runner.activation, runner.run_header
        diverted, self._diverted = self._diverted, 0
        runner.run_header = (invoker, session, chain, payloads, corrs, left)
        run: Run = (find, arrive, invoker, session, deadline, chain, ahead)
        fresh, call_each = self._eager.base.copy, self._call_each
        entered = self._eager.enter()
        try:
            if invoker.is_async:
                for some in _slices(rows, count):
                    if self._gate.close_if_due():
                        self._hold_run(run, rows)
                    else:
                        self._deliver_async(run, some)
            else:
                while (context := fresh()).run(call_each, run, rows, count, context):
                    pass
        finally:
            self._eager.leave(entered)
            self._counts.begun += count - self._diverted
            self._diverted = diverted
            runner.activation, runner.run_header = outer

    def _call_each(self, run: Run, rows: Rows, count: int, context: contextvars.Context) -> bool:
        """Handle the rest of the rows in this context. Returns True if rows may be left, which need
        another context."""
        runner = self._runner
        find, arrive, invoker, session, _, _, ahead = run
        function, single, decode = invoker.function, invoker.single, invoker.decode_message
        single, decode = (single, decode) if ahead is None else (None, None)
        eager, tick, plain = self._eager, runner.tick, runner.plain
        closed = self._gate.close_if_due
        untouched = eager.base
        task = eager.task
        task.context, task.coroutine = context, None
        attributes, before, traces = task.__dict__, references(task), False
        sure, finished = invoker.returns_values, NoneType
        slices = (rows,) if count <= RUN_SLICE else _slices(rows, count)
        for some in slices:
            if closed():
                self._hold_run(run, rows)
                return False
            for entity_id, payload, corr, activation in some:
                if activation is None or activation.busy:
                    activation = find(entity_id)
                    arrives = activation is None
                    if activation is None:
                        activation = arrive(entity_id, payload, corr)
                    if activation is None or activation.busy:
                        self._divert(run, activation, payload, corr)
                        if not (arrives and plain):
                            continue
                        eager.replace()  # the constructor may have left traces
                        return True
                activation.used = tick
                runner.activation = activation
                try:
                    if single is not None:
                        value = function(activation.entity, single(payload)[0])
                    elif decode is not None:
                        value = function(activation.entity, decode(payload))
                    elif ahead is not None:
                        value = function(activation.entity, ahead.pop())
                    else:
                        value = function(activation.entity, *invoker.decoders[payload[0]](payload))
                except BaseException as e:
                    self._ended(run, activation, payload, corr, error=e)
                    return True
                if not sure and value is not None and type(value) is not finished:
                    if is_unfinished(value):
                        self._finish_answer(run, activation, payload, corr, value, context)
                        return True
                    finished = type(value)
                try:
                    if references(task) != before or attributes or context != untouched:
                        traces = True
                except BaseException:  # of the `__eq__` of a variable's value
                    traces = True
                if traces:
                    self._ended(run, activation, payload, corr, value)
                    return True
                if session is not None:
                    answer(activation, invoker, value, session, corr)
                if activation.stopping is not None or activation.mailbox:
                    runner.settle(activation)
        return False

    # ---- one message, in the await of its sender

    def handle_one(
        self,
        activation: Activation,
        invoker: Invoker,
        session: Session | None,
        message: DirectMessage,
    ) -> None:
        """Handle a message for an idle entity inside the await of its sender. The gate is open.
        Asks of the sender's own message in its first step are kept apart."""
        runner, eager = self._runner, self._eager
        handlers = runner.running_handlers
        self._counts.begun += 1
        activation.used = runner.tick
        first, handlers.first = handlers.first, None
        outer, header = runner.activation, runner.run_header
        runner.activation = activation
        upstream: Any = message.run or ()  # the chain of a run, or the run itself
        runner.run_header = (
            invoker,
            session,
            upstream,
            (message.payload,),
            message.corr,
            NONE_LEFT,
        )
        context, carried = eager.base.copy(), list[bool]()
        entered = eager.enter()
        try:
            coroutine = self._await_one(activation, invoker, session, message, context, carried)
            # Iteration ends without an exception, which would cost as much as the rest.
            waits_for = context.run(next, coroutine.__await__(), ENDED)
            if waits_for is not ENDED:
                message.wait()
                carried.append(True)
                runner.carry_on(activation, coroutine, waits_for, context)
        finally:
            eager.leave(entered)
            runner.activation, runner.run_header, handlers.first = outer, header, first

    async def _await_one(
        self,
        activation: Activation,
        invoker: Invoker,
        session: Session | None,
        message: DirectMessage,
        context: contextvars.Context,
        carried: list[bool],
    ) -> Any:
        """Handle a message in this context. Once a task has `carried` this coroutine on, return the
        result of the handler."""
        eager, payload, single = self._eager, message.payload, invoker.single
        task = eager.task
        task.context, task.coroutine = context, None
        before = references(eager.task)
        value: Any = None
        try:
            if single is not None:
                value = invoker.function(activation.entity, single(payload)[0])
            elif invoker.decode_message is not None:
                value = invoker.function(activation.entity, invoker.decode_message(payload))
            else:
                value = invoker.function(activation.entity, *invoker.decoders[payload[0]](payload))
            if invoker.is_async:
                task.coroutine = coroutine = value
                value = await coroutine
            if not invoker.returns_values and value is not None and is_unfinished(value):
                task.coroutine = coroutine = finish(value)
                value = await coroutine
            if carried:
                return value
        except BaseException as e:
            if carried:
                raise
            message.wait()
            self._step_ended(activation, row_of(invoker, session, message), error=e)
            return None
        try:
            traces = references(eager.task) != before or task.__dict__ or context != eager.base
        except BaseException:  # of the `__eq__` of a variable's value
            traces = True
        if traces:
            message.wait()
            self._step_ended(activation, row_of(invoker, session, message), value)
            return None
        if session is not None and (
            activation.extras is not None or not message.take(invoker.encode, value)
        ):
            message.wait()
            answer(activation, invoker, value, session, message.corr)
        if activation.stopping is not None or activation.mailbox:
            self._runner.settle(activation)
        return None

    # ---- the other cases

    def _divert(self, run: Run, activation: Activation | None, payload: bytes, corr: int) -> None:
        """Queue a message of a run for a busy entity. None: the message belongs elsewhere."""
        runner = self._runner
        _, _, invoker, session, deadline, chain, ahead = run
        self._diverted += 1
        if ahead is not None:
            ahead.pop()
        if activation is not None:
            activation.used = runner.tick
            runner.queue(activation, Message(invoker, payload, session, corr, deadline, chain))

    def _deliver_async(self, run: Run, rows: Rows) -> None:
        """Handle rows for a coroutine function: one coroutine awaits handler after handler until
        one waits. Then a task carries that message on, and another coroutine takes the rest."""
        runner = self._runner
        fresh, more = self._eager.base.copy, True
        while more:
            context, carried = fresh(), list[bool]()
            coroutine = self._await_each(run, rows, context, carried)
            try:
                waits_for = context.run(coroutine.send, None)
            except StopIteration as end:
                more = end.value
            else:
                carried.append(True)
                activation = runner.activation
                assert activation is not None
                runner.carry_on(activation, coroutine, waits_for, context)
                more = fresh().run(self._begin_each, run, rows)

    async def _await_each(
        self, run: Run, rows: Rows, context: contextvars.Context, carried: list[bool]
    ) -> Any:
        """Handle the rest of the rows in this context. Once a task has `carried` this coroutine on,
        return the result of the handler that waited. Otherwise return True if rows may be left,
        which need another context."""
        runner, (find, arrive, invoker, session, _, _, ahead) = self._runner, run
        function, single, decode = invoker.function, invoker.single, invoker.decode_message
        single, decode = (single, decode) if ahead is None else (None, None)
        eager, tick, plain, untouched = self._eager, runner.tick, runner.plain, self._eager.base
        task = eager.task
        task.context = context
        # As an attribute: from 3.14 on some loads of a local are no reference.
        attributes, before, traces = task.__dict__, references(eager.task), False
        sure, finished = invoker.returns_values, NoneType
        for entity_id, payload, corr, activation in rows:
            if activation is None or activation.busy:
                activation = find(entity_id)
                arrives = activation is None
                if activation is None:
                    activation = arrive(entity_id, payload, corr)
                if activation is None or activation.busy:
                    self._divert(run, activation, payload, corr)
                    if not (arrives and plain):
                        continue
                    eager.replace()  # the constructor may have left traces
                    return True
            activation.used = tick
            runner.activation = activation
            try:
                if decode is not None:
                    coroutine = function(activation.entity, decode(payload))
                elif single is not None:
                    coroutine = function(activation.entity, single(payload)[0])
                elif ahead is not None:
                    coroutine = function(activation.entity, ahead.pop())
                else:
                    coroutine = function(activation.entity, *invoker.decoders[payload[0]](payload))
                task.coroutine = coroutine
                value = await coroutine
                if not sure and value is not None and type(value) is not finished:
                    if is_unfinished(value):
                        value = await finish(value)
                    finished = type(value)
                if carried:
                    return value
            except BaseException as e:
                if carried:
                    raise
                self._ended(run, activation, payload, corr, error=e)
                return True
            try:
                if references(eager.task) != before or attributes or context != untouched:
                    traces = True
            except BaseException:  # of the `__eq__` of a variable's value
                traces = True
            if traces:
                self._ended(run, activation, payload, corr, value)
                return True
            if session is not None:
                answer(activation, invoker, value, session, corr)
            if activation.stopping is not None or activation.mailbox:
                runner.settle(activation)
        return False

    def _begin_each(self, run: Run, rows: Rows) -> bool:
        """Handle the rest of the rows, each message by a coroutine of its own, which is the
        handler's, as long as each waits: so do the handlers of most runs in which one has waited.
        Runs in a context of its own, in which payloads are decoded. Returns True if rows may be
        left, because one did not wait."""
        runner = self._runner
        find, arrive, invoker, session, _, chain, ahead = run
        eager, function, tick = self._eager, invoker.function, runner.tick
        single = invoker.single if ahead is None else None
        fresh = eager.base.copy
        carry_on, done = runner.running_handlers.carry_on, runner.carried
        for entity_id, payload, corr, listed in rows:
            activation = listed
            if activation is None or activation.busy:
                activation = find(entity_id) or arrive(entity_id, payload, corr)
                if activation is None or activation.busy:
                    self._divert(run, activation, payload, corr)
                    continue
            activation.used = tick
            runner.activation = activation
            task, coroutine = eager.task, None
            task.context = context = fresh()
            try:
                if single is not None:
                    coroutine = function(activation.entity, single(payload)[0])
                elif ahead is not None:
                    coroutine = function(activation.entity, ahead.pop())
                else:
                    coroutine = invoked(invoker, activation.entity, payload)
                task.coroutine = coroutine
                waits_for = context.run(coroutine.send, None)
            except StopIteration as e:
                if coroutine is not None:
                    self._ended(run, activation, payload, corr, e.value)
                else:  # of decoding
                    self._ended(run, activation, payload, corr, error=e)
                return True
            except BaseException as e:
                self._ended(run, activation, payload, corr, error=e)
                return True
            activation.busy = True
            message = (invoker, payload, session, corr, chain)
            carry_on(activation, coroutine, waits_for, done, context, message)
        return False

    def _ended(
        self,
        run: Run,
        activation: Activation,
        payload: bytes,
        corr: int,
        value: Any = None,
        error: BaseException | None = None,
    ) -> None:
        """Answer a message of a run whose handler has ended in its first step by raising, or with
        traces in its task or context, and give later handlers another task."""
        _, _, invoker, session, deadline, chain, _ = run
        message = Message(invoker, payload, session, corr, deadline, chain)
        self._step_ended(activation, message, value, error)

    def _step_ended(
        self,
        activation: Activation,
        message: Message,
        value: Any = None,
        error: BaseException | None = None,
    ) -> None:
        runner = self._runner
        invoker, payload, session, corr, _, _ = message
        error = self._eager.replace(value, error)
        if error is not None:
            if runner.raised(activation, invoker, payload, error, session, corr):
                runner.settle_if_needed(activation)
            return
        if not invoker.returns_values and is_unfinished(value):
            if runner.run(activation, message, finish(value)):
                runner.settle_if_needed(activation)
            return
        if session is not None:
            answer(activation, invoker, value, session, corr)
        runner.settle_if_needed(activation)

    def _finish_answer(
        self,
        run: Run,
        activation: Activation,
        payload: bytes,
        corr: int,
        value: object,
        context: contextvars.Context,
    ) -> None:
        """Do the work behind a plain function's result, under the current task and in the current
        context, as a part of its message."""
        runner = self._runner
        self._eager.task.coroutine = coroutine = finish(value)
        try:
            waits_for = coroutine.send(None)
        except StopIteration as end:
            self._ended(run, activation, payload, corr, end.value)
        except BaseException as e:
            self._ended(run, activation, payload, corr, error=e)
        else:
            runner.carry_on(activation, coroutine, waits_for, context)

    def _hold_run(self, run: Run, rows: Rows) -> None:
        """Queue messages of a run."""
        runner = self._runner
        find, arrive, invoker, session, deadline, chain, _ = run
        for entity_id, payload, corr, _ in rows:
            self._diverted += 1
            activation = find(entity_id) or arrive(entity_id, payload, corr)
            if activation is not None:
                activation.used = runner.tick
                message = Message(invoker, payload, session, corr, deadline, chain)
                runner.hold_message(activation, message)
