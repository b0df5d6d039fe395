"""The loop of a supervisor: events of children and signals go to a machine, whose effects it
carries out.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from shardbus_cli.children import group
from shardbus_cli.children.prefixed_output import PrefixedOutput
from shardbus_cli.children.process import ChildKind, ChildProcess, start_child
from shardbus_cli.line_writer import Console

ProcessEvent = group.ChildEvent | tuple[ChildProcess, int, group.Report]
FIRST_NOTE_S, NOTE_S = 1.0, 5.0
"""Until the first report of which children have not ended, and between two."""


@dataclass(eq=False, repr=False)
class ChildSupervisor:
    """Runs child processes until their group ends. Made in the loop that runs it.

    Args:
        machine: decides.
        kind: how the processes are started.
        arguments: returns the arguments of a run for the descriptor of its end of the socket.
        report: prints an effect that the user should see; called before it is carried out.
        at_once: the end of a sentence that says how a second signal hurries the children.
    """

    _machine: group.ChildGroup
    _kind: ChildKind
    _arguments: Callable[[group.SpawnChild, int], Sequence[str]]
    _report: Callable[[group.ChildEffect], None]
    _console: Console
    _at_once: str
    processes: dict[int, ChildProcess] = field(default_factory=dict)
    """The process of each run."""
    facts: dict[int, group.Report] = field(default_factory=dict)
    """The last value of each fact that a run has reported."""
    _output: PrefixedOutput = field(default_factory=PrefixedOutput)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _events: asyncio.Queue[ProcessEvent] = field(default_factory=asyncio.Queue)
    _code: int | None = None
    _note_at: float | None = None
    """When to report which children have not ended yet."""
    _ending: bool = False

    def post(self, event: ProcessEvent) -> None:
        """Hand an event to the loop. May be called in any thread, and by a handler of a signal."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def run(self, *signals: signal.Signals) -> int:
        """Run until the last process has ended; these signals end them. Returns the exit code.

        The handlers stay until the process ends, unlike asyncio's, so that no signal changes the
        exit code.
        """
        for number in signals:
            signal.signal(number, lambda *_: self.post(group.Interrupt()))
        self._output.start()
        self._handle(group.StartAll())
        try:
            while self._code is None:
                await self._step()
            return self._code
        finally:
            for process in self.processes.values():
                process.kill()
            await asyncio.to_thread(self._output.close)

    async def _step(self) -> None:
        """Wait for an event or the next deadline, and handle it."""
        dues = [due for due in (self._machine.deadline(), self._note_at) if due is not None]
        try:
            async with asyncio.timeout_at(min(dues, default=None)):
                event = await self._events.get()
        except TimeoutError:
            self._on_time(self._loop.time())
            return
        if isinstance(event, tuple):
            self._on_report(*event)
            return
        if isinstance(event, group.ChildExited):
            self.processes.pop(event.run, None)
            self.facts.pop(event.run, None)
        self._handle(event)

    def _on_report(self, process: ChildProcess, run: int, report: group.Report) -> None:
        """Handle a report, unless the run has ended: a program that it left behind may send one."""
        if self.processes.get(run) is not process:
            return
        self.facts[run] = {**self.facts.get(run, {}), **report}
        self._handle(group.event_of(run, report))

    def _on_time(self, now: float) -> None:
        if self._note_at is not None and self._note_at <= now:
            self._note_ends(now)
        due = self._machine.deadline()
        if due is not None and due <= now:
            self._carry_out(self._machine.tick(now))

    def _note_ends(self, now: float) -> None:
        """Report which children have not ended yet, and how long they may take."""
        self._note_at = now + NOTE_S
        if late := ", ".join(map(str, self._machine.ending)):
            left = max(0.0, self._machine.ends_by - now)
            self._console.note(
                f"shardbus: waiting for the end of {self._kind.noun} {late}, {left:.0f} s more at "
                f"most, then they are killed; {self._at_once}"
            )

    def _handle(self, event: group.ChildEvent) -> None:
        self._carry_out(self._machine.handle(event, self._loop.time()))

    def _carry_out(self, effects: Iterable[group.ChildEffect]) -> None:
        for effect in effects:
            self._report(effect)
            match effect:
                case group.SpawnChild():
                    self._spawn(effect)
                case group.CommandChild(run, word) if run in self.processes:
                    self.processes[run].send(word)
                case group.KillChild(run) if run in self.processes:
                    self.processes[run].kill()
                case group.Ending():
                    self._note_at = None if self._ending else self._loop.time() + FIRST_NOTE_S
                    self._ending = True
                case group.EndAll(code):
                    self._code = code
                case _:
                    pass

    def _spawn(self, spawn: group.SpawnChild) -> None:
        run, arguments = spawn.run, partial(self._arguments, spawn)
        try:
            process = start_child(self._kind, spawn.number, arguments, self._output)
        except OSError as failed:
            self._report(group.NotStarted(spawn.number, failed))
            self.post(group.ChildExited(run, group.FAILED))
            return
        self.processes[run] = process
        process.follow(
            lambda report: self.post((process, run, report)),
            lambda code: self.post(group.ChildExited(run, code)),
        )
