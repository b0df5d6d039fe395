"""The command starts without the libraries of a node."""

from __future__ import annotations

import subprocess
import sys

from shardbus_cli.commands import app as command


def test_starting_the_command_imports_nothing_heavy():
    program = "import sys, shardbus_cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert command
    assert not loaded & {"zmq", "redis", "starlette", "uvicorn", "prometheus_client", "msgspec"}
