"""Changes of an entity's state that an operator makes while its shard runs here.

The entity itself saves the new state, under its fence and between two messages, like a handler.
Before, its object is disowned: its tasks save nothing any more, and their saves that are not sent
yet are refused. Then it starts again: `on_start` runs with the new state, and the mailbox's
messages follow. `on_stop` does not run, because it might save the entity's former state.

An entity that does not run is not started for it, since its stored state may be one that cannot be
read: it waits in state LISTING, with the messages that arrive, until the store has the new state.
It goes away again if no message has come, unless its type is remembered: then it starts.

A change may name the revision of the stored state that the operator has read. The owner then loads
the stored state, before it saves, and refuses the change if that is another one. It looks a second
time once the object is disowned, because a task may have saved in between. From then on nothing
else can save, and the load raises the stored fence above every earlier owner's.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from shardbus.entities.activation import Activation, LifeState, Message
from shardbus.entities.context import Context
from shardbus.entities.entity_type import EntityType, Invoker
from shardbus.entities.runner import EntityRunner, StateReplaced
from shardbus.error_text import is_a, text_of, type_name
from shardbus.errors import AskTimeout, EntityFailed, Refused, ShardBusError, StateChanged
from shardbus.transport.drop_reports import Origin
from shardbus.wire.stored_state import revision_of

WITHIN_S = 2.5
"""For an entity to come to the change. Less than the asking node waits."""
LOOK_S = 0.05
"""Between two looks at whether the activation has ended."""

Load = Callable[[Activation], Awaitable[bytes | None]]


class WritesState(Protocol):
    """Writes a state. `clears`: the reminders end, too."""

    def __call__(
        self, context: Context, data: bytes | None, *, clears: bool
    ) -> Awaitable[None]: ...


def refuse_if_made_by_events(kind: EntityType) -> None:
    """Let no operator change a state that events make.

    Raises:
        Refused: it is of such a type.
    """
    if kind.events is not None or kind.projection is not None:
        hint = "let a handler persist an event, or `shardbus projection rewind`"
        raise Refused(f"the state of {kind.name} is made by events", hint=hint)


class StateChange:
    """One change: a state as it is stored, or None to remove it. `load` reads the stored one,
    `save` writes, `disown` ends the saves of the entity's object. `revision` names the state to be
    replaced, empty for any."""

    def __init__(
        self,
        kind: EntityType,
        data: bytes | None,
        revision: str,
        load: Load,
        save: WritesState,
        disown: Callable[[Activation], None],
    ) -> None:
        self._kind, self._data, self._revision = kind, data, revision
        self._load, self._save, self._disown = load, save, disown
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun = self._over = False
        self.until = asyncio.get_running_loop().time() + WITHIN_S

    async def make(self, runner: EntityRunner, activation: Activation) -> bool:
        """Hand the change to an activation. Returns False if that has ended before; then the change
        was not made, and may be handed to the next one.

        Raises:
            Refused: it was still busy at the end of the time, and nothing was changed. AskTimeout:
                the store had not answered by then; the state may be changed. Errors of a save.
        """
        invoker = Invoker(
            "$state", self._replace, True, {}, decode_message=lambda payload: activation
        )
        message = Message(invoker, b"", None, Origin.OWN, 0)
        runner.receive(activation, message, counts=False)
        loop = asyncio.get_running_loop()
        while not self._outcome.done():
            if activation.state is LifeState.GONE and not self._begun:
                return False
            if loop.time() >= self.until:
                self._over = True
                raise self._late(activation)
            await asyncio.wait([self._outcome], timeout=LOOK_S)
        self._outcome.result()
        return True

    async def _replace(self, entity: Any, activation: Activation) -> None:
        """Save the state, as the handler of a message. Raises StateReplaced, so that the entity
        starts again."""
        try:
            await self.check(activation)
        except BaseException as error:  # the entity itself has not failed
            self._refuse(error)
            return
        if self._over or activation.state is LifeState.GONE:
            return
        self._begun = True
        self._disown(activation)
        context = activation.context_now()
        try:
            await self.check(activation)
            await self._save(context, self._data, clears=self._data is None)
            codec = self._kind.states
            assert codec is not None
            data, key = self._data, activation.key
            entity.state = codec.cls() if data is None else codec.read(key, data)
        except StateChanged as error:
            self._refuse(error)
        except BaseException as error:
            self._refuse(error)
            raise
        else:
            if not self._outcome.done():
                self._outcome.set_result(None)
        finally:
            entity.context = context  # for `on_stop`, if the entity is to stop
        if activation.stopping is None:
            raise StateReplaced

    def _refuse(self, error: BaseException) -> None:
        """Give the operator an error, which the class of the state may have raised."""
        if not self._outcome.done():
            is_own = is_a(error, ShardBusError)
            refused = error if is_own else EntityFailed(type_name(error), text_of(error))
            self._outcome.set_exception(refused)

    async def check(self, activation: Activation) -> None:
        """Compare the stored state with the revision that the operator has read.

        Raises:
            StateChanged: it is another one. Errors of a load.
        """
        if not self._revision or self._over:
            return
        if revision_of(await self._load(activation)) != self._revision:
            name = f"{self._kind.name} {activation.key!r:.100}"
            hint = "read it again, and change that"
            raise StateChanged(f"the stored state of {name} has changed meanwhile", hint=hint)

    async def save(self, activation: Activation) -> None:
        """Check and save for an entity that does not run."""
        await self.check(activation)
        await self._save(activation.context_now(), self._data, clears=self._data is None)

    def _late(self, activation: Activation) -> Exception:
        name = f"{self._kind.name} {activation.key!r:.100}"
        if self._begun:
            return AskTimeout(f"the store has not confirmed the state of {name} in time")
        hint = "try again, or while no node runs"
        return Refused(f"{name} handles no message now: it is busy or starts", hint=hint)
