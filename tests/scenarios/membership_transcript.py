"""Transcripts of the membership machines: commands that cause events, and the lane of messages.

A file is a series of commands, each a line that begins with `$`, and below each its consequences.
Several commands may share a line, separated by `;`. Lines that begin with `#` are for the reader.

    $ settings min_members=3    of section `cluster`, for all nodes; before the first of them
    $ seeds n1 n2               whom nodes join by; without it by the first that there was
    $ join n2 n3                nodes start, or start again, and join by the seeds
    $ join n4 by n2 roles=db    ... by others; `cluster=` is its name, other words must be equal
    $ discover n1 n2            nodes start, or start again, and join by those in the store
    $ kill n1 | vanish n1       the process dies; the whole machine dies, and refuses no connection
    $ restart n1                the process dies, and another starts at its address
    $ stop n1 20s               SIGSTOP, and SIGCONT later
    $ leave n1                  n1 leaves
    $ down n1 n3                somebody tells n1 that n3 is down; `remove`: ... to remove it
    $ quarantine n1 n3          nothing that n1 sends to n3 by a link is taken
    $ shutdown n1               somebody tells n1 that the whole cluster shall stop
    $ partition n1 n2 | n3      nothing crosses
    $ unplug n1 n2 | n3         ... for so long that connections break, and are made anew later
    $ reject n1 n2 | n3         ... and connections are refused, as if nobody listened
    $ oneway n1 | n2 n3         nothing gets from n1 to n2 and n3
    $ cut n1 n2                 these two do not reach each other
    $ heal                      no walls any more
    $ lease down | up           the store of leases
    $ lose GossipState          messages of these kinds are lost from now on; without any: none
    $ tick 5s                   time passes
    $ given join n1 n2; tick 5s   the rest is not drawn
    $ repeat 3 join n4; tick 5s   three times, not drawn
    $ undrawn gossip rows       not drawn from now on: messages of gossip; versions without an event
    $ show                      the view of each node
    $ weigh n1                  how large the state of n1 is

How to read a lane: `membership_stage`; its words: `membership_words`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from shardbus.config.loading import from_assignments, load
from shardbus.membership import events as ev
from shardbus.simulation.membership.network import CutLink, partition
from tests.scenarios.membership_stage import Stage
from tests.scenarios.membership_words import weight
from tests.scenarios.playing import replayed


class Script:
    """Performs commands on a stage of its own."""

    def __init__(self) -> None:
        self.assignments: list[str] = []
        self.seeds: list[str] = []
        self._stage: Stage | None = None

    @property
    def stage(self) -> Stage:
        """The stage, which stands from the first command on that needs it."""
        if self._stage is None:
            layers = from_assignments(f"cluster.{a}" for a in self.assignments)
            self._stage = Stage(load(layers).cluster)
        return self._stage

    def perform(self, line: str) -> list[str]:
        """The consequences of a line of commands."""
        match line.split(maxsplit=2):
            case ["settings", *_]:
                if self._stage:
                    raise ValueError("settings come before everything else")
                self.assignments += line.split()[1:]
                return []
            case ["given", *_]:
                self.perform(line.removeprefix("given"))
                return []
            case ["repeat", times, what]:
                for _ in range(int(times)):
                    self.perform(what)
                return []
        self.stage.clear()
        texts = [text for command in line.split(";") for text in self._command(command.split())]
        return [*self.stage.lane, *self.stage.counted(), *texts]

    def _command(self, words: list[str]) -> list[str]:
        stage, nodes = self.stage, self.stage.nodes
        match words:
            case ["seeds", *names]:
                self.seeds = names
            case ["join", *rest]:
                self._join(rest)
            case ["discover", *names]:
                for name in names:
                    process = stage.nodes.get(name)
                    if process is None or not process.alive:
                        process = stage.add(name)
                    stage.discover(process)
            case ["restart", name]:
                stage.kill(name)
                self._join([name])
            case ["kill" | "vanish" as how, *names]:
                for name in names:
                    stage.kill(name, silent=how == "vanish")
            case ["stop", name, seconds]:
                stage.pause(name, _seconds(seconds))
            case ["leave", *names]:
                for name in names:
                    stage.deliver(nodes[name], ev.Leave(nodes[name].id))
            case ["down", name, *others]:
                for other in others:
                    stage.deliver(nodes[name], ev.Down(nodes[other].id))
            case ["remove", name, other]:
                stage.deliver(nodes[name], ev.Remove(nodes[other].id))
            case ["quarantine", name, other]:
                stage.deliver(nodes[name], ev.Quarantine(nodes[other].id))
            case ["shutdown", name]:
                stage.deliver(nodes[name], ev.PrepareForShutdown())
            case ["tick", seconds]:
                stage.run(_seconds(seconds))
            case ["show"]:
                return [f"  {line}" for line in stage.words.table(stage.by_id.values())]
            case ["weigh", name]:
                return [f"  {name}: {weight(nodes[name], stage.now)}"]
            case _:
                self._wall(words)
        return []

    def _wall(self, words: list[str]) -> None:
        stage = self.stage
        match words:
            case ["partition" | "unplug" | "reject" | "oneway" as how, *names]:
                sides = _sides(names)
                wall = partition(*sides, one_way=how == "oneway", rejecting=how == "reject")
                stage.wall_up(wall, breaking=float(how == "unplug"))
            case ["cut", one, other]:
                stage.wall_up(CutLink(frozenset((one, other))))
            case ["heal"]:
                stage.heal()
            case ["lease", "up" | "down" as state]:
                stage.leases.up = state == "up"
            case ["undrawn", *kinds]:
                stage.draws_gossip = "gossip" not in kinds
                stage.draws_rows = "rows" not in kinds
            case ["lose", *kinds]:
                stage.lost = tuple(kinds)
            case _:
                raise ValueError(f"no such command: {' '.join(words)}")

    def _join(self, words: list[str]) -> None:
        names = [word for word in words if "=" not in word]
        facts = dict(word.split("=", 1) for word in words if "=" in word)
        roles = tuple(facts.pop("roles", "").split(",")) if "roles" in facts else ()
        cluster = facts.pop("cluster", "test")
        at = names.index("by") if "by" in names else len(names)
        names, seeds = names[:at], names[at + 1 :] or self.seeds or names[:1]
        if "by" not in words:
            self.seeds = seeds
        for name in names:
            process = self.stage.nodes.get(name)
            if process is None or not process.alive:
                process = self.stage.add(name, cluster=cluster, fingerprint=facts, roles=roles)
            self.stage.enter(process, *seeds)


def _sides(names: list[str]) -> Iterator[list[str]]:
    for wall, side in groupby(names, lambda name: name == "|"):
        if not wall:
            yield list(side)


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def play(script: str) -> str:
    """The script with the lanes as they are now."""
    return replayed(script, Script().perform)
