"""Transcripts of the singleton machines: commands that cause events, and the lane of messages.

A file is a series of commands, each a line that begins with `$`, and below each its consequences.
Lines that begin with `#` are for the reader.

    $ node n1 n2              nodes come up, each younger than those before
    $ leave n1                it leaves; membership takes two seconds to remove it
    $ crash n1 n2             processes die, and are proved dead, downed and removed
    $ down n1                 a live member is declared Down
    $ restart n1 as n4        another process comes up at the address of n1
    $ late n2 1.5             membership's events reach n2 so much later
    $ lose n1 HandOverDone 2  the next two of these messages of n1 are lost
    $ slow n1 2               its instance takes so long to finish
    $ prepare                 the whole cluster is about to stop
    $ run 5                   time passes

The lane shows seconds, new states (`=`), messages (`>`, or `x` if they are lost) and the actions of
instances. Messages take half a millisecond, claims and views one.
"""

from __future__ import annotations

from shardbus.ids import NodeId
from shardbus.membership.singleton import messages as ho
from tests.scenarios.playing import Steady, replayed
from tests.unit.membership.singleton.singleton_net import Net, Node


class Stage(Net):
    """A network whose every message is written down."""

    def __init__(self) -> None:
        super().__init__(0)
        self.dice = Steady(0)
        self.lane: list[str] = []
        self.late: dict[NodeId, float] = {}
        self.losing: dict[tuple[NodeId, str], int] = {}

    def say(self, text: str) -> None:
        self.lane.append(f"{self.now:7.3f}  {text}")

    def lag_of(self, node: Node) -> float:
        return self.late.get(node.me, super().lag_of(node))

    def send(self, source: Node, to: NodeId, message: ho.Message) -> None:
        name = type(message).__name__
        left = self.losing.get((source.me, name), 0)
        self.losing[source.me, name] = max(0, left - 1)
        mark = "x" if left else ">"
        self.say(f"{source.name} {mark} {self.nodes[to].name:3} {name} {message.epoch}")
        if not left:
            super().send(source, to, message)

    def trace(self, node: Node, what: object) -> None:
        match what:
            case int():
                self.say(f"{node.name} rules, epoch {what}")
            case ho.SingletonStateChanged(_, after, why):
                self.say(f"{node.name} = {after}: {why}")
            case ho.PrepareInstance():
                self.say(f"{node.name} gets ready")
            case ho.StartInstance(epoch):
                self.say(f"{node.name} claims above epoch {epoch}")
            case ho.RetireInstance():
                self.say(f"{node.name} finishes")
            case ho.HaltInstance():
                self.say(f"{node.name} stops at once")
            case ho.InstanceStopped():
                self.say(f"{node.name} has stopped")
            case _:
                pass

    # Commands.

    def perform(self, command: str) -> list[str]:
        self.lane = []
        self._do(command)
        return [f"  {entry}" for entry in self.lane]

    def _do(self, command: str) -> None:
        match command.split():
            case ["node", *names]:
                for name in names:
                    self.join(name)
            case ["leave", *names]:
                for name in names:
                    self.leave(self.named(name))
            case ["crash", *names]:
                for name in names:
                    self.crash(self.named(name))
            case ["down", name]:
                self.down(self.named(name))
            case ["restart", name, "as", new]:
                self.join(new, at=self.named(name).me)
            case ["late", name, seconds]:
                self.late[self.named(name).me] = float(seconds)
            case ["lose", name, message, count]:
                self.losing[self.named(name).me, message] = int(count)
            case ["slow", name, seconds]:
                self.named(name).retires_in = float(seconds)
            case ["prepare"]:
                self.prepare_shutdown()
            case ["run", seconds]:
                self.run_to(self.now + float(seconds))
            case _:
                raise ValueError(f"no such command: {command}")

    def named(self, name: str) -> Node:
        return next(node for node in self.nodes.values() if node.name == name)

    def check(self) -> None:
        """The reader judges the transcript."""


def play(script: str) -> str:
    """The script with the lanes as they are now."""
    stage = Stage()
    played = replayed(script, stage.perform)
    stage.check_quiet()
    return played
