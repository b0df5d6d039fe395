"""The table of an activation's life, and the cost of an activation."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import pytest

from shardbus.entities.activation import (
    OUTCOME,
    TRANSITIONS,
    Activation,
    Extras,
    LifeState,
    LifeStep,
    Message,
    Shard,
    StopRequest,
)
from shardbus.entities.context import FirstContext
from shardbus.entities.entity_type import Invoker, StopReason
from shardbus.errors import LocalProtocolError
from shardbus.transport.drop_reports import Origin

EVERY = [(state, step) for state in LifeState for step in LifeStep]


def activation(state: LifeState = LifeState.STARTING, *, busy: bool = True) -> Activation:
    made = Activation(Shard("0", 1), "e")
    made.state, made.busy = state, busy
    return made


def message(corr: int, name: str = "hit") -> Message:
    return Message(Invoker(name, lambda entity: None, False, {}), b"", None, corr, 0)


# The table


@pytest.mark.parametrize(("state", "step"), EVERY)
def test_a_step_leads_where_the_table_says_or_is_refused(state: LifeState, step: LifeStep) -> None:
    a = activation(state)
    if (state, step) in TRANSITIONS:
        a.step(step)
        assert a.state is TRANSITIONS[state, step]
    else:
        with pytest.raises(LocalProtocolError, match=f"{step.name} in state {state.name}"):
            a.step(step)
        assert a.state is state


def test_an_entity_lives_its_life() -> None:
    a = activation()
    for step, state in [
        (LifeStep.LISTS, LifeState.LISTING),
        (LifeStep.LISTED, LifeState.STARTING),
        (LifeStep.PAUSES, LifeState.PAUSING),
        (LifeStep.RETRIES, LifeState.STARTING),
        (LifeStep.STARTED, LifeState.RUNNING),
        (LifeStep.RESTARTS, LifeState.STARTING),
        (LifeStep.STARTED, LifeState.RUNNING),
        (LifeStep.RESTS, LifeState.RESTING),
        (LifeStep.WAKES, LifeState.RUNNING),
        (LifeStep.STOPS, LifeState.STOPPING),
        (LifeStep.ENDS, LifeState.GONE),
    ]:
        a.step(step)
        assert a.state is state


def test_any_state_but_gone_can_end_and_gone_is_final() -> None:
    for state in LifeState:
        assert ((state, LifeStep.ENDS) in TRANSITIONS) is (state is not LifeState.GONE)
    assert not [step for state, step in TRANSITIONS if state is LifeState.GONE]


def test_every_state_is_reached_from_the_first() -> None:
    reached, open_states = set[LifeState](), {LifeState.STARTING}
    while open_states:
        state = open_states.pop()
        reached.add(state)
        open_states |= {after for (before, _), after in TRANSITIONS.items() if before is state}
        open_states -= reached
    assert reached == set(LifeState)


def test_an_entity_that_refuses_never_runs_again() -> None:
    after = {to for (state, _), to in TRANSITIONS.items() if state is LifeState.REFUSING}
    assert after == {LifeState.REFUSING, LifeState.GONE}


@pytest.mark.parametrize("state", [s for s in LifeState if s is not LifeState.GONE])
def test_messages_queue_in_every_state_but_running(state: LifeState) -> None:
    a = activation(state, busy=False)
    a.step(LifeStep.ENDS)
    assert a.busy
    started = activation()
    started.step(LifeStep.STARTED)
    assert started.busy, "the runner settles it first"


# Data


def test_a_context_is_as_small_as_its_activation() -> None:
    context = FirstContext(Shard("0", 1), "e")
    assert FirstContext.__slots__ == ()
    assert not hasattr(context, "__dict__")
    assert sys.getsizeof(context) == sys.getsizeof(activation())


@pytest.mark.parametrize(
    ("corr", "name", "ends"),
    [
        (Origin.OWN, "hit", True),
        (Origin.UNREPORTED, "hit", False),
        (Origin.UNREPORTED - 5, "hit", False),
        (0, OUTCOME, True),
        (17, "hit", False),
    ],
)
def test_messages_of_timers_and_work_end_with_the_activation(
    corr: int, name: str, ends: bool
) -> None:
    assert message(corr, name).ends_with_activation is ends


@pytest.mark.parametrize(
    ("stopping", "mailbox", "works", "ends"),
    [
        (StopReason.HANDOFF, 0, False, True),
        (StopReason.HANDOFF, 1, False, False),
        (StopReason.SHUTDOWN, 1, False, False),
        (StopReason.HANDOFF, 0, True, False),
        (StopReason.PASSIVATION, 1, True, True),
        (StopReason.STOPPED, 1, True, True),
        (StopReason.FAILURE, 1, True, True),
    ],
)
def test_what_an_entity_does_before_it_ends(
    stopping: StopReason, mailbox: int, works: bool, ends: bool
) -> None:
    a = activation(LifeState.RUNNING)
    a.entity, a.stopping = object(), stopping
    a.mailbox = deque([message(1)] * mailbox)
    if works:
        work: Any = object()
        a.more().work[work] = (None, 0, ())
    assert a.ends_now is ends
    a.entity = None
    assert a.ends_now, "without an object there is nothing to do"


def test_an_entity_that_holds_ends_once_nothing_of_its_own_waits() -> None:
    a = activation(LifeState.RUNNING)
    a.entity, a.stopping = object(), StopReason.HANDOFF
    request = a.more().stop_request = StopRequest(
        message(Origin.OWN), StopReason.PASSIVATION, last=True
    )
    a.mailbox = deque([message(1)])
    assert not a.ends_now
    request.handed = True
    assert request.holds
    assert a.ends_now
    a.mailbox.append(message(Origin.OWN))
    assert request.first_own(a.mailbox) == 1
    assert not a.ends_now


def test_a_stashed_message_is_noted_once() -> None:
    extras = Extras()
    extras.stashed = True
    assert (extras.take_stashed(), extras.take_stashed()) == (True, False)
