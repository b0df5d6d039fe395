"""Sessions of a README, as they stand there, in a terminal of a test's own.

They run on free ports and with a state directory of their own. Text that differs from run to run
(uids, fences, the homes of shards) is compared by its shape; answers, refusals and exit codes are
compared as they are.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import WORKER
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PORTS = (7355, 7365, 7375, 8558, 8568, 8578, 8598)
HOME = "/home/you/.local/state"
VARIABLE = re.compile(r"#[0-9a-f]{16}|\d+")
SHAPED = re.compile(
    r"(SHARDBUS_NODE_TOKEN=local-machine-only )?shardbus (nodes|shards|where|types|node leave)"
)
"""Commands whose output is compared by its shape."""
READS = re.compile(r"shardbus (nodes|shards|where|types)")
"""Commands that change nothing: they are repeated until their output is the page's."""
ASK = "shardbus ask "
PATIENT_ASK = f"{ASK}--timeout {PATIENCE_S:g} "


@dataclass
class Step:
    """A command, or `^C`, and its output in the README."""

    command: str
    output: list[str] = field(default_factory=list)


def blocks(text: str, language: str) -> list[str]:
    """The blocks of a page in some language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def sessions(text: str) -> list[list[Step]]:
    """The console blocks of a page as steps."""
    found_steps: list[list[Step]] = []
    for block in blocks(text, "console"):
        steps: list[Step] = []
        for line in block.splitlines():
            if line.startswith("$ ") or line == "^C":
                steps.append(Step(line.removeprefix("$ ")))
            else:
                steps[-1].output.append(line)
        found_steps.append(steps)
    return found_steps


class Terminal:
    """Runs the steps of a session: nodes in the background, everything else to its end."""

    def __init__(self, tmp: Path) -> None:
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.nodes: list[subprocess.Popen[str]] = []
        self.code = 0
        self.folder = ROOT
        self.state = tmp / "state"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDBUS_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = environment | {
            "PATH": path,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}",
            "PYTHONUNBUFFERED": "1",
            "XDG_STATE_HOME": str(self.state),
            "SHARDBUS_NODE_URL": f"http://127.0.0.1:{self.ports[8558]}",
        }

    def here(self, text: str) -> str:
        """The README's text with the ports and the state directory of this run."""
        text = text.replace(HOME, str(self.state))
        for port, run_port in self.ports.items():
            text = re.sub(rf"\b{port}\b", str(run_port), text)
        return text

    def run(self, step: Step) -> list[str]:
        """The output of the step. A node's log is left out."""
        if step.command == "^C":
            return self._interrupt()
        if step.command.startswith("make "):
            return self._make(step.command.partition("#")[0].split()[1])
        if step.command == "echo $?":
            return [str(self.code)]
        if step.command.startswith("export "):
            name, _, value = step.command.removeprefix("export ").partition("=")
            self.environment[name] = self.here(value)
            return []
        if " node start " in step.command:
            return self._start(self._with_ports(self.here(step.command)))
        done = subprocess.run(
            ["bash", "-c", self.here(step.command).replace(ASK, PATIENT_ASK)],
            cwd=self.folder, env=self.environment, text=True, check=False, timeout=PATIENCE_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.code = done.returncode
        return done.stdout.splitlines()

    def _with_ports(self, command: str) -> str:
        """A node that the README starts at the default ports gets the ports of this run."""
        if "--port" in command:
            return command
        return f"{command} --port {self.ports[7355]} --http-port {self.ports[8558]}"

    def _make(self, target: str) -> list[str]:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        return []

    def _start(self, command: str) -> list[str]:
        node = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.environment,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.nodes.append(node)
        assert node.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(node.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), f"{command} is not ready"
        return [node.stdout.readline().rstrip("\n")]

    def _interrupt(self) -> list[str]:
        """Ctrl-C in the terminal of the youngest node that runs."""
        running = [node for node in self.nodes if node.poll() is None]
        return self.interrupt(running[-1])

    def interrupt(self, node: subprocess.Popen[str]) -> list[str]:
        """Ctrl-C in the terminal of a node: its output until its end, without its log, and without
        the lines of a slow host about what it waits for."""
        node.send_signal(signal.SIGINT)
        _, log = node.communicate(timeout=PATIENCE_S)
        self.code = node.returncode
        assert self.code == 0, log
        apart = ("{", "shardbus: this node waits for ")
        return [line for line in log.splitlines() if not line.startswith(apart)]

    def wait_for_departed(self) -> None:
        """Return when the node that was asked to leave has done so."""
        assert self.nodes[-1].communicate(timeout=PATIENCE_S) is not None
        assert self.nodes[-1].returncode == 0

    def expect(self, step: Step) -> None:
        """Run a step, and compare."""
        got = self.run(step)
        deadline = time.monotonic() + PATIENCE_S
        while READS.match(step.command) and not self.as_shown(step, got):
            if time.monotonic() > deadline:
                break
            got = self.run(step)
        if SHAPED.match(step.command):
            assert self.as_shown(step, got), (step.command, got)
        else:
            assert got == [self.here(line) for line in step.output], (step.command, got)
        if "node leave" in step.command:
            self.wait_for_departed()

    @staticmethod
    def as_shown(step: Step, got: list[str]) -> bool:
        """True if the output has the shape of the page's output."""
        return list(map(shape, got)) == list(map(shape, step.output))

    @property
    def nodes_run(self) -> bool:
        """Whether a node still runs."""
        return any(node.poll() is None for node in self.nodes)

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
            node.communicate()


def free_ports(count: int) -> list[int]:
    """Ports in ascending order, as in the README: the order of nodes decides who leads. The port
    behind each is free, too. They lie above the ports of the flights' demo, below the ports that
    the system gives away, and each test worker has its own."""
    ports: list[int] = []
    begin = 32_010 + 180 * (WORKER % 4)
    for first in range(begin, begin + 180, 10):
        if all(map(is_free, (first, first + 1))):
            ports.append(first)
        if len(ports) == count:
            return ports
    raise AssertionError("there are no free ports")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def shape(line: str) -> str:
    """The line without the parts that differ from run to run."""
    return " ".join(VARIABLE.sub("0", line).split())
