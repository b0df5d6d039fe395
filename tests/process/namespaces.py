"""Machines of their own for nodes: network namespaces, wires between them, and walls.

    hub (a namespace)                         machines (a namespace each)
    bridge ── v1 ════════════════ eth0  10.77.0.1
           ── v2 ════════════════ eth0  10.77.0.2   ...

Nothing of it touches the host's network, so tests may run beside each other. The test itself stays
outside: a socket belongs to the namespace in which it was made, so `Machine.dial` steps inside for
that one call, and talks to a node's loopback interface whatever walls stand around the machine.

**A wall** is a rule of iptables at the receiver, in front of everything, so that established
connections feel it too. DROP swallows, as a broken network does. REJECT answers with a TCP reset,
as some firewalls do: to the sender it looks as if nobody listened. All walls of a machine are set
in one step.

**Nothing stays.** `Network.close` ends whatever still runs inside and removes the namespaces. Names
carry the pid of the test run; the next run removes the remains of a dead pid's run.

Needs Linux, root, `ip` (Debian: iproute2) and `iptables-restore` (Debian: iptables).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.redis_server import server_binary
from tests.waiting import PATIENCE_S

FOLDER = Path("/run/netns")
FILES = Path("/etc/netns")
"""The files that `ip netns exec` shows as /etc to the processes of a namespace."""
NAME = re.compile(r"sb-(\d+)-\d+-\w+")
CLONE_NEWNET = 0x40000000
REDIS_PORT = 6379

_numbers = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)


class Wall(Enum):
    """The fate of a packet that meets a wall."""

    DROP = "-j DROP"
    REJECT = "-p tcp ! --tcp-flags RST RST -j REJECT --reject-with tcp-reset"
    """Resets pass, or the answers of one machine's wall would end at the other's."""


def missing() -> str:
    """Why there can be no namespaces here, with advice; empty if there can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root: run the tests as root"
    for program, package in (("ip", "iproute2"), ("iptables-restore", "iptables")):
        if shutil.which(program) is None:
            return f"there is no {program}: install the package {package}"
    name = f"sb-{os.getpid()}-0-trial"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"namespaces cannot be made: {made.stderr.strip()}; allow CAP_SYS_ADMIN"
    _run("ip", "netns", "del", name)
    return ""


