"""The world of membership: three nodes of a cluster, in the simulator's world.

    kill n2, stop n2     the process dies; it stands still for longer than it takes to be downed
    restart n2           another process starts at the address of a dead one
    leave n2, down n2    n2 leaves; n1 downs n2
    cut n1, heal         nothing passes between n1 and the others; walls fall
    tick                 seconds pass

Laws: the simulation's laws, after every step of every machine. At rest, without walls, all that
run agree, and each process that was removed has ended.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from shardbus.membership import events as ev
from tests.unit.membership.membership_net import Net

NAMES = "n01", "n02", "n03"
TICK_S, REST_S = 4.0, 90.0


class ClusterWorld:
    """A cluster that has formed."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.net = Net(1)
        self.net.start(len(NAMES))

    def _alive(self) -> list[str]:
        return [node.name for node in self.net.running()]

    def events(self) -> Iterable[str]:
        net, alive, verbs = self.net, self._alive(), ["tick"]
        for name in NAMES:
            node = net.nodes[name]
            if name in alive and len(alive) > 1:
                verbs += [f"kill {name}", f"leave {name}"]
                if node.paused_until <= net.now:
                    verbs.append(f"stop {name}")
            elif name not in alive and alive:
                verbs.append(f"restart {name}")
        if alive[:1] and len(alive) > 1:
            verbs.append(f"down {alive[-1]}")
        verbs += ["heal"] if net.network.walls else [f"cut {name}" for name in NAMES[::2]]
        return verbs

    def do(self, event: str) -> None:
        net = self.net
        match event.split():
            case ["kill", name]:
                net.kill(name)
            case ["stop", name]:
                net.pause(name, 30.0)
            case ["restart", name]:
                others = [other for other in self._alive() if other != name]
                net.join(name, *others)
            case ["leave", name]:
                net.deliver(net.nodes[name], ev.Leave(net.nodes[name].id))
            case ["down", name]:
                first = net.nodes[self._alive()[0]]
                net.deliver(first, ev.Down(net.nodes[name].id))
            case ["cut", name]:
                net.partition([name], [other for other in NAMES if other != name])
            case ["heal"]:
                net.heal()
            case ["tick"]:
                net.run(TICK_S)
        net.run(0.5)

    def key(self) -> Hashable:
        net = self.net
        views = tuple((node.name, tuple(node.view)) for node in net.running())
        paused = tuple(n.name for n in net.running() if n.paused_until > net.now)
        return views, paused, bool(net.network.walls)

    def rest(self) -> None:
        self.net.heal()
        self.net.run(REST_S)
        running = self.net.running()
        views = {tuple(node.view) for node in running}
        assert len(views) <= 1, f"they see {views}"
        for view in views:
            assert [name for name, _ in view] == sorted(node.name for node in running)
            assert {status for _, status in view} == {"up"}, view

    def close(self) -> None: ...