def sweep() -> None:
    """Remove the remains of test runs that have ended."""
    for name in os.listdir(FOLDER) if FOLDER.exists() else ():
        match = NAME.fullmatch(name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _remove(name)


@dataclass(frozen=True, slots=True)
class Machine:
    """One namespace on the bridge. `port` is the bridge's end of its cable. `disk` is a folder that
    each process inside has for itself, on an empty file system; empty for none."""

    name: str
    address: str
    port: str
    disk: str = ""

    @property
    def enter(self) -> tuple[str, ...]:
        """The words before a command that is to run inside. The process keeps its pid."""
        inside = ("ip", "netns", "exec", self.name)  # It makes a mount namespace, too.
        if not self.disk:
            return inside
        return (*inside, "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', self.disk)

    @property
    def is_plain(self) -> bool:
        """True if its processes see the files of this machine."""
        return not self.disk and not (FILES / self.name).exists()

    def dial(self, port: int) -> socket.socket:
        """A connection to a port of the machine's own loopback interface."""
        with inside(self.name):
            client = socket.socket()
        try:
            client.settimeout(PATIENCE_S)
            client.connect(("127.0.0.1", port))
        except OSError:
            client.close()
            raise
        return client


class Network:
    """The machines of one test, all on one wire."""

    def __init__(self) -> None:
        sweep()
        self._prefix = f"sb-{os.getpid()}-{next(_numbers)}"
        self._hub = f"{self._prefix}-hub"
        self._walls: dict[Machine, dict[Machine, Wall]] = {}
        self._lost: dict[Machine, list[str]] = {}
        self.machines: list[Machine] = []
        _run("ip", "netns", "add", self._hub)
        _ip(self._hub, "link add br0 type bridge", "link set br0 up")

    def machine(self, disk: str = "") -> Machine:
        """Another machine, plugged in."""
        number = len(self.machines) + 1
        made = Machine(f"{self._prefix}-n{number}", f"10.77.0.{number}", f"v{number}", disk)
        _run("ip", "netns", "add", made.name)
        self.machines.append(made)
        cable = f"link add {made.port} type veth peer name eth0 netns {made.name}"
        _ip(self._hub, cable, f"link set {made.port} master br0 up")
        address = f"addr add {made.address}/24 dev eth0"
        _ip(made.name, address, "link set eth0 up", "link set lo up")
        return made

    # -- walls -----------------------------------------------------------------------------------

    def stop(
        self, senders: Iterable[Machine], receivers: Iterable[Machine], wall: Wall = Wall.DROP
    ) -> None:
        """Drop packets of these senders to these receivers; the other way is open."""
        senders = list(senders)
        for receiver in receivers:
            walls = self._walls.setdefault(receiver, {})
            walls.update({sender: wall for sender in senders if sender != receiver})
        self._build()

    def split(self, *sides: Iterable[Machine], wall: Wall = Wall.DROP) -> None:
        """Nothing passes between these sides."""
        parts = [list(side) for side in sides]
        for side, other in itertools.permutations(parts, 2):
            for receiver in other:
                self._walls.setdefault(receiver, {}).update(dict.fromkeys(side, wall))
        self._build()

    def lose(
        self, machine: Machine, *ports: int, dialled: bool = True, taken: bool = False
    ) -> None:
        """Packets of the connections to these ports get lost at this machine, in silence: those
        that it has `dialled`, and those that it has `taken` from others."""
        lost = self._lost.setdefault(machine, [])
        for port in ports:
            for at, chosen in (("d", dialled), ("s", taken)):
                away, back = f"--{at}port {port}", f"--{'s' if at == 'd' else 'd'}port {port}"
                if chosen:
                    lost.append(f"-A OUTPUT -p tcp {away} ! -o lo -j DROP")
                    lost.append(f"-A INPUT -p tcp {back} ! -i lo -j DROP")
        self._build()

    def heal(self) -> None:
        """No walls any more."""
        self._walls = {machine: {} for machine in self._walls}
        self._lost = {machine: [] for machine in self._lost}
        self._build()

    def unplug(self, machine: Machine) -> None:
        """Pull its cable."""
        _ip(self._hub, f"link set {machine.port} down")

    def plug(self, machine: Machine) -> None:
        """Put its cable back."""
        _ip(self._hub, f"link set {machine.port} up")

    def _build(self) -> None:
        """Set all walls, on every machine at the same time."""
        builders = []
        for receiver in {**self._walls, **self._lost}:
            senders = self._walls.get(receiver, {})
            rules = [f"-A INPUT -s {s.address} {wall.value}" for s, wall in senders.items()]
            rules += self._lost.get(receiver, [])
            chains = [":INPUT ACCEPT [0:0]", ":OUTPUT ACCEPT [0:0]"]
            table = "\n".join(["*filter", *chains, *rules, "COMMIT", ""])
            command = [*receiver.enter, "iptables-restore", "-w", "5"]
            builder = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
            builders.append((builder, table))
        for builder, table in builders:
            builder.communicate(table)
        assert not any(builder.returncode for builder, _ in builders), "iptables-restore failed"

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End the processes inside, and remove everything."""
        for name in (*(m.name for m in self.machines), self._hub):
            _remove(name)


@contextlib.contextmanager
def redis_on(machine: Machine, folder: Path) -> Iterator[str]:
    """The URL of a Redis server that runs on this machine."""
    folder.mkdir()
    command = [*machine.enter, str(server_binary()), "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--protected-mode", "no", "--port", str(REDIS_PORT)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _answers(machine):
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "Redis does not answer"
            time.sleep(0.01)
        yield f"redis://{machine.address}:{REDIS_PORT}/0"
    finally:
        server.kill()
        server.wait()


def _answers(machine: Machine) -> bool:
    try:
        with machine.dial(REDIS_PORT) as client:
            client.sendall(b"PING\r\n")
            return client.recv(7) == b"+PONG\r\n"
    except OSError:
        return False


def _remove(name: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):  # another run swept it first
        for pid in _run("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _run("ip", "netns", "del", name)


def _ip(namespace: str, *lines: str) -> None:
    """Run lines of `ip` inside."""
    _run("ip", "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def _run(*command: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stdout


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread is in the namespace, for as long as the context lasts."""
    with Path("/proc/thread-self/ns/net").open() as home, (FOLDER / name).open() as there:
        _setns(there.fileno())
        try:
            yield
        finally:
            _setns(home.fileno())


def enter(name: str) -> None:
    """This thread is in the namespace from now on."""
    with (FOLDER / name).open() as there:
        _setns(there.fileno())


def _setns(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
